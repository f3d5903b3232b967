"""Real exporters, each with its own way to speak OTLP."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.trace.export import SpanExporter

from kvwitness.collectors.otlp.sdk import StoreSpanExporter
from tests.collectors.otlp.support import CALL, events, installed, provider, receiver, requests_received, rotel

SPANS = 300

JAVASCRIPT = """
const { NodeTracerProvider, BatchSpanProcessor } = require('@opentelemetry/sdk-trace-node');
const [kind, url, count] = process.argv.slice(2);
const { OTLPTraceExporter } = require('@opentelemetry/exporter-trace-otlp-' + kind);
const options = { url, compression: kind === 'proto' ? 'gzip' : undefined };
const processor = new BatchSpanProcessor(new OTLPTraceExporter(options), { maxQueueSize: 100000 });
const provider = new NodeTracerProvider({ spanProcessors: [processor] });
const tracer = provider.getTracer('js');
for (let n = 0; n < Number(count); n++) {
  tracer.startSpan('chat m', { kind: 1, attributes: {
    'gen_ai.operation.name': 'chat', 'gen_ai.request.id': kind + '-' + n, 'gen_ai.usage.input_tokens': 100 + n,
    'gen_ai.response.finish_reasons': ['stop'], 'tenant.id': 't-ash', 'gen_ai.input.messages': 'secret' } }).end();
}
provider.shutdown().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
"""


def trace(exporter: SpanExporter, name: str) -> None:
    sdk = provider(exporter, name)
    tracer = sdk.get_tracer("test")
    for n in range(SPANS):
        tracer.start_span("chat", attributes=CALL | {"gen_ai.request.id": f"{name}-{n}"}).end()
    sdk.shutdown()


def expected(*names: str) -> list[str]:
    return sorted(f"{name}-{n}" for name in names for n in range(SPANS))


def test_python_exporters(tmp_path: Path) -> None:
    with receiver(tmp_path / "store") as running:
        trace(OverHttp(f"{running.http}/v1/traces"), "http")
        trace(OverHttp(f"{running.http}/v1/traces", compression=Compression.Gzip), "gzip")
        trace(OverGrpc(running.grpc, insecure=True), "grpc")
    assert sorted(requests_received(tmp_path / "store")["request"]) == expected("http", "gzip", "grpc")


def test_exporter_that_needs_no_receiver(tmp_path: Path) -> None:
    exporter = StoreSpanExporter(tmp_path / "store")
    trace(exporter, "own")
    assert sorted(requests_received(tmp_path / "store")["request"]) == expected("own")
    assert exporter.account.accepted == SPANS


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node and npm")
def test_javascript_exporters(tmp_path: Path) -> None:
    (tmp_path / "send.js").write_text(JAVASCRIPT)
    installed(tmp_path)
    with receiver(tmp_path / "store") as running:
        for kind, url in (
            ("http", f"{running.http}/v1/traces"),
            ("proto", f"{running.http}/v1/traces"),
            ("grpc", running.grpc),
        ):
            command = ["node", "send.js", kind, url, str(SPANS)]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
    assert sorted(requests_received(tmp_path / "store")["request"]) == expected("http", "proto", "grpc")
    assert {e["source"].split("/")[0] for e in events(tmp_path / "store")} == {"gateway"}


@pytest.mark.slow
def test_collector_in_front(tmp_path: Path) -> None:
    with receiver(tmp_path / "store") as running, rotel(tmp_path, running.http) as collector:
        trace(OverHttp(f"{collector}/v1/traces"), "rotel")
    assert sorted(requests_received(tmp_path / "store")["request"]) == expected("rotel")


def test_what_is_dropped_is_counted(tmp_path: Path) -> None:
    exporter = StoreSpanExporter(tmp_path / "store")
    sdk = provider(exporter)
    secret = {"gen_ai.input.messages": "the quick brown fox", "input.value": "the quick brown fox"}
    sdk.get_tracer("test").start_span("chat", attributes=CALL | secret).end()
    sdk.shutdown()
    assert exporter.account.content == {"gen_ai.input.messages": 1, "input.value": 1}
    assert "fox" not in str(events(tmp_path / "store"))
