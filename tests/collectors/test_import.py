"""`kvwitness import`: what is kept, what is told, what is refused."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvwitness.audit.cli.app import run
from kvwitness.audit.store import Store

CASE = Path(__file__).parents[1] / "cases" / "k01-oversize-stub-handoff.jsonl"
EVENTS = len(CASE.read_text().splitlines())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def imported(
    store: Path, *files: str | Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, the objects printed, what was said."""
    status = run(["import", *map(str, files), "--store", str(store)])
    captured = capsys.readouterr()
    return status, [json.loads(line) for line in captured.out.splitlines()], captured.err


def stored(store: Path) -> int:
    return Store.open(store).events(["event"]).collect().height


def test_a_trace_is_imported_once(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [first], said = imported(store, CASE, capsys=capsys)
    assert (status, first["lines"], first["added"], first["duplicate"], said) == (
        0,
        EVENTS,
        EVENTS,
        False,
        "",
    )
    status, [again], said = imported(store, CASE, capsys=capsys)
    assert (status, again["added"], again["duplicate"]) == (0, 0, True)
    assert "imported before" in said
    assert stored(store) == EVENTS


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compression_is_told_from_the_content(
    compress: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace"
    file.write_bytes(compress(CASE.read_bytes()))
    status, [one], _ = imported(store, file, capsys=capsys)
    assert (status, one["added"]) == (0, EVENTS)


def test_standard_input(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CASE.read_bytes())))
    status, [one], _ = imported(store, "-", capsys=capsys)
    assert (status, one["added"], one["file"]) == (0, EVENTS, "standard input")


def test_bad_lines_are_counted_named_and_left_out(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    good = CASE.read_text()
    file.write_text("nonsense\n" + good + "[]\n" + '{"event":"page.free"}\n' + "more nonsense\n")
    status, [one], said = imported(store, file, capsys=capsys)
    assert (status, one["added"], one["bad_total"]) == (0, EVENTS, 4)
    assert f"2 lines left out: not JSON (line 1, {EVENTS + 4})" in said
    assert f"1 line left out: not an object (line {EVENTS + 2})" in said
    assert "nonsense" not in said


def test_unknown_names_and_dropped_content_are_told(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"t":1,"source":"a","event":"engine.mood","colour":"blue","prompt":"secret words"}\n')
    status, [one], said = imported(store, file, capsys=capsys)
    assert (status, one["added"]) == (0, 1)
    for name in ("engine.mood", "colour", "prompt"):
        assert name in said
    assert "secret words" not in said + json.dumps(one)


def test_quiet_says_nothing_but_errors(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(CASE.read_text() + "nonsense\n")
    assert run(["import", str(file), "--store", str(store), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["import", str(tmp_path / "missing"), "--store", str(store), "--quiet"]) == 2
    assert "missing" in capsys.readouterr().err


def test_file_without_any_event_is_refused_and_leaves_no_import(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("not a trace\n")
    status, objects, said = imported(store, file, capsys=capsys)
    assert (status, objects) == (2, [])
    assert "line 1: not JSON" in said
    assert Store.open(store).imports() == []


def test_one_bad_file_does_not_keep_the_others_out(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, objects, said = imported(store, tmp_path / "missing.jsonl", CASE, capsys=capsys)
    assert (status, [one["added"] for one in objects]) == (2, [EVENTS])
    assert "missing.jsonl" in said


def test_place_that_is_no_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "diary.txt").write_text("dear diary")
    status, objects, said = imported(tmp_path, CASE, capsys=capsys)
    assert (status, objects) == (2, [])
    assert "not a store" in said


def test_store_may_come_from_the_environment(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_STORE", str(store))
    assert run(["import", str(CASE)]) == 0
    assert stored(store) == EVENTS


def test_store_with_pseudonyms_keeps_no_tenant(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {json.loads(line).get("tenant") for line in CASE.read_text().splitlines()} - {None}
    monkeypatch.setenv("KVWITNESS_TENANT_KEY", "a key that is long enough")
    assert imported(store, CASE, capsys=capsys)[0] == 0
    kept = set(Store.open(store).events(["tenant"]).collect()["tenant"].drop_nulls())
    assert len(kept) == len(named)
    assert not kept & named


def test_table_holds_the_gist(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", str(CASE), "--store", str(store), "--format", "table"]) == 0
    out = capsys.readouterr().out
    assert str(EVENTS) in out
    assert "sha256" not in out
