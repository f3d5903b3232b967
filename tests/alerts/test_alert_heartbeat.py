"""A heartbeat that does not arrive is remembered, shown everywhere, and an alert."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import duckdb
import pytest

from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.config import Config, Heartbeat, Route, load
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.reading import ConfigError
from kvwitness.audit.alerts.sinks.model import Unreachable
from kvwitness.audit.alerts.status import status
from kvwitness.audit.cli.app import run
from tests.alerts.support import RUNBOOK, Memory
from tests.alerts.test_alert_checks import Post


class Expecting(Memory):
    """Somebody who expects signs of life."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[int] = []
        self.deaf: Exception | None = None

    def beat(self, now_ns: int, every_ns: int) -> None:
        if self.deaf is not None:
            raise self.deaf
        self.beats.append(now_ns)


def post_with(folder: Path, sink: Expecting, file: Path | None = None) -> Post:
    post = Post(folder)
    sinks = {"desk": post.sink, "other": sink}
    beat = Heartbeat(duration_ns("1m"), ("other",), file)
    post.config = Config(RUNBOOK, sinks=sinks, routes=(Route("all", Matcher(), ("desk",), False),), heartbeat=beat)
    return post


def test_one_that_fails_for_long_is_an_alert_and_seen_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Expecting()
    post = post_with(tmp_path, sink)
    post.check()
    sink.deaf = Unreachable("no route to other")
    post.check()
    post.check()
    assert post.sink.notices == []
    row = status(post.store).heartbeats.row(0, named=True)
    assert (row["target"], row["failures"], row["ok_ns"], row["error"]) == (
        "other", 2, sink.beats[0], "no route to other",
    )  # fmt: skip
    assert 'kvwitness_heartbeat_failures{target="other"} 2' in exposition(status(post.store))
    assert run(["alerts", "status", "--store", str(post.store.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["heartbeats"][0]["state"] == "fails"
    with duckdb.connect(str(post.store.path / "store.duckdb"), read_only=True) as con:
        asked = "SELECT target, failures, failing_since_ts IS NULL FROM alert_heartbeats"
        assert con.execute(asked).fetchall() == [("other", 2, False)]
    post.check("10m")
    told = post.sink.notices[-1]
    assert (told.title, told.severity) == ("kvwitness: The heartbeat does not arrive", "high")
    assert told.summary.startswith("No heartbeat reached other since")
    sink.deaf = None
    post.check()
    post.check()
    assert post.sink.notices[-1].status == "resolved"
    assert status(post.store).heartbeats["failing_since_ns"].to_list() == [None]


def test_a_file_that_cannot_be_written_stops_no_check(tmp_path: Path) -> None:
    sink, file = Expecting(), tmp_path / "none" / "alive"
    post = post_with(tmp_path, sink, file)
    assert post.check().failed is None
    rows = status(post.store).heartbeats.rows(named=True)
    assert [(row["target"], row["failures"]) for row in rows] == [("file", 1), ("other", 0)]
    assert "No such file" in rows[0]["error"]
    file.parent.mkdir()
    post.check()
    assert file.exists()
    assert status(post.store).heartbeats["failures"].to_list() == [0, 0]


def test_a_target_that_is_expected_no_more_alarms_nobody(tmp_path: Path) -> None:
    sink = Expecting()
    post = post_with(tmp_path, sink)
    sink.deaf = Unreachable("gone")
    post.check()
    post.check("11m")
    assert len(post.sink.notices) == 1
    post.config = Config(RUNBOOK, sinks=post.config.sinks, routes=post.config.routes)
    post.check()
    assert [n.status for n in post.sink.notices] == ["firing", "resolved"]


def test_a_sink_may_not_be_called_like_the_file(tmp_path: Path) -> None:
    config = tmp_path / "alerts.toml"
    config.write_text(
        'runbook = "https://r.example.org/"\n[sinks.file]\ntype = "webhook"\nurl = "http://127.0.0.1:9/"\n'
        '[[route]]\nname = "all"\nsinks = ["file"]\n[heartbeat]\nsinks = ["file"]\nfile = "alive"\n'
    )
    with pytest.raises(ConfigError, match="is what the file is called here"):
        load(config)


_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE rules (rule TEXT PRIMARY KEY, done_ns INTEGER NOT NULL, mark_ns INTEGER NOT NULL) STRICT;
CREATE TABLE alerts (
    alert TEXT NOT NULL, episode INTEGER NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL, verdict TEXT NOT NULL,
    severity TEXT NOT NULL, title TEXT NOT NULL, opened_ns INTEGER NOT NULL, active_ns INTEGER NOT NULL,
    ended_ns INTEGER, ended_by TEXT, version INTEGER NOT NULL, said_ns INTEGER, said_count INTEGER NOT NULL,
    said_severity TEXT, sinks TEXT NOT NULL, notice TEXT, silenced INTEGER NOT NULL,
    PRIMARY KEY (alert, episode)) STRICT;
CREATE TABLE members (
    signal TEXT PRIMARY KEY, alert TEXT NOT NULL, episode INTEGER NOT NULL, base TEXT NOT NULL, rules TEXT NOT NULL,
    mark TEXT NOT NULL, severity TEXT NOT NULL, lasting INTEGER NOT NULL) STRICT;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, sink TEXT NOT NULL, alert TEXT NOT NULL, body TEXT,
    state TEXT NOT NULL, queued_ns INTEGER NOT NULL, not_before_ns INTEGER NOT NULL, attempts INTEGER NOT NULL,
    done_ns INTEGER, error TEXT, UNIQUE (key, sink)) STRICT;
CREATE TABLE sinks (
    sink TEXT PRIMARY KEY, failures INTEGER NOT NULL, failing_since_ns INTEGER, retry_ns INTEGER NOT NULL,
    ok_ns INTEGER, error TEXT, reminded_ns INTEGER, beat_ns INTEGER) STRICT;
CREATE TABLE silences (
    id TEXT PRIMARY KEY, conditions TEXT NOT NULL, owner TEXT NOT NULL, reason TEXT NOT NULL, from_ns INTEGER NOT NULL,
    until_ns INTEGER NOT NULL) STRICT;
INSERT INTO sinks VALUES ('desk', 3, 5, 6, 4, 'down', 2, 7), ('other', 0, NULL, 0, 4, NULL, NULL, NULL);
INSERT INTO rules VALUES ('late-read', 8, 9);
PRAGMA user_version = 1;
"""


def test_what_the_first_version_remembered_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "alerts" / "ledger.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as first:
        first.executescript(_FIRST)
    with Ledger(path) as ledger:
        assert (ledger.sink("desk").failures, ledger.sink("desk").error, ledger.sink("other").ok_ns) == (3, "down", 4)
        assert {name: row.ok_ns for name, row in ledger.heartbeats().items()} == {"desk": 7}
        assert ledger.rules_done() == {"late-read": 8}
    assert (tmp_path / "published" / "state.json").exists()
