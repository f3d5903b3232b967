"""Whole checks on real stores: what is due, what was missed, who may work, and what the commands say."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwitness.audit.alerts.cadence import Cadence, Cron, Every, duration_ns
from kvwitness.audit.alerts.check import Report, check
from kvwitness.audit.alerts.config import Config, Heartbeat, Route, RuleSetting
from kvwitness.audit.alerts.lease import Busy, lease
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.status import status
from kvwitness.audit.alerts.watch import wake_ns, watch
from kvwitness.audit.cli.app import run
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store
from tests.alerts.alertmanager import until
from tests.alerts.support import RUNBOOK, T0_NS, ManualClock, Memory, over_limit, put


class Post:
    """A store, its ledger, and one sink."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.store = Store.create(folder / "store")
        self.ledger = Ledger.of(self.store)
        self.clock, self.sink = ManualClock(), Memory()
        self.config = Config(
            RUNBOOK,
            sinks={"desk": self.sink},
            routes=(Route("all", Matcher(), ("desk",), False),),
            **settings,  # type: ignore[arg-type]
        )

    def check(self, after: str = "5m") -> Report:
        return check(self.store, self.config, self.clock.turn(after), self.ledger, jitter=random.Random(1))


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    made = Post(tmp_path)
    yield made
    made.ledger.close()


def test_from_events_to_one_page_updates_and_an_end(post: Post) -> None:
    for n in range(4):
        put(post.store, over_limit(n * 5, 5))
        assert post.check("61m").failed is None
    post.check("24h")
    said = [n for n in post.sink.notices if n.verdict == "integrity"]
    assert [(n.status, n.incidents) for n in said] == [
        ("firing", 5), ("updated", 10), ("updated", 15), ("updated", 20), ("resolved", 20),
    ]  # fmt: skip
    assert said[0].title == "5 requests with wrong or undefined content: e"
    assert said[0].rules[0] == "over-limit-success"


def test_a_clock_that_was_ahead_and_is_put_right_leaves_nobody_blind(tmp_path: Path) -> None:
    """One check with a clock that is a year ahead: it must not be the last one for a year."""
    beats = tmp_path / "alive"
    post = Post(tmp_path, heartbeat=Heartbeat(duration_ns("1m"), file=beats))
    put(post.store, over_limit(0, 2))
    post.check()
    post.sink.fails = RuntimeError("away")
    put(post.store, over_limit(2, 2))
    post.check("365d")
    post.sink.fails, post.clock = None, ManualClock(post.clock.now_ns() - duration_ns("364d"))
    put(post.store, over_limit(4, 2))
    report = post.check()
    assert (report.due, report.audited, report.back_ns) == (len(RULES), True, duration_ns("364d") - duration_ns("5m"))
    assert wake_ns(post.config, post.ledger, post.clock.now_ns()) <= post.clock.now_ns() + duration_ns("5m")
    assert post.check("61m").delivered.waiting == 0
    told = [(n.status, n.incidents) for n in post.sink.notices if n.verdict == "integrity"]
    assert told == [("firing", 2), ("updated", 4), ("updated", 6)]
    now = post.clock.now_ns()
    assert max(post.ledger.rules_done().values()) <= now
    assert all(row["not_before_ns"] <= now and row["queued_ns"] <= now for row in post.ledger.deliveries())
    with post.ledger.transaction():
        assert post.ledger.set_back(now) == 0


@pytest.mark.parametrize("cadence", [Every(duration_ns("1h")), Cron("0 6 * * *")])
def test_a_rule_that_was_looked_at_later_than_now_is_due(cadence: Cadence) -> None:
    assert cadence.due(T0_NS + 1, T0_NS)
    assert not cadence.due(T0_NS, T0_NS)


