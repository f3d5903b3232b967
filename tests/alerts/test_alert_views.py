"""The alerts in SQL: what any DuckDB reads in store.duckdb, while checks run, and after one was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.sinks.model import Unreachable
from kvwitness.audit.alerts.status import status
from kvwitness.audit.cli.app import run
from kvwitness.audit.exporting import export
from kvwitness.audit.store import Store, views
from kvwitness.audit.store.views.alerts import LONGEST_CHANGE_NS
from tests.alerts.alertmanager import until
from tests.alerts.support import T0_NS, over_limit, put
from tests.alerts.test_alert_checks import Post

ROOT = Path(__file__).parents[2]


def ask(store: Store, statement: str) -> list[tuple[object, ...]]:
    """By DuckDB alone, on a new connection."""
    with duckdb.connect(str(store.path / "store.duckdb"), read_only=True) as con:
        return con.execute(statement).fetchall()


def every_question() -> list[str]:
    """Ways to read a view in which nothing may be found where nothing may be said."""
    asked = []
    for view in views.OF_ALERTS:
        asked += [f"FROM {view.name}", f"SELECT count(*) FROM {view.name}", f"FROM {view.name} LIMIT 1"]
        asked += [f"SELECT 1 FROM {view.name} WHERE {name} IS NOT NULL" for name in view.columns]
    return asked


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def age_the_note(store: Store) -> None:
    """As if the change that is on its way had been announced long ago."""
    path = store.path / "published" / "state.json"
    state = json.loads(path.read_text())
    assert state["changing_ns"] is not None
    path.write_text(json.dumps(state | {"changing_ns": state["changing_ns"] - LONGEST_CHANGE_NS}))


def test_before_the_first_check_nothing_is_said(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    for statement in every_question():
        with pytest.raises(duckdb.Error, match="run `kvwitness check`"):
            ask(store, statement)
    with Ledger.of(store):  # to open it is not to check
        pass
    with pytest.raises(duckdb.Error, match="run `kvwitness check`"):
        ask(store, "FROM alerts")


def test_a_check_that_found_nothing_is_an_answer(post: Post) -> None:
    post.check()
    assert ask(post.store, "FROM alerts") == []
    assert ask(post.store, "SELECT count(*) > 20, count(DISTINCT looked_ns) FROM alert_checks") == [(True, 1)]


def test_what_fires_what_was_sent_and_what_is_over(post: Post) -> None:
    put(post.store, over_limit(0, 3))
    post.sink.fails = Unreachable("no route")
    post.check()
    told = "alert, episode, state, severity, verdict, title, incidents, silenced, accepted, ended_by, messages, sinks"
    (alert, *rest) = ask(post.store, f"SELECT {told} FROM alerts")[0]
    title = "3 requests with wrong or undefined content: e"
    assert rest == [1, "firing", "high", "integrity", title, 3, False, None, None, 1, ["desk"]]
    now = post.clock.now_ns()
    assert ask(post.store, "SELECT time_ns, until_ns, checked_ns, engine, rule, incident FROM alerts") == [
        (now, None, now, "e", "over-limit-success", None)
    ]
    assert ask(post.store, "SELECT key, sink, state, attempts, done_ns FROM alert_deliveries") == [
        (f"{alert}/1/1", "desk", "waiting", 1, None)
    ]
    assert ask(post.store, "SELECT sink, failures, error FROM alert_sinks") == [("desk", 1, "no route")]
    joined = "alerts JOIN alert_incidents AS i USING (alert, episode) JOIN incidents AS n ON n.incident = i.incident"
    assert ask(post.store, f"SELECT count(*), count(DISTINCT request) FROM {joined}") == [(3, 3)]
    post.sink.fails = None
    post.check("25h")
    assert ask(post.store, "SELECT state, ended_by, until_ns FROM alerts WHERE verdict = 'integrity'") == [
        ("resolved", "calm", post.clock.now_ns())
    ]
    same = status(post.store)
    for view, frame in (("alerts", same.alerts), ("alert_deliveries", same.deliveries), ("alert_sinks", same.sinks)):
        common = [name for name in frame.columns if name in next(v for v in views.OF_ALERTS if v.name == view).columns]
        assert sorted(map(repr, ask(post.store, f"SELECT {', '.join(common)} FROM {view}"))) == sorted(
            map(repr, frame.select(common).rows())
        )


def test_right_while_a_watch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvwitness-alerts.toml").write_text(
        'runbook = "https://r.example.org/#{rule}"\n[schedule]\nevery = "1s"\n[alerts]\nupdate_every = "1s"\n'
        f'[sinks.journal]\ntype = "jsonfile"\npath = "{tmp_path}/out.jsonl"\n'
        '[[route]]\nname = "all"\nsinks = ["journal"]\n'
    )
    store = Store.create(tmp_path / "kvwitness-store")
    out = tmp_path / "out.jsonl"

    def told(count: int) -> bool:
        """Asks SQL all the time: it may not fail once."""
        assert process.poll() is None
        if out.exists() and out.stat().st_size:
            assert ask(store, "SELECT count(*) FROM alerts") != [(0,)]
        lines = out.read_text().splitlines() if out.exists() else []
        return any(json.loads(line)["counts"]["incidents"] == count for line in lines)

    program = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()", "watch", "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            for n in range(3):
                put(store, over_limit(n, 1, t0=T0_NS // 10**9))
                until(lambda count=n + 1: told(count), f"{n + 1} incidents")  # type: ignore[misc]
                # What is synced to a file before it counts as delivered is in SQL before that.
                (found,) = ask(store, "SELECT max(incidents) FROM alerts WHERE verdict = 'integrity'")
                assert found[0] == n + 1
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate()
    assert process.returncode == 0, said
    messages = len(out.read_text().splitlines())
    assert ask(store, "SELECT count(*) FROM alert_deliveries WHERE state = 'delivered'") == [(messages,)]


DYING = """
import os, random, sys
from kvwitness.audit.alerts import published
from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.config import Config
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.store import Store
from tests.alerts.support import ManualClock
store = Store.open(sys.argv[1])
with Ledger.of(store) as ledger:
    published.Copies._write = lambda *_: os._exit(9)
    check(store, Config("https://r.example.org/"), ManualClock().turn("5m"), ledger, jitter=random.Random(1))
