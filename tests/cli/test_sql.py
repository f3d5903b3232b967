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

from kvwitness.audit.queries import queries
from tests.cli.conftest import Command

CASES = Path(__file__).parents[1] / "cases"
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


def test_incident_query_by_name(command: Command, recorded: Path) -> None:
    said = command("sql", "over-limit-successes", "-p", "until=2026-11-30 17:48:00", "--store", recorded)
    assert [row["request"] for row in said.rows] == ["r1017"]
    said = command("sql", "could_have_read", "--param", "request_id=r1017", "--limit", 2, "--store", recorded)
    assert len(said.rows) == 2
    assert "only the first 2 rows" in said.err


def test_a_scan_is_said_beforehand(command: Command, recorded: Path) -> None:
    asked = ("sql", "page_touches", "-p", "pool_name=dec-1/0/full", "-p", "page_id=17", "--store", recorded)
    assert "reads most of the store" in command(*asked).err
    assert command(*asked, "--quiet").err == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["over_limit"], "There is no query 'over_limit'"),
        (["could_have_read"], "could_have_read needs request_id"),
        (["could_have_read", "-p", "request_id=r9"], "No event names the request 'r9'"),
        (["could_have_read", "-p", "r1017"], "Write NAME=VALUE"),
        (["could_have_read", "-p", "request_id=r1017", "-p", "request-id=r1020"], "request_id is given twice"),
        (["SELECT 1", "-p", "a=b"], "this is none"),
        (["--show", "nothing"], "There is no query 'nothing'"),
        (["--export", "{tmp}", "-p", "tenant_id=t"], "no parameter tenant_id"),
        (["--export", "{tmp}", "-p", "since=noon"], "'noon' is no time"),
        (["--export", "{tmp}", "-p", "since=2026-12-02", "-p", "until=2026-12-01"], "is empty"),
    ],
)
def test_wrong_use_says_what_to_do(
    command: Command, recorded: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    said = command("sql", *[a.replace("{tmp}", str(tmp_path)) for a in arguments], "--store", recorded)
    assert (said.status, said.out) == (2, "")
    assert told in said.err


def test_queries_are_listed_and_shown(command: Command, recorded: Path) -> None:
    listed = command("sql", "--list")
    assert [row["query"] for row in listed.rows] == sorted(queries())
    shown = command("sql", "--show", "could_have_read").document
    assert shown["parameters"][0]["name"] == "request_id"
    assert shown["sql"].startswith("-- question:")


def test_no_other_file_can_be_read(command: Command, recorded: Path) -> None:
    said = command("sql", "SELECT * FROM read_text('/etc/hostname')", "--store", recorded)
    assert said.status == 2
    assert "disabled by configuration" in said.err


def test_an_answer_of_an_audit_that_has_not_seen_all_says_so(command: Command, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    assert command("import", CASES / "k01-oversize-stub-handoff.jsonl", *store).status == 0
    command("audit", *store)
    leaks = ("sql", "SELECT request FROM findings WHERE verdict = 'leak'", *store)
    assert command("sql", "tenants_to_notify", *store).err == command(*leaks).err == ""
    assert command("import", CASES / "h05-speculative-tail.jsonl", *store).status == 0
    for asked in (("sql", "tenants_to_notify", *store), leaks):
        assert "saw 43 events; the store holds 82 now" in command(*asked).err
    for asked in (("sql", "limit_contradictions", *store), ("sql", "SELECT 1", *store), (*leaks, "--quiet")):
        assert "newest audit" not in command(*asked).err


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
