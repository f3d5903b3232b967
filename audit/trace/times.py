"""Times of the trace: from JSON numbers to nanoseconds and back, without the rounding of binary floats."""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal, InvalidOperation

NANOSECONDS_FROM = 10**12
"""A number at or above this is nanoseconds since the epoch; below it is seconds."""
_MAX_NS = 2**63 - 1
_COMMA, _DOT = 44, 46
_SCALE: list[int] = [10 ** (9 - decimals) for decimals in range(10)]
_EXACT = Context(prec=60)
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_OF = {
    name: re.compile(rb'(?<!\\)"' + name.encode() + rb'"\s*:\s*(-?[0-9.eE+-]+)')
    for name in ("t", "time_unix_nano", "until")
}


def time_ns(name: str, value: object, line: bytes) -> int:
    """Nanoseconds since the Unix epoch that the field `name` of a JSON line states.

    `value` is the parsed number. Where it is a float, its digits are taken from `line`, because a double
    near 1.8e9 resolves no better than a quarter of a microsecond. Digits past the ninth decimal are rounded,
    half to even. Raises ValueError, with a reason that quotes no value, where it is no number or does not
    fit 64 bits.
    """
    if type(value) is int:
        ns = value if value >= NANOSECONDS_FROM else value * 10**9
    elif type(value) is float:
        if abs(value) > 1e19:
            raise ValueError("out of range")
        ns = _from_text(_text_of(name, line))
    else:
        raise ValueError("not a number")
    if not -_MAX_NS <= ns <= _MAX_NS:
        raise ValueError("out of range")
    return ns


def usual_time(line: bytes) -> int | None:
    """Nanoseconds of `t` in a JSON object of the usual layout: it comes first and has one to nine decimals.

    None where the line looks different, or the time is late enough to need a closer look.
    """
    if not line.startswith(b'{"t":'):
        return None
    text = line[5 : line.find(_COMMA, 5)]
    digits = text.replace(b".", b"", 1)
    dot = text.find(_DOT)
    decimals = len(text) - 1 - dot
    if dot < 0 or decimals > 9 or len(digits) - decimals > 10 or not digits.isdigit():
        return None
    ns: int = int(digits) * _SCALE[decimals]
    return ns if ns <= _MAX_NS else None


def _text_of(name: str, line: bytes) -> bytes:
    """The digits of the top-level field `name` as the line has them."""
    found: list[bytes] = _NUMBER_OF[name].findall(line)
    if len(found) == 1 and b"\\u" not in line:
        return found[0]
    # a nested object has a field of the same name, or the key is escaped: only a full parse can tell
    try:
        parsed = json.loads(line, parse_float=_Digits, parse_int=_Digits)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return str(parsed[name]).encode()


class _Digits(str):
    """A number of the JSON text as it was written."""

    __slots__ = ()


def _from_text(text: bytes) -> int:
    whole, _, decimals = text.partition(b".")
    if whole.isdigit() and decimals.isdigit() and len(decimals) <= 9 and len(whole) <= 12:
        return int(whole) * 10**9 + int(decimals.ljust(9, b"0"))
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a number")
    try:
        number = Decimal(text.decode())
    except InvalidOperation:  # an exponent of more digits than any clock has
        raise ValueError("out of range") from None
    if number < NANOSECONDS_FROM:
        number = number.scaleb(9, _EXACT)
    return int(number.to_integral_value(context=_EXACT))


def time_text(ns: int) -> str:
    """The JSON number that is read back as exactly `ns` nanoseconds."""
    if ns >= NANOSECONDS_FROM:
        return str(ns)
    whole, rest = divmod(abs(ns), 10**9)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:09d}"
