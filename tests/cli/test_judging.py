"""`kvwitness audit` and `incidents`: the outcome, its status, and what is always said."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.api import judge_trace
from tests.cli.conftest import CASES, RECORDED, Command

CLEAN = CASES / "f01-common-system-prompt.jsonl"
UNPROVEN = CASES / "u05-dropped-events-hide-a-release.jsonl"
LEAK = CASES / "k02-decode-abort-late-write.jsonl"

FINDING = {
    "rule", "verdict", "request", "tenant", "other_requests", "other_tenants", "pool", "pages", "gens", "seqs", "why",
}  # fmt: skip
"""Fields of a finding that programs rely on."""


def test_json_of_a_trace_is_the_stable_document(command: Command) -> None:
    said = command("audit", "--trace", LEAK, "--format", "json")
    document = said.document
    assert said.status == 1
    assert document == judge_trace(LEAK)
    assert list(document) == ["findings", "requests", "engine_findings", "undecided"]
    assert all(set(finding) >= FINDING for finding in document["findings"])
    assert document["requests"]["r2002"] == "leak"


def test_jsonl_is_one_finding_per_line(command: Command) -> None:
    document = judge_trace(LEAK)
    said = command("audit", "--trace", LEAK, "--format", "jsonl")
    assert said.rows == document["findings"] + document["engine_findings"]
    assert "1 request leaked: r2002. Content of 1 tenant could be read: t-ash." in said.err


def test_csv_holds_every_finding(command: Command) -> None:
    said = command("audit", "--trace", LEAK, "--format", "csv")
    assert len(said.out.splitlines()) == 1 + len(judge_trace(LEAK)["findings"])


def test_clean_trace(command: Command) -> None:
    said = command("audit", "--trace", CLEAN, "--format", "table")
    assert said.status == 0
    assert "No leak, no integrity fault and no exposure" in said.out
    assert "unproven" in said.out


def test_unproven_is_not_a_finding_and_is_told_with_what_is_missing(command: Command) -> None:
    said = command("audit", "--trace", UNPROVEN, "--format", "table")
    assert said.status == 0
    assert "2 requests unproven, which is not the same as clean." in said.out
    assert "6 to 217 of eng-1/0" in said.out
    quietly = command("audit", "--trace", UNPROVEN, "--format", "json")
    assert "2 requests unproven" in quietly.err


def test_rules_without_input_are_named(command: Command) -> None:
    assert "step.begin, step.end" in command("audit", "--trace", LEAK, "--format", "table").out


def test_summary_says_what_was_looked_at(command: Command) -> None:
    out = command("audit", "--trace", LEAK, "--format", "table").out
    assert "55 events" in out
    assert "4 requests, from 3 sources, on 2 pools, 2026-09-01 13:11:46.676Z" in out


def test_bad_lines_are_told_with_their_numbers_and_the_rest_is_judged(command: Command, tmp_path: Path) -> None:
    lines = LEAK.read_text().splitlines()
    trace = tmp_path / "bad.jsonl"
    trace.write_text("\n".join([lines[0], "not json", *lines[1:], '{"t":1}']) + "\n")
    said = command("audit", "--trace", trace, "--format", "json")
    assert said.status == 1
    assert "(line 2)" in said.err
    assert f"(line {len(lines) + 2})" in said.err
    assert said.document["requests"]["r2002"] == "leak"


def test_trace_from_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LEAK.read_bytes())))
    assert command("audit", "--trace", "-", "--format", "json").document == judge_trace(LEAK)


@pytest.mark.parametrize("content", [None, "", "nothing\n"])
def test_trace_without_events_is_an_error(command: Command, tmp_path: Path, content: str | None) -> None:
    trace = tmp_path / "trace.jsonl"
    if content is not None:
        trace.write_text(content)
    said = command("audit", "--trace", trace, "--format", "json")
    assert (said.status, said.out) == (2, "")
    assert "trace.jsonl" in said.err


def test_store_is_judged_like_its_trace(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    command("import", LEAK, "--store", store)
    said = command("audit", "--store", store, "--format", "json")
    assert said.status == 1
    assert said.document == judge_trace(LEAK)


def test_store_that_is_not_there_or_was_not_audited(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert command("audit", "--store", store).status == 2
    command("import", LEAK, "--store", store)
    said = command("incidents", "--store", store)
    assert (said.status, said.out) == (2, "")
    assert "kvwitness audit" in said.err


def test_incidents_of_the_newest_audit(command: Command, recorded: Path) -> None:
    said = command("incidents", "--store", recorded, "--verdict", "leak")
    assert said.status == 0
    assert [(row["request"], row["other_tenants"]) for row in said.rows] == [
        ("r1017", ["t-ash", "t-birch"]),
        ("r1020", ["t-birch", "t-cedar"]),
    ]
    # Each is dated by what makes it a leak, not by the engine's limits that another of its findings rests on.
    assert said.rows[0]["first_ns"] == 1796060845636947957, "dec-1/0:919, the first read"


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (["--tenant", "t-cedar", "--verdict", "leak"], ["r1017", "r1020"]),
        (["--tenant", "t-birch", "--verdict", "leak", "--limit", "1"], ["r1017"]),
        (["--request", "r1020"], ["r1020"]),
        (["--rule", "unwritten-page-read"], ["r1017", "r1020"]),
        (["--tenant", "nobody"], []),
    ],
)
def test_incidents_filtered(command: Command, recorded: Path, options: list[str], requests: list[str]) -> None:
    said = command("incidents", "--store", recorded, *options)
    assert [row["request"] for row in said.rows] == requests


def test_incidents_tell_pages_as_the_audit_does(command: Command) -> None:
    """In ranges: an incident can have ten thousand pages, and one by one they are a line of 100 KB."""
    trace = CASES / "k01-oversize-stub-handoff.jsonl"
    findings = command("audit", "--trace", trace, "--format", "jsonl").rows
    [told] = [f for f in findings if (f["rule"], f["verdict"]) == ("unwritten-page-read", "leak")]
    said = command("incidents", "--trace", trace, "--format", "jsonl")
    incident = said.rows[0]
    assert incident["pools"] == [{"pool": told["pool"], "pages": told["pages"], "gens": told["gens"]}]
    assert incident["pools"][0]["pages"] == [[1, 2847]]
    assert incident["pages"] == 2847
    assert said.rows[1]["pools"] == [], "an engine's incident has none"
    assert command("incidents", "--trace", trace, "--format", "json").document == said.rows
    header, first, *_ = command("incidents", "--trace", trace, "--format", "csv").out.splitlines()
    assert '"[{""pool"":""dec-1/0/full"",""pages"":[[1,2847]],""gens"":[2]}]"' in first
    nothing = command("incidents", "--trace", CLEAN, "--format", "csv").out
    assert nothing.splitlines() == [header]


def test_incidents_in_parquet_have_typed_lists(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "incidents.parquet"
    command("incidents", "--trace", CASES / "k01-oversize-stub-handoff.jsonl", "--output", target)
    pools = pl.read_parquet(target)["pools"][0]
    assert pools.struct.field("pages").to_list() == [list(range(1, 2848))]


def test_tenant_of_a_store_of_pseudonyms_is_found_by_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_TENANT_KEY", "0123456789abcdef")
    store = tmp_path / "store"
    command("import", LEAK, "--store", store)
    command("audit", "--store", store)
    rows = command("incidents", "--store", store, "--tenant", "t-birch").rows
    assert [row["request"] for row in rows] == ["r2002"]
    assert rows[0]["tenant"] != "t-birch"


def test_answer_that_events_have_outrun_says_so(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    command("import", LEAK, "--store", store)
    command("audit", "--store", store)
    assert "judges them" not in command("incidents", "--store", store).err
    command("import", CLEAN, "--store", store)
    assert "saw 55 events" in command("incidents", "--store", store).err


@pytest.mark.parametrize(
    "arguments", [["audit"], ["incidents"], ["explain", "r1017"], ["request", "r1017"], ["page", "dec-1/0/full/17"]]
)
def test_tables_fit_a_terminal_of_100_columns(terminal: Command, recorded: Path, arguments: list[str]) -> None:
    where = ["--trace", RECORDED] if arguments == ["audit"] else ["--store", recorded]
    said = terminal(*arguments, *where, "--quiet")
    # Commands and SQL are not wrapped, so that they can be copied.
    read = said.out.partition("The same in SQL")[0].partition("The story of one")[0]
    assert max(map(len, read.splitlines())) <= 100
    assert said.out.count("\n") > 5
    if arguments != ["page", "dec-1/0/full/17"]:
        assert "inc-777ce44b2940" in said.out
    assert "unwritten-page-read" in read


def of_many_tenants(path: Path, tenants: list[str], reader: str) -> Path:
    """One request reads a page of each tenant, with nothing of its own there."""
    events: list[dict[str, object]] = []
    for page, tenant in enumerate(tenants):
        held = {"pool": "e/0/kv", "pages": [page], "request": f"v{page}", "tenant": tenant}
        events += [{"event": f"page.{deed}", **held} for deed in ("alloc", "write", "free")]
    mine = {"pool": "e/0/kv", "pages": [[0, len(tenants) - 1]], "request": reader, "tenant": "t-reader"}
    events += [{"event": f"page.{deed}", **mine} for deed in ("alloc", "read", "free")]
    lines = [json.dumps({"t": n, "seq": n, "source": "e/0", **event}) for n, event in enumerate(events, 1)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_no_name_in_the_table_of_incidents_is_cut(
    terminal: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Of many tenants the first are named; the names of all stay whole in a terminal of any width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    tenants = [f"t-0123456789abcdef0000{n:04d}" for n in range(7)]
    reader = "chatcmpl-0b7e2f55-91aa-4c1e-8a66-000000001003"
    trace = of_many_tenants(tmp_path / "trace.jsonl", tenants, reader)
    said = terminal("incidents", "--trace", trace, "--quiet", "--format", "table")
    for name in (*tenants[:2], reader, "t-reader", "unwritten-page-read"):
        assert name in said.out
    assert "+5 more" in said.words
    assert "\N{HORIZONTAL ELLIPSIS}" not in said.out
    assert "..." not in said.out
    assert max(map(len, said.out.splitlines())) <= columns
