"""Log records: model calls that are reported as events, and events of our own vocabulary from whoever speaks it.

A log record whose event name is a kind of `docs/trace-format.md`, such as `engine.limits` or `page.alloc`, is that
event; its attributes are the fields. So whatever has an OpenTelemetry SDK can be a witness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from kvwitness.audit.trace import KINDS
from kvwitness.collectors.otlp import values
from kvwitness.collectors.otlp.aliases import MESSAGES_EVENTS
from kvwitness.collectors.otlp.genai import Moment, Reader, Service
from kvwitness.collectors.otlp.records import Account, Origin, Record

PREFIX = "kvwitness."
CALLS = frozenset({"gen_ai.client.inference.operation.details"})
"""Events that report a model call, beside its span or in place of one."""
_RESERVED = frozenset({"event", "event.name", "t", "time_unix_nano"})


def records(message: Any, reader: Reader, origin: Origin, account: Account) -> Iterator[Record]:
    """The records of an export request of logs; what gives none is put down in `account`."""
    for group in message.resource_logs:
        for scoped in group.scope_logs:
            service = reader.service(group.resource, scoped.scope.name)
            for log in scoped.log_records:
                record = _record(log, service, reader, origin, account)
                if record is not None:
                    yield record


def _record(log: Any, service: Service, reader: Reader, origin: Origin, account: Account) -> Record | None:
    name = log.event_name or _event_name(log)
    kind = name.removeprefix(PREFIX)
    if kind not in KINDS and name not in CALLS:
        if name.startswith(MESSAGES_EVENTS):
            account.content[name[:64]] += 1
        account.ignored += 1
        return None
    time = log.time_unix_nano or log.observed_time_unix_nano
    if not time:
        account.rejected["the log record has no time"] += 1
        return None
    if log.HasField("body"):
        account.content["body"] += 1
    if name in CALLS:
        return _call(log, time, service, reader, origin, account)
    return _event(log, kind, time, service, origin, account)


def _event_name(log: Any) -> str:
    for item in log.attributes:
        if item.key == "event.name":
            return values.text(item.value) or ""
    return ""


def _identity(log: Any, service: Service) -> bytes:
    """Of a record that has no id: what it says, and who says it."""
    said = log.SerializeToString(deterministic=True)
    return hashlib.sha256(f"{service.name}\0{service.instance}\0".encode() + said).digest()[:16]


def _event(log: Any, kind: str, time: int, service: Service, origin: Origin, account: Account) -> Record | None:
    identity = _identity(log, service)
    fields = {item.key: values.plain(item.value) for item in log.attributes if item.key not in _RESERVED}
    if origin.sender.tenant is not None:
        fields["tenant"], fields["tenant_source"] = origin.sender.tenant, f"sender:{origin.sender.name}"
    tenant = fields.get("tenant")
    if not origin.sender.may_write(tenant if isinstance(tenant, str) else None):
        account.rejected["its tenant is not one that this sender may write for"] += 1
        return None
    fields.setdefault("source", f"{service.name}/{service.instance or '0'}")
    fields["log_id"] = identity.hex()
    return Record(identity, ((kind, time, fields),))


def _call(log: Any, time: int, service: Service, reader: Reader, origin: Origin, account: Account) -> Record | None:
    call = reader.call(log.attributes, account)
    who = reader.whose(call, service, origin)
    if not origin.sender.may_write(who[0] if who else None):
        account.rejected["its tenant is not one that this sender may write for"] += 1
        return None
    if any(log.trace_id) and any(log.span_id):  # its span says the same; whichever comes first is kept
        identity = bytes(log.trace_id + log.span_id)
        ids = {"trace_id": log.trace_id.hex(), "span_id": log.span_id.hex()}
        own = f"{ids['trace_id']}:{ids['span_id']}"
    else:
        identity = _identity(log, service)
        ids = {"log_id": identity.hex()}
        own = ids["log_id"]
    moment = Moment(time, time, own, ids, failed=False)
    return reader.record(identity, call, service, who, reader.source(service, 0), moment)
