"""Ids that are live twice, and auxiliary records."""

from __future__ import annotations

from tests.rules.traces import Trace, judge, verdicts

ID = "identity-reuse"


def two() -> Trace:
    return Trace().received(0, "r1", "t-a").received(0, "r2", "t-b")


def aux(trace: Trace, t: float, event: str, request: str, source: str = "d/0", **fields: object) -> Trace:
    return trace.add(t, source, event, slot="d/0/meta/1", request=request, **fields)


def test_an_id_that_comes_back_after_its_end_is_another_request() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 200).received(3, "r1", "t-b")
    assert verdicts(ID, trace) == []


def test_a_live_id_of_the_same_tenant_is_no_leak() -> None:
    assert verdicts(ID, Trace().received(1, "r1", "t-a").received(2, "r1", "t-a")) == [("r1", "integrity")]


def test_two_observers_of_one_reception_are_no_reuse() -> None:
    trace = Trace().received(1, "r1", "t-a").add(1.1, "e/0", "request.received", request="r1", tenant="t-a")
    assert verdicts(ID, trace) == []


def test_the_second_taker_of_a_transfer_id_is_named_once() -> None:
    trace = two()
    for t, request in ((1, "r1"), (2, "r2"), (3, "r1"), (4, "r2")):
        trace.add(t, "p/0", "transfer.begin", transfer="x", request=request)
    found = judge(ID, trace)
    assert [(f["request"], f["verdict"], f["other_requests"]) for f in found] == [("r2", "leak", ["r1"])]


def test_a_drained_transfer_frees_its_id() -> None:
    trace = two().add(1, "p/0", "transfer.begin", transfer="x", request="r1")
    trace.add(2, "p/0", "transfer.drained", transfer="x")
    assert verdicts(ID, trace.add(3, "p/0", "transfer.begin", transfer="x", request="r2")) == []


def test_a_record_is_read_by_its_own_request() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1"), 2, "aux.read", "r1")
    assert verdicts(ID, aux(aux(trace, 3, "aux.write", "r2"), 4, "aux.read", "r2")) == []


def test_a_sentinel_before_the_first_write_is_no_record() -> None:
    assert verdicts(ID, aux(two(), 1, "aux.read", "r1", length=4)) == []


def test_a_poll_that_found_nothing_is_no_read() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r2", length=4), 2, "aux.read", "r1", length=0)
    assert verdicts(ID, trace) == []


def test_a_left_over_record_is_not_the_reader_s() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1"), 2, "aux.read", "r1")
    assert verdicts(ID, aux(trace, 3, "aux.read", "r2", length=4)) == [("r2", "leak")]


def test_clocks_that_put_a_read_before_its_own_write_are_not_believed() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1", "p/0"), 2, "aux.read", "r1")
    assert verdicts(ID, aux(aux(trace, 3, "aux.read", "r2"), 3.001, "aux.write", "r2", "p/0")) == []


def test_without_clocks_a_strange_read_across_sources_is_unproven() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1", "p/0"), 2, "aux.write", "r2", "p/0")
    assert verdicts(ID, aux(trace, 2.5, "aux.read", "r1")) == [("r1", "unproven")]


def test_a_second_rank_in_one_record() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1", rank=0), 2, "aux.write", "r1", rank=1)
    assert verdicts(ID, trace) == [("r1", "integrity")]


def test_the_designated_rank_may_be_stated() -> None:
    assert verdicts(ID, aux(two(), 1, "aux.write", "r1", rank=0, writer_rank=1)) == [("r1", "integrity")]
    assert verdicts(ID, aux(two(), 1, "aux.write", "r1", rank=1, writer_rank=1)) == []


def test_the_designated_rank_is_chosen_for_each_record() -> None:
    trace = aux(aux(two(), 1, "aux.write", "r1", rank=0), 2, "aux.read", "r1")
    assert verdicts(ID, aux(trace, 3, "aux.write", "r2", rank=1)) == []


def test_a_canary_of_own_traffic_counts_wherever_it_appears() -> None:
    trace = Trace().received(0, "r1", "t-probe", traffic="probe").received(0, "r2", "t-b")
    trace.add(1, "gateway", "canary.planted", marker="m", request="r1")
    trace.add(2, "gateway", "canary.seen", marker="m", request="r2")
    found = judge("canary-leak", trace)
    assert [(f["request"], f["verdict"], f["other_tenants"]) for f in found] == [("r2", "leak", ["t-probe"])]


def test_a_canary_in_an_output_of_nobody_known_is_unproven() -> None:
    trace = Trace().add(1, "gateway", "canary.planted", marker="m", request="r1", tenant="t-a")
    assert verdicts("canary-leak", trace.add(2, "gateway", "canary.seen", marker="m", request="r2")) == [
        ("r2", "unproven")
    ]


def test_an_end_that_may_be_lost_excuses_the_second_use() -> None:
    again = Trace().received(1, "r1", "t-a").received(2, "r1", "t-a")
    assert verdicts("identity-reuse", again) == [("r1", "integrity")]
    lossy = Trace().received(1, "r1", "t-a").received(2, "r1", "t-a", seq=4)
    assert verdicts("identity-reuse", lossy) == [("r1", "unproven")]


def test_a_done_that_may_be_lost_excuses_the_second_binding() -> None:
    def moved(**second: object) -> Trace:
        trace = Trace().received(1, "r1", "t-a").received(1, "r2", "t-b")
        trace.add(2, "p/0", "transfer.begin", transfer="x", request="r1", tokens=8)
        return trace.add(3, "p/0", "transfer.begin", transfer="x", request="r2", tokens=8, **second)

    assert verdicts("identity-reuse", moved()) == [("r2", "leak")]
    assert verdicts("identity-reuse", moved(seq=7)) == [("r2", "unproven")]


def test_a_transfer_of_which_nobody_said_that_it_ended_is_over_when_its_request_was_answered() -> None:
    def again(event: str, **answer: object) -> Trace:
        trace = Trace().received(1, "r1", "t-a").received(1, "r2", "t-b")
        trace.add(2, "p/0", "transfer.begin", transfer="x", request="r1", tokens=8)
        trace.add(3, "gateway", event, request="r1", **answer)
        return trace.add(4, "p/0", "transfer.begin", transfer="x", request="r2", tokens=8)

    assert verdicts("identity-reuse", again("request.finished", status=200)) == []
    assert verdicts("identity-reuse", again("request.finished", status=500)) == [("r2", "leak")]
    assert verdicts("identity-reuse", again("request.aborted")) == [("r2", "leak")]
