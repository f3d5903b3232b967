"""One order for events of many observers: numbers first, then ids, and clocks only where nothing else decides."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwitness.audit.provenance.order import clock_statements, ordered
from tests.provenance.support import Event, frame_of


def event(t: float, source: str, seq: int | None = None, kind: str = "step.end", **fields: Any) -> Event:
    at = {"t": t, "source": source, "event": kind, "step": 1, "pool": "e/0/kv"} | fields
    return at if seq is None else at | {"seq": seq}


def move(t: float, source: str, seq: int, kind: str = "transfer.done", **fields: Any) -> Event:
    return event(t, source, seq, kind, transfer="x1", request="r1", **fields)


def landed(t: float, source: str, seq: int, **fields: Any) -> Event:
    return event(t, source, seq, "page.write", request="r1", op="transfer", pool="d/0/kv", pages=[1], **fields)


def clock(t: float, engine: str, offset: float, seq: int, width: float = 0.001) -> Event:
    return event(t, f"{engine}/0", seq, "engine.clock", engine=engine, offset_s=offset, uncertainty_s=width)


def replayed(*events: Event) -> list[tuple[str, int]]:
    """(source, seq) in replay order."""
    return ordered(frame_of(events)).select("source", "seq").rows()


def test_within_a_source_numbers_win_over_a_clock_that_jumps_back() -> None:
    given = [event(10, "e/0", 1), event(11, "e/0", 2), event(3, "e/0", 3), event(4, "e/0", 4), event(10.5, "f/0", 1)]
    assert replayed(*given) == [("e/0", 1), ("f/0", 1), ("e/0", 2), ("e/0", 3), ("e/0", 4)]


def test_lines_of_a_source_may_stand_in_any_order() -> None:
    given = [event(12, "e/0", 3), event(10, "e/0", 1), event(11, "e/0", 2)]
    assert replayed(*given) == [("e/0", 1), ("e/0", 2), ("e/0", 3)]


def test_numbers_decide_between_lines_of_one_time_that_stand_the_other_way_round() -> None:
    given = [event(5, "e/0", 3), event(5, "f/0", 1), event(5, "e/0", 1), event(5, "e/0", 2)]
    assert [seq for source, seq in replayed(*given) if source == "e/0"] == [1, 2, 3]


def test_without_numbers_lines_are_in_order() -> None:
    frame = ordered(frame_of([event(5, "e/0", step=3), event(5, "e/0", step=1), event(5, "e/0", step=2)]))
    assert frame["step"].to_list() == [3, 1, 2]


def test_equal_times_of_different_sources_stay_in_the_order_of_lines() -> None:
    given = [event(5, "f/0", 1), event(5, "e/0", 1), event(5, "g/0", 1), event(5, "e/0", 2)]
    assert replayed(*given) == [(e["source"], e["seq"]) for e in given]


def test_across_sources_corrected_clocks_decide() -> None:
    """The clock of d is 100 s ahead, then set right."""
    given = [
        clock(100, "d", 100, 1),
        event(2, "e/0", 1),
        event(101, "d/0", 2),
        event(105, "d/1", 1),
        clock(106, "d", 0, 3),
        event(107, "d/0", 4),
        event(106, "e/0", 2),
    ]
    assert replayed(*given) == [
        ("d/0", 1),
        ("d/0", 2),
        ("e/0", 1),
        ("d/1", 1),
        ("d/0", 3),
        ("e/0", 2),
        ("d/0", 4),
    ]
    frame = ordered(frame_of(given))
    width = dict(zip(frame.select("source", "seq").rows(), frame["unc_ns"].to_list(), strict=True))
    assert (width[("d/1", 1)], width[("e/0", 1)]) == (1_000_000, None)


def test_the_first_word_on_a_clock_counts_for_what_came_before() -> None:
    given = [event(101, "d/0", 1), clock(102, "d", 100, 2), event(2, "e/0", 1)]
    assert replayed(*given) == [("d/0", 1), ("d/0", 2), ("e/0", 1)]
    assert ordered(frame_of(given))["ref_ns"].to_list() == [1_000_000_000, 2_000_000_000, 2_000_000_000]


def test_a_part_of_a_record_is_ordered_by_the_clocks_of_all_of_it() -> None:
    first, rest = [clock(100, "d", 100, 1)], [event(2, "e/0", 1), event(101, "d/0", 2)]
    clocks = clock_statements(frame_of(first).lazy()).collect()
    frame = ordered(frame_of(rest), 1, clocks)
    assert frame.select("source", "ev").rows() == [("d/0", 1), ("e/0", 2)]
    assert frame["unc_ns"].to_list() == [1_000_000, None]


def test_what_a_receiver_says_of_a_transfer_comes_after_its_begin() -> None:
    """The receiver's clock is 10 s behind: it and all that it says later wait for the sender."""
    given = [
        event(90, "d/0", 1),
        event(100, "p/0", 1),
        move(101, "p/0", 2, "transfer.begin"),
        event(102, "p/0", 3),
        landed(91.5, "d/0", 2),
        move(92, "d/0", 3),
        event(92.5, "d/0", 4),
    ]
    order = replayed(*given)
    assert order[0] == ("d/0", 1)
    begin = order.index(("p/0", 2))
    assert all(order.index(("d/0", n)) > begin for n in (2, 3, 4))
    assert [seq for source, seq in order if source == "d/0"] == [1, 2, 3, 4]


