"""Fingerprints of page bytes: across generations, and across the ends of a transfer."""

from __future__ import annotations

from tests.rules.traces import Trace, judge, verdicts

ID = "stale-content"
SRC, DST = "p/0/kv", "d/0/kv"


def owned(trace: Trace, t: float, request: str, tenant: str, page: int = 4) -> Trace:
    return trace.add(t, "d/0", "page.alloc", pool=DST, pages=[page], request=request, tenant=tenant)


def digest(trace: Trace, t: float, at: str, value: str, **fields: object) -> Trace:
    given = {"pool": DST, "pages": [4], "digests": [value]} | fields
    return trace.add(t, "p/0" if given["pool"] == SRC else "d/0", "content.digest", at=at, **given)


def recycled(value: str, tenant: str = "t-b", at: str = "receive") -> Trace:
    trace = digest(owned(Trace(), 1, "r1", "t-a"), 2, "free", "b:1")
    return digest(owned(trace, 3, "r2", tenant), 4, at, value)


def test_the_bytes_of_the_previous_generation() -> None:
    found = judge(ID, recycled("b:1"))
    assert [(f["request"], f["verdict"], f["other_tenants"], f["pages"], f["gens"]) for f in found] == [
        ("r2", "leak", ["t-a"], [4], [2])
    ]
    assert verdicts(ID, recycled("b:1", "t-a")) == [("r2", "integrity")]


def test_new_bytes_and_bytes_before_any_write_are_not_stale() -> None:
    assert verdicts(ID, recycled("b:2")) == []
    assert verdicts(ID, recycled("b:1", at="alloc")) == []


def test_a_stated_generation_is_believed() -> None:
    trace = digest(owned(Trace(), 1, "r1", "t-a"), 2, "free", "b:1", gen=7)
    assert verdicts(ID, digest(owned(trace, 3, "r2", "t-b"), 4, "read", "b:1", gen=7)) == []


def moved(sent: str = "b:1", got: str = "b:1", **begin: object) -> Trace:
    """r1's page 9 goes to page 4 of the other side."""
    trace = owned(Trace(), 1, "r1", "t-a")
    given = {"src_pool": SRC, "src_pages": [9], "dst_pool": DST, "dst_pages": [4], "tokens": 16} | begin
    trace.add(2, "p/0", "transfer.begin", transfer="x", request="r1", **given)
    digest(trace, 3, "send", sent, pool=SRC, pages=[9])
    trace.add(4, "d/0", "page.write", pool=DST, pages=[4], request="r1", op="transfer")
    return digest(trace, 5, "receive", got)


def test_other_bytes_arrive_than_were_sent() -> None:
    assert verdicts(ID, moved()) == []
    assert verdicts(ID, moved(got="b:2")) == [("r1", "integrity")]


def test_a_page_that_was_written_in_between_is_not_compared() -> None:
    trace = moved("b:1", "b:1").add(6, "d/0", "page.write", pool=DST, pages=[4], request="r1", op="forward")
    assert verdicts(ID, digest(trace, 7, "read", "b:2")) == []


def test_a_source_that_was_written_in_between_is_not_compared() -> None:
    trace = owned(Trace(), 1, "r1", "t-a")
    trace.add(
        2, "p/0", "transfer.begin", transfer="x", request="r1",
        src_pool=SRC, src_pages=[9], dst_pool=DST, dst_pages=[4], tokens=16,
    )  # fmt: skip
    digest(trace, 3, "send", "b:1", pool=SRC, pages=[9])
    trace.add(3.5, "p/0", "page.write", pool=SRC, pages=[9], request="r1", op="forward")
    trace.add(4, "d/0", "page.write", pool=DST, pages=[4], request="r1", op="transfer")
    assert verdicts(ID, digest(trace, 5, "receive", "b:2")) == []


def test_a_fingerprint_from_before_the_transfer_is_not_part_of_it() -> None:
    trace = digest(owned(Trace(), 0.5, "r1", "t-a"), 1, "send", "b:0", pool=SRC, pages=[9])
    trace.add(
        2, "p/0", "transfer.begin", transfer="x", request="r1",
        src_pool=SRC, src_pages=[9], dst_pool=DST, dst_pages=[4], tokens=16,
    )  # fmt: skip
    assert verdicts(ID, digest(trace, 5, "receive", "b:2")) == []


def test_destination_pages_count_from_position_0() -> None:
    """Page 3 was there already; the movement begins at position 16, on page 4."""
    pool = Trace().add(0, "d/0", "engine.pool", pool=DST, page_tokens=16, pages_total=9)
    trace = owned(owned(pool, 1, "r1", "t-a", 3), 1, "r1", "t-a")
    trace.add(
        2, "p/0", "transfer.begin", transfer="x", request="r1",
        src_pool=SRC, src_pages=[9], dst_pool=DST, dst_pages=[3, 4], tokens=32, tok=[16, 32],
    )  # fmt: skip
    digest(trace, 3, "send", "b:1", pool=SRC, pages=[9])
    trace.add(4, "d/0", "page.write", pool=DST, pages=[4], request="r1", op="transfer")
    digest(trace, 5, "receive", "b:7", pages=[3])
    assert verdicts(ID, trace) == []
    assert [f["pages"] for f in judge(ID, digest(trace, 6, "receive", "b:2"))] == [[4]]


def test_content_that_arrived_as_sent_may_equal_what_was_there_before() -> None:
    trace = digest(owned(Trace(), 0.1, "r0", "t-b"), 0.2, "free", "b:1")
    owned(trace, 1, "r1", "t-a")
    trace.add(
        2, "p/0", "transfer.begin", transfer="x", request="r1",
        src_pool=SRC, src_pages=[9], dst_pool=DST, dst_pages=[4], tokens=16,
    )  # fmt: skip
    digest(trace, 3, "send", "b:1", pool=SRC, pages=[9])
    assert verdicts(ID, digest(trace, 5, "receive", "b:1")) == []
