"""OTLP's own JSON: from text to the protobuf messages, and back for the small answers.

It differs from the JSON of protobuf in what matters most: trace and span ids are hexadecimal, enums are numbers.
The general reader (`google.protobuf.json_format`) takes an id for base64 and gives a wrong one without an error.
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kvwitness.collectors.otlp.refusal import Refusal

MAX_DEPTH = 64
"""Deepest nesting of messages; protobuf itself stops at 100."""
_HEX = frozenset({"trace_id", "span_id", "parent_span_id"})
_INT_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_Convert = Callable[[Any], Any]


def fill(message: Message, body: bytes) -> None:
    """Fill an export request from its JSON. Raises `Refusal` (400) that names the field where something is wrong."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal.bad(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    if type(document) is not dict:
        raise Refusal.bad("the body is not a JSON object")
    _fill(message, document, 0)


def _fill(message: Message, document: dict[str, Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Refusal.bad("the body is nested too deeply")
    fields = _fields(message.DESCRIPTOR)
    for name, value in document.items():
        known = fields.get(name)
        if known is None or value is None:
            continue  # unknown fields are ignored, and null is as good as absent
        field, convert = known
        if field.is_repeated:
            _fill_list(message, field, convert, value, depth)
        elif convert is None:
            if type(value) is not dict:
                raise Refusal.bad(f"{name}: not an object")
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, value, depth + 1)
        else:
            setattr(message, field.name, convert(value))


def _fill_list(message: Message, field: FieldDescriptor, convert: _Convert | None, value: Any, depth: int) -> None:
    if type(value) is not list:
        raise Refusal.bad(f"{field.json_name}: not an array")
    items = getattr(message, field.name)
    for item in value:
        if convert is not None:
            items.append(convert(item))
        elif type(item) is dict:
            _fill(items.add(), item, depth + 1)
        else:
            raise Refusal.bad(f"{field.json_name}: an item is not an object")


@cache
def _fields(descriptor: Descriptor) -> dict[str, tuple[FieldDescriptor, _Convert | None]]:
    """JSON name -> field and how its values are read; None where they are messages."""
    return {field.json_name: (field, _converter(field)) for field in descriptor.fields}


def _converter(field: FieldDescriptor) -> _Convert | None:
    name, kind = field.json_name, field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return None
    if kind in _INT_RANGES:
        return _integer(name, kind)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _number(name)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return _typed(name, bool, "a boolean")
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(name, hexadecimal=field.name in _HEX)
    return _typed(name, str, "a string")


def _typed(name: str, kind: type, called: str) -> _Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise Refusal.bad(f"{name}: not {called}")
        return value

    return convert


def _integer(name: str, kind: int) -> _Convert:
    least, most = _INT_RANGES[kind]

    def convert(value: Any) -> int:
        if type(value) is str and kind in _WIDE and len(value) <= 20:
            digits = value.removeprefix("-")
            value = int(value) if digits.isascii() and digits.isdigit() else value
        elif type(value) is float and value.is_integer():
            value = int(value)  # JavaScript writes large numbers with an exponent
        if type(value) is not int:
            raise Refusal.bad(f"{name}: not an integer")
        if not least <= value <= most:
            raise Refusal.bad(f"{name}: out of range")
        return value

    return convert


def _number(name: str) -> _Convert:
    def convert(value: Any) -> float:
        if type(value) is str and value in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value]
        if type(value) not in (int, float):
            raise Refusal.bad(f"{name}: not a number")
        return float(value)

    return convert


def _bytes(name: str, *, hexadecimal: bool) -> _Convert:
    def convert(value: Any) -> bytes:
        if type(value) is not str:
            raise Refusal.bad(f"{name}: not a string")
        try:
            return bytes.fromhex(value) if hexadecimal else base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            raise Refusal.bad(f"{name}: not {'hexadecimal' if hexadecimal else 'base64'}") from None

    return convert


def dump(message: Message) -> bytes:
    """An export response as OTLP JSON."""
    return orjson.dumps(_plain(message))


def _plain(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            out[field.json_name] = _plain(value)
        else:
            out[field.json_name] = str(value) if field.cpp_type in _WIDE else value
    return out