def test_nothing_is_judged_twice(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    assert [post.check().audited, post.check().audited] == [True, False]
    put(post.store, over_limit(1, 1))
    assert post.check().audited


def test_settings_of_rules_reach_the_judgement(tmp_path: Path) -> None:
    settings = {"orphaned-pages": RuleSetting(params={"bound_s": 700})}
    post = Post(tmp_path, rules=settings)
    put(post.store, over_limit(0, 1))
    assert post.check().audited
    post.config = Config(RUNBOOK, rules={})
    assert post.check().audited  # other settings, another judgement


def test_each_rule_at_its_own_pace(tmp_path: Path) -> None:
    hourly = {
        "over-limit-success": RuleSetting(Every(duration_ns("1h"))),
        "status-mismatch": RuleSetting(enabled=False),
    }
    post = Post(tmp_path, rules=hourly)
    post.check()
    put(post.store, over_limit(0, 3))
    for _ in range(11):
        post.check()
    assert post.sink.notices == []
    post.check()
    assert [n.incidents for n in post.sink.notices] == [3]


def test_events_that_come_late_are_told_all_the_same(post: Post) -> None:
    put(post.store, over_limit(0, 5))
    put(post.store, over_limit(10, 5))
    post.check("2h")
    assert post.ledger.marks()["over-limit-success"] == T0_NS + 14 * 10**9
    put(post.store, over_limit(5, 5))
    post.check("2h")
    assert [n.incidents for n in post.sink.notices if n.verdict == "integrity"] == [10, 15]


def test_a_check_that_ran_late_says_so_and_what_was_missed_comes_as_one(post: Post) -> None:
    post.check()
    for n in range(20):
        put(post.store, over_limit(n, 1))
    post.check("9h")
    assert sorted((n.title, n.incidents) for n in post.sink.notices) == [
        ("20 requests with wrong or undefined content: e", 20),
        ("kvwitness: A check did not run in time", 1),
    ]
    post.check()
    assert [(n.status, n.verdict) for n in post.sink.notices][2:] == [("resolved", "operation")]


def test_a_store_that_cannot_be_judged_is_an_alert_and_stays_due(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    segment = next((post.store.path / "imports").glob("*/ev-*.parquet"), None)
    segment = segment or next(p for p in (post.store.path / "imports").rglob("*.parquet") if "0-empty" not in str(p))
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) // 2])
    report = post.check()
    assert report.failed is not None
    assert [n.title for n in post.sink.notices] == ["kvwitness: A check could not judge the store"]
    assert post.ledger.rules_done() == {}
    segment.write_bytes(whole)
    assert post.check().failed is None
    assert [n.status for n in post.sink.notices if n.verdict == "operation"] == ["firing", "resolved"]
    assert [n.verdict for n in post.sink.notices][-1] == "integrity" or len(post.sink.notices) == 3


def test_no_event_any_more(tmp_path: Path) -> None:
    post = Post(tmp_path, silent_after_ns=duration_ns("1h"))
    put(post.store, over_limit(0, 1))
    post.check("30m")
    assert all(n.verdict != "operation" for n in post.sink.notices)
    post.check("31m")
    assert "kvwitness: No event arrives any more" in [n.title for n in post.sink.notices]


def test_an_event_from_the_future_hides_no_silence(tmp_path: Path) -> None:
    post = Post(tmp_path, silent_after_ns=duration_ns("1h"))
    post.clock = ManualClock(time.time_ns())
    put(post.store, over_limit(0, 1, t0=4_070_908_800))  # 2099
    post.check("30m")
    assert all(n.verdict != "operation" for n in post.sink.notices)
    post.check("31m")
    assert "kvwitness: No event arrives any more" in [n.title for n in post.sink.notices]


def test_one_instance_at_a_time(post: Post) -> None:
    with lease(post.store, 1), pytest.raises(Busy, match="Another instance watches the store"), lease(post.store, 2):
        pass
    with lease(post.store, 3):
        pass


def test_watching_checks_delivers_beats_and_stops(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    post = Post(tmp_path, cadence=Every(duration_ns("30m")), heartbeat=Heartbeat(duration_ns("30m"), (), alive))
    put(post.store, over_limit(0, 2))
    clock, reports = ManualClock(T0_NS, end_ns=T0_NS + duration_ns("30h")), []
    watch(post.store, post.config, clock, post.ledger, jitter=random.Random(1), told=reports.append)
    assert sum(r.due > 0 for r in reports) in (60, 61)
    assert sum(r.audited for r in reports) == 1
    assert [n.status for n in post.sink.notices if n.verdict == "integrity"] == ["firing", "resolved"]
    assert int(alive.read_text()) * 10**9 > T0_NS + duration_ns("29h")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "alerts.toml").write_text(
        'runbook = "https://r.example.org/#{rule}"\n[sinks.journal]\ntype = "jsonfile"\n'
        f'path = "{tmp_path}/out.jsonl"\n[[route]]\nname = "all"\nsinks = ["journal"]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVWITNESS_ALERTS", str(tmp_path / "alerts.toml"))
    put(Store.create(tmp_path / "kvwitness-store"), over_limit(0, 3))
    return tmp_path


def test_the_commands(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> tuple[int, list[dict[str, object]], str]:
        capsys.readouterr()
        code = run([*arguments])
        out = capsys.readouterr()
        return code, [json.loads(line) for line in out.out.splitlines()], out.err

    code, rows, err = said("check", "--exit-status")
    assert (code, rows[0]["delivered"]) == (1, 1)
    assert "alerts: 1 opened; 1 firing" in err
    assert said("check")[0] == 0
    assert json.loads((configured / "out.jsonl").read_text())["counts"]["incidents"] == 3
    alert = str(said("alerts", "list")[1][0]["alert"])
    assert said("alerts", "deliveries")[1][0]["state"] == "delivered"
    assert said("alerts", "sinks")[1][0]["sink"] == "journal"
    assert said("alerts", "silence", "engine=e", "--for", "2h", "--reason", "upgrade", "--by", "ann")[0] == 0
    silence = said("alerts", "silences")[1][0]
    assert silence["owner"] == "ann"
    assert said("check", "--exit-status")[0] == 0  # silenced
    assert said("alerts", "unsilence", str(silence["id"]))[0] == 0
    assert said("check", "--exit-status")[0] == 1
    assert said("alerts", "resolve", alert, "--by", "ann")[0] == 0
    assert said("alerts", "resolve", alert)[0] == 2
    assert said("check", "--exit-status")[0] == 0
    assert said("alerts", "list")[1] == []
    assert said("alerts", "list", "--all")[1][0]["ended_by"] == "ann"
    statuses = [json.loads(line)["status"] for line in (configured / "out.jsonl").read_text().splitlines()]
    assert statuses == ["firing", "resolved"]
    assert said("alerts", "test", "all")[0] == 0
    assert json.loads((configured / "out.jsonl").read_text().splitlines()[-1])["status"] == "test"
    assert said("alerts", "test", "none")[2].startswith("error: There is no route 'none'")
    assert said("alerts", "silence", "colour=red", "--for", "2h", "--reason", "r")[0] == 2
    for conditions, lasting in (
        ("engine=e", "60d"),
        ("engine=e", "0s"),
        ("rule=none-such", "2h"),
        ("verdict=bad", "2h"),
    ):
        assert said("alerts", "silence", conditions, "--for", lasting, "--reason", "r")[0] == 2


def test_another_instance_is_no_error(configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lease(Store.open(configured / "kvwitness-store"), 1):
        assert run(["check"]) == 0
    assert "Another instance watches" in capsys.readouterr().err


def test_without_configuration_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.create(tmp_path / "s")
    assert run(["check", "--store", str(tmp_path / "s"), "--config", str(tmp_path / "none.toml")]) == 2
    assert "kvwitness alerts example" in capsys.readouterr().err


def test_before_any_check_the_status_is_empty(tmp_path: Path) -> None:
    found = status(Store.create(tmp_path / "s"))
    assert [len(found.alerts), len(found.deliveries), len(found.sinks), len(found.rules)] == [0, 0, 0, 0]
    assert not (tmp_path / "s" / "alerts").exists()
    (tmp_path / "s" / "alerts").mkdir()
    (tmp_path / "s" / "alerts" / "ledger.sqlite").touch()  # whoever made it died at once
    assert len(status(Store.open(tmp_path / "s")).alerts) == 0


def test_retention_of_a_tenant_reaches_the_alerts(configured: Path) -> None:
    toml = configured / "alerts.toml"
    toml.write_text(toml.read_text().replace("[sinks", '[alerts]\ngroup_by = ["tenant"]\n[sinks', 1))
    assert run(["check", "--quiet"]) == 0
    ledger = configured / "kvwitness-store" / "alerts" / "ledger.sqlite"
    with Ledger(ledger) as kept:
        assert [row.labels for row in kept.firing()] == [{"tenant": "t-a", "verdict": "integrity"}]
    assert run(["store", "retain", "--tenant", "t-a", "--yes"]) == 0
    with Ledger(ledger) as kept:
        assert kept.alerts() == []


def test_a_watch_is_a_process_that_ends_when_it_is_told_to(configured: Path) -> None:
    program = [
        sys.executable,
        "-c",
        "from kvwitness.audit.cli import main; main()",
        "watch",
        "--metrics",
        "127.0.0.1:0",
    ]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    out = configured / "out.jsonl"
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        until(lambda: (out.exists() and out.stat().st_size > 0) or process.poll() is not None, "the first alert")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert "every 5m" in said
    assert said.splitlines()[-1] == "stopped"
    assert json.loads(out.read_text())["status"] == "firing"


def test_the_state_is_read_while_a_check_writes(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    with post.ledger.transaction():
        post.ledger.set_fact("x", "y")
        assert len(status(post.store).alerts) == 1


def test_a_ledger_of_another_version_is_left_alone(post: Post) -> None:
    post.ledger._db.execute("PRAGMA user_version = 7")
    for opened in (lambda: status(post.store), lambda: Ledger.of(post.store)):
        with pytest.raises(KvwitnessError, match="its version is 7"):
            opened()
