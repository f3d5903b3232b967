"""Spans of model calls, whoever made them, as what they say about requests.

A span of a call becomes a `request.received` at its start and a `request.finished` at its end. An engine's own span
says so by `answered_by`; one in which an engine refuses becomes a `request.rejected`. All other spans are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kvwitness.audit.trace.pseudonym import keyed_hash
from kvwitness.collectors.otlp import values
from kvwitness.collectors.otlp.aliases import (
    ALIASES,
    CONTENT,
    ENGINE_SCOPES,
    ENGINE_SPANS,
    INFERENCE,
    LLM_SPANS,
    MEANING,
    MESSAGES_EVENTS,
)
from kvwitness.collectors.otlp.records import Account, Origin, Record
from kvwitness.collectors.otlp.tenants import Facts, TenantFrom

_SERVER, _ERROR = 2, 2  # SpanKind and StatusCode of opentelemetry/proto/trace/v1/trace.proto
_INTEGERS = frozenset(
    {"received_tokens", "prompt_tokens", "cached_tokens", "completion_tokens", "max_new_tokens", "http_status"}
)
_NUMBERS = frozenset({"first_token_s"})
_COUNTS = ("prompt_tokens", "completion_tokens", "received_tokens")
_OWN_TRAFFIC = {"warmup": "warmup", "health": "health", "capture": "capture", "probe": "probe", "test": "probe"}
_MAX_STATUS = 599
_NO_REFUSAL = (408, 429, 499)
"""Statuses from 400 on that say nothing of the prompt: too late, too many, gone."""
_SERVICE = ("service.name", "service.instance.id")


@dataclass(frozen=True)
class Reading:
    """How spans are read: where tenants are found, which services are what, and the key that hides salts."""

    tenant_from: TenantFrom = field(default_factory=TenantFrom.of)
    salt_key: bytes = b""
    gateways: frozenset[str] = frozenset()
    """Services that are gateways, whatever their spans look like."""
    engines: frozenset[str] = frozenset()
    """Services that are engines, whatever their spans look like."""


@dataclass
class Service:
    """Who made a group of spans, by their resource and scope."""

    name: str
    instance: str
    engine: bool
    attributes: dict[str, str]
    """Of the resource, those in which a tenant may be found."""


@dataclass
class Call:
    """What the attributes of one span say, in our words."""

    said: dict[str, Any]
    """Meaning (a key of `ALIASES`) -> value."""
    names: dict[str, str]
    """Meaning -> the name under which it was said."""
    texts: dict[str, str]
    """Attributes in which a tenant may be found."""

    @property
    def inference(self) -> bool:
        """Whether a model read a prompt in it."""
        said = self.said
        operation = said.get("operation")
        if operation is not None:
            return str(operation).lower() in INFERENCE
        kind = said.get("span_kind")
        if kind is not None:
            return str(kind).lower() in LLM_SPANS
        return any(name in said for name in _COUNTS)


@lru_cache(maxsize=8192)
def _is_content(name: str) -> bool:
    return name.startswith(CONTENT)


@lru_cache(maxsize=1024)
def _is_word(text: str) -> bool:
    """Whether it is a name such as those of providers, in which nothing could be hidden."""
    return len(text) <= 32 and text.isascii() and text.replace(".", "").replace("_", "").replace("-", "").isalpha()


class Reader:
    """Reads attributes and makes events, for spans and logs alike."""

    def __init__(self, mapping: Reading) -> None:
        self._mapping = mapping
        self._wanted = mapping.tenant_from.attributes
        self._of_resource = mapping.tenant_from.resource_attributes | {*_SERVICE}

    def service(self, resource: Any, scope: str) -> Service:
        """Who speaks."""
        found: dict[str, str] = {}
        engine = scope.startswith(ENGINE_SCOPES)
        for item in resource.attributes:
            if item.key in self._of_resource:
                found[item.key] = values.text(item.value) or ""
            elif item.key.startswith(ENGINE_SCOPES):
                engine = True
        name = found.get("service.name", "").replace("/", "-") or "unknown"
        instance = found.get("service.instance.id", "").replace("/", "-")
        engine = (engine or name in self._mapping.engines) and name not in self._mapping.gateways
        return Service(name, instance, engine, found)

    def call(self, attributes: Iterable[Any], account: Account) -> Call:
        """What attributes say; content among them is counted and left."""
        said: dict[str, Any] = {}
        ranks: dict[str, int] = {}
        texts: dict[str, str] = {}
        for item in attributes:
            key = item.key
            meant = MEANING.get(key)
            if key in self._wanted:
                texts[key] = values.text(item.value) or ""
            if meant is None:
                if _is_content(key):
                    account.content[key if len(key) <= 64 else "(other)"] += 1
                continue
            what, rank = meant
            if rank >= ranks.get(what, 99):
                continue
            value = _value(what, item.value)
            if value is None:
                account.unreadable[what] += 1
                continue
            said[what], ranks[what] = value, rank
        return Call(said, {what: ALIASES[what][rank] for what, rank in ranks.items()}, texts)

    def whose(self, call: Call, service: Service, origin: Origin) -> tuple[str, str] | None:
        """The tenant of a call and who told."""
        if origin.sender.tenant is not None:
            return origin.sender.tenant, f"sender:{origin.sender.name}"
        facts = Facts(call.texts, service.attributes, origin.headers, self.salt_hash(call))
        return self._mapping.tenant_from.find(facts)

    def salt_hash(self, call: Call) -> str | None:
        """The keyed hash of the cache salt, in place of it."""
        salt = call.said.get("salt")
        return keyed_hash(self._mapping.salt_key, "salt", salt) if salt else None

    def source(self, service: Service, kind: int) -> str:
        """The name of who observed it: an engine and its rank, a gateway or a client."""
        if service.engine:
            return f"{service.name}/{service.instance or '0'}"
        gateway = service.name in self._mapping.gateways or kind == _SERVER
        return f"{'gateway' if gateway else 'client'}/{service.name}"

    def record(
        self, identity: bytes, call: Call, service: Service, who: tuple[str, str] | None, source: str, moment: Moment
    ) -> Record:
        """Reception and end of one call."""
        said = call.said
        about: dict[str, Any] = {"source": source, "request": said.get("request") or moment.own_id}
        if who is not None:
            about["tenant"], about["tenant_source"] = who
        received, known = self._reception(call, about)
        status, by = _status(call, moment.failed)
        begin = ("request.received", moment.start, received)
        told = (known | moment.ids, {"status_source": by})
        if service.engine and status is not None and 400 <= status < 500 and status not in _NO_REFUSAL:
            refused = about | {"status": status, "reason": said.get("error_type", "refused")}
            return Record(identity, (begin, ("request.rejected", moment.end, refused)), told)
        ended = _end(said, about)
        if service.engine:
            ended["answered_by"] = service.name
        if status is not None:
            ended["status"] = status
        elif "finish_reason" not in ended:
            ended["finish_reason"] = "error"
        return Record(identity, (begin, ("request.finished", moment.end, ended)), told)

    def _reception(self, call: Call, about: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of the reception, and those beside the vocabulary that cannot be content."""
        said, known = call.said, dict[str, Any]()
        out = about.copy()
        for name in ("model", "adapter", "max_new_tokens"):
            if name in said:
                out[name] = said[name]
        for name, how in (("received_tokens", "counted"), ("prompt_tokens", "usage")):
            if said.get(name, -1) >= 0:
                out["prompt_tokens"], known["prompt_tokens_source"] = said[name], f"{how}:{call.names[name]}"
                break
        if "salt" in said:
            out["salt_hmac"] = self.salt_hash(call)
        if "traffic" in said and (traffic := _OWN_TRAFFIC.get(str(said["traffic"]).lower())):
            out["traffic"] = traffic
        provider = said.get("provider")
        if provider is not None:
            (known if _is_word(provider) else out)["provider"] = provider
        for name, kept in (("session", "session_id"), ("room", "room")):
            if name in said:
                out[kept] = said[name]
        return out, known


