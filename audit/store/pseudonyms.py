"""Tenants under keyed pseudonyms: linkable within all stores of one key, meaningless without it."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from kvwitness.audit.store.failures import StoreError, explained
from kvwitness.audit.trace.pseudonym import DIGITS, MIN_KEY_BYTES, PREFIX, pseudonym

KEY_VARIABLE = "KVWITNESS_TENANT_KEY"
_JSON_COLUMNS = ("ns", "extra")


class Pseudonyms:
    """Replaces tenant names by `t-` and 24 hex digits of HMAC-SHA256(key, name).

    The key lives outside the store, in a file or in the environment. Two stores with the same key give a
    tenant the same pseudonym. With 96 bits a collision among a million tenants has a chance below 1 in 10^16.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise StoreError(
                f"The key for tenant pseudonyms has {len(key)} bytes; at least {MIN_KEY_BYTES} are needed.",
                "Make one with `openssl rand -hex 32 > tenant.key`, and keep it outside the store.",
            )
        self._key = key
        self._known: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Pseudonyms(check={self.check!r})"

    @classmethod
    def from_file(cls, path: str | Path) -> Pseudonyms:
        """The key is the file's content without white space at its ends."""
        with explained("reading the key for tenant pseudonyms", path):
            return cls(Path(path).expanduser().read_bytes().strip())

    @classmethod
    def from_environment(cls, variable: str = KEY_VARIABLE) -> Pseudonyms | None:
        """The key in an environment variable, or in the file that `<variable>_FILE` names; None when neither
        is set."""
        if file := os.environ.get(f"{variable}_FILE"):
            return cls.from_file(file)
        value = os.environ.get(variable)
        return cls(value.encode()) if value is not None else None

    @classmethod
    def random(cls) -> Pseudonyms:
        """A key that is forgotten with the object: nobody can link its pseudonyms to names or to other stores."""
        return cls(os.urandom(32))

    @property
    def check(self) -> str:
        """A value by which a store recognises the key; it does not reveal it."""
        return hmac.new(self._key, b"kvwitness tenant key check", hashlib.sha256).hexdigest()[:8]

    def of(self, tenant: str) -> str:
        """The pseudonym of a tenant's name. Use it to look a known tenant up in the store."""
        if tenant not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[tenant] = pseudonym(self._key, tenant)
        return self._known[tenant]

    @staticmethod
    def made(name: str) -> bool:
        """Whether a name has the form of a pseudonym."""
        digits = name.removeprefix(PREFIX)
        return name.startswith(PREFIX) and len(digits) == DIGITS and not set(digits) - set("0123456789abcdef")

    def apply(self, events: pa.Table) -> pa.Table:
        """The events with the column `tenant`, and the key `tenant` inside `ns` and `extra`, replaced."""
        out = _mapped(events, "tenant", self.of)
        for column in _JSON_COLUMNS:
            if pc.any(pc.match_substring(out.column(column), '"tenant"')).as_py():
                out = _mapped(out, column, self._in_json)
        return out

    def _in_json(self, text: str) -> str:
        if '"tenant"' not in text:
            return text
        return orjson.dumps(self._replaced(orjson.loads(text)), option=orjson.OPT_SORT_KEYS).decode()

    def _replaced(self, value: object) -> object:
        if isinstance(value, dict):
            return {
                k: self.of(v) if k == "tenant" and isinstance(v, str) else self._replaced(v) for k, v in value.items()
            }
        return [self._replaced(v) for v in value] if isinstance(value, list) else value


def _mapped(table: pa.Table, column: str, function: object) -> pa.Table:
    assert callable(function)
    encoded = table.column(column).combine_chunks().dictionary_encode()
    names = pa.array([function(v) for v in encoded.dictionary.to_pylist()], pa.string())
    values = names.take(encoded.indices)
    return table.set_column(
        table.schema.get_field_index(column), table.schema.field(column), pa.chunked_array([values])
    )
