"""Unions of page lists, against a union spelled out page by page."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvwitness.audit import pagesets
from kvwitness.audit.pagesets import union_pages

Row = tuple[int, list[int] | None, list[int] | None]

PAGES = st.one_of(st.integers(0, 12), st.integers(2**32 - 3, 2**32 - 1))


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Groups with their page lists; generations are parallel, or empty, or null."""
    made: list[Row] = []
    for _ in range(draw(st.integers(0, 12))):
        pages = draw(st.none() | st.lists(PAGES, max_size=6))
        known = draw(st.sampled_from(["parallel", "empty", "null"]))
        gens: list[int] | None = None if known == "null" else []
        if known == "parallel":
            gens = [draw(st.integers(0, 9)) for _ in pages or []]
        made.append((draw(st.integers(0, 4)), pages, gens))
    return made


def union(given: list[Row]) -> dict[int, dict[int, int]]:
    """Group -> page -> highest generation, -1 where none is known."""
    found: dict[int, dict[int, int]] = {}
    for group, pages, gens in given:
        for n, page in enumerate(pages or []):
            pages_of = found.setdefault(group, {})
            pages_of[page] = max(pages_of.get(page, -1), gens[n] if gens else -1)
    return found


def frame_of(given: list[Row]) -> pl.DataFrame:
    schema = {"group": pl.Int64, "pages": pl.List(pl.UInt32), "gens": pl.List(pl.Int64)}
    return pl.DataFrame(given, schema=schema, orient="row")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows(), st.integers(1, 20))
def test_union(monkeypatch: pytest.MonkeyPatch, given: list[Row], at_once: int) -> None:
    monkeypatch.setattr(pagesets, "AT_ONCE", at_once)
    frame = frame_of(given)
    got = union_pages(frame["group"], frame["pages"], frame["gens"])
    expected = [
        (group, sorted(pages), [pages[p] for p in sorted(pages) if pages[p] >= 0])
        for group, pages in sorted(union(given).items())
    ]
    assert got.rows() == expected
    assert got.schema == {"group": pl.Int64, "pages": pl.List(pl.UInt32), "gens": pl.List(pl.Int64)}


def test_union_of_columns_in_pieces() -> None:
    """Columns that were put together from several frames."""
    one = frame_of([(1, [5, 3], [2, 1]), (0, [7], [])])
    two = frame_of([(1, [3, 4], [6, 1]), (0, None, None)])
    frame = pl.concat([one, two], rechunk=False)
    got = union_pages(frame["group"], frame["pages"], frame["gens"])
    assert got.rows() == [(0, [7], []), (1, [3, 4, 5], [6, 1, 2])]