@dataclass(frozen=True)
class Moment:
    """When a call was, under which ids it is known, and whether its span says that it failed."""

    start: int
    end: int
    own_id: str
    """The request's id where nothing in the span names it."""
    ids: dict[str, str]
    failed: bool


def _value(what: str, value: Any) -> Any:
    if what in _INTEGERS:
        return values.integer(value)
    if what in _NUMBERS:
        return values.number(value)
    return values.text(value) or None


def _end(said: Mapping[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """What the answer says of itself."""
    out = about.copy()
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        if said.get(name, -1) >= 0:
            out[name] = said[name]
    for name in ("finish_reason", "first_token_s"):
        if name in said:
            out[name] = said[name]
    return out


def _status(call: Call, failed: bool) -> tuple[int | None, str]:
    """The HTTP status that the caller got, as far as it can be known, and what it was known by."""
    said = call.said
    status = said.get("http_status")
    if status is not None and 100 <= status <= _MAX_STATUS:
        return status, call.names["http_status"]
    error = said.get("error_type")
    if error is not None:
        named = error.isascii() and error.isdigit() and 400 <= int(error[:4]) <= _MAX_STATUS
        return (int(error) if named else None), call.names["error_type"]
    return (None, "span:error") if failed else (200, "span:ok")


def spans(message: Any, reader: Reader, origin: Origin, account: Account) -> Iterator[Record]:
    """The records of an export request of traces; what gives none is put down in `account`."""
    for group in message.resource_spans:
        for scoped in group.scope_spans:
            service = reader.service(group.resource, scoped.scope.name)
            for span in scoped.spans:
                record = _span(span, service, reader, origin, account)
                if record is not None:
                    yield record


def _span(span: Any, service: Service, reader: Reader, origin: Origin, account: Account) -> Record | None:
    for event in span.events:
        if event.name.startswith(MESSAGES_EVENTS):
            account.content[event.name[:64]] += 1
            continue
        for item in event.attributes:  # such as the message of an exception, which may quote a prompt
            if _is_content(item.key):
                account.content[item.key if len(item.key) <= 64 else "(other)"] += 1
    call = reader.call(span.attributes, account)
    if not call.inference and span.name not in ENGINE_SPANS:
        account.ignored += 1
        return None
    if span.name in ENGINE_SPANS:
        service = Service(service.name, service.instance, True, service.attributes)
    trace, own = span.trace_id, span.span_id
    if len(trace) != 16 or len(own) != 8 or not any(trace) or not any(own):
        account.rejected["trace_id or span_id is not valid"] += 1
        return None
    start = span.start_time_unix_nano or span.end_time_unix_nano
    if not start:
        account.rejected["the span has no time"] += 1
        return None
    who = reader.whose(call, service, origin)
    if not origin.sender.may_write(who[0] if who else None):
        account.rejected["its tenant is not one that this sender may write for"] += 1
        return None
    ids = {"trace_id": trace.hex(), "span_id": own.hex()}
    moment = Moment(
        start=start,
        end=span.end_time_unix_nano or start,
        own_id=f"{ids['trace_id']}:{ids['span_id']}",
        ids=ids,
        failed=span.status.code == _ERROR,
    )
    source = reader.source(service, span.kind)
    return reader.record(trace + own, call, service, who, source, moment)
