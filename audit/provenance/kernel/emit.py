"""Writing down what was not plainly sound: one row per cause and event, with the pages it concerns."""

from __future__ import annotations

from typing import Any

LOOK_BACK = 16  # rows of the same event that are searched for the same cause


def emit(
    w: Any,
    code: int,
    ev: int,
    a: int,
    b: int,
    ev2: int,
    since: int,
    pool: int,
    page: int,
    gen: int,
    lo: int,
    hi: int,
    x: int,
) -> None:
    """Add one page to the fact (code, ev, affected actor a, other actor b, other event ev2, detail x).

    `since` is the event from which on the page's state was relied upon: a gap between it and `ev` takes the proof
    away. `page` is the pool's own number, [lo, hi) its rows.
    """
    n = w.count.facts
    row = n - 1
    stop = max(w.count.facts0, n - LOOK_BACK)
    while row >= stop:
        if (
            w.facts[row].code == code
            and w.facts[row].a == a
            and w.facts[row].b == b
            and w.facts[row].ev2 == ev2
            and w.facts[row].x == x
            and w.facts[row].ev == ev
        ):
            break
        row -= 1
    if row < stop:
        row = n
        w.count.facts = n + 1
        w.facts[row].code = code
        w.facts[row].ev = ev
        w.facts[row].a = a
        w.facts[row].b = b
        w.facts[row].ev2 = ev2
        w.facts[row].since = since
        w.facts[row].pool = pool
        w.facts[row].x = x
        w.facts[row].n = 0
    if since < w.facts[row].since:
        w.facts[row].since = since
    w.facts[row].n += 1
    m = w.count.fact_pages
    w.count.fact_pages = m + 1
    w.fact_pages[m].row = row
    w.fact_pages[m].page = page
    w.fact_pages[m].gen = gen
    w.fact_pages[m].lo = lo
    w.fact_pages[m].hi = hi
