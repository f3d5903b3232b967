"""Limits, refusals, aborts and what the client was told."""

from __future__ import annotations

import pytest

from tests.rules.traces import Trace, judge, verdicts

REFUSED, OVER, STATUS = "served-after-refusal", "over-limit-success", "status-mismatch"


def refused(by: str = "e/0", event: str = "request.rejected") -> Trace:
    return Trace().received(1, "r1", "t-a").add(2, by, event, request="r1", status=400)


def alloc(trace: Trace, t: float, source: str = "e/0") -> Trace:
    return trace.add(t, source, "page.alloc", pool=f"{source}/kv", pages=[1], request="r1")


def test_the_same_source_has_no_grace() -> None:
    assert verdicts(REFUSED, alloc(refused(), 2.001)) == [("r1", "exposure")]


def test_another_source_has_the_propagation_delay() -> None:
    assert verdicts(REFUSED, alloc(refused(), 2.9, "d/0")) == []
    assert verdicts(REFUSED, alloc(refused(), 3.1, "d/0")) == [("r1", "exposure")]


def test_a_later_success_counts_at_once() -> None:
    assert verdicts(REFUSED, refused("p/0", "request.aborted").finished(2.1, "r1", 200)) == [("r1", "integrity")]


def test_an_abort_after_the_answer_is_none() -> None:
    trace = Trace().received(1, "r1", "t-a").finished(2, "r1", 200)
    trace.add(2.5, "e/0", "request.aborted", request="r1")
    assert verdicts(REFUSED, trace) == []
    assert verdicts(STATUS, trace) == []


def test_wide_clocks_leave_the_order_open() -> None:
    trace = Trace()
    for engine in ("p", "d"):
        trace.add(0, f"{engine}/0", "engine.clock", engine=engine, offset_s=0, uncertainty_s=2)
    trace.received(1, "r1", "t-a").add(2, "p/0", "request.aborted", request="r1")
    found = judge(REFUSED, alloc(trace, 4.5, "d/0"))
    assert [(f["verdict"], f["missing"]) for f in found] == [
        ("unproven", "clocks that order the refusal and the service")
    ]


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("page.free", {"pool": "e/0/kv", "pages": [1], "reason": "abort"}),
        ("transfer.drained", {"transfer": "x"}),
        ("transfer.failed", {"transfer": "x", "tokens": 4}),
        ("transfer.done", {"transfer": "x", "tokens": 4}),
        ("page.write", {"pool": "e/0/kv", "pages": [1], "op": "transfer", "phase": "end"}),
        ("page.read", {"pool": "e/0/kv", "pages": [1], "op": "transfer", "phase": "end"}),
        ("page.read", {"pool": "e/0/kv", "pages": [1], "op": "offload"}),
    ],
)
def test_cleanup_is_no_service(event: str, fields: dict[str, object]) -> None:
    trace = Trace().received(1, "r1", "t-a").add(1.5, "e/0", "transfer.begin", transfer="x", request="r1")
    trace.add(2, "e/0", "request.aborted", request="r1").add(3, "e/0", event, request="r1", **fields)
    assert verdicts(REFUSED, trace.finished(4, "r1", 499)) == []


def test_a_preempted_request_may_re_enter_and_be_released() -> None:
    trace = Trace().received(1, "r1", "t-a").add(1.5, "e/0", "request.preempted", request="r1")
    trace.add(2, "e/0", "request.aborted", request="r1").add(2.1, "e/0", "request.resumed", request="r1")
    alloc(trace, 2.2)
    assert verdicts(REFUSED, trace) == []
    trace.add(2.3, "e/0", "page.read", pool="e/0/kv", pages=[1], request="r1", op="decode")
    assert verdicts(REFUSED, trace) == [("r1", "exposure")]


def test_a_step_that_was_running_may_end() -> None:
    trace = Trace().received(1, "r1", "t-a").add(1.9, "e/0", "step.begin", step=7, pool="e/0/kv", pages=[1])
    trace.add(2, "e/0", "request.aborted", request="r1")
    trace.add(2.1, "e/0", "page.read", pool="e/0/kv", pages=[1], request="r1", op="decode", step=7)
    assert verdicts(REFUSED, trace) == []
    trace.add(2.2, "e/0", "step.begin", step=8, pool="e/0/kv", pages=[1])
    trace.add(2.3, "e/0", "page.read", pool="e/0/kv", pages=[1], request="r1", op="decode", step=8)
    assert verdicts(REFUSED, trace) == [("r1", "exposure")]


