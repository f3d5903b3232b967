"""Exporters deliver everything through a receiver that is killed again and again: nothing lost, nothing doubled.

KVWITNESS_KILLS=200 pytest -m kills tests/collectors/otlp
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from kvwitness.audit.store import Store
from tests.collectors.otlp.support import CALL, Receiver, events, started

KILLS = max(2, int(os.environ.get("KVWITNESS_KILLS", "0")) // 10)
"""One in ten of those that are asked for: each takes a new receiver, and exporters that wait before they try again."""
BATCH = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Keeping(SpanExporter):
    """Keeps spans, so that they can be exported by hand and again."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: object) -> SpanExportResult:
        self.spans += list(spans)  # type: ignore[call-overload]
        return SpanExportResult.SUCCESS


class Exporter(threading.Thread):
    """Sends batches by a real exporter; one that it gives up is sent again until it is acknowledged."""

    def __init__(self, name: str, new: Callable[[], SpanExporter], stop: threading.Event) -> None:
        super().__init__()
        self.name, self._new, self._stopped = name, new, stop
        self.acknowledged: list[str] = []

    def run(self) -> None:
        exporter, batch = self._new(), 0
        keeping = Keeping()
        sdk = TracerProvider(resource=Resource({"service.name": self.name}), shutdown_on_exit=False)
        sdk.add_span_processor(SimpleSpanProcessor(keeping))
        tracer = sdk.get_tracer("kills")
        while not self._stopped.is_set():
            ids = [f"{self.name}-{batch}-{n}" for n in range(BATCH)]
            for request in ids:
                tracer.start_span("chat", attributes=CALL | {"gen_ai.request.id": request}).end()
            while exporter.export(keeping.spans) is not SpanExportResult.SUCCESS:
                pass
            keeping.spans.clear()
            self.acknowledged += ids
            batch += 1
        exporter.shutdown()


@pytest.mark.kills
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(tmp_path: Path) -> None:
    store, http_port, grpc_port = tmp_path / "store", free_port(), free_port()
    chance = random.Random(155)
    stop = threading.Event()

    def start() -> Receiver:
        return started(store, http_port=http_port, grpc_port=grpc_port)

    running = start()
    http = f"http://127.0.0.1:{http_port}/v1/traces"
    exporters = [
        Exporter("http", lambda: OverHttp(http, timeout=5), stop),
        Exporter("gzip", lambda: OverHttp(http, timeout=5, compression=Compression.Gzip), stop),
        Exporter("grpc", lambda: OverGrpc(f"http://127.0.0.1:{grpc_port}", insecure=True, timeout=5), stop),
    ]
    for exporter in exporters:
        exporter.start()
    try:
        for _ in range(KILLS):
            goal = chance.randint(1, 3) + min(len(e.acknowledged) for e in exporters) // BATCH
            moment = threading.Event()
            while min(len(e.acknowledged) for e in exporters) // BATCH < goal:
                moment.wait(0.01)
            if chance.random() < 0.5:  # what is on the disk and not answered yet must not be doubled
                there = len(os.listdir(store / "live"))
                while len(os.listdir(store / "live")) <= there:
                    pass
            else:
                moment.wait(chance.uniform(0, 0.05))
            running.kill()
            running = start()
    finally:
        stop.set()
        for exporter in exporters:
            exporter.join(timeout=120)
        if running.process.poll() is None:
            running.stop()
    assert not any(exporter.is_alive() for exporter in exporters)
    received = Store.open(store).events(["event", "request"]).filter(pl.col("event") == "request.received")
    counts = received.group_by("request").len().collect()
    acknowledged = {request for exporter in exporters for request in exporter.acknowledged}
    assert len(acknowledged) >= KILLS * BATCH
    assert set(counts["request"]) >= acknowledged
    assert counts.filter(pl.col("len") > 1).to_dicts() == []
    assert Store.open(store).verify() == []
    assert len(events(store)) == 2 * len(counts)
