"""Requests and known loss, as they follow from the events."""

from __future__ import annotations

from typing import Any

import polars as pl

from kvwitness.audit.relations import GAP_SCHEMA, REJECTED_SCHEMA, REQUEST_SCHEMA, gaps, requests
from tests.rules.traces import Trace, events_of


def row(trace: Trace, request: str = "r1", incarnation: int = 0) -> dict[str, Any]:
    frame = requests(events_of(trace).lazy())
    assert frame.schema == REQUEST_SCHEMA
    return frame.row(by_predicate=(pl.col("request") == request) & (pl.col("incarnation") == incarnation), named=True)


def losses(trace: Trace, rejected: list[tuple[str | None, int]] | None = None) -> list[tuple[Any, ...]]:
    known = (
        pl.DataFrame([(*r, None, None) for r in rejected], schema=REJECTED_SCHEMA, orient="row") if rejected else None
    )
    frame = gaps(events_of(trace).lazy(), known)
    assert frame.schema == GAP_SCHEMA
    return frame.select("source", "from_seq", "to_seq", "dropped", "reason").rows()


def test_two_observers_of_one_reception_are_one_request_and_the_gateway_is_believed() -> None:
    trace = Trace().add(1, "e/0", "request.received", request="r1", tenant="t-a", prompt_tokens=50)
    got = row(trace.received(2, "r1", "t-a", prompt_tokens=120))
    assert (got["tenant"], got["prompt_tokens"], got["received_source"]) == ("t-a", 120, "gateway")


def test_what_one_observer_does_not_say_another_may() -> None:
    trace = (
        Trace()
        .received(1, "r1", "t-a")
        .add(2, "e/0", "request.received", request="r1", tenant="t-a", prompt_tokens=50, adapter="ad")
    )
    assert (row(trace)["prompt_tokens"], row(trace)["adapter"]) == (50, "ad")


def test_a_gateway_is_known_by_its_role() -> None:
    trace = Trace().add(0, "edge/0", "engine.limits", engine="edge", role="gateway")
    trace.add(1, "e/0", "request.received", request="r1", tenant="t-a", prompt_tokens=50)
    trace.add(2, "edge/0", "request.received", request="r1", tenant="t-a", prompt_tokens=120)
    assert row(trace)["prompt_tokens"] == 120


def test_a_request_that_only_page_events_name_is_a_row() -> None:
    trace = Trace().add(1, "e/0", "page.alloc", pool="e/0/kv", pages=[1], request="r1", tenant="t-a")
    got = row(trace)
    assert (got["tenant"], got["received_ev"], got["traffic"], got["ok"]) == ("t-a", None, "user", False)


def test_lives_of_one_id_are_apart() -> None:
    trace = Trace().received(1, "r1", "t-a").received(2, "r1", "t-b", incarnation=1)
    assert row(trace)["tenant"] == "t-a"
    assert row(trace, incarnation=1)["tenant"] == "t-b"


def test_clashing_receptions_keep_both_tenants() -> None:
    trace = Trace().received(1, "r1", "t-b").received(2, "r1", "t-a")
    assert (row(trace)["tenant"], row(trace)["tenants"]) == ("t-b", ["t-a", "t-b"])


def test_the_answer_that_no_engine_signed_is_final() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 200).finished(3, "r1", 200, answered_by="p/0")
    assert row(trace)["answered_by"] is None


def test_without_one_the_last_engine_s_answer_ends_the_request() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 500, answered_by="d/0")
    got = row(trace.finished(3, "r1", 200, answered_by="p/0"))
    assert (got["answered_by"], got["ok"], got["ended_ns"]) == ("p/0", True, 3_000_000_000)


def test_the_first_of_finish_abort_and_refusal_ends_a_request() -> None:
    trace = Trace().received(1, "r1", "t-a").add(2, "e/0", "request.rejected", request="r1", status=400)
    got = row(trace.finished(3, "r1", 200).add(4, "e/0", "request.aborted", request="r1"))
    assert (got["ended_ns"], got["rejected_status"]) == (2_000_000_000, 400)


def test_an_unanswered_request_is_alive() -> None:
    assert row(Trace().received(1, "r1", "t-a"))["ended_ev"] is None


def test_a_hole_in_the_numbers_is_a_loss() -> None:
    trace = Trace().add(1, "e/0", "x").add(2, "e/0", "x", seq=5)
    assert losses(trace) == [("e/0", 2, 4, 3, "hole")]


def test_what_unreadable_lines_said_is_lost() -> None:
    """One of them may have been the write that a later read relies on."""
    trace = Trace().add(1, "e/0", "x").add(2, "e/0", "x", seq=4).add(3, "e/0", "x", seq=7)
    told = [("e/0", 2, 3, 2, "hole"), ("e/0", 5, 6, 2, "hole")]
    assert losses(trace, [("e/0", 2), ("e/0", 3), ("e/0", 5)]) == told


def test_unreadable_lines_after_the_last_of_their_source_are_lost_too() -> None:
    trace = Trace().add(1, "e/0", "x").add(2, "f/0", "x").add(3, "", "x")
    assert losses(trace, [("e/0", 2), ("e/0", 4)]) == [("e/0", 2, 4, 2, "unread")]
    assert losses(trace, [("", 2)]) == [("", 2, 2, 1, "unread")]


def test_unreadable_lines_without_a_number_lie_between_their_neighbours() -> None:
    events = events_of(Trace().add(1, "e/0", "x").add(2, "f/0", "x").add(2, "e/0", "x").add(3, "e/0", "x"))
    second = 1_000_000_000
    places = [("e/0", None, second, 2 * second), ("e/0", None, 3 * second, None), ("f/0", None, None, 2 * second)]
    frame = gaps(events.lazy(), pl.DataFrame(places, schema=REJECTED_SCHEMA, orient="row"))
    between = frame.select("source", "before_ev", "after_ev", "reason").rows()
    assert sorted(between, key=str) == sorted(
        [("e/0", 0, 2, "unread"), ("e/0", 3, None, "unread"), ("f/0", None, 1, "unread")], key=str
    )


def test_a_source_that_counts_twice_proves_nothing() -> None:
    """Two records under one name, or an engine that was restarted: their events have no common order."""
    trace = Trace().add(1, "e/0", "x").add(2, "e/0", "x").add(3, "e/0", "x", seq=2).add(4, "f/0", "x")
    assert losses(trace) == [("e/0", 2, 2, None, "doubled")]


def test_a_declared_loss_and_its_hole_are_one() -> None:
    trace = Trace().add(1, "e/0", "x")
    trace.add(2, "e/0", "telemetry.gap", seq=9, dropped=7, from_seq=2, to_seq=8)
    assert losses(trace) == [("e/0", 2, 8, 7, "declared")]


def test_a_declared_loss_without_numbers_lies_before_the_declaration() -> None:
    trace = Trace().add(1, "e/0", "x").add(2, "e/0", "telemetry.gap", reason="overflow")
    events = events_of(trace)
    frame = gaps(events.lazy())
    assert frame.select("before_ev", "after_ev", "reason").rows() == [(0, 1, "declared")]


def test_nothing_lost_is_no_loss() -> None:
    assert losses(Trace().add(1, "e/0", "x").add(2, "e/0", "telemetry.gap", dropped=0)) == []


def test_a_record_that_begins_mid_life_says_so() -> None:
    assert losses(Trace().add(1, "e/0", "x", seq=71)) == [("e/0", 1, 70, 70, "midlife")]


def test_sources_have_their_own_numbers() -> None:
    assert losses(Trace().add(1, "e/0", "x").add(2, "e/1", "x").add(3, "e/0", "x")) == []
