"""The 155 incident in accelerated time, and deaths at random moments, against a real Alertmanager."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import polars as pl
import pytest

from kvwitness.audit.alerts.cadence import Every, duration_ns
from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.config import Config, Route
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks.alertmanager import make
from kvwitness.audit.scenarios.incident_155 import generate
from kvwitness.audit.store import Store
from kvwitness.audit.trace import load_trace
from tests.alerts.alertmanager import Alertmanager, alertmanager, program, until
from tests.alerts.support import RUNBOOK, ManualClock, Memory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(program() is None, reason="Alertmanager is not installed (Debian: prometheus-alertmanager)"),
]

CADENCE = "8h"
DAY = duration_ns("1d")
KILLS = min(50, int(os.environ.get("KVWITNESS_KILLS", "5")))
LEAK, INTEGRITY = "KvwitnessLeak", "KvwitnessIntegrity"


def sink(running: Alertmanager) -> dict[str, object]:
    return {"type": "alertmanager", "url": running.url, "hold": "520w"}


def the_155() -> tuple[pl.DataFrame, int]:
    """The incident among few ordinary requests, ended three days ago: an Alertmanager knows no other time than now."""
    out = io.StringIO(newline="\n")
    generate(out, seed=7, ordinary=1000)
    table, _ = load_trace(io.BytesIO(out.getvalue().encode()))
    frame = cast(pl.DataFrame, pl.from_arrow(table))
    last = cast(int, frame["time_ns"].max())
    return frame.with_columns(pl.col("time_ns") + (time.time_ns() - 3 * DAY - last)), len(frame)


def test_the_155_are_one_page_within_one_cadence_and_one_resolution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_KERNEL", "compiled")  # twelve million page events
    events, total = the_155()
    store = Store.create(tmp_path / "store")
    start = cast(int, events["time_ns"].min())
    clock, period = ManualClock(start), duration_ns(CADENCE)
    memory = Memory()
    seen, counts = 0, []
    with alertmanager(tmp_path) as running, Ledger.of(store) as ledger:
        sinks = {
            "am": make(Section({k: v for k, v in sink(running).items() if k != "type"}, tmp_path, "")),
            "own": memory,
        }
        config = Config(
            RUNBOOK, cadence=Every(period), sinks=sinks, routes=(Route("all", Matcher(), ("am", "own"), False),)
        )
        first_leak = None
        while clock.now_ns() < time.time_ns() - duration_ns("12h"):
            clock.turn(CADENCE)
            slice_ = events.filter(pl.col("time_ns") <= clock.now_ns())
            if len(slice_) > seen:
                rows = slice_.slice(seen)
                store.import_batches(rows.to_arrow().to_batches(), sha256=f"{seen:064d}", name="slice")
                seen = len(slice_)
            report = check(store, config, clock, ledger, jitter=random.Random(1))
            assert report.failed is None
            if first_leak is None and any(n.verdict == "leak" for n in memory.notices):
                first_leak = next(n for n in memory.notices if n.verdict == "leak")
                until(lambda: running.told(LEAK) == ["firing"], "the page for the first leak")
                assert first_leak.said_ns - first_leak.first_ns <= period
            counts += [int(a["annotations"]["incidents"]) for a in running.alerts() if a["labels"]["alertname"] == LEAK]
        assert seen == total
        until(lambda: running.told(LEAK) == ["firing", "resolved"], "the resolution")
        sinks["am"].deliver(memory.notices[0].__class__(**vars(memory.notices[0]) | {"alert": "x", "verdict": "last"}))
        until(lambda: running.told("KvwitnessLast") == ["firing"], "whatever came before the last")
        assert running.told(LEAK) == ["firing", "resolved"]
        assert running.told("KvwitnessExposure") == ["firing"]  # capacity-drift: told once, and true to this day
    assert counts == sorted(counts)
    assert len(set(counts)) > 4  # the page was kept up to date
    assert counts[-1] == 155
    assert [n.status for n in memory.notices if n.verdict == "leak"].count("firing") == 1


DRIVER = Path(__file__).with_name("kill_driver.py")


@pytest.mark.kills
def test_whoever_is_killed_tells_each_once_all_the_same(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    incidents = 12 + KILLS
    with alertmanager(tmp_path) as running:
        toml = tmp_path / "alerts.toml"
        toml.write_text(
            f'runbook = "https://r.example.org/#{{rule}}"\n[alerts]\nupdate_every = "10m"\n'
            f'[sinks.am]\ntype = "alertmanager"\nurl = "{running.url}"\nhold = "520w"\n'
            f'[sinks.hook]\ntype = "webhook"\nurl = "{running.pages.url}/hook"\n'
            f'[sinks.file]\ntype = "jsonfile"\npath = "{tmp_path}/alerts.jsonl"\n'
            '[[route]]\nname = "all"\nsinks = ["file", "am", "hook"]\n'
        )
        start = int(time.time()) - 10 * 86_400
        command = [sys.executable, str(DRIVER), str(tmp_path / "store"), str(toml), str(incidents), str(start)]
        environment = os.environ | {"PYTHONPATH": str(DRIVER.parents[2])}
        for _ in range(KILLS):
            with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
                assert process.stdout is not None
                process.stdout.readline()  # everything is imported
                threading.Event().wait(chance.uniform(0.0, 1.0))
                process.kill()
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        until(lambda: running.told(INTEGRITY) == ["firing", "resolved"], "one page and its end")
        hooks = [got for got in running.pages.received if got.path == "/hook"]
    by_key = {got.headers["Idempotency-Key"]: got.json for got in hooks}
    order = [got.headers["Idempotency-Key"] for got in hooks]
    first_arrivals = list(dict.fromkeys(order))
    mine = [by_key[key] for key in first_arrivals if by_key[key]["verdict"] == "integrity"]
    assert [one["version"] for one in mine] == list(range(1, len(mine) + 1))  # none lost, in order
    assert [one["status"] for one in mine] == ["firing", *["updated"] * (len(mine) - 2), "resolved"]
    assert mine[-1]["counts"]["incidents"] == incidents
    doubled = [got for n, got in enumerate(hooks) if got.headers["Idempotency-Key"] in order[:n]]
    assert all(got.json["repeated"] for got in doubled)  # and whoever came twice says so
    print(f"{KILLS} kills, {len(by_key)} messages, {len(doubled)} of them sent twice under their key")
