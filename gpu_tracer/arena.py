"""The arena's writers: page lists are copied there as they are, without a look at each page."""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvwitness.audit.trace.pages import expand_pages
from kvwitness.audit.trace.ring import ALIGN, FIELD_NUMBERS, ITEM, PIECE, ItemForm, Sizes, Word

PageIds = int | range | Sequence[Any] | npt.NDArray[Any]
"""Pages: one id, a range, ids in any sequence or array of integers, or ids and `[first, last]` pairs in a list."""

ARRAYS = {
    "i": (ItemForm.PAGES_I32, "<i4"),
    "I": (ItemForm.PAGES_U32, "<u4"),
    "l": (ItemForm.PAGES_I64, "<i8"),
    "L": (ItemForm.PAGES_U64, "<u8"),
    "q": (ItemForm.PAGES_I64, "<i8"),
    "Q": (ItemForm.PAGES_U64, "<u8"),
}
"""Type code of an array -> how its items are kept."""
_PAGES_PIECE = struct.Struct("<QQQ")
"""Head of a piece and of its only item, in words: `PIECE` and `ITEM`, in fewer fields to pack."""
_SKIPPED = ALIGN - PIECE.size - ITEM.size
_PAGES_FIELD = FIELD_NUMBERS["pages"]


class PagesPiece(Protocol):
    """Puts a page list into the arena."""

    def __call__(self, pages: PageIds, more: bytes = b"") -> int:
        """Put it there; the position of its piece."""


class TooLarge(ValueError):
    """An event is too large for the arena."""


def flat(pages: PageIds) -> npt.NDArray[Any]:
    """Page ids as an array of one dimension, order kept. Raises TypeError, ValueError or OverflowError."""
    if isinstance(pages, bool | str | bytes):
        raise TypeError("not pages")
    if isinstance(pages, int):
        return np.array([pages], np.int64)
    if isinstance(pages, range):
        return np.arange(pages.start, pages.stop, pages.step, dtype=np.int64)
    if isinstance(pages, list | tuple):
        try:
            return np.frombuffer(array("I", pages), np.uint32)  # much quicker than asking numpy
        except TypeError:
            return expand_pages(list(pages))
    ids = np.asarray(pages)
    if ids.ndim != 1:
        raise TypeError("pages are a list of one dimension")
    if ids.dtype.char not in ARRAYS:
        if ids.dtype.kind not in "iu" and ids.size:
            raise TypeError("page ids are not integers")
        ids = ids.astype(np.int64)
    return ids


def arena_writers(mapped: mmap.mmap, words: memoryview, sizes: Sizes) -> tuple[Callable[[int], int], PagesPiece]:
    """Two functions with one memory: `reserve` and `pages_piece`.

    `reserve` claims bytes (a multiple of `ALIGN`) in one stretch and returns their absolute position, or raises
    TooLarge.
    `pages_piece` puts a page list there, as the first item of a piece, and returns the position of the piece; `more` is
    a second item, with its head and padded to 8, if there is one.
    """
    arena, arena_at, limit, word = sizes.arena, sizes.arena_at, sizes.largest_piece, int(Word.ARENA_END)
    kinds = {code: (_SKIPPED << 16 | form << 8 | _PAGES_FIELD, int(dtype[2])) for code, (form, dtype) in ARRAYS.items()}
    pack, ndarray, int32 = _PAGES_PIECE.pack_into, np.ndarray, np.dtype(np.int32)
    listed, in_int32 = kinds["I"][0], kinds["i"][0]
    end = 0

    def reserve(size: int) -> int:
        nonlocal end
        if size > limit:
            raise TooLarge("larger than half of the arena")
        start = end
        room = arena - start % arena
        if size > room:
            start += room
        end = start + size
        words[word] = end  # before anything is written there
        return start

    def pages_piece(pages: PageIds, more: bytes = b"") -> int:
        nonlocal end
        ids: Any
        if pages.__class__ is ndarray:
            ids = pages
        elif pages.__class__ is list:
            try:
                ids = array("I", pages)  # numpy would be asked for nothing
            except TypeError:
                ids = flat(pages)
        else:
            ids = flat(pages)
        if ids.__class__ is ndarray:
            dtype = ids.dtype
            if dtype is int32:  # what engines have nearly always
                item = in_int32
                size = len(ids) * 4
            else:
                if not dtype.isnative:
                    ids = ids.astype(dtype.newbyteorder("="))
                item, width = kinds[dtype.char]
                size = len(ids) * width
        else:
            item = listed
            size = len(ids) * 4
        count = 1 << 32
        if more:
            count = 2 << 32
            behind = size + 7 & -8
            total = 127 + behind + len(more) & -64
        else:
            total = 127 + size & -64
        if total > limit:
            raise TooLarge("larger than half of the arena")
        start = end  # as `reserve`, which to call would take longer
        at = start % arena
        if at + total > arena:
            start += arena - at
            at = 0
        end = start + total
        words[word] = end
        at += arena_at
        pack(mapped, at, start, count | total, size << 32 | item)
        at += 64
        if more:
            mapped[at + behind : at + behind + len(more)] = more
        try:
            mapped[at : at + size] = ids
        except (ValueError, BufferError):  # not in one stretch
            mapped[at : at + size] = np.ascontiguousarray(ids)  # type: ignore[call-overload]
        return start

    return reserve, pages_piece
