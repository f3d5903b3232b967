"""Keeps out of a trace what must not be in it: prompts, outputs, token ids, raw salts, keys and their like.

What it does, to everything outside the vocabulary (fields at the top, in `ns`, nested in objects and arrays,
and in JSON that stands inside a string):

- drops a value whose name speaks of content or of a secret (see `kvwitness.audit.trace.names`), unless the
  value can only be a measurement (`prompt_length: 12`), a fingerprint (`prompt_hash: "9f..."`) or a category
  (`response_type: "chat"`), or the name is the vocabulary's own and the value has that field's type;
- judges `{"key": NAME, "value": VALUE}` (also `name`, `header`) and `[NAME, VALUE]` as `{NAME: VALUE}`, and
  drops an object whose `role` is that of a chat message;
- drops a list of eight or more integers below 2**20 whose name hints at tokens or at ids of no known thing;
- drops a string of more than 256 characters, one that looks like a credential, and one that has such a name
  followed by `:` or `=` in it;
- drops a value whose name has more than 64 characters or reads like a sentence, and whatever is nested deeper
  than 32.

In the vocabulary's own strings it replaces what looks like a credential, and an identifier of more than 1024
characters, by `redacted:` and a hash, so that equal ones stay equal; it drops free text (`reason`, `path`,
`model` ...) of more than 256 characters, and text that is JSON with any of the above inside.

Every drop is counted under the dotted name. What it cannot do: tell a short sentence under an innocent name,
an identifier that was made from content, numbers under an innocent name, or encoded text (base64,
encryption) for what they are. It is a net behind collectors that send none of this, not a licence to send
it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Form
from kvwitness.audit.trace.names import MAX_NAME, NameSense, sense
from kvwitness.audit.trace.plainjson import canonical, parse
from kvwitness.audit.trace.report import bump

MAX_TEXT = 256
"""Longest string under an unknown name, and longest free text, in characters."""
MAX_IDENTIFIER = 1024
"""Longest identifier that is kept as it is."""
MAX_DEPTH = 32
"""Deepest nesting of what is kept in `extra` and `ns`."""
_MAX_EMBEDDED = 65536
_LABELS = ("key", "name", "header", "attribute")
_CHAT_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function", "human", "model"})
_TOKEN_LIST, _TOKEN_MAX = 8, 2**20

CREDENTIAL = (
    r"(?i:^\s*(?:bearer|basic)\s+\S{6})"
    r"|\bsk-[A-Za-z0-9_-]{16}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\."
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20}"
    r"|\bhf_[A-Za-z0-9]{20}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
"""Pattern of strings that are credentials whatever their name; RE2 and `re` read it alike."""
_CREDENTIAL = re.compile(CREDENTIAL)
_ASSIGNMENT = re.compile(r"([A-Za-z][\w.\-]{0,63})[\"'\\]*\s*[=:]")
_PLAIN_WORD = re.compile(r"[\w.:+/=\-]{1,128}")

_DROP = object()
JSON = dict[str, Any] | list[Any] | str | int | float | bool | None


class Scrubber:
    """Removes content from values outside the vocabulary and counts what it removed in `dropped`."""

    def __init__(self, dropped: dict[str, int]) -> None:
        self._dropped = dropped

    def scrub(self, fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """The fields that may be kept; `path` is the dotted name of what they stand in."""
        out: dict[str, Any] = {}
        for name, value in fields.items():
            kept = self._field(name, value, path, 1)
            if kept is not _DROP:
                out[name] = kept
        return out

    def text(self, name: str, value: str) -> str | None:
        """One of the vocabulary's own strings; None where it is free text that must not be kept."""
        free = FIELDS[name].free_text
        limit = MAX_TEXT if free else MAX_IDENTIFIER
        cleaned = self._embedded(value, name, 1)
        if cleaned is not _DROP and len(cleaned) <= limit and not _CREDENTIAL.search(cleaned):
            return str(cleaned)
        self._count(name)
        if free:
            return None
        # an identifier must stay one: equal ones equal, different ones different
        return "redacted:" + hashlib.sha256(value.encode()).hexdigest()[:32]

    def _count(self, path: str) -> None:
        bump(self._dropped, path)

    def _field(self, name: str, value: Any, path: str, depth: int) -> Any:
        if not is_name(name):
            self._count(f"{path}(no name)")
            return _DROP
        full = path + name
        if not fits_vocabulary(name, value) and must_drop(sense(name), value):
            self._count(full)
            return _DROP
        return self._value(value, full, depth)

    def _value(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str):
            return self._string(value, path, depth)
        if not isinstance(value, dict | list):
            return value
        if depth >= MAX_DEPTH:
            self._count(path)
            return _DROP
        if is_chat_message(value) or labels_content(value):
            self._count(path)
            return _DROP
        if isinstance(value, list):
            items = [self._value(x, path + "[]", depth + 1) for x in value]
            return [x for x in items if x is not _DROP]
        out = {}
        for name, inner in value.items():
            kept = self._field(name, inner, path + ".", depth + 1)
            if kept is not _DROP:
                out[name] = kept
        return out

    def _string(self, value: str, path: str, depth: int) -> Any:
        kept = self._embedded(value, path, depth)
        if kept is _DROP or len(kept) > MAX_TEXT or _CREDENTIAL.search(kept) or names_content(kept):
            self._count(path)
            return _DROP
        return kept

    def _embedded(self, value: str, path: str, depth: int) -> Any:
        """A string whose JSON, if it is JSON, was scrubbed; unchanged where nothing had to go."""
        inner = value.lstrip("\ufeff \t\r\n")
        if inner[:1] not in ("{", "[", '"'):
            return value
        if depth >= MAX_DEPTH or len(inner) > _MAX_EMBEDDED:
            return _DROP
        try:
            parsed = parse(inner)
        except ValueError:
            return _DROP if names_content(value) else value
        name = path.rsplit(".", 1)[-1]
        if isinstance(parsed, list) and is_name(name) and must_drop(sense(name), parsed):
            return _DROP
        before = sum(self._dropped.values())
        kept = self._value(parsed, path, depth + 1)
        if kept is _DROP or sum(self._dropped.values()) == before:
            return _DROP if kept is _DROP else value
        return canonical(kept)


