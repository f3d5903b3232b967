"""Requests of the store as spans, for the backend that somebody has already: what was recorded, and what was judged.

The ids of a span follow from the request, so that sending again sends the same spans.
"""

from __future__ import annotations

import hashlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kvwitness.audit.asking import connect
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store, StoreError
from kvwitness.audit.windows import as_utc

PER_REQUEST = 512
_SERVER, _OK, _ERROR = 2, 1, 2
_RETRIES = 8
_TIMEOUT_S = 30.0
_SCOPE = "kvwitness"
_SQL = """
SELECT request, incarnation, tenant, model, prompt_tokens, max_new_tokens, received_ns, received_source, rejected_ns,
  aborted_ns, finished_ns, status, finish_reason, answered_by, answered_prompt_tokens, cached_tokens, completion_tokens
FROM requests
WHERE received_ns >= epoch_ns(coalesce($since, '1678-01-01')::TIMESTAMP)
  AND received_ns < epoch_ns(coalesce($until, '2262-01-01')::TIMESTAMP) AND traffic = 'user'
ORDER BY received_ns, request, incarnation"""
_ATTRIBUTES = {
    "gen_ai.request.id": "request",
    "gen_ai.request.model": "model",
    "gen_ai.request.max_tokens": "max_new_tokens",
    "gen_ai.usage.input_tokens": "answered_prompt_tokens",
    "gen_ai.usage.output_tokens": "completion_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "http.response.status_code": "status",
    "tenant.id": "tenant",
    "kvwitness.prompt_tokens": "prompt_tokens",
    "kvwitness.answered_by": "answered_by",
    "kvwitness.verdict": "verdict",
    "kvwitness.missing": "missing",
}


@dataclass
class Sent:
    """What came of it."""

    spans: int = 0
    rejected: int = 0
    reason: str = ""


def requests_of(store: Store, since: str | None = None, until: str | None = None) -> Iterator[dict[str, Any]]:
    """The requests of a window (UTC) that somebody received, each with its verdict where there was an audit."""
    verdicts: dict[tuple[str, int], tuple[str, str | None]] = {}
    try:
        for row in store.result("request_verdicts").iter_rows(named=True):
            verdicts[row["request"], row["incarnation"]] = row["verdict"], row["missing"]
    except StoreError:
        pass  # never audited
    with connect(store) as connection, store.reading():
        found = connection.execute(_SQL, {"since": as_utc("since", since), "until": as_utc("until", until)})
        names = [column[0] for column in found.description or ()]
        while rows := found.fetchmany(PER_REQUEST):
            for values in rows:
                row = dict(zip(names, values, strict=True))
                row["verdict"], row["missing"] = verdicts.get((row["request"], row["incarnation"]), (None, None))
                yield row


def message(rows: list[dict[str, Any]], store_id: str) -> ExportTraceServiceRequest:
    """An export request with one span for each request."""
    out = ExportTraceServiceRequest()
    groups: dict[str, Any] = {}
    for row in rows:
        source = row["received_source"] or "unknown"
        if source not in groups:
            group = out.resource_spans.add()
            _add(group.resource.attributes, "service.name", source)
            groups[source] = group.scope_spans.add()
            groups[source].scope.name = _SCOPE
        _span(groups[source].spans.add(), row, store_id)
    return out


def _span(span: Any, row: dict[str, Any], store_id: str) -> None:
    digest = hashlib.sha256(f"{store_id}\0{row['request']}\0{row['incarnation']}".encode()).digest()
    span.trace_id, span.span_id = digest[:16], digest[16:24]
    span.name = f"request {row['model']}" if row["model"] else "request"
    span.kind = _SERVER
    ends = [row[name] for name in ("finished_ns", "rejected_ns", "aborted_ns") if row[name] is not None]
    span.start_time_unix_nano = max(0, row["received_ns"])
    span.end_time_unix_nano = max([span.start_time_unix_nano, *ends])
    for name, column in _ATTRIBUTES.items():
        if row[column] is not None:
            _add(span.attributes, name, row[column])
    if row["finish_reason"] is not None:
        item = span.attributes.add()
        item.key = "gen_ai.response.finish_reasons"
        item.value.array_value.values.add().string_value = row["finish_reason"]
    status = row["status"]
    if status is not None:
        span.status.code = _OK if 200 <= status < 400 else _ERROR


def _add(attributes: Any, name: str, value: Any) -> None:
    item = attributes.add()
    item.key = name
    if isinstance(value, int):
        item.value.int_value = value
    else:
        item.value.string_value = str(value)


def send(
    rows: Iterator[dict[str, Any]],
    store_id: str,
    url: str,
    headers: Mapping[str, str],
    progress: Callable[[int], None] = lambda sent: None,
) -> Sent:
    """Send requests as spans to an OTLP/HTTP endpoint. Raises KvwitnessError where it does not take them."""
    out, waiting = Sent(), list[dict[str, Any]]()
    for row in rows:
        waiting.append(row)
        if len(waiting) == PER_REQUEST:
            _post(message(waiting, store_id), url, headers, out)
            progress(out.spans)
            waiting.clear()
    if waiting:
        _post(message(waiting, store_id), url, headers, out)
    return out


def _post(export: ExportTraceServiceRequest, url: str, headers: Mapping[str, str], out: Sent) -> None:
    target = url.rstrip("/")
    target = target if target.endswith("/v1/traces") else f"{target}/v1/traces"
    named = {**headers, "Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(target, export.SerializeToString(), named, method="POST")
    for attempt in range(_RETRIES):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                partial = ExportTraceServiceResponse.FromString(response.read()).partial_success
            count = sum(len(scoped.spans) for group in export.resource_spans for scoped in group.scope_spans)
            out.spans += count - partial.rejected_spans
            out.rejected += partial.rejected_spans
            out.reason = partial.error_message or out.reason
            return
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in (429, 502, 503, 504):
                    raise KvwitnessError(f"{target} answered {error.code}.", "Is it an OTLP/HTTP endpoint?") from None
                given = error.headers.get("Retry-After", "")
            trouble = f"{target} answered {error.code}"
            wait = float(given) if given.isdigit() else 2.0**attempt
        except (OSError, ValueError) as error:
            trouble, wait = f"{target} cannot be reached: {error}", 2.0**attempt
        if attempt + 1 < _RETRIES:
            time.sleep(min(wait, 30.0))
    raise KvwitnessError(f"{trouble}, {_RETRIES} times.", "What was sent before stays sent; sending again is harmless.")