def test_another_life_of_the_id_is_not_the_refused_one() -> None:
    trace = refused().received(3, "r1", "t-a", incarnation=1)
    trace.add(4, "e/0", "page.alloc", pool="e/0/kv", pages=[1], request="r1", incarnation=1)
    assert verdicts(REFUSED, trace) == []


def limited(limit: int, at: float = 0) -> Trace:
    return Trace().add(at, "e/0", "engine.limits", engine="e", advertised_tokens=999, input_limit_tokens=limit)


def test_the_limit_itself_is_allowed_and_advertised_figures_are_not_asked() -> None:
    assert (
        verdicts(OVER, alloc(limited(100).received(1, "r1", "t-a", prompt_tokens=100), 2).finished(3, "r1", 200)) == []
    )


def test_only_engines_that_served_are_asked() -> None:
    trace = limited(100).add(0.5, "f/0", "engine.limits", engine="f", input_limit_tokens=500)
    trace.received(1, "r1", "t-a", prompt_tokens=300)
    assert verdicts(OVER, alloc(trace, 2, "f/0").finished(3, "r1", 200)) == []


def test_a_limit_that_was_announced_too_late_decides_nothing() -> None:
    trace = alloc(Trace().received(1, "r1", "t-a", prompt_tokens=300), 2)
    trace.add(2.5, "e/0", "engine.limits", engine="e", input_limit_tokens=100).finished(3, "r1", 200)
    assert [(f["verdict"], f["missing"]) for f in judge(OVER, trace)] == [
        ("unproven", "engine.limits of e before its first service")
    ]


def test_a_length_that_nobody_measured_decides_nothing() -> None:
    trace = alloc(limited(100).received(1, "r1", "t-a"), 2).finished(3, "r1", 200)
    assert [(f["verdict"], f["missing"]) for f in judge(OVER, trace)] == [
        ("unproven", "prompt_tokens of request.received")
    ]


def test_an_over_long_prompt_that_was_refused_is_no_success() -> None:
    trace = alloc(limited(100).received(1, "r1", "t-a", prompt_tokens=300), 2).finished(3, "r1", 400)
    assert verdicts(OVER, trace) == []


def test_length_without_a_token_after_an_abort() -> None:
    trace = Trace().received(1, "r1", "t-a").add(2, "e/0", "request.aborted", request="r1")
    trace.finished(3, "r1", 504, finish_reason="length", completion_tokens=0)
    assert verdicts(STATUS, trace) == [("r1", "integrity")]


def test_a_stream_that_tells_of_its_abort_is_honest() -> None:
    trace = Trace().received(1, "r1", "t-a").add(2, "e/0", "request.aborted", request="r1")
    trace.finished(3, "r1", 200, finish_reason="abort")
    assert verdicts(STATUS, trace) == []
    assert verdicts(REFUSED, trace) == []


def test_any_engine_s_answer_for_another_length_counts() -> None:
    trace = Trace().received(1, "r1", "t-a", prompt_tokens=600)
    trace.finished(2, "r1", 200, answered_by="p/0", prompt_tokens=1)
    trace.finished(3, "r1", 200, answered_by="d/0", prompt_tokens=600)
    assert [f["why"] for f in judge(STATUS, trace)] == [
        "received with 600 prompt tokens, answered by p/0 with success for 1"
    ]


def test_an_error_need_not_repeat_the_length() -> None:
    trace = Trace().received(1, "r1", "t-a", prompt_tokens=600).finished(2, "r1", 503, prompt_tokens=0)
    assert verdicts(STATUS, trace) == []


def test_the_length_that_the_engine_saw_after_cutting_does_not_excuse_it() -> None:
    trace = Trace().received(1, "r1", "t-a", prompt_tokens=600)
    trace.add(1.1, "e/0", "request.received", request="r1", tenant="t-a", prompt_tokens=100)
    assert verdicts(STATUS, trace.finished(2, "r1", 200, prompt_tokens=100)) == [("r1", "integrity")]
