"""SGLang's request log as text, its default (`--log-requests-format text`), as the document that its JSON form has.

    [2026-08-27 12:00:00] Receive: obj=GenerateReqInput(rid='c1f0', sampling_params={'max_new_tokens': 8}, ...)
    [2026-08-27 12:00:03] Finish: obj=GenerateReqInput(...), out={'meta_info': {'prompt_tokens': 300, ...}}

The lines are close to Python's own notation, and not quite in it: what is long is cut to `'begin' ... 'end'`, and
objects stand as they print. So fields are told apart by brackets and quotes, and each is read alone. What stands inside
of quotes names no field: a prompt cannot bear witness.

Source: `python/sglang/srt/utils/request_logger.py` of SGLang 0.5.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from kvwitness.audit.trace.columns import Rejected

_LINE = re.compile(r"(Receive|Finish): obj=\w+\(")
_EVENTS = {"Receive": "request.received", "Finish": "request.finished"}
_OUT = ", out={"
_NAME = re.compile(r"\s*(?:(\w+)=|'(\w+)':\s*)")
_STEP = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|[()\[\]{},'"]|[^()\[\]{},'"]+""", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_EMPTY = frozenset({"None", "''", '""', "[]", "{}"})
_READ = frozenset({"rid", "bootstrap_room", "cache_salt", "extra_key", "lora_path", "input_ids", "sampling_params"})
"""Fields of a request that are read; of all others it is told only that they were there."""


def recognise_line(line: bytes) -> bool:
    """Whether a line is of that form."""
    return b": obj=" in line and _LINE.search(line.decode("utf-8", "replace")) is not None


def document(text: str) -> dict[str, Any] | None:
    """`event`, `rid`, `obj` and `out` of a line; None: it is none of the request log's.

    Raises `Rejected` where its fields cannot be told apart.
    """
    found = _LINE.match(text)
    if found is None:
        return None
    fields, end = _fields(text, found.end())
    asked = {name: _value(value) if name in _READ else _kept(value) for name, value in fields}
    told: dict[str, Any] = {}
    if text.startswith(_OUT, end):
        fields, end = _fields(text, end + len(_OUT))
        told = {name: _value(value) if name == "meta_info" else _kept(value) for name, value in fields}
    return {"event": _EVENTS[found[1]], "rid": asked.get("rid"), "obj": asked, "out": told}


def _fields(text: str, start: int) -> tuple[list[tuple[str, str]], int]:
    """The names and values of a bracket that was opened just before `start`, and where the text goes on after it."""
    fields: list[tuple[str, str]] = []
    for begin, end, last in _pieces(text, start):
        named = _NAME.match(text, begin, end)
        if named is not None:
            fields.append((named[1] or named[2], text[named.end() : end].strip()))
        elif text[begin:end].strip():
            raise Rejected("a value without a name among its fields")
        if last:
            return fields, end + 1
    raise Rejected("its brackets and quotes do not close")


def _pieces(text: str, start: int) -> Iterator[tuple[int, int, bool]]:
    """Where each piece between commas begins and ends, and whether the bracket ends with it."""
    open_, begin = [""], start
    for step in _STEP.finditer(text, start):
        sign = step[0]
        if sign in _CLOSING:
            open_.append(_CLOSING[sign])
        elif sign in (")", "]", "}"):
            if len(open_) == 1:
                yield begin, step.start(), True
                return
            if open_.pop() != sign:
                return
        elif sign in ("'", '"'):
            return  # a quote that nothing closes
        elif sign == "," and len(open_) == 1:
            yield begin, step.start(), False
            begin = step.end()


def _kept(text: str) -> str | None:
    return None if text in _EMPTY else text


def _value(text: str) -> Any:
    """What a value says; a text or a list that was cut, and an object, say nothing."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
