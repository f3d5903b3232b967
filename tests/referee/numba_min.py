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

_ALLOCATED, _UNKNOWN, _NOBODY = 0x3FFFFFFF, 0x3FFFFFFE, 0x3FFFFFFD
_TENANT, _SHARED = 0x3FFFFFFF, 0x40000000
_LOW = np.int64(0xFFFFFFFF)


class Shadow:
    """One uint32 per page: the tenant of the last write since its alloc, and whether it was shared since."""

    def __init__(self, pools: int, pool_pages: int) -> None:
        self.width = pool_pages
        self._state: NDArray[np.uint32] = np.full(pools * pool_pages, _UNKNOWN, np.uint32)
        # Few pages are ever shared: only those get a count of their generations.
        self._generations = numba.typed.Dict.empty(numba.int64, numba.int64)
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
        n = _replay(*rows, self._state, self._generations, self._shared, self.width, out)
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
    state: NDArray[np.uint32],
    generations: Any,
    shared: Any,
    width: int,
    out: NDArray[np.int64],
) -> int:
    n = 0
    for i in range(len(act)):
        what, base = act[i], np.uint64(pool[i]) * np.uint64(width)
        mine = np.uint32(tenant[i] if tenant[i] >= 0 else _NOBODY)
        first, end = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        if what == ALLOC:
            for j in range(first, end):
                at = base + np.uint64(pages[j])
                if state[at] & _SHARED:
                    generations[np.int64(at)] += 1
                state[at] = _ALLOCATED
        elif what == WRITE:
            for j in range(first, end):
                at = base + np.uint64(pages[j])
                state[at] = (state[at] & np.uint32(_SHARED)) | mine
        elif what == READ:
            for j in range(first, end):
                at = base + np.uint64(pages[j])
                last = state[at] & np.uint32(_TENANT)
                if last != mine or mine == _NOBODY:
                    page = np.int64(at)
                    mark = shared.get(page << 32 | request[i], np.int64(-1))
                    if last in (_ALLOCATED, _UNKNOWN) or mark < 0 or mark != generations[page]:
                        out[n, 0] = ev + i
                        out[n, 1] = np.int64(pool[i]) << 32 | pages[j]
                        n += 1
        elif what == SHARE:
            for j in range(first, end):
                at = base + np.uint64(pages[j])
                page = np.int64(at)
                if page not in generations:
                    generations[page] = 0
                state[at] |= np.uint32(_SHARED)
                shared[page << 32 | request[i]] = generations[page]
    return n