def test_causes_carry_over_from_source_to_source() -> None:
    """What q hears of a second transfer waits for d, which waits for p."""
    second = {"transfer": "x2", "request": "r2"}
    given = [
        move(100, "p/0", 1, "transfer.begin"),
        move(50, "d/0", 1),
        event(50.1, "d/0", 2, "transfer.begin", **second),
        event(20, "q/0", 1, "transfer.failed", **second),
    ]
    assert replayed(*given) == [("p/0", 1), ("d/0", 1), ("d/0", 2), ("q/0", 1)]


def test_a_room_that_is_used_again_orders_its_first_transfer_wherever_its_lines_stand() -> None:
    given = [
        move(1.0, "p/0", 1, "transfer.begin"),
        move(2.0, "d/0", 1),
        move(3.0, "p/0", 2, "transfer.begin"),
        landed(3.5, "d/0", 2),
        move(4.0, "d/0", 3),
    ]
    expected = [("p/0", 1), ("d/0", 1), ("p/0", 2), ("d/0", 2), ("d/0", 3)]
    assert replayed(*given) == expected
    assert replayed(*reversed(given)) == expected


def test_a_fetch_comes_after_the_offer() -> None:
    given = [move(10, "p/0", 1, "transfer.offer"), move(3, "d/0", 1, "transfer.begin"), move(4, "d/0", 2)]
    assert replayed(*given) == [("p/0", 1), ("d/0", 1), ("d/0", 2)]


@st.composite
def records(draw: st.DrawFn) -> list[Event]:
    """Events of a few sources with clocks that jump, transfers between them, and lines in any order."""
    events: list[Event] = []
    for source in draw(st.lists(st.sampled_from(["p/0", "p/1", "d/0", "gateway"]), min_size=1, unique=True)):
        for seq in range(1, draw(st.integers(1, 8)) + 1):
            t = draw(st.integers(1, 30))
            kind = draw(st.sampled_from(["step.end", "transfer.begin", "transfer.done", "page.write", "engine.clock"]))
            fields: dict[str, Any] = {"transfer": draw(st.sampled_from("xy")), "request": draw(st.sampled_from("rs"))}
            if kind == "engine.clock":
                fields = {"engine": source.split("/")[0], "offset_s": draw(st.integers(-20, 20)), "uncertainty_s": 0.1}
            elif kind == "page.write":
                fields |= {"op": "transfer", "pages": [1]}
            events.append(event(t, source, seq, kind, **fields))
    return draw(st.permutations(events))


@settings(max_examples=60, deadline=None)
@given(records(), st.integers(0, 1000))
def test_every_event_once_and_each_source_in_its_order(events: list[Event], first_ev: int) -> None:
    given = frame_of(events)
    frame = ordered(given, first_ev)
    assert frame["ev"].to_list() == list(range(first_ev, first_ev + len(given)))
    assert sorted(frame["line"].to_list()) == sorted(given["line"].to_list())
    for (_,), of_one in frame.group_by("source"):
        assert of_one.sort("ev")["seq"].to_list() == sorted(of_one["seq"].to_list())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["e/0", "f/0", "g/0"]), st.integers(0, 5)), max_size=20))
def test_where_only_clocks_speak_the_order_is_that_of_a_stable_sort(marks: list[tuple[str, int]]) -> None:
    """Each source's clock never falls here."""
    highest: dict[str, int] = {}
    events = []
    for source, step in marks:
        highest[source] = highest.get(source, 0) + step
        events.append(event(highest[source], source))
    got = ordered(frame_of(events)) if events else pl.DataFrame({"line": []})
    expected = sorted(range(len(events)), key=lambda n: events[n]["t"])
    assert got["line"].to_list() == [n + 1 for n in expected]
