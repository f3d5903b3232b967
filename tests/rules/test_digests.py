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


def test_it_is_dated_by_the_look_that_found_them_and_not_by_the_generation_before() -> None:
    assert [found["time_ns"] for found in judge(ID, recycled("b:1"))] == [4_000_000_000]


def test_new_bytes_and_bytes_before_any_write_are_not_stale() -> None:
    assert verdicts(ID, recycled("b:2")) == []
    assert verdicts(ID, recycled("b:1", at="alloc")) == []


def test_a_stated_generation_is_believed() -> None:
    trace = digest(owned(Trace(), 1, "r1", "t-a"), 2, "free", "b:1", gen=7)
    assert verdicts(ID, digest(owned(trace, 3, "r2", "t-b"), 4, "read", "b:1", gen=7)) == []


def moved(sent: str = "b:1", got: str = "b:1", before: Trace | None = None, **begin: object) -> Trace:
    """r1's page 9 goes to page 4 of the other side."""
    trace = owned(before or Trace(), 1, "r1", "t-a")
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


def across(
    src_size: int, dst_size: int, sent: list[tuple[int, str]], got: list[tuple[int, str]], **begin: object
) -> Trace:
    """r1 goes from pages 9, 8 and so on to pages 3, 4 and so on of another size; digests with their pages."""
    trace = Trace().add(0, "p/0", "engine.pool", pool=SRC, page_tokens=src_size, pages_total=20)
    trace.add(0, "d/0", "engine.pool", pool=DST, page_tokens=dst_size, pages_total=20)
    for page in dict.fromkeys(page for page, _ in got):
        owned(trace, 1, "r1", "t-a", page)
    given = {
        "src_pages": list(dict.fromkeys(page for page, _ in sent)),
        "tokens": 32,
        "dst_pages": list(dict.fromkeys(page for page, _ in got)),
    } | begin
    trace.add(2, "p/0", "transfer.begin", transfer="x", request="r1", src_pool=SRC, dst_pool=DST, **given)
    digest(trace, 3, "send", "", pool=SRC, pages=[page for page, _ in sent], digests=[one for _, one in sent])
    return digest(trace, 5, "receive", "", pages=[page for page, _ in got], digests=[one for _, one in got])


def blocks(pages: list[int], *digests: str) -> list[tuple[int, str]]:
    return list(zip(pages, [f"nh/8:{one}" for one in digests], strict=True))


FOUR = ("a1.b1", "a2.b2", "a3.b3", "a4.b4")


def test_pages_of_two_sizes_are_compared_block_by_block_and_the_page_and_layer_are_named() -> None:
    large, small = [9, 9, 8, 8], [3, 4, 5, 6]
    for src, dst, pages, others in ((16, 8, large, small), (8, 16, [9, 8, 7, 6], [3, 3, 4, 4])):
        assert judge(ID, across(src, dst, blocks(pages, *FOUR), blocks(others, *FOUR))) == []
        (found,) = judge(ID, across(src, dst, blocks(pages, *FOUR), blocks(others, "a1.b1", "a2.b2", "a3.f3", "a4.b4")))
        assert (found["verdict"], found["pages"]) == ("integrity", [others[2]])
        assert "in layer 1" in found["why"]


def test_a_digest_of_a_whole_page_says_nothing_beside_that_of_a_page_of_another_size() -> None:
    for src, dst in ((16, 8), (8, 16)):
        assert judge(ID, across(src, dst, [(9, "b:1"), (8, "b:2")], [(3, "b:3"), (4, "b:4")])) == []
    assert judge(ID, across(16, 16, [(9, "b:1"), (8, "b:2")], [(3, "b:1"), (4, "b:4")])) != []


def test_blocks_that_changed_places_are_other_blocks() -> None:
    found = judge(ID, across(16, 8, blocks([9, 9, 8, 8], *FOUR), blocks([3, 4, 5, 6], *FOUR[1::-1], *FOUR[2:])))
    assert [one["pages"] for one in found] == [[3, 4]]


def test_what_was_there_already_is_passed_over_with_pages_of_two_sizes_too() -> None:
    """Positions 0 to 15 were there; from 16 on 16 tokens are moved, out of pages of 16 into pages of 8."""
    there = {"dst_pages": [3, 4, 5, 6], "tok": [16, 32], "tokens": 16}
    assert judge(ID, across(16, 8, blocks([9, 9], *FOUR[2:]), blocks([5, 6], *FOUR[2:]), **there)) == []
    (found,) = judge(ID, across(16, 8, blocks([9, 9], *FOUR[2:]), blocks([5, 6], "a3.b3", "a4.f4"), **there))
    assert found["pages"] == [6]


def test_where_it_cannot_be_said_at_which_position_a_page_begins_nothing_is_compared() -> None:
    unclear = {"dst_pages": [3, 4, 5, 6], "tok": [4, 12], "tokens": 4}
    assert judge(ID, across(16, 8, blocks([9, 9], *FOUR[2:]), blocks([5, 6], *FOUR[:2]), **unclear)) == []


