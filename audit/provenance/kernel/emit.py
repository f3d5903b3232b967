"""Writing down what was not plainly sound: one row per cause and event, with the pages it concerns."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.layout import (
    CT_FACTS,
    CT_FACTS0,
    CT_PAGES,
    FR_A,
    FR_B,
    FR_CODE,
    FR_EV,
    FR_EV2,
    FR_N,
    FR_POOL,
    FR_SINCE,
    FR_X,
)

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
    n = CT[CT_FACTS]
    row = n - 1
    stop = max(CT[CT_FACTS0], n - LOOK_BACK)
    while row >= stop:
        if (
            FR[row, FR_CODE] == code
            and FR[row, FR_A] == a
            and FR[row, FR_B] == b
            and FR[row, FR_EV2] == ev2
            and FR[row, FR_X] == x
            and FR[row, FR_EV] == ev
        ):
            break
        row -= 1
    if row < stop:
        row = n
        CT[CT_FACTS] = n + 1
        FR[row, FR_CODE] = code
        FR[row, FR_EV] = ev
        FR[row, FR_A] = a
        FR[row, FR_B] = b
        FR[row, FR_EV2] = ev2
        FR[row, FR_SINCE] = since
        FR[row, FR_POOL] = pool
        FR[row, FR_X] = x
        FR[row, FR_N] = 0
    if since < FR[row, FR_SINCE]:
        FR[row, FR_SINCE] = since
    FR[row, FR_N] += 1
    m = CT[CT_PAGES]
    CT[CT_PAGES] = m + 1
    FG[m, 0] = row
    FG[m, 1] = page
    FG[m, 2] = gen
    FG[m, 3] = lo
    FG[m, 4] = hi
