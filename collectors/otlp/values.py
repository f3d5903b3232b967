"""Values of attributes: from the wire's form to plain ones, or to nothing where they are of another type."""

from __future__ import annotations

from typing import Any

_MAX_DIGITS = 19
_MAX_DEPTH = 16


def text(value: Any) -> str | None:
    """A name or a word; numbers are taken as their digits, of a list the first item."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    if kind == "int_value":
        return str(value.int_value)
    if kind == "array_value" and value.array_value.values:
        return text(value.array_value.values[0])
    return None


def integer(value: Any) -> int | None:
    """A whole number, also one that came as a float or as digits."""
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return int(value.int_value)
    if kind == "double_value":
        return int(value.double_value) if value.double_value.is_integer() else None
    if kind == "string_value":
        digits = value.string_value
        return int(digits) if len(digits) <= _MAX_DIGITS and digits.isascii() and digits.isdigit() else None
    return None


def number(value: Any) -> float | None:
    """A number of seconds and the like."""
    kind = value.WhichOneof("value")
    if kind == "double_value":
        return float(value.double_value)
    return float(value.int_value) if kind == "int_value" else None


def plain(value: Any, depth: int = 0) -> Any:
    """Any value, with lists and maps; bytes, and what is nested too deeply, are nothing."""
    kind = value.WhichOneof("value")
    if kind in ("string_value", "int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    if depth >= _MAX_DEPTH:
        return None
    if kind == "array_value":
        return [plain(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value, depth + 1) for item in value.kvlist_value.values}
    return None
