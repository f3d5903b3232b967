"""Whose a request is: an ordered list of places to look in, and which of them told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from kvwitness.audit.errors import KvwitnessError

PLACES = ("attribute", "resource", "baggage", "header", "salt")
DEFAULT = (
    "attribute:tenant.id",
    "attribute:kvwitness.tenant",
    "attribute:http.request.header.x-tenant-id",
    "attribute:metadata.user_api_key_team_id",
    "attribute:traceloop.association.properties.tenant_id",
    "attribute:gen_ai.tenant.id",
    "baggage:tenant.id",
    "resource:tenant.id",
    "header:x-scope-orgid",
    "header:x-tenant-id",
    "salt",
)
"""Where a tenant is looked for unless told otherwise."""
MAX_NAME = 256
"""Longest name of a tenant."""
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
_BAGGAGE = ("baggage", "http.request.header.baggage")


@dataclass(frozen=True)
class Facts:
    """What is known of one request when its tenant is looked for."""

    attributes: Mapping[str, str]
    resource: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the export request, names in lower case."""
    salt_hash: str | None = None


@dataclass(frozen=True)
class TenantFrom:
    """The places to look in, in order."""

    places: tuple[tuple[str, str], ...]
    salts: Mapping[str, str] = field(default_factory=dict)
    """Hash of a cache salt -> tenant."""

    @classmethod
    def of(cls, texts: Iterable[str] = DEFAULT, salts: Mapping[str, str] | None = None) -> TenantFrom:
        """From texts such as `attribute:tenant.id`. Raises KvwitnessError for one that is none."""
        places = []
        for text in texts:
            place, _, name = text.strip().partition(":")
            if place not in PLACES or bool(name) == (place == "salt"):
                raise KvwitnessError(
                    f"{text!r} is no place to find a tenant in.",
                    "Write `attribute:NAME`, `resource:NAME`, `baggage:NAME`, `header:NAME` or `salt`.",
                )
            if place == "header" and name.lower() in _SECRET_HEADERS:
                raise KvwitnessError(
                    f"{text!r} holds a secret, which must not become a name.",
                    "A sender that is known by its token gets its tenant from --senders.",
                )
            places.append((place, name.lower() if place == "header" else name))
        return cls(tuple(places), salts or {})

    @property
    def attributes(self) -> frozenset[str]:
        """Names of the attributes that have to be kept in order to look."""
        names = {name for place, name in self.places if place == "attribute"}
        for place, name in self.places:
            if place == "baggage":
                names |= {f"baggage.{name}", *_BAGGAGE}
        return frozenset(names)

    @property
    def resource_attributes(self) -> frozenset[str]:
        """The same of resource attributes."""
        return frozenset(name for place, name in self.places if place == "resource")

    def find(self, facts: Facts) -> tuple[str, str] | None:
        """The tenant and the place that told; None where no place did."""
        for place, name in self.places:
            found = self._look(facts, place, name)
            if found:
                return found[:MAX_NAME], f"{place}:{name}" if name else place
        return None

    def _look(self, facts: Facts, place: str, name: str) -> str | None:
        if place == "attribute":
            return facts.attributes.get(name)
        if place == "resource":
            return facts.resource.get(name)
        if place == "header":
            return facts.headers.get(name)
        if place == "baggage":
            return _in_baggage(facts.attributes, name)
        return self.salts.get(facts.salt_hash or "")


def _in_baggage(attributes: Mapping[str, str], name: str) -> str | None:
    """An entry of W3C baggage, as collectors and span processors put it on a span."""
    if f"baggage.{name}" in attributes:
        return attributes[f"baggage.{name}"]
    for carrier in _BAGGAGE:
        for entry in attributes.get(carrier, "").split(","):
            key, _, value = entry.partition(";")[0].partition("=")
            if key.strip() == name:
                return unquote(value.strip())
    return None
