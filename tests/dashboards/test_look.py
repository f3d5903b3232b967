"""Texts from a record stay texts, and times are told in both zones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
    assert escaped.replace("\\", "").replace("\u2060", "") == text


@pytest.mark.parametrize("text", ["http://evil.example", "see HTTPS://evil.example/x", "www.evil.example"])
def test_an_address_in_a_name_is_no_address_for_a_browser(text: str) -> None:
    shown = look.bare(text).replace("\\", "")
    assert "://" not in shown
    assert "www." not in shown
    assert shown.replace("\u2060", "") == text


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


def test_what_differs_among_pages_that_are_drawn_as_one_is_left_blank() -> None:
    many = charts._CELLS + 64
    pages = pl.DataFrame({"page": pl.Series(range(many), dtype=pl.UInt32)}).with_columns(
        empty=pl.lit(None, pl.String), shade=pl.lit("t-a"), state=pl.lit("held"), foreign=pl.lit(False),
        request=pl.lit("r"), tenant=pl.lit("t-a"), writer=pl.lit("w"), writer_tenant=pl.lit("t-a"),
        held_ns=pl.lit(5), written_ns=pl.lit(1), generation=pl.when(pl.col("page") == 3).then(2).otherwise(1),
    )  # fmt: skip
    cells = charts.cells_of(pages, 0, frozenset())
    assert cells["generation"][0] is None
    assert set(cells["generation"][1:]) == {1}
    assert set(cells["held_ns"]) == {5}


@pytest.mark.parametrize("readers", [1, 30])
def test_a_matrix_has_room_for_its_rows_beside_the_longest_names(readers: int) -> None:
    pairs = pl.DataFrame(
        {"tenant": [f"t-{n}" for n in range(readers)], "other_tenant": ["t-" + "long" * 80] * readers,
         "standing": ["forbidden"] * readers, "requests": [1] * readers, "pages": [1] * readers}
    )  # fmt: skip
    assert charts.matrix(pairs).to_dict()["height"] >= 26 * readers + 290


def test_nested_values_are_in_the_file_too() -> None:
    frame = pl.DataFrame({"a": [["x", "y"]], "b": [[{"pool": "p", "pages": [1, 2]}]], "c": [None]})
    told = look.csv(frame).decode().splitlines()
    assert told == ["a,b,c", '"x, y","[{""pool"": ""p"", ""pages"": [1, 2]}]",']


def _coloured(drawn: Any) -> tuple[list[str], list[str]]:
    """Names and colours of the scale by which tenants are told apart."""
    found: list[Any] = []

    def search(node: Any) -> None:
        if isinstance(node, dict):
            scale = node.get("color", {}).get("scale") if isinstance(node.get("color"), dict) else None
            if scale and "domain" in scale:
                found.append(scale)
            for value in node.values():
                search(value)
        elif isinstance(node, list):
            for value in node:
                search(value)

    search(drawn.to_dict())
    return found[0]["domain"], found[0]["range"]


def bars(tenants: int) -> pl.DataFrame:
    """One bar of a hundred pages for each of so many tenants."""
    rows = [
        {"order": n, "time_ns": MOMENT + n, "pool": "p", "first_page": n * 100, "end_page": n * 100 + 100,
         "kind": "write", "request": f"r{n}", "tenant": f"t-{n:02}", "source": "e/0", "seq": n, "proof": False,
         "shows": "x"}
        for n in range(tenants)
    ]  # fmt: skip
    return pl.DataFrame(rows)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look.st, "context", SimpleNamespace(timezone=None, theme=SimpleNamespace(type="light")))


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("tenants", [2, 7, 12])
def test_tenants_of_one_picture_are_told_apart(tenants: int) -> None:
    drawn = charts.lanes(bars(tenants), by_time=False)
    names, colours = _coloured(drawn)
    assert len(set(colours)) == len(colours)
    without = {f"t-{n:02}" for n in range(tenants)} - set(names)
    assert len(without) == max(0, tenants - len(look.TENANT_COLOURS))
    assert {row["tenant"] for row in _labelled(drawn.to_dict())} == without


def _labelled(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of the layers that write names."""
    layers = [layer for layer in spec["layer"] if layer["mark"]["type"] == "text"]
    found = [layer["data"] for layer in layers]
    return [row for data in found for row in data.get("values") or spec["datasets"][data["name"]]]


@pytest.mark.usefixtures("light")
def test_a_name_is_written_on_the_longest_stretch_where_it_fits() -> None:
    owners = ["t-long"] * 40 + ["t-a"] * 2 + ["t-long"] * 3 + ["t-tiny"]
    pages = pl.DataFrame({"page": range(100, 100 + len(owners)), "tenant": owners}).with_columns(
        shade=pl.when(pl.col("tenant") == "t-a").then(pl.lit("t-a")).otherwise(pl.lit(look.OTHERS)),
        empty=pl.lit(None, pl.String),
    )
    assert charts.named_stretches(pages, 100, 64, "tenant").rows() == [("t-long", 20.0, 0.5)]
