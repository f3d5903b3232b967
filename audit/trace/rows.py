"""From parsed JSON objects to batches of event rows: the one place where an event is validated."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.trace.columns import Column, Rejected, TextColumn, column_for
from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Form, Kind
from kvwitness.audit.trace.pages import page_ranges
from kvwitness.audit.trace.privacy import CREDENTIAL, MAX_TEXT, Scrubber
from kvwitness.audit.trace.report import ImportReport, bump
from kvwitness.audit.trace.schema import EVENT_SCHEMA
from kvwitness.audit.trace.times import time_ns, usual_time
from kvwitness.audit.trace.vocabulary import KINDS, defined_fields

MAX_KIND = 128
"""Longest name of an event kind, in characters."""
_MAX_SHAPES = 4096
_SPACED = re.compile(rb"[ \t\r]:")
_SUSPECT = r"^[\s\x{feff}]*[{\[\"]|" + CREDENTIAL
_TIME_ALIAS = FIELDS["t"].alias or ""
_INT64_MAX = 2**63 - 1
_LISTS = (list, np.ndarray)
_Put = Callable[[int, Any], None]


@dataclass(frozen=True)
class _Shape:
    """How lines of one kind with one list of keys are taken in; worked out once, used for all of them."""

    puts: tuple[_Put, ...]
    missing: str | None
    known: bool
    parallel: tuple[tuple[str, str], ...]
    loose: tuple[str, ...]


class RowBuilder:
    """Takes lines one by one and gives batches in `EVENT_SCHEMA`.

    `add` raises `Rejected` for a line that gives no event and leaves no trace of it in the batch.
    """

    def __init__(self, report: ImportReport) -> None:
        self.rows = 0
        self.weight = 0
        """Bytes that the rows held so far unfold to, roughly."""
        self._report = report
        self._scrubber = Scrubber(report.dropped_content)
        self._spill: dict[str, Any] = {}
        self._objects: dict[str, Any] = {}
        self._vouched: Mapping[str, Any] | None = None
        self._line: bytes | None = b""  # None: the event did not come as a line
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._times, self._numbers, self._kinds = array("q"), array("q"), list[str]()
        self._extra = TextColumn("extra")
        self._columns: dict[str, Column] = {}  # of the fields seen so far

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            clean = partial(self._clean, name)
            self._columns[name] = column_for(FIELDS[name], self._weigh, clean)
        return self._columns[name]

    def _weigh(self, size: int) -> None:
        self.weight += size

    def add(self, number: int, line: bytes, event: dict[str, Any]) -> None:
        """Take in the object that `line`, the file's line `number` from 1, was parsed to.

        The kind and the time are taken out of `event`.
        """
        # A key that no space follows ends in `":`, so where the numbers are equal no key can occur twice.
        # (32, 9 and 13 are space, tab and return: much the quickest way to look for one byte.)
        if line.count(b'":') != len(event) or 32 in line or 9 in line or 13 in line:
            _check_keys(line, event)
        kind = event.pop("event", None)
        if type(kind) is not str:
            raise Rejected("event: missing" if kind is None else "event: not a string")
        time = None if _TIME_ALIAS in event else usual_time(line)
        if time is None:
            time = _time(line, event)
        else:
            del event["t"]
        self._line, self._vouched = line, None
        self._accept(number, kind, time, event, len(line))

    def add_parsed(
        self,
        number: int,
        kind: str,
        time: int,
        event: dict[str, Any],
        size: int,
        vouched: Mapping[str, Any] | None = None,
    ) -> None:
        """Take in an event that did not come as JSON text.

        `event` has the other fields as JSON would have them, but for times, which are integers of ns, and page lists,
        which may be arrays of integers with one item per page. `time` is in ns, `size` roughly the event's bytes.
        `vouched` are further fields that stand beside the vocabulary and cannot be content, whatever was sent: ids in
        hexadecimal, words of the caller's own. They are kept without being looked at, which takes half of the time.
        """
        if not -_INT64_MAX <= time <= _INT64_MAX:
            raise Rejected("t: out of range")
        self._line, self._vouched = None, vouched
        self._accept(number, kind, time, event, size)

    def _accept(self, number: int, kind: str, time: int, event: dict[str, Any], size: int) -> None:
        row = self.rows
        try:
            shape = self._take(row, kind, event)
        except Rejected:
            self._undo(row)
            # a vocabulary field that is null is as good as absent
            slim = {k: v for k, v in event.items() if v is not None or k not in FIELDS}
            if len(slim) == len(event):
                raise
            try:
                shape = self._take(row, kind, slim)
            except Rejected:
                self._undo(row)
                raise
        if not shape.known:
            bump(self._report.unknown_kinds, kind)
        self._times.append(time)
        self._kinds.append(kind)
        self._numbers.append(number)
        self.weight += size
        self.rows = row + 1

    def _take(self, row: int, kind: str, event: dict[str, Any]) -> _Shape:
        spill, objects = self._spill, self._objects
        if spill or objects:
            spill.clear()
            objects.clear()
        key = (kind, *event)
        shape = self._shapes.get(key) or self._new_shape(key)
        if shape.missing is not None:
            raise Rejected(shape.missing)
        for put, value in zip(shape.puts, event.values(), strict=False):
            put(row, value)
        if shape.parallel:
            for items, pages in shape.parallel:
                _check_parallel(event, items, pages)
        if spill or objects or self._vouched:
            self._keep_json(row, shape.loose)
        return shape

    def _new_shape(self, key: tuple[str, ...]) -> _Shape:
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        kind, *names = key
        if len(kind) > MAX_KIND:
            raise Rejected(f"event: longer than {MAX_KIND} characters")
        if not kind.isprintable():
            raise Rejected("event: not a name")
        known = KINDS.get(kind)
        defined = defined_fields(kind)
        shape = _Shape(
            puts=tuple(self._put(name, name in defined) for name in names),
            missing=_missing(known, names) if known else None,
            known=known is not None,
            parallel=tuple(p for p in known.parallel if p[0] in names and p[1] in names) if known else (),
            loose=known.loose if known else (),
        )
        self._shapes[key] = shape
        return shape

    def _put(self, name: str, strict: bool) -> _Put:
        """How to take in a field; a wrong type goes to `extra` where the kind does not define the field."""
        spill = self._spill
        if name not in FIELDS:

            def unknown(row: int, value: Any) -> None:
                spill[name] = value

            return unknown
        column = self._column(name)
        put = column.put
        if FIELDS[name].form is Form.TIME:
            put = self._put_time(name, column)
        elif FIELDS[name].form is Form.OBJECT:
            put = self._put_object(name)
        if strict:
            return put

        def lenient(row: int, value: Any) -> None:
            try:
                put(row, value)
            except Rejected:
                if value is None:
                    raise
                spill[name] = value

        return lenient

    def _put_time(self, name: str, column: Column) -> _Put:
        def put(row: int, value: Any) -> None:
            if self._line is None:
                column.put(row, value)
                return
            try:
                column.put(row, time_ns(name, value, self._line))
            except ValueError as error:
                raise Rejected(f"{name}: {error}") from None

        return put

    def _put_object(self, name: str) -> _Put:
        objects = self._objects

        def put(row: int, value: Any) -> None:
            if type(value) is not dict:
                raise Rejected(f"{name}: not an object")
            # cleaned and counted only once the line has proved good
            objects[name] = value

        return put

    def _keep_json(self, row: int, loose: tuple[str, ...]) -> None:
        for name, value in self._objects.items():
            kept = self._scrubber.scrub(value, f"{name}.")
            self._columns[name].put(row, _canonical(kept))
        kept = self._scrubber.scrub(self._spill) if self._spill else {}
        for name in kept:
            if name not in loose:
                bump(self._report.unknown_fields, name)
        if self._vouched:
            kept.update(self._vouched)
        if kept:
            self._extra.put(row, _canonical(kept))

    def _undo(self, row: int) -> None:
        for column in self._columns.values():
            column.undo(row)
        self._extra.undo(row)

    def cut(self, rows: int) -> None:
        """Take back the rows from number `rows` on: events that are kept all or none."""
        while self.rows > rows:
            self.rows -= 1
            self._undo(self.rows)
            for values in (self._times, self._numbers, self._kinds):
                values.pop()

    def _clean(self, name: str, texts: pa.Array) -> pa.Array:
        """Hold the vocabulary's own strings to the rules of privacy, looking at each distinct one once."""
        distinct = texts.unique()
        limit = MAX_TEXT  # the scrubber applies the field's own limit; this only finds candidates
        suspect = pc.or_(pc.match_substring_regex(distinct, _SUSPECT), pc.greater(pc.utf8_length(distinct), limit))
        if not pc.any(suspect).as_py():
            return texts
        cleaned = {s: self._scrubber.text(name, s) for s in distinct.filter(suspect).to_pylist()}
        return pa.array([cleaned.get(s, s) for s in texts.to_pylist()], pa.string())

    def take(self) -> pa.RecordBatch:
        """The rows held so far as one batch; the builder starts afresh."""
        rows = self.rows
        arrays = {
            "time_ns": pa.array(np.array(self._times)),
            "event": pa.array(self._kinds, pa.string()),
            "line": pa.array(np.array(self._numbers)),
            "extra": self._extra.finish(rows)[0],
        }
        for name, column in self._columns.items():
            arrays.update(zip(FIELDS[name].column_names, column.finish(rows), strict=True))
        self._kinds.clear()
        del self._times[:], self._numbers[:]
        self.rows = self.weight = 0
        return pa.RecordBatch.from_arrays(
            [arrays[f.name] if f.name in arrays else pa.nulls(rows, f.type) for f in EVENT_SCHEMA],
            schema=EVENT_SCHEMA,
        )


