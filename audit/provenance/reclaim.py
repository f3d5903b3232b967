"""Giving back what the kernel's append-only tables hold of requests that ended long ago.

Records are found by number, so dropping some renumbers the rest and every reference to them. A reference to a dropped
record follows that record's own link to the next older one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Table = npt.NDArray[Any]
Keep = npt.NDArray[np.bool_]


def renumber(keep: Keep, older: I64) -> I64:
    """Old number -> new number of the record itself, or of the newest kept one that it links to; -1 for none.

    The last entry stands for -1, so that the result can be indexed with references as they are.
    """
    new = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)
    target = np.append(np.where(keep, np.arange(len(keep)), older), -1)
    while True:
        lost = (target >= 0) & ~np.append(keep, True)[target]
        if not lost.any():
            return np.where(target >= 0, new[target], -1)
        target[lost] = older[target[lost]]


def gather(starts: I64, lengths: I64) -> tuple[I64, I64]:
    """Row numbers of consecutive entries, list after list; and where each list then starts."""
    offsets = np.cumsum(lengths) - lengths
    rows = np.arange(int(lengths.sum())) - np.repeat(offsets, lengths) + np.repeat(starts, lengths)
    return rows, offsets


def transfers(records: Table, pages: Table, ended: Keep) -> tuple[Table, Table, I64]:
    """Transfers of requests that have not ended, their page entries, and the renumbering."""
    keep = ~ended[records["actor"]]
    kept = records[keep].copy()
    rows, offsets = gather(kept["s_off"], kept["s_n"] + kept["d_n"])
    kept["s_off"], kept["d_off"] = offsets, offsets + kept["s_n"]
    numbers = renumber(keep, records["older"])
    kept["older"] = numbers[kept["older"]]
    return kept, pages[rows], numbers


def shares(records: Table, pages: Table, ended: Keep) -> tuple[Table, Table, I64]:
    """Shares of requests that have not ended, and those through which a page is still held."""
    attached = np.append(np.cumsum(pages["gen"] >= 0), 0)
    last = records["off"] + records["n"] - 1
    held = np.where(records["n"] > 0, attached[last] - np.where(records["off"] > 0, attached[records["off"] - 1], 0), 0)
    keep = ~ended[records["actor"]] | (held > 0)
    kept = records[keep].copy()
    rows, kept["off"] = gather(kept["off"], kept["n"])
    numbers = renumber(keep, records["next"])
    kept["next"] = numbers[kept["next"]]
    return kept, pages[rows], numbers


def reads(records: Table, pages: Table, ended: Keep) -> tuple[Table, Table, I64]:
    """Open reads of requests that have not ended."""
    keep = ~ended[records["actor"]] & (records["open"] != 0)
    kept = records[keep].copy()
    rows, kept["off"] = gather(kept["off"], kept["n"])
    numbers = renumber(keep, records["older"])
    kept["older"] = numbers[kept["older"]]
    return kept, pages[rows], numbers


def publications(records: Table, pages: Table, state: Table, bases: I64) -> tuple[Table, Table, I64]:
    """Publications that describe the live generation of at least one page, or content of which another pool has a copy.

    For the copies see `_held_elsewhere`: pages hold what few requests wrote, so that what is kept stays bounded.
    """
    live = state["gen"][bases[pages["pool"]] + pages["page"]] == pages["gen"]
    live |= _held_elsewhere(pages["writer"], pages["pool"], state, bases)
    upto = np.append(np.cumsum(live), 0)
    last = records["off"] + records["n"] - 1
    count = np.where(records["n"] > 0, upto[last] - np.where(records["off"] > 0, upto[records["off"] - 1], 0), 0)
    keep = (count > 0) | _held_elsewhere(records["actor"], records["pool"], state, bases)
    kept = records[keep].copy()
    rows, kept["off"] = gather(kept["off"], kept["n"])
    numbers = renumber(keep, records["older"])
    kept["older"] = numbers[kept["older"]]
    return kept, pages[rows], numbers


def _held_elsewhere(writers: I64, pools: I64, state: Table, bases: I64) -> Keep:
    """Whether the newest content of some page of another pool than `pools` is of these writers.

    A key that was published on the device is answered from such a page (a tier's) after the device's are gone.
    """
    filled = np.flatnonzero(state["writer"] > 0)  # 0 is nobody
    writer, pool = state["writer"][filled], np.searchsorted(bases, filled, side="right") - 1
    known = int(max(writers.max(initial=0), writer.max(initial=0))) + 1
    first, last = np.full(known, len(bases)), np.full(known, -1)
    np.minimum.at(first, writer, pool)
    np.maximum.at(last, writer, pool)
    named = np.maximum(writers, 0)
    somewhere = (writers > 0) & (last[named] >= 0)
    return np.asarray(somewhere & ((first[named] != pools) | (last[named] != pools)))
