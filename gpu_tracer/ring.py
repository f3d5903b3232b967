"""The event ring: the only thing on the engine's path.

One thread writes; no lock, no system call, no other thread. What is written survives the death of the process, and the
oldest is overwritten when nobody reads. `kvwitness.audit.trace.ring` says what the file looks like and why it can be
read at any moment.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from kvwitness.audit.trace.ring import (
    ALIGN,
    CLOSED,
    CODES,
    COUNTERS,
    COUNTERS_AT,
    LOST,
    MAX_STRING,
    PIECE,
    STRING_BYTES,
    STRING_HEAD,
    Sizes,
    Word,
)
from kvwitness.gpu_tracer.arena import arena_writers
from kvwitness.gpu_tracer.records import Derived, record_writers
from kvwitness.gpu_tracer.ring_file import create

Clean = Callable[[str], str]
"""What is kept of a string that is met for the first time."""

_U64, _U32 = struct.Struct("<Q"), struct.Struct("<I")


class TooLong(ValueError):
    """A string is too long for a number of its own."""


class Ring:
    """A ring in a directory, for the one thread that makes it. Raises OSError where the file cannot be made."""

    def __init__(
        self,
        directory: Path,
        source: str,
        sizes: Sizes | None = None,
        *,
        clean: Clean | None = None,
        pseudonym: Clean | None = None,
    ) -> None:
        self.sizes = sizes or Sizes()
        self._file = create(directory, source, self.sizes)
        self.map = self._file.map
        self.path, self.source = self._file.path, self._file.source
        view = memoryview(self.map)
        self._words = view[:COUNTERS_AT].cast("Q")
        counters = view[COUNTERS_AT : COUNTERS_AT + 8 * COUNTERS].cast("Q")
        strings = _Strings(self.map, self.sizes)
        self.texts = Numbered(strings, clean or _unchanged)
        """String -> its number; None -> 0."""
        self.tenants = Numbered(strings, pseudonym or clean or _unchanged)
        self._arena_at, self._arena = self.sizes.arena_at, self.sizes.arena
        self.reserve, pages_piece = arena_writers(self.map, self._words, self.sizes)
        self.writers = record_writers(
            self.map,
            counters,
            self.sizes,
            self.texts.known,
            self.tenants.known,
            strings.derived,
            self.reserve,
            pages_piece,
        )
        self.put = self.writers.put

    def piece(self, items: Sequence[bytes]) -> int:
        """Put items (each with its head, padded to 8) into the arena; the position of the piece."""
        return self.block(b"".join(items), len(items))

    def block(self, items: bytes, count: int) -> int:
        """The same for so many items that are put together already."""
        size = PIECE.size + len(items)
        start = self.reserve(size + ALIGN - 1 & -ALIGN)
        at = self._arena_at + start % self._arena
        self.map[at : at + size] = PIECE.pack(start, size, count) + items
        return start

    def lost(self, kind: str, reason: str) -> None:
        """Put down that an event of this kind could not be recorded."""
        self._words[Word.FAILED] += 1
        self.put(CODES[LOST], 0, 0, 0, 0, self.texts[kind], self.texts[reason])

    def count_scrubbed(self, values: int) -> None:
        """Count values that were dropped or replaced."""
        self._words[Word.SCRUBBED] += values

    def close(self) -> None:
        """Say that the writer is done, and give the file up: from now on it may be read to its end and removed."""
        self.writers.shut()
        self._words[Word.STATE] = CLOSED
        os.close(self._file.lock)

    def abandon(self) -> None:
        """In a process that was forked off: let go of the file, which belongs to the parent."""
        self.writers.shut()
        os.close(self._file.lock)


class Numbered:
    """String -> its number in the ring, given out when it is first asked for."""

    def __init__(self, strings: _Strings, clean: Clean) -> None:
        self.known: dict[str | None, int] = {None: 0}
        """Those that have a number; a plain dictionary, which is the quickest to look into."""
        self._strings, self.clean = strings, clean

    def __getitem__(self, text: str) -> int:
        """The number of a string. Raises TooLong where it cannot have one."""
        number = self.known.get(text)
        if number is None:
            number = self.known[text] = self._strings.add(self.clean(text), self.known, text)
        return number


class _Strings:
    """The table of strings. The younger half is looked up; the older half is kept for records that mention it."""

    def __init__(self, mapped: mmap.mmap, sizes: Sizes) -> None:
        self._map, self._at, self._count = mapped, sizes.strings_at, sizes.strings
        self._last = 0
        self.derived: Derived = []
        self._young: list[tuple[dict[str | None, int], str] | None] = [None] * sizes.strings

    def add(self, text: str, owner: dict[str | None, int], key: str) -> int:
        """Write a string; its number, by which `owner` will know it under `key`. Raises TooLong."""
        data = text.encode()
        if len(data) > MAX_STRING:
            raise TooLong("longer than a string with a number can be")
        self._last += 1
        if not self._last & 0xFFFFFFFF:  # records have 32 bits for it, and 0 is none
            self._last += 1
        number = self._last
        self._forget(number)
        self._young[number % self._count] = (owner, key)
        at = self._at + number % self._count * STRING_BYTES
        _U64.pack_into(self._map, at, 0)
        _U32.pack_into(self._map, at + _U64.size, len(data))
        self._map[at + STRING_HEAD : at + STRING_HEAD + len(data)] = data
        _U64.pack_into(self._map, at, number)
        return number & 0xFFFFFFFF

    def _forget(self, number: int) -> None:
        """Let the string that passes into the older half be written anew when it is met again.

        So a number that a record mentions is not overwritten before half a table of further strings.
        """
        old = number - self._count // 2
        entry = self._young[old % self._count] if old > 0 else None
        if entry is not None and entry[0].get(entry[1]) == old & 0xFFFFFFFF:
            owner, key = entry
            del owner[key]
            for shared, names in self.derived:
                if key in shared:
                    names.clear()
                else:
                    names.pop(key, None)


def _unchanged(text: str) -> str:
    return text