def _canonical(value: dict[str, Any]) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else "{}"


def _missing(kind: Kind, names: list[str]) -> str | None:
    for name in kind.required:
        if name not in names:
            return f"{name}: missing"
    if kind.one_of and not set(kind.one_of) & set(names):
        return f"{' or '.join(kind.one_of)}: missing"
    return None


def _time(line: bytes, event: dict[str, Any]) -> int:
    """Take the time out of an event, under either of its names."""
    found = {name: event.pop(name) for name in ("t", _TIME_ALIAS) if name in event}
    try:
        times = {time_ns(name, value, line) for name, value in found.items() if value is not None}
    except ValueError as error:
        raise Rejected(f"t: {error}") from None
    if not times:
        raise Rejected("t: missing")
    if len(times) > 1:
        raise Rejected(f"t: differs from {_TIME_ALIAS}")
    return times.pop()


def _check_parallel(event: dict[str, Any], items: str, pages: str) -> None:
    """Hold a list that goes with pages to their number; one single number stands for all."""
    named, given = event[pages], event[items]
    if type(given) not in _LISTS or not len(named):
        return
    count = _pages(given) if FIELDS[items].form is Form.PAGES else len(given)
    if count != _pages(named) and not (FIELDS[items].form is Form.INTS and count == 1):
        raise Rejected(f"{items}: not as many as {pages}")


def _pages(named: Any) -> int:
    return len(named) if type(named) is np.ndarray else page_ranges(named)[2]


def _check_keys(line: bytes, event: dict[str, Any]) -> None:
    """Reject a line in which a key occurs twice; the parser silently takes the last."""
    spaced = _SPACED.search(line) is not None
    if not spaced and line.count(b'":') == _count_keys(event):
        return
    try:
        json.loads(line, object_pairs_hook=_distinct, parse_int=float, parse_float=float)
    except RecursionError:
        raise Rejected("nested too deeply") from None


def _count_keys(event: dict[str, Any]) -> int:
    total, open_values = 0, list[Any]([event])
    while open_values:
        value = open_values.pop()
        if type(value) is dict:
            total += len(value)
            value = value.values()
        open_values += [v for v in value if type(v) is dict or type(v) is list]
    return total


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise Rejected("a key occurs twice")
    return out
