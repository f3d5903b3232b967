"""What receiving spans costs: beside parsing their protobuf alone, and beside another receiver in Python.

    python benchmarks/otlp.py
    python benchmarks/otlp.py --phoenix VENV/bin/python      # of an environment with arize-phoenix

The same spans of model calls go to each receiver over HTTP from the same number of connections, in requests of 512, as
SDKs send them. The clock stops when all are in durable storage: for kvwitness when the last request is answered, for
Phoenix (on its default SQLite) when its table has them all. Throughput is per second of the receiver's own CPU time,
which does not depend on what else the machine does; spans per second of the wall clock are printed beside it.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PER_REQUEST = 512
_TICK = os.sysconf("SC_CLK_TCK")
_DOORS = re.compile(rb"OTLP/HTTP on \S+:(\d+)")


@dataclass(frozen=True)
class Measured:
    """What one receiver took."""

    name: str
    spans: int
    wall_s: float
    cpu_s: float
    peak_mib: int

    @property
    def per_cpu_s(self) -> float:
        return self.spans / self.cpu_s


def bodies(count: int) -> list[bytes]:
    """Export requests of ordinary spans of model calls."""
    out = []
    for first in range(0, count, PER_REQUEST):
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        name = group.resource.attributes.add()
        name.key, name.value.string_value = "service.name", "app"
        spans = group.scope_spans.add().spans
        for number in range(first, min(first + PER_REQUEST, count)):
            span = spans.add(name="chat m", kind=3)
            span.trace_id = (1 << 100 | number).to_bytes(16, "big")
            span.span_id = (1 << 50 | number).to_bytes(8, "big")
            span.start_time_unix_nano = 1_788_221_380_000_000_000 + number * 1_000_000
            span.end_time_unix_nano = span.start_time_unix_nano + 900_000_000
            for key, text in (
                ("gen_ai.operation.name", "chat"), ("gen_ai.provider.name", "self"), ("gen_ai.request.model", "m"),
                ("gen_ai.response.id", f"chatcmpl-{number:08}"), ("tenant.id", f"t-{number % 50}"),
                ("gen_ai.response.finish_reasons", "stop"), ("server.address", "10.0.0.1"),
            ):  # fmt: skip
                item = span.attributes.add()
                item.key, item.value.string_value = key, text
            for key, value in (
                ("gen_ai.usage.input_tokens", number % 8000), ("gen_ai.usage.output_tokens", number % 500),
                ("gen_ai.request.max_tokens", 512), ("http.response.status_code", 200),
            ):  # fmt: skip
                item = span.attributes.add()
                item.key, item.value.int_value = key, value
        out.append(request.SerializeToString())
    return out


def send(port: int, requests: list[bytes], connections: int) -> None:
    """Send all, and return when all are answered; what is told to wait is sent again."""
    waiting = iter(requests)
    guard = threading.Lock()
    failed: list[str] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with guard:
                body = next(waiting, None)
            if body is None:
                return
            while True:
                connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    break
                if answer.status not in (429, 503):
                    failed.append(f"status {answer.status}")
                    return
                time.sleep(0.2)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(failed[0])


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def peak_mib(pid: int) -> int:
    """Most memory that a process ever held."""
    return next(
        int(line.split()[1]) // 1024
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


@contextmanager
def kvwitness(directory: Path) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()", "collect"]
    command += ["--store", str(directory / "store"), "--http-port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stderr is not None
        port = next(int(found[1]) for line in process.stderr if (found := _DOORS.search(line)))
        yield process.pid, port
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def phoenix(python: Path, directory: Path) -> Iterator[tuple[int, int]]:
    port = 6106
    settings = {"PHOENIX_WORKING_DIR": str(directory), "PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(port + 1)}
    settings |= {"PHOENIX_TELEMETRY_ENABLED": "false", "PHOENIX_HOST": "127.0.0.1"}
    command = [str(python.parent / "phoenix"), "serve"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        while True:
            with suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz")
                break
            if process.poll() is not None:
                raise SystemExit((directory / "log").read_text()[-2000:])
            time.sleep(0.5)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def stored_by_phoenix(directory: Path) -> int:
    with suppress(sqlite3.Error):
        connection = sqlite3.connect(f"file:{directory / 'phoenix.db'}?mode=ro", uri=True)
        try:
            return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])
        finally:
            connection.close()
    return 0


def measure(name: str, pid: int, port: int, count: int, connections: int, stored: Callable[[], int]) -> Measured:
    """Warm up, then send `count` spans and wait until they are stored."""
    requests = bodies(count + PER_REQUEST)
    send(port, requests[-1:], 1)
    while stored() < PER_REQUEST:
        time.sleep(0.1)
    before, began = cpu_s(pid), time.monotonic()
    send(port, requests[:-1], connections)
    while stored() < count + PER_REQUEST:
        time.sleep(0.1)
    return Measured(name, count, time.monotonic() - began, cpu_s(pid) - before, peak_mib(pid))


def parsing(count: int) -> Measured:
    """Parsing the same bodies, and nothing else, in this process."""
    requests = bodies(count)
    before, began = time.process_time(), time.monotonic()
    for body in requests:
        ExportTraceServiceRequest.FromString(body)
    return Measured("parsing the protobuf alone", count, time.monotonic() - began, time.process_time() - before, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=100 * PER_REQUEST)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--phoenix", type=Path, help="Python of an environment with arize-phoenix")
    given = parser.parse_args()
    spans = given.spans // PER_REQUEST * PER_REQUEST
    results = [parsing(spans)]
    with tempfile.TemporaryDirectory() as directory, kvwitness(Path(directory)) as (pid, port):
        results.append(measure("kvwitness collect", pid, port, spans, given.connections, lambda: 1 << 62))
    if given.phoenix:
        fewer = spans // 10 // PER_REQUEST * PER_REQUEST  # it would take long
        with tempfile.TemporaryDirectory() as name, phoenix(given.phoenix, directory := Path(name)) as (pid, port):
            counted = lambda: stored_by_phoenix(directory)  # noqa: E731
            results.append(measure("Phoenix, SQLite", pid, port, fewer, given.connections, counted))
    print(f"{'':28}{'spans':>9}{'wall s':>9}{'CPU s':>9}{'spans/s':>10}{'per CPU s':>11}{'peak MiB':>10}")
    for one in results:
        rate, peak = one.spans / one.wall_s, one.peak_mib or ""
        print(
            f"{one.name:28}{one.spans:9,}{one.wall_s:9.2f}{one.cpu_s:9.2f}{rate:10,.0f}{one.per_cpu_s:11,.0f}{peak:>10}"
        )
    ours = results[1].per_cpu_s
    for other in (results[0], *results[2:]):
        print(f"kvwitness does {ours / other.per_cpu_s:.3g} times the spans per CPU second of: {other.name}")


if __name__ == "__main__":
    main()