def must_drop(name: NameSense, value: Any) -> bool:
    """Whether a value under such a name must not be kept, going by the name and the value's type alone."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, list) and name.token_hint and _small_integers(value):
        return True
    if not name.sensitive:
        return False
    if isinstance(value, int | float):
        return not name.measure
    if isinstance(value, str):
        return not _harmless_word(name, value)
    if isinstance(value, dict) and name.measure:
        # such as prompt_tokens_details: {cached_tokens: 5}
        return not all(isinstance(v, int | float) and not k.isdigit() for k, v in value.items())
    return True


def is_name(text: str) -> bool:
    """Whether it could be the name of a field, rather than a sentence or worse."""
    return len(text) <= MAX_NAME and text.isprintable() and text.count(" ") <= 2


def is_chat_message(value: dict[str, Any] | list[Any]) -> bool:
    """Whether it is an object like `{"role": "user", ...}`."""
    return isinstance(value, dict) and any(
        isinstance(v, str) and v.lower() in _CHAT_ROLES for k, v in value.items() if k.lower() == "role"
    )


def labels_content(value: dict[str, Any] | list[Any]) -> bool:
    """Whether it is a name and a value side by side, and the name is content's or a secret's."""
    if isinstance(value, list):
        label, values = (value[0], value[1:]) if len(value) == 2 else (None, [])
    else:
        lower = {k.lower(): v for k, v in value.items()}
        label = next((lower[k] for k in _LABELS if isinstance(lower.get(k), str)), None)
        values = [v for k, v in lower.items() if k not in _LABELS]
    if not isinstance(label, str):
        return False
    judged = sense(label[:MAX_NAME])
    return any(not fits_vocabulary(label, v) and must_drop(judged, v) for v in values)


def _harmless_word(name: NameSense, value: str) -> bool:
    if not _PLAIN_WORD.fullmatch(value):
        return False
    return name.fingerprint or (name.category and not name.secret)


def _small_integers(value: list[Any]) -> bool:
    flat = [y for x in value for y in (x if isinstance(x, list) else (x,))]
    return len(flat) >= _TOKEN_LIST and all(type(x) is int and 0 <= x < _TOKEN_MAX for x in flat)


def names_content(text: str) -> bool:
    """Whether a string has a `name = value` or `name: value` in it whose name is content's or a secret's."""
    if ":" not in text and "=" not in text:
        return False
    senses = (sense(m[1]) for m in _ASSIGNMENT.finditer(text))
    return any(s.sensitive and not (s.measure or s.fingerprint or s.category) for s in senses)


def fits_vocabulary(name: str, value: Any) -> bool:
    """Whether it is a field of the vocabulary, wherever it stands, with a value of that field's type."""
    field = FIELDS.get(name)
    if field is None:
        return False
    if field.form in (Form.INT, Form.INT32):
        return type(value) is int
    if field.form in (Form.TIME, Form.NUMBER):
        return type(value) in (int, float)
    if field.form in (Form.TEXT, Form.NAME):
        return isinstance(value, str)
    return field.form is not Form.TEXTS
