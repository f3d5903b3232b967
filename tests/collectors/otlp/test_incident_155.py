"""The incident of thirteen days as an operator has it who records nothing but spans."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import SpanKind

from kvwitness.audit import query
from kvwitness.audit.runs import audit_store
from kvwitness.audit.scenarios.incident_155 import Truth, generate
from kvwitness.audit.store import Store
from tests.collectors.otlp.support import Receiver, provider, receiver


def incident() -> tuple[list[dict[str, Any]], Truth]:
    out = io.StringIO(newline="\n")
    truth = generate(out)
    return [json.loads(line) for line in out.getvalue().splitlines()], truth


def nanoseconds(event: dict[str, Any]) -> int:
    return round(event["t"] * 1_000_000) * 1000


def answered(trace: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What the gateway saw of each request: how it came, and how it was answered."""
    received = {e["request"]: e for e in trace if e["event"] == "request.received"}
    for event in trace:
        if event["event"] == "request.finished" and event["source"] == "gateway":
            yield received[event["request"]], event


def send(trace: list[dict[str, Any]], to: Receiver) -> None:
    """The limits as log records, the requests as spans of the gateway; both by exporters of OpenTelemetry."""
    logs = LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{to.http}/v1/logs")))
    for event in trace:
        if event["event"] == "engine.limits":
            fields = {k: v for k, v in event.items() if k not in ("t", "seq", "event")}
            record = LogRecord(timestamp=nanoseconds(event), event_name="engine.limits", attributes=fields)
            logs.get_logger("engines").emit(record)
    logs.shutdown()
    sdk = provider(OTLPSpanExporter(to.grpc, insecure=True), "router")
    tracer = sdk.get_tracer("gateway")
    for number, (start, end) in enumerate(answered(trace), start=1):
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.id": start["request"],
            "gen_ai.request.max_tokens": start["max_new_tokens"],
            "gen_ai.usage.input_tokens": end["prompt_tokens"],
            "gen_ai.usage.output_tokens": end["completion_tokens"],
            "gen_ai.response.finish_reasons": [end["finish_reason"]],
            "kvwitness.prompt_tokens": start["prompt_tokens"],
            "kvwitness.traffic": start.get("traffic", "user"),
            "http.response.status_code": end["status"],
            "tenant.id": start["tenant"],
        }
        span = tracer.start_span("chat", kind=SpanKind.SERVER, attributes=attributes, start_time=nanoseconds(start))
        span.end(nanoseconds(end))
        if number % 1000 == 0:  # the SDK's queue holds 2,048 and drops what is more
            sdk.force_flush()
    sdk.shutdown()


@pytest.mark.slow
def test_spans_alone_show_all_over_limit_successes_and_no_others(tmp_path: Path) -> None:
    trace, truth = incident()
    with receiver(tmp_path / "store") as running:
        send(trace, running)
    store = Store.open(tmp_path / "store")
    judged = audit_store(store).judgement
    faulty = {one.request for one in truth.incidents}
    findings = judged.findings.filter(judged.findings["verdict"] != "unproven")
    by_rule = {
        rule: set(findings.filter(findings["rule"] == rule)["request"].to_list())
        for rule in findings["rule"].unique().to_list()
    }
    assert len(faulty) == 155
    assert by_rule["over-limit-success"] == faulty
    assert by_rule["status-mismatch"] == faulty  # the answer says that the prompt had one token
    about_requests = set().union(*by_rule.values()) - {None}
    assert about_requests == faulty
    assert judged.page_events == 0
    asked = query("over_limit_successes", store=store)
    assert (set(asked["request"]), set(asked["engine"]), set(asked["served_ts"])) == (faulty, {"pf-1"}, {None})
    verdicts = {row["request"]: row for row in judged.requests.iter_rows(named=True)}
    assert set(verdicts) == {request.id for request in truth.requests}
    assert {verdicts[request]["verdict"] for request in faulty} == {"integrity"}
    served = {start["request"] for start, end in answered(trace) if end["status"] == 200} - set(truth.health)
    blind = [verdicts[request] for request in served - faulty]
    assert {(row["verdict"], row["missing"]) for row in blind} == {("unproven", "page events")}
