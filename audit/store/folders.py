"""The folders into which writers flush, one after the other: `flushed/<block>/<cell>`.

Replaced files stay for their grace period, and a query must not have to pass by all of them. So writers are sent on to
a new folder before a compaction, and the views of the generation that it publishes search no folder before that one.
Views of earlier generations search the folders of their time and the new ones as well: what comes in is seen by all.

That takes a search pattern that means "from this folder on", and DuckDB knows only sets of characters. Folders are
therefore numbered, and the two last digits of the number, to the base of `DIGITS`, are the names of two directories:
one pattern is for the rest of the block, another for all cells of the blocks to come. The numbers of directories come
round again, so that a pattern reaches only `AHEAD` blocks, and as long as a folder is on record writers get no further
than that from it: nobody takes an old folder for a coming one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from kvwitness.audit.store.durable import make_dir
from kvwitness.audit.store.layout import FLUSHED, SEED, Layout

DIGITS = "123456789abcdefghijklmnopqrstuvwxyz"
"""Names of directories. No capitals: there are file systems that do not tell them apart."""
AHEAD = 16
"""How many blocks after its own a generation's views search. Twice as many are less than there are."""
SEED_DIR = "0"
"""Block, and cell of each block, for an empty segment: a search pattern that finds nothing is an error."""
_BASE = len(DIGITS)
_ROUND = _BASE * _BASE


def name(number: int) -> str:
    """A folder's path inside the store."""
    return f"{FLUSHED}/{DIGITS[number // _BASE % _BASE]}/{DIGITS[number % _BASE]}"


def folder_of(segment: str) -> str | None:
    """The folder in which a segment (by its name in the store) was flushed; None for any other file."""
    folder = segment.rpartition("/")[0]
    return folder if folder.startswith(f"{FLUSHED}/") else None


def patterns(first: int) -> tuple[str, str]:
    """Search patterns, inside the store, for the segments of all folders from number `first` on."""
    block, cell = divmod(first, _BASE)
    cells = SEED_DIR + DIGITS[cell:]
    blocks = SEED_DIR + "".join(DIGITS[(block + n) % _BASE] for n in range(1, AHEAD + 1))
    return f"{FLUSHED}/{DIGITS[block % _BASE]}/[{cells}]/*.parquet", f"{FLUSHED}/[{blocks}]/*/*.parquet"


def seed_dirs(first: int) -> list[str]:
    """The directories whose empty segments keep `patterns(first)` from finding nothing."""
    return [f"{FLUSHED}/{SEED_DIR}/{SEED_DIR}", f"{FLUSHED}/{DIGITS[first // _BASE % _BASE]}/{SEED_DIR}"]


def make(layout: Layout, number: int) -> None:
    """Create a folder, durably, if it is not there."""
    path = layout.root / name(number)
    for directory in (layout.flushed, path.parent, path):
        make_dir(directory)


def segments(layout: Layout, first: int) -> dict[int, list[str]]:
    """Number -> names of its segments, for every folder from `first` on that is there."""
    found = {}
    block = first // _BASE
    for number in range(block * _BASE, (block + AHEAD + 1) * _BASE, _BASE):
        with suppress(FileNotFoundError):
            cells = {p.name for p in (layout.root / name(number)).parent.iterdir()} & set(DIGITS)
            for there in sorted(number + DIGITS.index(cell) for cell in cells):
                if there >= first:
                    found[there] = _inside(layout, there)
    return found


def _inside(layout: Layout, number: int) -> list[str]:
    try:
        names = os.listdir(layout.root / name(number))
    except FileNotFoundError:
        return []
    return sorted(f"{name(number)}/{n}" for n in names if n.endswith(".parquet") and n != f"{SEED}.parquet")


def far(number: int, first_open: int, recorded: Iterable[str]) -> bool:
    """Whether a folder is too far ahead of the oldest among `recorded` (names of files or folders that still lie in
    closed ones): no generation that readers may still use begins before that one."""
    last = first_open - 1
    values = {value for n in recorded if (value := _value(n)) is not None}
    oldest = min((last - (last - value) % _ROUND for value in values), default=first_open)
    return number // _BASE - oldest // _BASE > AHEAD


def _value(recorded: str) -> int | None:
    parts = recorded.split("/")
    if len(parts) < 3 or parts[0] != FLUSHED or not all(len(p) == 1 and p in DIGITS for p in parts[1:3]):
        return None
    return DIGITS.index(parts[1]) * _BASE + DIGITS.index(parts[2])
