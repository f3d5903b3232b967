"""From a record of a ring, its strings and its piece of the arena, to an event."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import orjson

from kvwitness.audit.trace.ring import (
    EXTRA_FIELD,
    ITEM,
    OTHER,
    PIECE,
    STRING_BYTES,
    STRING_HEAD,
    Description,
    Flag,
    ItemForm,
    Sizes,
    Word,
)

_WORD = struct.Struct("<Q")
_STRING = struct.Struct("<QI")
_ARRAYS = {
    ItemForm.PAGES_I32: "<i4",
    ItemForm.PAGES_U32: "<u4",
    ItemForm.PAGES_I64: "<i8",
    ItemForm.PAGES_U64: "<u8",
}
_PLAIN_BYTES = 160
"""What an event without arena takes in JSON, roughly."""


class Unreadable(Exception):
    """A part of the event is gone; the text says which."""


class Decoder:
    """Decodes the records of one ring."""

    def __init__(self, mapped: mmap.mmap, sizes: Sizes, described: Description) -> None:
        self._map, self._sizes, self._described = mapped, sizes, described
        self._strings: dict[int, str] = {}

    def event(self, record: tuple[Any, ...]) -> tuple[int, str, dict[str, Any], int]:
        """Time in ns, kind, fields and rough size of an event. Raises Unreadable."""
        time, arena, request, tenant, name, label, first, count, tok_first, tok_end, number, _, kind, flags, _ = record
        try:
            event, slots = self._described.kinds[kind], self._described.slots[kind]
        except IndexError:
            raise Unreadable("unknown kind of record") from None
        fields: dict[str, Any] = {}
        strings = (("request", request), ("tenant", tenant), (slots.name, name), (slots.label, label))
        for field, sid in strings:
            if sid and field is not None:
                fields[field] = self._string(sid)
        if flags & (Flag.BEGIN | Flag.END):
            fields["phase"] = "begin" if flags & Flag.BEGIN else "end"
        if flags & Flag.PAGES and slots.pages is not None:
            fields[slots.pages] = [[first, first + count - 1]] if count else []
        if flags & Flag.TOK:
            fields["tok"] = [tok_first, tok_end]
        if flags & Flag.NUMBER and slots.number is not None:
            fields[slots.number] = number
        size = _PLAIN_BYTES
        if flags & Flag.ARENA:
            size += self._piece(arena, fields)
        if event == OTHER:
            event = fields.pop("event", "unknown")
        return fields.pop("t", time), event, fields, size

    def _string(self, sid: int) -> str:
        known = self._strings.get(sid)
        if known is not None:
            return known
        at = self._sizes.strings_at + sid % self._sizes.strings * STRING_BYTES
        number, length = _STRING.unpack_from(self._map, at)
        data = self._map[at + STRING_HEAD : at + STRING_HEAD + length]
        if number & 0xFFFFFFFF != sid or _WORD.unpack_from(self._map, at)[0] != number:
            raise Unreadable("a string was overwritten before it was read")
        if len(self._strings) > 2 * self._sizes.strings:
            self._strings.clear()  # before a number can come round again
        self._strings[sid] = text = data.decode("utf-8", "replace")
        return text

    def _piece(self, start: int, fields: dict[str, Any]) -> int:
        """Read the items of a piece into `fields`; its size."""
        at = self._sizes.arena_at + start % self._sizes.arena
        room = self._sizes.arena_at + self._sizes.arena - at
        if room < PIECE.size:
            raise Unreadable("its piece of the arena is damaged")
        position, size, items = PIECE.unpack_from(self._map, at)
        # copied first: what is being overwritten meanwhile is found out below
        data = self._map[at : at + size] if position == start and size <= room else b""
        if not data or _WORD.unpack_from(self._map, 8 * Word.ARENA_END)[0] - start > self._sizes.arena:
            raise Unreadable("its piece of the arena was overwritten before it was read")
        try:
            self._items(data, items, fields)
        except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unreadable("its piece of the arena is damaged") from error
        return int(size)

    def _items(self, data: bytes, items: int, fields: dict[str, Any]) -> None:
        at = PIECE.size
        for _ in range(items):
            number, form, skipped, size = ITEM.unpack_from(data, at)
            begin = at + ITEM.size + skipped
            value = _value(ItemForm(form), data[begin : begin + size])
            if number == EXTRA_FIELD:
                fields.update({k: v for k, v in value.items() if k not in fields})
            else:
                fields[self._described.fields[number]] = value
            at = begin + (size + 7 & -8)


def _value(form: ItemForm, data: bytes) -> Any:
    match form:
        case ItemForm.TEXT:
            return data.decode()
        case ItemForm.INT:
            return struct.unpack("<q", data)[0]
        case ItemForm.NUMBER:
            return struct.unpack("<d", data)[0]
        case ItemForm.BOOL:
            return bool(struct.unpack("<q", data)[0])
        case ItemForm.INTS:
            return np.frombuffer(data, "<i8").tolist()
        case ItemForm.JSON:
            return orjson.loads(data)
        case _:
            return np.frombuffer(data, _ARRAYS[form])
