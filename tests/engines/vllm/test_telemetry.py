"""vLLM without the tracer: its own spans, its pages of information and its KV events, in one collector."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.api import as_document
from kvwitness.audit.pipeline import judge
from kvwitness.audit.store import Store
from tests.engines.vllm.model import PAGE_TOKENS, tiny_weights
from tests.engines.vllm.server import ApiServer

ENGINE, LENGTH, PAGES = "api-0", 256, 40
SENT = {"a1": 90, "b1": 120, "b2": LENGTH - 1}
"""Request -> length of its prompt; the last is as long as vLLM takes."""
PATIENCE_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.1)


class Collector:
    """`kvwitness collect` in a process of its own."""

    def __init__(self, store: Path, http: int, grpc: int, *options: str) -> None:
        command = [str(Path(sys.prefix) / "bin/kvwitness"), "collect", "--store", str(store)]
        command += ["--http-port", str(http), "--grpc-port", str(grpc), *options]
        self._http = http
        self._log = store.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        until(lambda: "receiving" in self.said() or self.process.poll() is not None, "the collector")
        assert self.process.poll() is None, self.said()

    def said(self) -> str:
        return self._log.read_text()

    def count(self, metric: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        return summary


@contextmanager
def collecting(store: Path, http: int, grpc: int, *options: str) -> Iterator[Collector]:
    running = Collector(store, http, grpc, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def prompt(seed: int, length: int) -> list[int]:
    return [5 + (seed + n * 7) % 450 for n in range(length)]


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short name, as the system wants it of sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_vllm_says_of_itself_is_enough_for_requests_limits_and_its_cache(
    protocol: str, tmp_path: Path, sockets: Path
) -> None:
    store, http, grpc = tmp_path / "store", free_port(), free_port()
    # At an address of TCP with a host vLLM does not listen: it connects to somebody who does.
    events, replay = (f"ipc://{sockets / name}" for name in ("events", "replay"))
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events, "replay_endpoint": replay}
    endpoint = f"http://127.0.0.1:{grpc}" if protocol == "grpc" else f"http://127.0.0.1:{http}/v1/traces"
    flags = (
        "--num-gpu-blocks-override", str(PAGES), "--max-model-len", str(LENGTH), "--enable-prefix-caching",
        "--kv-events-config", json.dumps(told), "--otlp-traces-endpoint", endpoint,
    )  # fmt: skip
    environment = {
        "OTEL_SERVICE_NAME": ENGINE, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol, "OTEL_BSP_SCHEDULE_DELAY": "200",
    }  # fmt: skip
    server = ApiServer(tiny_weights(tmp_path / "weights"), tmp_path, None, *flags, **environment)
    follow = ("--scrape", f"{ENGINE}=http://127.0.0.1:{server.port}", "--scrape-every", "0.5")
    follow += ("--kv-events", f"{ENGINE}={events},{replay}")
    with server, collecting(store, http, grpc, *follow) as collector:
        until(lambda: {"engine.limits", "engine.pool"} <= {row["event"] for row in of(store)}, "the engine's pages")
        for number, (name, length) in enumerate(SENT.items()):
            answer = server.complete(name, prompt(100 * number, length), "t", new=1, cache_salt=f"pepper-{number}")
            assert (answer.status, answer.usage["prompt_tokens"]) == (200, length)
        assert server.complete("c1", prompt(7, LENGTH), "t", new=1).status == 400  # of which vLLM makes no span
        again = server.complete("a2", prompt(0, 90), "t", new=1, cache_salt="pepper-0")
        assert again.status == 200
        until(lambda: collector.count('kvwitness_collect_records_total{outcome="kept"}') >= len(SENT) + 1, "spans")
        blocks = sum(length // PAGE_TOKENS for length in SENT.values())
        until(lambda: stored_blocks(store) >= blocks, "KV events")
        summary = collector.stop()
    rows = of(store)
    sent = {f"cmpl-{name}-0": length for name, length in [*SENT.items(), ("a2", 90)]}
    received = [row for row in rows if row["event"] == "request.received"]
    finished = [row for row in rows if row["event"] == "request.finished"]
    assert {row["request"]: row["max_new_tokens"] for row in received} == dict.fromkeys(sent, 1)
    assert {row["request"]: row["prompt_tokens"] for row in finished} == sent
    assert {(row["status"], row["answered_by"], row["completion_tokens"]) for row in finished} == {(200, ENGINE, 1)}
    assert {row["source"].split("/")[0] for row in [*received, *finished]} == {ENGINE}
    [limits] = [row for row in rows if row["event"] == "engine.limits"]
    known = ("engine", "model", "advertised_tokens", "input_limit_tokens", "pool_tokens", "version")
    assert [limits[name] for name in known] == [
        ENGINE, "tiny", LENGTH, LENGTH - 1, (PAGES - 1) * PAGE_TOKENS, limits["version"]
    ]  # fmt: skip
    assert limits["version"].startswith("0.")
    [pool] = [row for row in rows if row["event"] == "engine.pool"]
    about = ("pool", "page_tokens", "pages_total", "prefix_caching", "reserved")
    assert [pool[name] for name in about] == [f"{ENGINE}/0/kv", PAGE_TOKENS, PAGES, True, [0]]
    stored = [row for row in rows if row["event"] == "cache.stored"]
    assert stored_blocks(store) == blocks  # what a2 asked for was there
    assert len({json.loads(row["ns"])["salt_hmac"] for row in stored}) == len(SENT)
    assert "pepper" not in str(rows)
    assert [row for row in rows if row["event"] == "telemetry.gap"] == []
    assert summary["rejected"] == {}
    document = as_document(judge(Store.open(store).events().collect()))
    assert document["requests"] == dict.fromkeys(sent, "unproven")


def of(store: Path) -> list[dict[str, Any]]:
    """All events, what stands beside the vocabulary among their fields."""
    rows = Store.open(store).events().collect().iter_rows(named=True)
    full = [{k: v for k, v in row.items() if v is not None} for row in rows]
    return [row | json.loads(row.pop("extra", None) or "{}") for row in full]


def stored_blocks(store: Path) -> int:
    """Blocks of which the engine said that its prefix cache took them in."""
    return sum(len(row["block_keys"]) for row in of(store) if row["event"] == "cache.stored")
