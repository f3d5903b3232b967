"""Any event of the vocabulary as a record: what has a slot goes there, the rest into the arena."""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Form
from kvwitness.audit.trace.privacy import Scrubber
from kvwitness.audit.trace.ring import (
    CODES,
    EXTRA_FIELD,
    FIELD_NUMBERS,
    ITEM,
    LOST,
    MAX_STRING,
    OTHER,
    SLOTS,
    Flag,
    ItemForm,
    Slots,
)
from kvwitness.audit.trace.times import time_ns
from kvwitness.audit.trace.vocabulary import KINDS
from kvwitness.gpu_tracer.arena import flat
from kvwitness.gpu_tracer.ring import Numbered, Ring

_OURS = ("event", "source", "seq", "time_unix_nano")
_PHASES = {"begin": Flag.BEGIN, "end": Flag.END}
_MAX_U32, _MAX_I64 = 2**32 - 1, 2**63 - 1
_WITH_NUMBER, _WITH_ARENA = int(Flag.NUMBER), int(Flag.ARENA)
_INT_ITEM = struct.Struct(ITEM.format + "q")
"""An item with an integer."""
_MAX_KIND = 128
_Value = Any


_REQUEST, _TENANT, _NAME, _LABEL, _NUMBER, _INTEGER, _STRING, _NOWHERE = range(8)
"""Where a field of a plain event goes: into a slot of the record, into the arena, or nowhere, and then it is not plain
if it has this field."""
_Recipe = list[tuple[int, int, str]]
"""For each field its place, and its number and name."""
_SHAPES = 256
"""Sets of fields whose recipes are kept."""


def _recipe(kind: str, fields: Iterable[str]) -> _Recipe:
    """What `Encoder._plainly` is to do with the fields of an event."""
    out: _Recipe = []
    for name in fields:
        slots = SLOTS[kind] if kind in KINDS else Slots()
        form = FIELDS[name].form if name in FIELDS and name not in _OURS else None
        place = _NOWHERE
        if kind not in KINDS or name == "phase":
            pass
        elif form in (Form.TEXT, Form.NAME):
            places = {"request": _REQUEST, "tenant": _TENANT}
            places |= {slot: where for slot, where in ((slots.name, _NAME), (slots.label, _LABEL)) if slot}
            place = places.get(name, _STRING)
        elif form in (Form.INT, Form.INT32):
            place = _NUMBER if name == slots.number else _INTEGER
        out.append((place, FIELD_NUMBERS.get(name, 0), name))
    return out


