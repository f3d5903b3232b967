"""Numbers, lists, pages and times in words."""

from __future__ import annotations

import polars as pl
import pytest

from kvwitness.audit.wording import (
    clock_for,
    counted_pages,
    duration,
    first_few,
    for_one,
    listing,
    moment,
    number_of,
    page_text,
    positions_text,
    several,
    several_of,
    span_text,
)

SECOND = 1_000_000_000
DAY = 86_400 * SECOND


def test_lists() -> None:
    assert [listing(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert listing(list("abcdefgh"), 3) == "a, b and 6 more"
    assert listing(list("abc"), 3) == "a, b and c"


def test_only_the_first_of_many_names_are_said() -> None:
    assert [first_few(list("abcd")[:n]) for n in range(5)] == ["", "a", "a and b", "a, b and c", "a, b, c and d"]
    assert first_few(list("abcde")) == "a, b +3 more"
    assert first_few([str(n) for n in range(1_203)]) == "0, 1 +1,201 more"


def test_counts() -> None:
    assert several(1, "page") == "1 page"
    assert several(14_787, "page") == "14,787 pages"
    assert several(0, "page") == "0 pages"


def test_counts_of_a_column_are_said_like_a_single_one() -> None:
    counts = [0, 1, 2, 999, 1_000, 14_787, 1_048_576, 2**40]
    told = pl.DataFrame({"n": counts}).select(
        number=number_of("n"), pages=several_of("n", "page"), won=several_of(pl.col("n"), "success", "successes")
    )
    assert told["number"].to_list() == [f"{n:,}" for n in counts]
    assert told["pages"].to_list() == [several(n, "page") for n in counts]
    assert told["won"].to_list() == [several(n, "success", "successes") for n in counts]
    unknown = pl.DataFrame({"n": [None, 1, 2]}, schema={"n": pl.UInt32})
    assert unknown.select(several_of("n", "token").fill_null("some")).to_series().to_list() == [
        "some",
        "1 token",
        "2 tokens",
    ]
    assert unknown.select(for_one("n", "it", "them")).to_series().to_list() == ["them", "it", "them"]


def test_pages_are_runs_in_ascending_order_each_once() -> None:
    assert page_text([40, 17, 18, 19, 18]) == "17-19, 40"
    assert page_text([1, 3, 5, 7], 2) == "1, 3, ..."
    assert counted_pages([7, 7]) == "1 page (7)"


def test_half_open_ranges_are_said_inclusively() -> None:
    assert positions_text(0, 609) == "positions 0-608"
    assert positions_text(600, 601) == "position 600"
    assert [span_text(span) for span in ([0, 609], [600, 601], None)] == ["0-608", "600", ""]


def test_times_are_utc_and_leave_out_a_date_that_is_known() -> None:
    assert moment(SECOND + 999_999_999) == "1970-01-01 00:00:01.999Z"
    assert moment(DAY, day_of=DAY + 5) == "00:00:00.000Z"
    assert moment(DAY, day_of=DAY - 1) == "1970-01-02 00:00:00.000Z"
    assert moment(-1) == "1969-12-31 23:59:59.999Z"


@pytest.mark.parametrize(
    ("times", "shared", "first"),
    [
        ([0, DAY - 1], " on 1970-01-01", "00:00:00.000Z"),
        ([0, DAY], " in 1970", "01-01 00:00:00.000Z"),
        ([-1, 0], "", "1969-12-31 23:59:59.999Z"),
        ([], "", None),
    ],
)
def test_what_times_have_in_common_stands_apart(times: list[int], shared: str, first: str | None) -> None:
    label, clock = clock_for(times)
    assert label == shared
    if first is not None:
        assert clock(times[0]) == first


@pytest.mark.parametrize(
    ("ns", "told"),
    [(347_000_000, "0.347 s"), (81 * SECOND, "1 min 21 s"), (3600 * SECOND, "1 h 0 min"), (13 * DAY, "13 d 0 h")],
)
def test_lengths_of_time(ns: int, told: str) -> None:
    assert duration(ns) == told
