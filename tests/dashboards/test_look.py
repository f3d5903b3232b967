"""Texts from a record stay texts, and times are told in both zones."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from kvwitness.dashboards import charts, look

NS = 1_000_000_000
MOMENT = 1_788_213_600 * NS  # 2026-08-31 22:00 UTC


def in_zone(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.setattr(look.st, "context", SimpleNamespace(timezone=name))


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        (None, "2026-08-31 22:00:00Z"),
        ("UTC", "2026-08-31 22:00:00Z"),
        ("Europe/London", "2026-08-31 22:00:00Z (23:00:00 BST)"),
        ("Europe/Berlin", "2026-08-31 22:00:00Z (2026-09-01 00:00:00 CEST)"),
        ("Nowhere/Atlantis", "2026-08-31 22:00:00Z"),
        ("../../etc/passwd", "2026-08-31 22:00:00Z"),
    ],
)
def test_a_moment_is_told_in_utc_and_where_the_viewer_is(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, told: str
) -> None:
    in_zone(monkeypatch, zone)
    assert look.when(MOMENT) == told
    assert look.when(None) == "not on record"


def test_tables_have_a_column_for_each_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    in_zone(monkeypatch, "Europe/Berlin")
    told = look.timed(pl.DataFrame({"x": [1, 2], "at_ns": [MOMENT + 5_000_000, None]}), {"at_ns": "at"})
    assert told.columns == ["x", "at (UTC)", "at (Europe/Berlin)"]
    assert told.row(0) == (1, "2026-08-31 22:00:00.005Z", "2026-09-01 00:00:00")
    assert told.row(1) == (2, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "![](http://evil.example/x.png)",
        "[a](http://b)",
        "<img src=x>",
        "$x$",
        ":red[a]",
        "`a`",
        "**a**",
        "# a",
        "a | b",
    ],
)
def test_markdown_in_a_name_does_nothing(text: str) -> None:
    escaped = look.bare(text)
    for mark in "`*[]<>$:!|#":
        assert escaped.count(mark) == escaped.count(f"\\{mark}")
    assert escaped.replace("\\", "") == text


def test_ids_stay_as_they_are() -> None:
    assert look.bare("dec-1/0/full r000381 1.2.3") == "dec-1/0/full r000381 1.2.3"


def test_neighbours_that_are_alike_are_one_cell_where_there_are_many() -> None:
    many = charts._CELLS + 1_000
    pages = pl.DataFrame({"page": pl.Series(range(many), dtype=pl.UInt32)}).with_columns(
        empty=pl.lit(None, pl.String), shade=pl.lit("t-a"), state=pl.lit("held"), foreign=pl.col("page") == 7,
        request=pl.lit("r"), tenant=pl.lit("t-a"), writer=pl.lit("w"), writer_tenant=pl.lit("t-b"),
        held_ns=pl.lit(1), written_ns=pl.lit(1), generation=pl.lit(1),
    )  # fmt: skip
    cells = charts.cells_of(pages, 0, frozenset({9}))
    assert len(cells) < many / 10
    assert (cells["x2"] - cells["x"]).sum() == many
    assert cells.filter("foreign")["pages"].to_list() == ["7"]
    assert cells.filter("marked")["pages"].to_list() == ["9"]
    assert len(charts.cells_of(pages.head(100), 0, frozenset())) == 100