def test_a_stretch_of_a_page_that_is_left_over_is_not_held_against_another() -> None:
    def twice(*second: str) -> Trace:
        trace = digest(
            owned(Trace(), 1, "r1", "t-a"), 2, "free", "", pages=[4, 4], digests=["nh/8:a1.b1", "nh/8:a2.b2"]
        )
        return digest(owned(trace, 3, "r2", "t-b"), 4, "receive", "", pages=[4, 4], digests=list(second))

    assert verdicts(ID, twice("nh/8:a2.b2", "nh/8:a1.b1")) == []
    assert verdicts(ID, twice("nh/8:a9.b9", "nh/8:a2.b2")) == [("r2", "leak")]


def test_content_that_arrived_as_sent_may_equal_what_was_there_before() -> None:
    trace = digest(owned(Trace(), 0.1, "r0", "t-b"), 0.2, "free", "b:1")
    owned(trace, 1, "r1", "t-a")
    trace.add(
        2, "p/0", "transfer.begin", transfer="x", request="r1",
        src_pool=SRC, src_pages=[9], dst_pool=DST, dst_pages=[4], tokens=16,
    )  # fmt: skip
    digest(trace, 3, "send", "b:1", pool=SRC, pages=[9])
    assert verdicts(ID, digest(trace, 5, "receive", "b:1")) == []


def whys(trace: Trace) -> list[str]:
    return [f["why"] for f in judge(ID, trace)]


def layered(old: str, new: str) -> Trace:
    trace = digest(owned(Trace(), 1, "r1", "t-a"), 2, "free", old)
    return digest(owned(trace, 3, "r2", "t-b"), 4, "receive", new)


def test_a_layer_that_is_left_over_is_found_and_named() -> None:
    (found,) = judge(ID, layered("nh/4:a1.b1.c1", "nh/4:a2.b1.c1"))
    assert (found["request"], found["verdict"], found["other_tenants"]) == ("r2", "leak", ["t-a"])
    assert found["why"] == "1 page still had in layers 1, 2 the bytes that it had under r1 one generation earlier"
    assert "layer" not in whys(layered("nh/4:a1.b1", "nh/4:a1.b1"))[0]


def test_layer_0_alone_says_nothing() -> None:
    assert whys(layered("nh/4:a1.b1", "nh/4:a1.b2")) == []


def test_only_what_was_taken_of_the_same_slots_is_compared() -> None:
    assert whys(layered("nh/4:a1.b1", "nh/3:a1.b1")) == []
    assert whys(moved("nh/1:a1.b1", "nh/4:a2.b2")) == []


def test_a_layer_that_did_not_arrive_is_named() -> None:
    assert whys(moved("nh/4:a1.b1", "nh/4:a1.b1")) == []
    assert whys(moved("nh/4:a1.b1", "nh/4:a1.b2")) == [
        "1 page of transfer x arrived with other bytes in layer 1 than were sent"
    ]
    assert whys(moved("nh/4:a1.b1", "nh/4:a2.b2")) == ["1 page of transfer x arrived with other bytes than were sent"]


def exchanged(tenant: str, sent: str, got: str) -> Trace:
    """Before r1's transfer, page 8 of the other side was sent for r0."""
    trace = Trace().add(0.1, "p/0", "page.alloc", pool=SRC, pages=[8], request="r0", tenant=tenant)
    return moved("nh/4:a1.b1", got, digest(trace, 0.2, "send", sent, pool=SRC, pages=[8]))


def test_bytes_that_had_been_sent_for_another_tenant_are_a_leak() -> None:
    (found,) = judge(ID, exchanged("t-b", "nh/4:a9.b9", "nh/4:a1.b9"))
    assert (found["verdict"], found["other_requests"], found["other_tenants"]) == ("leak", ["r0"], ["t-b"])
    assert verdicts(ID, exchanged("t-a", "nh/4:a9.b9", "nh/4:a1.b9")) == [("r1", "integrity")]
    assert verdicts(ID, exchanged("t-b", "nh/4:a9.b9", "nh/4:a9.b8")) == [("r1", "integrity")]


def test_of_many_transfers_over_the_same_pages_each_is_held_against_its_own() -> None:
    trace = Trace()
    for at in range(200):
        name, t = f"r{at}", 10.0 * at
        trace.add(t + 1, "p/0", "page.alloc", pool=SRC, pages=[9], request=name, tenant="t-a")
        owned(trace, t + 1, name, "t-a")
        given = {"src_pool": SRC, "src_pages": [9], "dst_pool": DST, "dst_pages": [4], "tokens": 16}
        trace.add(t + 2, "p/0", "transfer.begin", transfer=f"x{at}", request=name, **given)
        named: dict[str, object] = {"transfer": f"x{at}"} if at % 2 else {}
        digest(trace, t + 3, "send", f"b:{at}", pool=SRC, pages=[9], **named)
        trace.add(t + 4, "d/0", "page.write", pool=DST, pages=[4], request=name, op="transfer")
        digest(trace, t + 5, "receive", "b:odd" if at in (60, 61) else f"b:{at}", **named)
        digest(trace, t + 6, "read", f"b:{at}")
        trace.add(t + 7, "p/0", "page.free", pool=SRC, pages=[9], request=name)
        trace.add(t + 7, "d/0", "page.free", pool=DST, pages=[4], request=name)
    assert verdicts(ID, trace) == [("r60", "integrity"), ("r61", "integrity")]