class Encoder:
    """Records whole events in one ring. `scrubber` keeps out what a trace must not contain."""

    def __init__(self, ring: Ring, scrubber: Scrubber) -> None:
        self._ring, self._scrubber = ring, scrubber
        self._recipes: dict[tuple[str, ...], _Recipe] = {}

    def record(self, kind: str, fields: Mapping[str, _Value]) -> None:
        """Record an event; fields that are None are as good as absent.

        Raises TypeError, ValueError or OverflowError, before anything is recorded, for values that the fields cannot
        have, and for `source` and `seq`, which are the ring's own.
        """
        if self._plainly(kind, fields):
            return
        event = _Event(self._ring, SLOTS[kind if kind in CODES else OTHER])
        code = CODES.get(kind, CODES[OTHER])
        if kind in (OTHER, LOST) or len(kind) > _MAX_KIND or not kind.isprintable():
            raise ValueError("not the name of a kind")
        if code == CODES[OTHER]:
            event.label = self._ring.texts[kind]
        outside = {}
        for name, value in fields.items():
            if value is None:
                continue
            if name in _OURS:
                raise ValueError(f"{name} is the ring's own")
            if name == "t":
                event.time_ns = _nanoseconds(value)
                if not event.time_ns:  # in a record, 0 says that it is torn
                    event.add_field("t", ItemForm.INT, _integer(0))
                    event.time_ns = 1
            elif name in FIELDS:
                self._put(event, name, value)
            else:
                outside[name] = value
        if outside:
            kept = self._scrubber.scrub(json.loads(_json(outside)))
            if kept:
                event.add(EXTRA_FIELD, ItemForm.JSON, _json(kept).encode())
        arena = 0
        if event.items:
            event.flags |= Flag.ARENA
            arena = self._ring.piece(event.items)
        try:
            event.put(code, arena)
        except struct.error:
            raise OverflowError("a number does not fit") from None

    def _plainly(self, kind: str, fields: Mapping[str, _Value]) -> bool:
        """Record an event whose fields are all strings, and integers; whether it is one.

        That is nearly every event about requests, in a quarter of the time.
        """
        shape = (kind, *fields)
        recipe = self._recipes.get(shape)
        if recipe is None:
            if len(self._recipes) >= _SHAPES:
                return False
            recipe = self._recipes[shape] = _recipe(kind, fields)
        slots, flags, items, count = [0] * 5, 0, b"", 0
        strings: list[tuple[int, str, str]] = []
        for (place, field_number, name), value in zip(recipe, fields.values(), strict=True):
            if value is None:
                continue
            if place == _INTEGER:
                if value.__class__ is not int or not -_MAX_I64 - 1 <= value <= _MAX_I64:
                    return False
                items += _INT_ITEM.pack(field_number, ItemForm.INT, 0, 8, value)
                count += 1
            elif place == _NUMBER:
                if value.__class__ is not int or not 0 <= value <= _MAX_U32:
                    return False
                slots[place] = value
                flags |= _WITH_NUMBER
            elif place == _NOWHERE or value.__class__ is not str:
                return False
            elif place == _STRING:
                strings.append((field_number, name, value))
            else:
                table = self._ring.tenants if place == _TENANT else self._ring.texts
                number = table.known.get(value)
                if number is None:
                    if len(value) > MAX_STRING or len(value.encode()) > MAX_STRING:
                        return False
                    number = table[value]
                slots[place] = number
        arena = 0
        for field_number, name, value in strings:  # last, because what is dropped is counted
            if (kept := self._scrubber.text(name, value)) is not None:
                data = kept.encode()
                items += ITEM.pack(field_number, ItemForm.TEXT, 0, len(data)) + data + bytes(-len(data) % 8)
                count += 1
        if items:
            flags |= _WITH_ARENA
            arena = self._ring.block(items, count)
        request, tenant, named, label, number = slots
        self._ring.put(CODES[kind], flags, arena, request, tenant, named, label, number=number)
        return True

    def _put(self, event: _Event, name: str, value: _Value) -> None:
        form = FIELDS[name].form
        if form in (Form.TEXT, Form.NAME):
            self._text(event, name, _text(form, value))
        elif form is Form.OBJECT:
            if not isinstance(value, Mapping):
                raise TypeError(f"{name} is not an object")
            kept = self._scrubber.scrub(json.loads(_json(dict(value))), f"{name}.")
            event.add_field(name, ItemForm.JSON, _json(kept).encode())
        elif form is Form.PAGES:
            event.pages(name, value)
        elif form is Form.SPAN:
            event.span(name, value)
        else:
            event.number_or_item(name, form, value)

    def _text(self, event: _Event, name: str, text: str) -> None:
        table = self._ring.tenants if name == "tenant" else self._ring.texts
        if name == "phase" and text in _PHASES:
            event.flags |= _PHASES[text]
        elif len(text.encode()) <= MAX_STRING and event.text(name, table, text):
            pass
        else:
            kept = table.clean(text) if name == "tenant" else self._scrubber.text(name, text)
            if kept is not None:
                event.add_field(name, ItemForm.TEXT, kept.encode())