"""


def test_a_check_that_dies_before_the_views_follow_does_not_leave_an_old_answer(post: Post) -> None:
    post.check("0s")
    put(post.store, over_limit(0, 3))
    died = subprocess.run([sys.executable, "-c", DYING, str(post.store.path)], cwd=ROOT, check=False)
    assert died.returncode == 9
    assert len(status(post.store).alerts) == 1  # it was decided
    age_the_note(post.store)
    for statement in every_question():
        with pytest.raises(duckdb.Error, match="kvwitness alerts publish"):
            ask(post.store, statement)
    assert run(["alerts", "publish", "--store", str(post.store.path), "--quiet"]) == 0
    assert ask(post.store, "SELECT incidents FROM alerts") == [(3,)]


def test_a_transaction_that_is_undone_leaves_the_views_as_they_were(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    with suppress(ZeroDivisionError), post.ledger.transaction():
        post.ledger.drop_member(post.ledger.members()[0].signal)
        raise ZeroDivisionError
    assert ask(post.store, "SELECT incidents FROM alerts") == [(1,)]
    assert json.loads((post.store.path / "published" / "state.json").read_text())["changing_ns"] is None


def test_alerts_go_on_where_the_views_cannot_follow(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    copy = post.store.path / "published" / "alerts.json"
    copy.unlink()
    copy.mkdir()  # nothing can be put in its place
    report = post.check("25h")
    assert report.behind is not None
    assert "alerts.json" in report.behind
    assert "resolved" in [n.status for n in post.sink.notices]
    with pytest.raises(duckdb.Error):
        ask(post.store, "FROM alerts")
    copy.rmdir()
    assert post.check().behind is None
    assert ask(post.store, "SELECT state FROM alerts WHERE verdict = 'integrity'") == [("resolved",)]


def test_a_copy_that_is_lost_is_made_again(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    (post.store.path / "published" / "alerts.json").unlink()
    with pytest.raises(duckdb.Error, match=r"alerts\.json"):
        ask(post.store, "FROM alerts")
    post.store.publish()  # does not fail for it, and does not take an empty copy for an answer
    with pytest.raises(duckdb.Error, match="run `kvwitness check`"):
        ask(post.store, "FROM alerts")
    with post.ledger.transaction():  # touches something else
        post.ledger.set_sink(post.ledger.sink("desk"))
    assert ask(post.store, "SELECT incidents FROM alerts") == [(1,)]


def test_a_restored_store_says_nothing_until_the_copies_are_there_again(post: Post) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    for path in (post.store.path / "published").iterdir():
        path.unlink()
    post.store.publish()
    with pytest.raises(duckdb.Error, match="run `kvwitness check`"):
        ask(post.store, "FROM alerts")
    with Ledger.of(post.store):
        pass
    assert ask(post.store, "SELECT incidents FROM alerts") == [(1,)]


def test_a_tenant_that_is_removed_is_removed_from_the_views(tmp_path: Path) -> None:
    post = Post(tmp_path, group_by=("tenant",))
    put(post.store, over_limit(0, 1))
    post.check()
    assert ask(post.store, "SELECT tenant, title FROM alerts")[0][0] == "t-a"
    assert run(["store", "retain", "--tenant", "t-a", "--yes", "--store", str(post.store.path)]) == 0
    assert ask(post.store, "FROM alerts") == []
    assert all(b"t-a" not in path.read_bytes() for path in (post.store.path / "published").iterdir())


def test_an_export_has_no_alerts_and_says_so(post: Post, tmp_path: Path) -> None:
    put(post.store, over_limit(0, 1))
    post.check()
    path, _ = export(post.store, tmp_path / "out")
    with duckdb.connect(str(path), read_only=True) as con, pytest.raises(duckdb.Error, match="not part of an export"):
        con.execute("FROM alerts")
