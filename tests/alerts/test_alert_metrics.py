"""Figures for Prometheus: their form, where they are served, and a real Prometheus that reads them."""

from __future__ import annotations

import random
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.config import Config, Route
from kvwitness.audit.alerts.endpoint import endpoint
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.sinks.model import Unreachable
from kvwitness.audit.alerts.status import status
from kvwitness.audit.cli.app import run
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store
from tests.alerts.alertmanager import PROMETHEUS, prometheus, until
from tests.alerts.support import RUNBOOK, T0, ManualClock, Memory, over_limit, put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One alert fires, and its sink is down."""
    made, down = Store.create(tmp_path / "store"), Memory()
    put(made, over_limit(0, 3))
    down.fails = Unreachable("down")
    config = Config(RUNBOOK, sinks={'a "b"': down}, routes=(Route("all", Matcher(), ('a "b"',), False),))
    with Ledger.of(made) as ledger:
        check(made, config, ManualClock(), ledger, jitter=random.Random(1))
    return made


def test_the_figures(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    lines = exposition(status(store)).splitlines()
    assert 'kvwitness_alerts_firing{severity="high",verdict="integrity",silenced="false"} 1' in lines
    assert 'kvwitness_sink_waiting_messages{sink="a \\"b\\""} 1' in lines
    assert f"kvwitness_check_timestamp_seconds {T0}" in lines
    assert run(["alerts", "metrics", "--store", str(store.path)]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_before_any_check(tmp_path: Path) -> None:
    assert "kvwitness_alerts_firing 0\n" in exposition(status(Store.create(tmp_path / "s")))


def test_what_is_served_and_what_is_not() -> None:
    with endpoint("127.0.0.1:0", lambda: "x 1\n") as port:
        base = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            assert answer.read() == b"x 1\n"
        with urllib.request.urlopen(f"{base}/healthz") as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{base}/etc/passwd")
        caught.value.close()
        with pytest.raises(KvwitnessError, match="cannot be listened on"), endpoint(f"127.0.0.1:{port}", str):
            pass
    with pytest.raises(KvwitnessError, match="HOST:PORT"), endpoint("9464", str):
        pass
    with socket.socket() as again:  # it is free again
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)")
def test_a_real_prometheus_reads_them(store: Store, tmp_path: Path) -> None:
    figures = lambda: exposition(status(store))  # noqa: E731
    with endpoint("127.0.0.1:0", figures) as port, prometheus(tmp_path, f"127.0.0.1:{port}") as ask:
        until(lambda: bool(ask("kvwitness_alerts_firing")), "the first scrape")
        assert ask("kvwitness_alerts_firing") == {"severity=high,silenced=false,verdict=integrity": 1.0}
        assert ask("time() - kvwitness_check_timestamp_seconds > 900") != {}  # how one notices that no check runs
        assert ask("up") == {"": 1.0}
