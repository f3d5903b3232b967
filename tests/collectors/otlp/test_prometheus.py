"""A real Prometheus scrapes the receiver, and is asked for what it read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.alerts.alertmanager import PROMETHEUS, prometheus, until
from tests.collectors.otlp.support import receiver, span, traces

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)"),
]


def test_a_real_prometheus_reads_the_receivers_figures(tmp_path: Path) -> None:
    secret = {"gen_ai.input.messages": "the quick brown fox"}
    with (
        receiver(tmp_path / "store", "--header-time", "3") as running,
        prometheus(tmp_path, f"127.0.0.1:{running.http_port}") as ask,
    ):
        until(lambda: ask("up") == {"": 1.0}, "the first scrape")
        assert running.post(traces(span(1), span(2, attributes=secret)))[0] == 200
        assert running.post(traces(span(2), span(3, traceId="00" * 16)))[0] == 200
        assert running.post(b"{")[0] == 400
        with socket.create_connection(("127.0.0.1", running.http_port)) as slow:
            slow.sendall(b"GET /metr")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        records = {"outcome=kept": 2.0, "outcome=doubled": 1.0, "outcome=ignored": 0.0, "outcome=rejected": 1.0}
        until(lambda: ask("kvwitness_collect_records_total") == records, "what became of the spans")
        ended = 'kvwitness_collect_http_connections_ended_total{reason="slow_head"} >= 1'
        until(lambda: list(ask(ended)) == ["reason=slow_head"], "the connection that was ended")
        assert ask("kvwitness_collect_requests_total") == {
            "outcome=ok,signal=traces,transport=http": 2.0,
            "outcome=bad_data,signal=traces,transport=http": 1.0,
        }
        assert ask("kvwitness_collect_content_dropped_total") == {"": 1.0}
        assert ask("kvwitness_collect_ready") == {"": 1.0}
        assert ask("kvwitness_collect_http_connections >= 1") != {}  # its own
        assert ask("kvwitness_collect_held_bytes") == {"": 0.0}
