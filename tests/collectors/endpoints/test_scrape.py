"""Engines that are asked for their limits: by a real receiver, over HTTP on loopback."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.otlp.support import events, receiver

VLLM = {
    "/metrics": (
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="1000"} 1.0\n'
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    ),
    "/v1/models": json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}),
    "/version": json.dumps({"version": "0.32.0"}),
}
SGLANG = {
    "/v1/models": json.dumps({"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 1048576}]}),
    "/server_info": json.dumps(
        {
            "version": "0.5.19",
            "disaggregation_mode": "prefill",
            "page_size": 64,
            "disable_radix_cache": False,
            "max_req_input_len": 681275,
            "internal_states": [{"max_total_num_tokens": 681280}],
        }
    ),
}


@contextmanager
def engine(pages: dict[str, str]) -> Iterator[tuple[str, threading.Semaphore]]:
    """An engine that answers with these pages, and counts the rounds in which it was asked."""
    asked = threading.Semaphore(0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if self.path == "/version":  # the last page of a round
                asked.release()

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def told(store: Path, kind: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.items() if k not in ("time_ns", "event")} for e in events(store) if e["event"] == kind]


@pytest.mark.parametrize(
    ("pages", "limits", "pool"),
    [
        (
            VLLM,
            {"advertised_tokens": 4096, "input_limit_tokens": 4095, "pool_tokens": 15984, "version": "0.32.0"},
            {"page_tokens": 16, "pages_total": 1000, "reserved": [0], "prefix_caching": True},
        ),
        (
            SGLANG,
            {"advertised_tokens": 1048576, "input_limit_tokens": 681274, "pool_tokens": 681280, "version": "0.5.19"}
            | {"role": "prefill"},
            {"page_tokens": 64, "pages_total": 10646, "reserved": [0], "prefix_caching": True},
        ),
    ],
)
def test_limits_and_pool_are_kept_once(
    pages: dict[str, str], limits: dict[str, Any], pool: dict[str, Any], tmp_path: Path
) -> None:
    options = ("--scrape-every", "0.1", "--scrape")
    with engine(pages) as (url, asked), receiver(tmp_path / "store", *options, f"pf-1={url}"):
        for _ in range(3):
            assert asked.acquire(timeout=60)
    about = {"source": "endpoint/pf-1"}
    assert told(tmp_path / "store", "engine.limits") == [about | {"engine": "pf-1", "model": "m"} | limits]
    assert told(tmp_path / "store", "engine.pool") == [about | {"pool": "pf-1/0/kv", "kind": "kv"} | pool]


def test_limit_that_changes_is_told_again(tmp_path: Path) -> None:
    pages = dict(VLLM)
    options = ("--scrape-every", "0.1", "--scrape")
    with engine(pages) as (url, asked), receiver(tmp_path / "store", *options, f"e={url}"):
        assert asked.acquire(timeout=60)
        pages["/v1/models"] = VLLM["/v1/models"].replace("4096", "2048")
        for _ in range(3):  # one round may have been under way
            assert asked.acquire(timeout=60)
    lengths = [limits["advertised_tokens"] for limits in told(tmp_path / "store", "engine.limits")]
    assert lengths == [4096, 2048]


def test_numbers_that_are_none_end_nothing(tmp_path: Path) -> None:
    broken = "sglang:page_size +Inf\nsglang:num_pages NaN\n"
    pages = VLLM | {"/metrics": broken + VLLM["/metrics"], "/v1/models": '{"data": [{"max_model_len": 1e400}]}'}
    options = ("--scrape-every", "0.1", "--scrape")
    with engine(pages) as (url, asked), receiver(tmp_path / "store", *options, f"e={url}"):
        assert asked.acquire(timeout=60)
        pages["/v1/models"] = VLLM["/v1/models"]
        for _ in range(3):
            assert asked.acquire(timeout=60)
    assert [pool["pages_total"] for pool in told(tmp_path / "store", "engine.pool")] == [1000]
    assert told(tmp_path / "store", "engine.limits")[-1]["advertised_tokens"] == 4096


def test_page_that_cannot_be_read_is_named_though_others_can(tmp_path: Path) -> None:
    pages = VLLM | {"/metrics": 'vllm:cache_config_info{block_size="16" num_gpu_blocks=\n'}
    options = ("--scrape-every", "0.1", "--scrape")
    with engine(pages) as (url, _), receiver(tmp_path / "store", *options, f"e={url}") as running:
        said = b""
        assert running.process.stderr is not None
        while b"e says what cannot be read at" not in said:
            line = running.process.stderr.readline()
            assert line
            said += line
        assert b"/metrics: " in said


def test_engine_that_is_not_there_stops_nothing(tmp_path: Path) -> None:
    with receiver(tmp_path / "store", "--scrape", "e=http://127.0.0.1:9", "--scrape-every", "0.1") as running:
        said = b""
        assert running.process.stderr is not None
        while b"e says nothing at" not in said:
            said += running.process.stderr.readline()
        assert running.get("/readyz")[0] == 200
