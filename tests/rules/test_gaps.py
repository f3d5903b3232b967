"""Who is touched by what is missing."""

from __future__ import annotations

from tests.rules.traces import Trace, context_of, judge, verdicts

ID = "telemetry-gap"


def page(trace: Trace, t: float, event: str, request: str = "r1", pages: object = None, **fields: object) -> Trace:
    return trace.add(t, "e/0", event, pool="e/0/kv", pages=pages or [4], request=request, **fields)


def test_alive_across_a_hole() -> None:
    trace = page(page(Trace(), 1, "page.alloc", tenant="t-a"), 2, "page.read", seq=9, pages=[4, 5])
    (found,) = judge(ID, trace)
    assert (found["request"], found["pages"], found["missing"]) == ("r1", [4, 5], "seq 2 to 8 of e/0")


def test_before_and_after_a_hole() -> None:
    trace = page(page(Trace(), 1, "page.alloc"), 2, "page.free", reason="finish")
    page(trace, 3, "page.alloc", "r2", seq=9)
    assert [(f["request"], f["engine"]) for f in judge(ID, trace)] == [(None, "e")]


def test_a_request_that_ended_within_the_hole() -> None:
    trace = page(Trace().received(0, "r1", "t-a"), 1, "page.alloc").finished(2, "r1", 200)
    assert verdicts(ID, page(trace, 3, "page.alloc", "r2", seq=9)) == [("r1", "unproven")]


def test_a_request_that_ended_before_the_hole() -> None:
    trace = page(Trace().received(0, "r1", "t-a"), 1, "page.alloc").finished(2, "r1", 200)
    trace.add(3, "e/0", "engine.pool", pool="e/0/kv", page_tokens=16, pages_total=9)
    assert verdicts(ID, page(trace, 4, "page.alloc", "r2", seq=9)) == [(None, "unproven")]


def test_a_window_free_does_not_end_a_request() -> None:
    trace = page(page(Trace(), 1, "page.alloc"), 2, "page.free", reason="window")
    assert verdicts(ID, page(trace, 3, "page.alloc", "r2", seq=9)) == [("r1", "unproven")]


def test_another_source_s_hole_is_not_its_business() -> None:
    trace = page(Trace(), 1, "page.alloc").add(1, "f/0", "x").add(3, "f/0", "x", seq=9)
    assert verdicts(ID, page(trace, 4, "page.free")) == [(None, "unproven")]


def test_a_life_that_is_older_than_the_record() -> None:
    assert verdicts(ID, page(Trace(), 1, "page.read", seq=71)) == [("r1", "unproven")]
    assert verdicts(ID, page(Trace(), 1, "page.alloc", seq=71)) == []
    received = page(Trace().received(0.9, "r1", "t-a"), 0.95, "page.alloc", "r2", seq=70)
    assert verdicts(ID, page(received, 1, "page.read", seq=71)) == []


def test_nothing_but_reads_of_a_pool_says_nothing_of_its_pages() -> None:
    received = Trace().received(0.9, "r1", "t-a")
    (found,) = judge(ID, page(received, 1, "page.read"))
    assert (found["request"], found["verdict"], found["missing"]) == (
        "r1",
        "unproven",
        "page.alloc and page.write of e/0/kv",
    )
    fetched = page(Trace().received(0.9, "r1", "t-a"), 1, "page.read", op="transfer")
    assert judge(ID, fetched) == []
    probe = page(Trace().received(0.9, "r1", "t-a", traffic="probe"), 1, "page.read")
    assert judge(ID, probe) == []


def test_a_request_that_keeps_a_page_did_not_end_with_a_release() -> None:
    for kept, said in (((4,), [("r1", "unproven")]), ((), [(None, "unproven")])):
        trace = page(Trace(), 1, "page.alloc", pages=[3, *kept])
        trace = page(trace, 2, "page.free", pages=[3])
        assert verdicts(ID, page(trace, 3, "page.alloc", "r2", seq=9)) == said


def test_a_record_that_begins_mid_life_is_no_fault_of_its_own() -> None:
    assert judge(ID, Trace().add(1, "e/0", "x", seq=71)) == []


def test_page_state_that_rests_on_what_was_lost() -> None:
    trace = page(page(Trace(), 1, "page.alloc"), 2, "page.free")
    page(trace, 3, "page.alloc", "r2", seq=9, tenant="t-b")
    fact = {
        "fact": "double_alloc",
        "ev": 2,
        "since": 0,
        "request": "r2",
        "incarnation": 0,
        "tenant": "t-b",
        "pool": "e/0/kv",
        "pages": [4],
    }
    (found,) = judge(ID, context_of(trace, [fact]))
    assert (found["request"], found["verdict"], found["pages"]) == ("r2", "unproven", [4])
    assert verdicts(ID, context_of(trace, [fact | {"since": 2}])) == [(None, "unproven")]


def test_pages_that_were_filled_before_the_record_began() -> None:
    trace = page(page(Trace(), 1, "page.alloc", tenant="t-a"), 2, "page.read", pages=[4, 5])
    fact = {
        "fact": "unknown",
        "ev": 1,
        "since": None,
        "request": "r1",
        "incarnation": 0,
        "tenant": "t-a",
        "pool": "e/0/kv",
        "pages": [5],
    }
    (found,) = judge(ID, context_of(trace, [fact]))
    assert (found["request"], found["verdict"], found["pages"]) == ("r1", "unproven", [5])
