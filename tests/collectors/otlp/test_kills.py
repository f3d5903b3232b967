"""Exporters deliver everything through a receiver that is killed again and again: nothing lost, nothing doubled.

KVWITNESS_KILLS=200 pytest -m kills tests/collectors/otlp
KVWITNESS_SPANS=50000 pytest -m kills tests/collectors/otlp
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import polars as pl
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from kvwitness.audit.store import Store
from tests.collectors.otlp.support import CALL, Receiver, events, free_port, installed, proxy, rotel, started

KILLS = max(2, int(os.environ.get("KVWITNESS_KILLS", "0")) // 10)
"""One in ten of those that are asked for: each takes a new receiver, and exporters that wait before they try again."""
SPANS = int(os.environ.get("KVWITNESS_SPANS", "0"))
"""So many spans of each exporter are acknowledged at least, with a kill every few seconds meanwhile."""
BATCH = 100
STEP = max(1, SPANS // BATCH // 60)
"""Batches of each exporter between two kills, at least."""


class Keeping(SpanExporter):
    """Keeps spans, so that they can be exported by hand and again."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: object) -> SpanExportResult:
        self.spans += list(spans)  # type: ignore[call-overload]
        return SpanExportResult.SUCCESS


class Delivering(Protocol):
    """Someone who sends until it is told to stop."""

    acknowledged: list[str]
    """Requests whose spans the receiver has acknowledged."""

    def start(self) -> None: ...
    def join(self, timeout: float) -> None: ...
    def is_alive(self) -> bool: ...


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


JAVASCRIPT = """
const { NodeTracerProvider, SimpleSpanProcessor, InMemorySpanExporter } = require('@opentelemetry/sdk-trace-node');
const [kind, url, attributes, size] = process.argv.slice(2);
const { OTLPTraceExporter } = require('@opentelemetry/exporter-trace-otlp-' + kind);
const compression = kind === 'proto' ? 'gzip' : undefined;
const exporter = new OTLPTraceExporter({ url, compression, timeoutMillis: 5000 });
const keeping = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(keeping)] });
const tracer = provider.getTracer('kills');
let stopped = false;
process.stdin.on('end', () => { stopped = true; }).resume();
(async () => {
  for (let batch = 0; !stopped; batch++) {
    for (let n = 0; n < Number(size); n++) {
      const request = { 'gen_ai.request.id': `js-${kind}-${batch}-${n}` };
      tracer.startSpan('chat', { attributes: { ...JSON.parse(attributes), ...request } }).end();
    }
    await provider.forceFlush();
    const spans = keeping.getFinishedSpans().slice();
    keeping.reset();
    while (!(await new Promise((done) => exporter.export(spans, (result) => done(result.code === 0)))));
    console.log(spans.map((span) => span.attributes['gen_ai.request.id']).join(' '));
  }
  process.exit(0);
})();
"""


class Script(threading.Thread):
    """The same in JavaScript, in a process that says on its standard output what was acknowledged."""

    def __init__(self, folder: Path, kind: str, url: str, stop: threading.Event) -> None:
        super().__init__()
        self.name, self._stopped = f"js-{kind}", stop
        self.acknowledged: list[str] = []
        (folder / "kills.js").write_text(JAVASCRIPT)
        self._command = ["node", "kills.js", kind, url, json.dumps(CALL), str(BATCH)]
        self._folder = folder

    def run(self) -> None:
        with subprocess.Popen(
            self._command, cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                self.acknowledged += line.split()
                if self._stopped.is_set() and not process.stdin.closed:
                    process.stdin.close()


def python(http: str, grpc: str, stop: threading.Event, folder: Path) -> list[Delivering]:
    return [
        Exporter("http", lambda: OverHttp(f"{http}/v1/traces", timeout=5), stop),
        Exporter("gzip", lambda: OverHttp(f"{http}/v1/traces", timeout=5, compression=Compression.Gzip), stop),
        Exporter("grpc", lambda: OverGrpc(grpc, insecure=True, timeout=5), stop),
    ]


def javascript(http: str, grpc: str, stop: threading.Event, folder: Path) -> list[Delivering]:
    installed(folder)
    urls = {"http": f"{http}/v1/traces", "proto": f"{http}/v1/traces", "grpc": grpc}
    return [Script(folder, kind, url, stop) for kind, url in urls.items()]


class Forwarded(Exporter):
    """Sends to the collector Rotel, which sends on through nginx.

    Rotel tries again what is answered with 502, and drops what is under way on a connection that breaks. It
    acknowledges what it has not sent on yet, so the end of it all is waited for here.
    """

    def __init__(self, http: str, stop: threading.Event, folder: Path) -> None:
        super().__init__("rotel", lambda: OverHttp(f"{self._url}/v1/traces", timeout=30), stop)
        self._http, self._folder = http, folder

    def run(self) -> None:
        patient = ["--otlp-exporter-retry-initial-backoff", "200ms", "--otlp-exporter-retry-max-backoff", "1s"]
        port = int(self._http.rsplit(":", 1)[1])
        with proxy(self._folder, port) as front, rotel(self._folder, front, *patient) as self._url:
            super().run()
            store, sent, later = Store.open(self._folder / "store"), set(self.acknowledged), threading.Event()
            while not sent <= set(store.events(["request"]).collect()["request"]):
                later.wait(0.1)


def forwarded(http: str, grpc: str, stop: threading.Event, folder: Path) -> list[Delivering]:
    return [Forwarded(http, stop, folder)]


@pytest.mark.kills
@pytest.mark.parametrize(
    "made_by",
    [
        python,
        pytest.param(forwarded, marks=pytest.mark.services),
        pytest.param(javascript, marks=pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node and npm")),
    ],
)
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    made_by: Callable[[str, str, threading.Event, Path], list[Delivering]], tmp_path: Path
) -> None:
    store, http_port, grpc_port = tmp_path / "store", free_port(), free_port()
    chance = random.Random(155)
    stop = threading.Event()

    def start() -> Receiver:
        return started(store, http_port=http_port, grpc_port=grpc_port)

    running = start()
    exporters = made_by(f"http://127.0.0.1:{http_port}", f"http://127.0.0.1:{grpc_port}", stop, tmp_path)
    kills = 0

    def slowest() -> int:
        return min(len(exporter.acknowledged) for exporter in exporters)

    for exporter in exporters:
        exporter.start()
    try:
        while kills < KILLS or slowest() < SPANS:
            goal = chance.randint(STEP, 3 * STEP) + slowest() // BATCH
            moment = threading.Event()
            while slowest() // BATCH < goal:
                moment.wait(0.01)
            if chance.random() < 0.5:  # what is on the disk and not answered yet must not be doubled
                there = len(list((store / "flushed").glob("*/*/*")))
                while len(list((store / "flushed").glob("*/*/*"))) <= there:
                    pass
            else:
                moment.wait(chance.uniform(0, 0.05))
            running.kill()
            kills += 1
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
    assert len(acknowledged) >= max(KILLS * BATCH, SPANS * len(exporters))
    assert set(counts["request"]) >= acknowledged
    assert counts.filter(pl.col("len") > 1).to_dicts() == []
    # What a segment was when its writer died is left over; nobody was told that it was there.
    assert [problem for problem in Store.open(store).verify() if problem.kind != "leftover"] == []
    assert len(events(store)) == 2 * len(counts)
    print(f"{kills} kills, at least {slowest()} spans of each exporter acknowledged")
