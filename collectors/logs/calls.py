"""One request as a log tells it, and the events that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvwitness.audit.trace.pseudonym import keyed_hash
from kvwitness.collectors.logs.rooms import Partners

BILL = "bill"
"""Sources whose names begin so are bills."""

Event = tuple[str, int, dict[str, Any]]
"""Kind, time in ns, the other fields."""


@dataclass(frozen=True)
class Given:
    """What a person says about a file that the file does not say."""

    source: str | None = None
    """Who wrote it: `client/NAME`, `gateway/NAME`, an engine, `bill/NAME`."""
    tenant: str | None = None
    """Whose the requests are that name nobody."""
    columns: dict[str, str] = field(default_factory=dict)
    """What is meant (see `fields.ALIASES`) -> name of the column or path of the field."""
    form: str | None = None
    """How the lines of an access log are made up, as its gateway's configuration says it."""
    salt_key: bytes = b""
    """Key under which cache salts are hashed."""
    partners: Partners | None = None
    """Requests that the store has, where a log may have the other side of some."""


NOTHING = Given()


@dataclass
class Call:
    """A request; None: the log does not say."""

    request: str
    start: int | None = None
    """When it came, in ns."""
    end: int | None = None
    """When it was answered, in ns; None: it was not, as far as this line knows."""
    tenant: str | None = None
    tenant_source: str | None = None
    model: str | None = None
    received_tokens: int | None = None
    """Counted by whoever took the prompt in or sent it."""
    prompt_tokens: int | None = None
    """What the answer says."""
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    max_new_tokens: int | None = None
    status: int | None = None
    finish_reason: str | None = None
    salt: str | None = None
    adapter: str | None = None
    traffic: str | None = None
    provider: str | None = None
    """Who was asked, in a log of more than one."""
    answered_by: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of its reception."""

    def events(self, source: str, given: Given) -> list[Event]:
        """Its reception, and its end where it has one."""
        about: dict[str, Any] = {"source": source, "request": self.request}
        tenant, by = (self.tenant, self.tenant_source) if self.tenant else (given.tenant, "given at import")
        if tenant:
            about |= {"tenant": tenant, "tenant_source": by}
        out: list[Event] = []
        if source.startswith(BILL):  # a bill saw no prompt; it says what was answered
            end = self.end if self.end is not None else self.start
            self.start, self.end = None, end
        if self.start is not None:
            out.append(("request.received", self.start, about | self._reception(given)))
        if self.end is not None:
            names = ("status", "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "answered_by")
            out.append(("request.finished", self.end, about | _present(self, names)))
        return out

    def _reception(self, given: Given) -> dict[str, Any]:
        out = _present(self, ("model", "adapter", "max_new_tokens", "traffic", "provider")) | self.more
        tokens = self.received_tokens if self.received_tokens is not None else self.prompt_tokens
        if tokens is not None:
            out["prompt_tokens"] = tokens
            out["prompt_tokens_source"] = "counted:log" if self.received_tokens is not None else "usage:log"
        if self.salt:
            out["salt_hmac"] = keyed_hash(given.salt_key, "salt", self.salt)
        return out


def _present(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(call, name)) is not None}
