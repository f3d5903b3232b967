"""`kvwitness sql`: reads, and nothing but reads; ends in time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command

ENDLESS = "SELECT count(*) FROM range(1000000000000) AS t(a) WHERE a % 3 = 1"


def test_rows_of_a_query(command: Command, recorded: Path) -> None:
    query = "SELECT request, verdict FROM request_verdicts WHERE verdict = 'leak' ORDER BY request"
    said = command("sql", query, "--store", recorded)
    assert said.status == 0
    assert said.rows == [{"request": "r1017", "verdict": "leak"}, {"request": "r1020", "verdict": "leak"}]


@pytest.mark.parametrize(
    "query", ["SHOW TABLES", "DESCRIBE events", "SUMMARIZE incidents", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1"]
)
def test_questions_about_the_store_itself(command: Command, recorded: Path, query: str) -> None:
    said = command("sql", query, "--store", recorded)
    assert said.status == 0
    assert said.rows


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{file}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
        "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{file}'",
        "CREATE TABLE memory.t AS SELECT 1",
        "DROP VIEW events",
        "ATTACH '{file}'",
        "SET threads = 1",
        "SELECT 1; SELECT 2",
        "",
        "SELECT",
        "SELECT * FROM nothing",
    ],
)
def test_everything_else_is_refused(command: Command, recorded: Path, tmp_path: Path, query: str) -> None:
    file = tmp_path / "written"
    said = command("sql", query.format(file=file), "--store", recorded)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert "fault in kvwitness" not in said.err
    assert not file.exists()


def test_rows_are_limited_and_that_is_said(command: Command, recorded: Path) -> None:
    said = command("sql", "SELECT seq FROM events", "--store", recorded, "--limit", 3)
    assert len(said.rows) == 3
    assert "only the first 3 rows" in said.err
    whole = command("sql", "SELECT seq FROM events", "--store", recorded, "--limit", 0)
    assert (len(whole.rows), whole.err) == (1970, "")


def test_query_that_takes_too_long_is_stopped(command: Command, recorded: Path) -> None:
    said = command("sql", ENDLESS, "--store", recorded, "--timeout", "0.2")
    assert said.status == 2
    assert "stopped after 0.2 s" in said.err


def test_query_from_standard_input(command: Command, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 7 AS n\n"))
    assert command("sql", "--store", recorded).rows == [{"n": 7}]


def test_without_a_query_on_a_terminal_help_is_given(
    command: Command, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    said = command("sql", "--store", recorded)
    assert said.status == 2
    assert "page_events" in said.out


def test_interruption_stops_the_query(recorded: Path) -> None:
    program = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]
    process = subprocess.Popen(
        [*program, "sql", ENDLESS, "--store", str(recorded)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        time.sleep(8)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "stopped" in err
