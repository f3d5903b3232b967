"""Formats: what a person sees, and what a program can read back without loss."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.cli.output import Format, Printer, say
from kvwitness.audit.cli.tables import cell, timestamp
from kvwitness.audit.errors import KvwitnessError

ROWS = [
    {"rule": "late-read", "pages": [3, 4, 5], "time_ns": 1_787_788_800_123_456_789, "note": 'a, "b"\nc'},
    {"rule": "canary-leak", "pages": [], "time_ns": 0, "note": None},
]
FRAME = pl.DataFrame(ROWS)


def printed(capsysbinary: pytest.CaptureFixture[bytes], format: Format) -> bytes:
    Printer(format).rows(FRAME)
    return capsysbinary.readouterr().out


def test_json_is_one_array(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert json.loads(printed(capsysbinary, Format.JSON)) == ROWS


def test_jsonl_is_one_object_per_line(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = printed(capsysbinary, Format.JSONL).splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_csv_keeps_lists_as_json(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsysbinary, Format.CSV).decode(), newline="")))
    assert [json.loads(row["pages"]) for row in rows] == [[3, 4, 5], []]
    assert rows[0]["note"] == ROWS[0]["note"]


def test_parquet_keeps_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    Printer.choose(None, path).rows(FRAME)
    assert pl.read_parquet(path).equals(FRAME)


def test_table_in_a_pipe_has_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    wide = "x" * 300
    Printer(Format.TABLE).rows(pl.DataFrame({"name": [wide]}), title="Wide")
    out = capsys.readouterr().out
    assert wide in out
    assert "Wide" in out


def test_table_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Format.TABLE).rows(pl.DataFrame({"[red]name": ["[bold]x[/bold]"]}))
    out = capsys.readouterr().out
    assert "[red]name" in out
    assert "[bold]x[/bold]" in out


def test_empty_frame_prints_its_columns_or_nothing(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    empty = FRAME.clear()
    Printer(Format.JSON).rows(empty)
    assert capsysbinary.readouterr().out == b"[]\n"
    Printer(Format.JSONL).rows(empty)
    assert capsysbinary.readouterr().out == b""
    Printer(Format.CSV).rows(empty)
    assert capsysbinary.readouterr().out == b"rule,pages,time_ns,note\n"


@pytest.mark.parametrize("format", [Format.JSON, Format.JSONL])
def test_record_is_one_object(capsysbinary: pytest.CaptureFixture[bytes], format: Format) -> None:
    Printer(format).record({"path": Path("x"), "n": 3, "by": {"a": 1}})
    assert json.loads(capsysbinary.readouterr().out) == {"path": "x", "n": 3, "by": {"a": 1}}


def test_record_in_csv_is_one_row(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Printer(Format.CSV).record({"n": 3, "by": {"a": 1}})
    assert capsysbinary.readouterr().out == b'n,by\n3,"{""a"":1}"\n'


def test_format_follows_from_the_file_name_else_from_the_listener(tmp_path: Path) -> None:
    assert Printer.choose(None, tmp_path / "a.csv").format is Format.CSV
    assert Printer.choose(Format.JSON, tmp_path / "a.csv").format is Format.JSON
    assert Printer.choose(None, tmp_path / "a.txt").format is Format.JSONL
    assert Printer.choose(None).format is Format.JSONL


def test_parquet_needs_a_file() -> None:
    with pytest.raises(KvwitnessError, match="Parquet") as caught:
        Printer.choose(Format.PARQUET)
    assert "--output" in caught.value.advice


def test_cells_are_for_reading() -> None:
    assert cell(None) == ""
    assert cell(True) == "yes"
    assert cell([1, 2]) == "1, 2"
    assert cell(list(range(10))) == "0, 1, 2, 3, 4, 5, ... (10)"
    assert cell({"a": 1, "t_ns": 0}) == "a 1, t_ns 1970-01-01 00:00:00.000000Z"
    assert cell(1_787_788_800_123_456_789, "time_ns") == "2026-08-27 00:00:00.123456Z"


def test_timestamps_before_the_epoch_and_far_away_are_shown() -> None:
    assert timestamp(-1) == "1969-12-31 23:59:59.999999Z"
    assert timestamp(2**63 - 1) == "2262-04-11 23:47:16.854775Z"


def test_lists_of_objects_stand_below_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Format.TABLE).record({"rows": 2, "sources": [{"source": "pf-1/0", "seq": 7}], "losses": []})
    out = capsys.readouterr().out
    assert out.index("rows") < out.index("sources") < out.index("pf-1/0")
    assert "losses" in out


def test_names_of_others_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "r1\x1b[2J\x07\x9b31m"
    Printer(Format.TABLE).rows(pl.DataFrame({"request": [name], "list": [[name]]}))
    say(f"unknown request {name}")
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert "r1\\x1b[2J\\x07\\x9b31m" in text
        assert not {"\x1b", "\x07", "\x9b"} & set(text)