@dataclass
class _Event:
    """A record that is being put together."""

    ring: Ring
    slots: Slots
    items: list[bytes] = field(default_factory=list)
    flags: int = 0
    request: int = 0
    tenant: int = 0
    name: int = 0
    label: int = 0
    first: int = 0
    count: int = 0
    tok: tuple[int, int] = (0, 0)
    number: int = 0
    time_ns: int | None = None

    def put(self, code: int, arena: int) -> None:
        """Write it."""
        self.ring.put(
            code,
            self.flags,
            arena,
            self.request,
            self.tenant,
            self.name,
            self.label,
            self.first,
            self.count,
            self.tok,
            self.number,
            self.time_ns,
        )

    def add_field(self, name: str, form: ItemForm, data: bytes) -> None:
        """Add an item."""
        self.add(FIELD_NUMBERS[name], form, data)

    def add(self, number: int, form: ItemForm, data: bytes) -> None:
        """Add an item under a field number."""
        self.items.append(ITEM.pack(number, form, 0, len(data)) + data + bytes(-len(data) % 8))

    def text(self, name: str, table: Numbered, text: str) -> bool:
        """Put a string into its slot; whether it has one."""
        if name == "request":
            self.request = table[text]
        elif name == "tenant":
            self.tenant = table[text]
        elif name == self.slots.name:
            self.name = table[text]
        elif name == self.slots.label:
            self.label = table[text]
        else:
            return False
        return True

    def pages(self, name: str, value: _Value) -> None:
        """A page list: a run of pages into the slot, anything else into the arena."""
        run = range(value, value + 1) if type(value) is int else value
        if name == self.slots.pages and type(run) is range and run.step == 1:
            self.first, self.count = run.start, len(run)
            self.flags |= Flag.PAGES
            return
        ids = flat(value)
        if ids.ndim != 1:
            raise TypeError(f"{name} is not a list of one dimension")
        width = ids.dtype.itemsize
        form = {
            ("i", 4): ItemForm.PAGES_I32,
            ("u", 4): ItemForm.PAGES_U32,
            ("i", 8): ItemForm.PAGES_I64,
            ("u", 8): ItemForm.PAGES_U64,
        }[ids.dtype.kind, width]
        self.add_field(name, form, ids.astype(ids.dtype.newbyteorder("<")).tobytes())

    def span(self, name: str, value: Sequence[int]) -> None:
        """A half-open span of positions."""
        first, end = map(operator.index, value)
        if name == "tok" and 0 <= first <= _MAX_U32 and 0 <= end <= _MAX_U32:
            self.tok = first, end
            self.flags |= Flag.TOK
        else:
            self.add_field(name, ItemForm.INTS, struct.pack("<2q", first, end))

    def number_or_item(self, name: str, form: Form, value: _Value) -> None:
        """Everything else than strings, objects and page lists."""
        if name == self.slots.number and type(value) is int and 0 <= value <= _MAX_U32:
            self.number = value
            self.flags |= Flag.NUMBER
            return
        kind, pack = _PACK[form]
        self.add_field(name, kind, pack(value))


def _text(form: Form, value: _Value) -> str:
    if type(value) is str:
        return value
    if form is Form.NAME and not isinstance(value, bool):
        return str(operator.index(value))
    raise TypeError("not a string")


def _nanoseconds(value: float | int) -> int:
    """Seconds since the epoch, or nanoseconds where it is an integer so large; as JSON with these digits is read."""
    return time_ns("t", value, b'{"t":%s}' % repr(value).encode())


def _integer(value: _Value) -> bytes:
    if isinstance(value, bool):
        raise TypeError("not an integer")
    return struct.pack("<q", operator.index(value))


def _finite(value: _Value) -> bytes:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError("not a number")
    return struct.pack("<d", number)


def _boolean(value: _Value) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("not a boolean")
    return struct.pack("<q", value)


def _integers(value: _Value) -> bytes:
    several = [value] if not hasattr(value, "__len__") else value
    return b"".join(map(_integer, several))


def _strings(value: _Value) -> bytes:
    if isinstance(value, str) or not all(type(v) is str for v in value):
        raise TypeError("not a list of strings")
    return _json(list(value)).encode()


_PACK: dict[Form, tuple[ItemForm, Callable[[_Value], bytes]]] = {
    Form.TIME: (ItemForm.INT, lambda value: struct.pack("<q", _nanoseconds(value))),
    Form.INT: (ItemForm.INT, _integer),
    Form.INT32: (ItemForm.INT, _integer),
    Form.NUMBER: (ItemForm.NUMBER, _finite),
    Form.BOOL: (ItemForm.BOOL, _boolean),
    Form.INTS: (ItemForm.INTS, _integers),
    Form.TEXTS: (ItemForm.JSON, _strings),
}


def _json(value: _Value) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: _Value) -> _Value:
    """Numbers and arrays of numpy and its like as JSON has them."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError("not a JSON value")
