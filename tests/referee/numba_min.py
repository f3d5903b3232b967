"""The simplified foreign or unwritten read as the least that a compiled shadow can do: one word per page.

It is the yardstick for what the full replay adds, and a third referee that shares nothing with the other two.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tests.referee.exploded import ALLOC, READ, SHARE, WRITE

_ALLOCATED, _UNKNOWN = -1, -3
_LOW = np.int64(0xFFFFFFFF)


class Shadow:
    """One int64 per page: how often it was allocated, and the tenant of the last write since."""

    def __init__(self, pools: int, pool_pages: int) -> None:
        self.width = pool_pages
        self._state: NDArray[np.int64] = np.full(pools * pool_pages, _UNKNOWN & 0xFFFFFFFF, np.int64)
        self._shared = numba.typed.Dict.empty(numba.int64, numba.int64)
        self._found: list[NDArray[np.int64]] = []

    def feed(
        self,
        ev: int,
        act: NDArray[np.uint8],
        pool: NDArray[np.int16],
        request: NDArray[np.int64],
        tenant: NDArray[np.int32],
        offsets: NDArray[np.int64],
        pages: NDArray[np.uint32],
    ) -> None:
        """Replay rows of page lists: row i is event `ev + i` and owns pages[offsets[i]:offsets[i + 1]].

        An `act` beyond `SHARE` is passed over.
        """
        out = np.empty((len(pages), 2), np.int64)
        rows = (ev, act, pool, request, tenant, offsets, pages)
        n = _replay(*rows, self._state, self._shared, self.width, out)
        if n:
            self._found.append(out[:n].copy())

    def flagged(self) -> pl.DataFrame:
        """(ev, slot) of the flagged reads, sorted."""
        found = np.concatenate([*self._found, np.zeros((0, 2), np.int64)])
        return pl.DataFrame({"ev": found[:, 0], "slot": found[:, 1]}).unique().sort("ev", "slot")


def flagged(events: pl.DataFrame) -> pl.DataFrame:
    """(ev, slot) of the reads flagged in an exploded frame."""
    slot = events["slot"].to_numpy()
    pool, page = (slot >> 32).astype(np.int16), (slot & _LOW).astype(np.uint32)
    shadow = Shadow(int(pool.max(initial=0)) + 1, int(page.max(initial=0)) + 1)
    ev, n = events["ev"].to_numpy(), len(events)
    columns = [events[name].to_numpy() for name in ("request", "tenant")]
    shadow.feed(0, events["act"].to_numpy(), pool, *columns, np.arange(n + 1), page)
    found = shadow.flagged()
    return found.with_columns(pl.Series("ev", ev[found["ev"].to_numpy()])).unique().sort("ev", "slot")


@numba.njit(cache=True)
def _replay(
    ev: int,
    act: NDArray[np.uint8],
    pool: NDArray[np.int16],
    request: NDArray[np.int64],
    tenant: NDArray[np.int32],
    offsets: NDArray[np.int64],
    pages: NDArray[np.uint32],
    state: NDArray[np.int64],
    shared: Any,
    width: int,
    out: NDArray[np.int64],
) -> int:
    n = 0
    for i in range(len(act)):
        what, base, mine = act[i], np.int64(pool[i]) * width, np.int64(tenant[i])
        if what == ALLOC:
            for j in range(offsets[i], offsets[i + 1]):
                at = base + pages[j]
                state[at] = ((state[at] >> 32) + 1) << 32 | (_ALLOCATED & _LOW)
        elif what == WRITE:
            for j in range(offsets[i], offsets[i + 1]):
                at = base + pages[j]
                state[at] = (state[at] & ~_LOW) | (mine & _LOW)
        elif what == READ:
            for j in range(offsets[i], offsets[i + 1]):
                at = base + pages[j]
                last = state[at] & _LOW
                if last != mine or mine < 0:
                    writer = np.int64(np.int32(last))
                    key = at << 32 | request[i]
                    shut = writer in (_ALLOCATED, _UNKNOWN)
                    if shut or shared.get(key, np.int64(-1)) != state[at] >> 32:
                        out[n, 0] = ev + i
                        out[n, 1] = np.int64(pool[i]) << 32 | pages[j]
                        n += 1
        elif what == SHARE:
            for j in range(offsets[i], offsets[i + 1]):
                at = base + pages[j]
                shared[at << 32 | request[i]] = state[at] >> 32
    return n
