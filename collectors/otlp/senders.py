"""Who may send, and for which tenants: bearer tokens and client certificates in one file.

[[sender]]
name = "gateway-eu"
token_sha256 = "9f86d0..."        # printf %s TOKEN | sha256sum
tenants = ["t-ash", "eu-*"]       # the only ones it may write for; absent: any

[[sender]]
name = "acme"
certificate = "acme.example"      # common name of its client certificate
tenant = "t-acme"                 # whatever it sends is this tenant's
"""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvwitness.audit.errors import KvwitnessError
from kvwitness.collectors.otlp.refusal import UNAUTHENTICATED, Refusal

_KEYS = {"name", "token_sha256", "certificate", "tenants", "tenant"}


@dataclass(frozen=True)
class Sender:
    """One who may send."""

    name: str
    token_sha256: str | None = None
    certificate: str | None = None
    """Common name of its client certificate."""
    tenants: tuple[str, ...] | None = None
    """Names or patterns (`eu-*`) of those it may write for; None: any."""
    tenant: str | None = None
    """The one whose all of it is."""

    def may_write(self, tenant: str | None) -> bool:
        """Whether a record of this tenant (None: of nobody known) is taken from it."""
        if self.tenants is None:
            return True
        return tenant is not None and any(fnmatchcase(tenant, pattern) for pattern in self.tenants)


ANYONE = Sender("anyone")
"""Who sends where nobody has to say who they are."""


@dataclass(frozen=True)
class Senders:
    """All who may send; nobody has to say who they are where there are none."""

    known: tuple[Sender, ...] = ()

    @classmethod
    def from_file(cls, path: Path) -> Senders:
        """Read them. Raises KvwitnessError that says what is wrong with which."""
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise KvwitnessError(f"{path} cannot be read: {error}", "docs/collect.md shows such a file.") from None
        entries = document.get("sender")
        if not isinstance(entries, list) or not entries or set(document) != {"sender"}:
            raise KvwitnessError(f"{path} must consist of [[sender]] entries.", "docs/collect.md shows such a file.")
        return cls(tuple(_sender(entry, f"{path}, sender {n}") for n, entry in enumerate(entries, start=1)))

    def identify(self, authorization: str | None, common_names: Iterable[str] = ()) -> Sender:
        """Who it is, by an `Authorization` header or a verified certificate. Raises `Refusal` (401) for a stranger."""
        if not self.known:
            return ANYONE
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and token:
            given = hashlib.sha256(token.strip().encode()).hexdigest()
            for sender in self.known:
                if sender.token_sha256 and hmac.compare_digest(sender.token_sha256, given):
                    return sender
        names = set(common_names)
        for sender in self.known:
            if sender.certificate in names:
                return sender
        raise Refusal(401, UNAUTHENTICATED, "no known bearer token or client certificate", kind="unauthenticated")


def _sender(entry: Mapping[str, Any], where: str) -> Sender:
    if unknown := sorted(set(entry) - _KEYS):
        raise KvwitnessError(f"{where}: unknown key {unknown[0]!r}.", f"Known are {', '.join(sorted(_KEYS))}.")
    texts = {key: entry.get(key) for key in _KEYS - {"tenants"}}
    for key, value in texts.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise KvwitnessError(f"{where}: {key} is not a string with something in it.")
    tenants = entry.get("tenants")
    if tenants is not None and (not isinstance(tenants, list) or not all(isinstance(t, str) for t in tenants)):
        raise KvwitnessError(f"{where}: tenants is not a list of strings.")
    if not texts["name"]:
        raise KvwitnessError(f"{where}: it has no name.")
    digest = (texts["token_sha256"] or "").lower()
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise KvwitnessError(
            f"{where}: token_sha256 is not a SHA-256 in hexadecimal.", "Make it with `printf %s TOKEN | sha256sum`."
        )
    if not digest and not texts["certificate"]:
        raise KvwitnessError(f"{where}: it has neither token_sha256 nor certificate.")
    if tenants is not None and texts["tenant"]:
        raise KvwitnessError(f"{where}: it has both tenant and tenants; one of them decides.")
    return Sender(
        name=texts["name"],
        token_sha256=digest or None,
        certificate=texts["certificate"],
        tenants=None if tenants is None else tuple(tenants),
        tenant=texts["tenant"],
    )
