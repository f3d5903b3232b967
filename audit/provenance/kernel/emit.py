"""Writing down what was not plainly sound: one row per cause and event, with the pages it concerns."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel

LOOK_BACK = 16  # rows of the same event that are searched for the same cause


@kernel
def emit(
    FR: Any,
    FG: Any,
    CT: Any,
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
    n = CT.facts
    row = n - 1
    stop = max(CT.facts0, n - LOOK_BACK)
    while row >= stop:
        if (
            FR[row].code == code
            and FR[row].a == a
            and FR[row].b == b
            and FR[row].ev2 == ev2
            and FR[row].x == x
            and FR[row].ev == ev
        ):
            break
        row -= 1
    if row < stop:
        row = n
        CT.facts = n + 1
        FR[row].code = code
        FR[row].ev = ev
        FR[row].a = a
        FR[row].b = b
        FR[row].ev2 = ev2
        FR[row].since = since
        FR[row].pool = pool
        FR[row].x = x
        FR[row].n = 0
    if since < FR[row].since:
        FR[row].since = since
    FR[row].n += 1
    m = CT.pages
    CT.pages = m + 1
    FG[m].row = row
    FG[m].page = page
    FG[m].gen = gen
    FG[m].lo = lo
    FG[m].hi = hi
