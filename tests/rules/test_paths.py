"""Over-long prompts in a record without page events: which engines could have taken them."""

from __future__ import annotations

from typing import Any

from tests.rules.traces import Trace, judge, verdicts

RULE = "over-limit-success"


def limits(trace: Trace, t: float, engine: str, tokens: int, **fields: Any) -> Trace:
    return trace.add(t, f"{engine}/0", "engine.limits", engine=engine, input_limit_tokens=tokens, **fields)


def asked(trace: Trace, t: float, request: str, tokens: int, status: int = 200, **fields: Any) -> Trace:
    trace.received(t, request, "t-ash", prompt_tokens=tokens, **fields)
    return trace.finished(t + 1, request, status, prompt_tokens=tokens)


def pair() -> Trace:
    trace = limits(Trace(), 1, "pf", 100, role="prefill")
    return limits(trace, 1, "dec", 200, role="decode")


def test_no_way_through_prefill_and_decode() -> None:
    trace = asked(asked(asked(pair(), 2, "fits", 100), 3, "long", 101), 4, "refused", 101, status=400)
    [found] = judge(RULE, trace)
    assert (found["request"], found["verdict"], found["engine"]) == ("long", "integrity", "pf")
    assert "its 101 prompt tokens exceed the 100 of pf" in found["why"]


def test_another_engine_may_have_taken_it() -> None:
    trace = asked(limits(limits(Trace(), 1, "small", 100), 1, "large", 500), 2, "r1", 300)
    [found] = judge(RULE, trace)
    assert (found["verdict"], found["missing"]) == ("unproven", "which engine served it")
    assert verdicts(RULE, asked(trace, 3, "r2", 501))[-1] == ("r2", "integrity")


def test_engine_that_says_that_it_answered_is_the_one() -> None:
    for engine, expected in (("small", "integrity"), ("large", None)):
        trace = limits(limits(Trace(), 1, "small", 100), 1, "large", 500)
        trace.received(2, "r1", "t-ash", prompt_tokens=300)
        trace.add(3, f"{engine}/0", "request.finished", request="r1", status=200, answered_by=engine)
        assert verdicts(RULE, trace) == ([("r1", expected)] if expected else [])


def test_decode_that_answered_had_a_prefill_before_it() -> None:
    trace = pair().received(2, "r1", "t-ash", prompt_tokens=150)
    trace.add(3, "dec/0", "request.finished", request="r1", status=200, answered_by="dec")
    assert verdicts(RULE, trace) == [("r1", "integrity")]


def test_engine_of_another_model_is_no_way() -> None:
    trace = limits(limits(Trace(), 1, "a", 100, model="m"), 1, "b", 500, model="other")
    assert verdicts(RULE, asked(trace, 2, "r1", 300, model="m")) == [("r1", "integrity")]
    assert verdicts(RULE, asked(Trace(), 2, "r1", 300, model="m")) == []


def test_limit_that_was_announced_later_decides_nothing_about_before() -> None:
    trace = asked(Trace(), 2, "r1", 300)
    assert verdicts(RULE, limits(trace, 5, "e", 100)) == []
    raised = limits(limits(asked(limits(Trace(), 1, "e", 100), 2, "r1", 300), 4, "e", 500), 5, "e", 500)
    assert verdicts(RULE, asked(raised, 6, "r2", 300)) == [("r1", "integrity")]


def test_an_engine_whose_pages_are_on_record_would_have_been_seen() -> None:
    trace = asked(limits(Trace(), 1, "e", 100), 2, "before", 300)
    trace.add(3, "e/0", "page.alloc", pool="e/0/kv", pages=[1], request="other")
    assert verdicts(RULE, asked(trace, 4, "after", 300)) == [("before", "integrity")]


def test_near_limit_successes_need_no_page_events() -> None:
    hour = 8 * 86_400
    usual, odd = limits(Trace(), 0, "e", 100), limits(Trace(), 0, "e", 100)
    for n in range(660):
        t = 1 + n * (hour - 10) / 600 if n < 600 else hour + 10 * (n - 600)
        asked(usual, t, f"r{n}", 20)
        asked(odd, t, f"r{n}", 20 if n < 600 else 95)
    for trace in (usual, odd):
        asked(trace, hour + 86_400, "last", 20)
    assert judge("near-limit-successes", usual) == []
    [found] = judge("near-limit-successes", odd)
    assert (found["engine"], found["verdict"]) == ("e", "exposure")
