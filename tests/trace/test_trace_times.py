"""Times are read to the nanosecond, whatever a binary float would make of them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwitness.audit.trace.times import time_ns, time_text, usual_time


def parsed(text: str, layout: str = '{{"t":{},"seq":1}}') -> int:
    line = layout.format(text).encode()
    ns = time_ns("t", orjson.loads(line)["t"], line)
    assert usual_time(line) in (None, ns)
    return ns


LAYOUTS = [
    '{{"t":{},"seq":1}}',
    '{{"t":{}}}',
    '{{"t": {} , "seq":1}}',
    '{{"seq":1,"t" : {}}}',
    '{{"ns":{{"t":2.5}},"t":{},"x":"\\"t\\":3.5"}}',
    '{{"\\u0074":{},"ns":{{"t":2.5}}}}',
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1788221380.000021", 1788221380000021000),
        ("1788221380.123456789", 1788221380123456789),
        ("1788221380.1234567894", 1788221380123456789),
        ("1788221380.1234567896", 1788221380123456790),
        ("1788221380", 1788221380 * 10**9),
        ("1788221380000000021", 1788221380000000021),
        ("1000000000000", 10**12),
        ("999999999", 999999999 * 10**9),
        ("0.000000001", 1),
        ("0", 0),
        ("-0.5", -500_000_000),
        ("1.788221380000021e9", 1788221380000021000),
        ("1.7882213800000210e18", 1788221380000021000),
        ("15E-1", 1_500_000_000),
    ],
)
def test_digits_are_taken_as_written(text: str, ns: int, layout: str) -> None:
    assert parsed(text, layout) == ns


@given(st.integers(0, 2**63 - 1))
def test_text_and_nanoseconds_are_inverse(ns: int) -> None:
    assert parsed(time_text(ns)) == ns


@given(st.integers(-(10**18), 10**12))
def test_early_times_survive_too(ns: int) -> None:
    assert parsed(time_text(ns)) == ns


@given(st.decimals("0", "9223372036", places=6))
def test_microseconds_are_exact(seconds: Decimal) -> None:
    assert parsed(str(seconds)) == int(seconds * 10**9)


@pytest.mark.parametrize(
    "text",
    ["9223372037.5", "9999999999.0", "1e30", "1e19", "18446744073709551615", "1e-99999999999999999999"],
)
def test_what_does_not_fit_is_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parsed(text)


def test_the_usual_layout_takes_the_quick_way() -> None:
    assert usual_time(b'{"t":1788221380.000021,"seq":1}') == 1788221380000021000
    assert usual_time(b'{"t":1788221380.123456789,"seq":1}') == 1788221380123456789


def test_an_event_has_the_time_that_its_line_states(load: Callable[..., Any]) -> None:
    texts = ["5", "1788221380", "1788221380.5", "1788221380000000021", "1.5e3", "-2.5"]
    first = [f'{{"t":{text},"event":"x"}}' for text in texts]
    last = [f'{{"event":"x","t":{text}}}' for text in texts]
    events, _ = load(*first, *last)
    expected = [
        5 * 10**9,
        1788221380 * 10**9,
        1788221380500000000,
        1788221380000000021,
        15 * 10**11,
        -25 * 10**8,
    ]
    assert [e["time_ns"] for e in events] == expected * 2


@pytest.mark.parametrize("value", [True, "1788221380", None, [1], {}])
def test_only_numbers_are_times(value: Any) -> None:
    with pytest.raises(ValueError, match="not a number"):
        time_ns("t", value, orjson.dumps({"t": value}))


def test_time_unix_nano_is_another_name_and_must_agree(load: Callable[..., Any]) -> None:
    events, report = load(
        '{"time_unix_nano":1788221380000000021,"event":"x"}',
        '{"t":1788221380.5,"time_unix_nano":1788221380500000000,"event":"x"}',
        '{"t":1788221380.5,"time_unix_nano":1788221380500000001,"event":"x"}',
    )
    assert [e["time_ns"] for e in events] == [1788221380000000021, 1788221380500000000]
    assert report.bad == [(3, "t: differs from time_unix_nano")]


def test_until_is_a_time_of_its_own(load: Callable[..., Any]) -> None:
    lines = [
        '{"t":1.5,"event":"transfer.lease","transfer":"x","until":1788221380.000021}',
        '{"t":1.5,"event":"transfer.lease","transfer":"x","until":"soon"}',
    ]
    events, report = load(*lines)
    assert [e["until_ns"] for e in events] == [1788221380000021000]
    assert report.bad == [(2, "until: not a number")]
