"""Every rule on page histories: its own examples, every case, and what its verdict and sentence depend on.

All of it runs through the real replay.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from kvwitness.audit.api import judge_trace
from kvwitness.audit.pipeline import context_of
from kvwitness.audit.rule_examples import check_examples
from kvwitness.audit.rules import get
from kvwitness.audit.rules.model import STRENGTH, Context, Verdict
from tests.rules.traces import Trace, events_of, judge

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))
RULES = [
    "double-ownership",
    "false-transfer-complete",
    "foreign-page-read",
    "freed-in-step",
    "late-read",
    "late-write",
    "orphaned-pages",
    "position-mismatch",
    "read-before-ready",
    "reserved-page-use",
    "tainted-content",
    "uncovered-read",
    "unwritten-page-read",
]


class Story(Trace):
    """What happens in pools of four positions per page, a tenth of a second apart."""

    def __init__(self, *pools: str) -> None:
        super().__init__()
        self.now = 1.0
        self.pool = (pools or ("e/0/kv",))[0]
        for pool in pools or ("e/0/kv",):
            self.then("engine.pool", pool=pool, page_tokens=4, pages_total=64, reserved=[0])

    def then(self, event: str, **fields: object) -> Story:
        """The next event, `after` so many seconds; it is told by the engine of its pool."""
        pool = str(fields.setdefault("pool", self.pool)) if event.startswith(("page", "engine")) else self.pool
        self.now = round(self.now + cast(float, fields.pop("after", 0.1)), 3)
        source = str(fields.pop("source", pool.rsplit("/", 1)[0]))
        self.add(self.now, source, event, **fields)
        return self

    def alloc(self, request: str, tenant: str, *pages: int, **more: object) -> Story:
        return self.then("page.alloc", request=request, tenant=tenant, pages=list(pages), **more)

    def free(self, request: str, *pages: int, reason: str = "finish", **more: object) -> Story:
        return self.then("page.free", request=request, pages=list(pages), reason=reason, **more)

    def write(self, request: str | None, first: int, end: int, *pages: int, **more: object) -> Story:
        whose: dict[str, object] = {} if request is None else {"request": request}
        fields = {"op": "forward"} | whose | more
        return self.then("page.write", tok=[first, end], pages=list(pages), **fields)

    def read(self, request: str, first: int, end: int, *pages: int, **more: object) -> Story:
        fields = {"op": "decode"} | more
        return self.then("page.read", request=request, tok=[first, end], pages=list(pages), **fields)

    def publish(self, request: str, key: str, *pages: int) -> Story:
        return self.then("page.publish", request=request, key=key, ns={}, digest=key, pages=list(pages))

    def share(self, request: str, tenant: str, key: str, first: int, end: int, *pages: int) -> Story:
        named = {"request": request, "tenant": tenant, "key": key, "ns": {}, "digest": key}
        return self.then("page.share", pages=list(pages), tok=[first, end], **named)

    def left_behind(self, tenant: str, *pages: int) -> Story:
        """r0 of this tenant has filled the pages and gone."""
        return self.alloc("r0", tenant, *pages).write("r0", 0, 4 * len(pages), *pages).free("r0", *pages)


def found(rule: str, story: Trace, **overrides: float | int | str) -> list[dict[str, Any]]:
    given = {rule: overrides} if overrides else {}
    context, _ = context_of(events_of(story), overrides=given)
    return judge(rule, context)


def told(rule: str, story: Trace, **overrides: float | int | str) -> list[tuple[str | None, str]]:
    return [(f["request"], f["verdict"]) for f in found(rule, story, **overrides)]


@pytest.mark.parametrize("rule", RULES)
def test_the_examples_of_a_rule_hold(rule: str) -> None:
    assert [result.why for result in check_examples(get(rule), judge_trace)] == ["", ""]


@cache
def case(name: str) -> tuple[Context, dict[str, Any]]:
    path = next(path for path in CASES if path.stem == name)
    expected: dict[str, Any] = json.loads(path.with_name(f"{name}.expect.json").read_text())
    return context_of(events_of(path), overrides={})[0], expected


@pytest.mark.parametrize("name", [path.stem for path in CASES])
def test_the_rules_say_of_a_case_what_they_must_and_no_more(name: str) -> None:
    context, expected = case(name)
    findings = [f for rule in RULES for f in judge(rule, context)]
    for incident in expected["incidents"]:
        mine = [f for f in findings if f["request"] == incident["request"]]
        assert {r for r in incident["rules"] if r in RULES} <= {f["rule"] for f in mine}
        assert {f["rule"] for f in mine} <= {*incident["rules"], *incident["may"]}
        assert all(STRENGTH[f["verdict"]] <= STRENGTH[incident["verdict"]] for f in mine)
    harmed = {f["request"] for f in findings if f["verdict"] in (Verdict.LEAK, Verdict.INTEGRITY)}
    assert harmed.isdisjoint(expected["clean_requests"])
    of_engines = {f["rule"] for f in findings if f["request"] is None}
    assert of_engines == {r for r in expected["engine_findings"] if r in RULES}
    for finding in findings:
        assert finding["verdict"] in {*get(finding["rule"]).verdicts, Verdict.UNPROVEN}
        assert (finding["missing"] is not None) == (finding["verdict"] == Verdict.UNPROVEN)
        assert finding["evs"]
        assert finding["time_ns"] is not None


@pytest.mark.parametrize(("tenant", "verdict"), [("t-a", "integrity"), ("t-b", "leak")])
class TestWhoseContent:
    """r0 of t-a is the other side; the reader or owner is of `tenant`."""

    def test_of_an_old_page(self, tenant: str, verdict: str) -> None:
        story = Story().left_behind("t-a", 3).alloc("r1", tenant, 3).read("r1", 0, 4, 3)
        assert told("unwritten-page-read", story) == [("r1", verdict)]

    def test_read_in_place(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r0", "t-a", 3).write("r0", 0, 4, 3).alloc("r1", tenant, 4).read("r1", 0, 4, 3)
        assert told("foreign-page-read", story) == [("r1", verdict)]

    def test_under_a_load(self, tenant: str, verdict: str) -> None:
        story = Story().left_behind("t-a", 3).alloc("r1", tenant, 3)
        story.write("r1", 0, 4, 3, op="load", phase="begin").read("r1", 0, 4, 3)
        assert told("read-before-ready", story) == [("r1", verdict)]

    def test_of_a_second_owner(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r0", "t-a", 3).alloc("r1", tenant, 3)
        assert told("double-ownership", story) == [("r1", verdict)]

    def test_of_an_intruder(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r1", tenant, 3).alloc("r0", "t-a", 4).write("r0", 0, 4, 3)
        assert told("double-ownership", story) == [("r1", verdict)]

    def test_landing_late(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r0", "t-a", 3).write("r0", 0, 4, 3, op="transfer", phase="begin").free("r0", 3)
        story.alloc("r1", tenant, 3).write("r0", 0, 4, 3, op="transfer", phase="end")
        assert told("late-write", story) == [("r1", verdict)]

    def test_under_a_slow_copy(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r1", tenant, 3).write("r1", 0, 4, 3)
        story.read("r1", 0, 4, 3, op="offload", phase="begin").free("r1", 3)
        story.alloc("r0", "t-a", 3).write("r0", 0, 4, 3).read("r1", 0, 4, 3, op="offload", phase="end")
        assert told("late-read", story) == [("r1", verdict)]

    def test_given_away_inside_a_step(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r1", tenant, 3).then("step.begin", pool="e/0/kv", step=1, pages=[3])
        story.free("r1", 3).alloc("r0", "t-a", 3).then("step.end", pool="e/0/kv", step=1)
        assert told("freed-in-step", story) == [("r1", verdict), ("r1", "integrity")]


class TestSentences:
    def test_positions_count_once_however_often_they_are_read(self) -> None:
        story = Story().left_behind("t-a", 3, 4).alloc("r1", "t-b", 3, 4).write("r1", 0, 2, 3)
        for end in range(6, 9):
            story.read("r1", 0, end, 3, 4).write("r1", end, end + 1, 4)
        (finding,) = found("unwritten-page-read", story)
        assert finding["pages"] == [3, 4]
        assert finding["why"] == (
            "read 4 positions of 2 pages with no complete write since the last allocation; "
            "they still held what r0 wrote"
        )

    def test_a_finding_of_a_leak_names_only_the_pages_with_the_other_tenant_s_content(self) -> None:
        story = Story().left_behind("t-a", 3).alloc("r1", "t-b", 4, 3).read("r1", 0, 8, 4, 3)
        pages = {f["verdict"]: (f["pages"], f["other_tenants"]) for f in found("unwritten-page-read", story)}
        assert pages == {"leak": ([3], ["t-a"]), "integrity": ([4], [])}

    def test_large_numbers_can_be_read(self) -> None:
        story = Story().then("engine.pool", pool="e/0/big", page_tokens=2048, pages_total=8)
        story.then("page.alloc", pool="e/0/big", pages=[1], request="r1", tenant="t-a")
        story.then("page.read", pool="e/0/big", pages=[1], request="r1", tok=[0, 2000], op="decode")
        assert "read 2,000 positions of 1 page " in found("unwritten-page-read", story)[0]["why"]


class TestLateWrite:
    def test_on_a_page_that_nobody_holds_is_the_writer_s(self) -> None:
        story = Story().alloc("r1", "t-a", 3).write("r1", 0, 4, 3, op="transfer", phase="begin")
        story.free("r1", 3).write("r1", 0, 4, 3, op="transfer", phase="end")
        (finding,) = found("late-write", story)
        assert (finding["request"], finding["verdict"], finding["other_requests"]) == ("r1", "integrity", [])

    @pytest.mark.parametrize("word", [None, "transfer.failed", "transfer.drained"])
    def test_a_target_freed_on_a_timeout_is_open_until_the_writer_is_heard(self, word: str | None) -> None:
        story = Story("d/0/kv", "p/0/kv").alloc("r1", "t-a", 3)
        story.then("transfer.begin", transfer="x", request="r1", **moved([3]), tokens=4, source="d/0")
        if word:
            story.then(word, transfer="x", request="r1", rank=0, source="d/0")
        story.free("r1", 3, reason="timeout")
        findings = found("late-write", story)
        assert [f["verdict"] for f in findings] == ([] if word else ["unproven"])
        assert all("done, failed or drained" in f["missing"] for f in findings)


class TestLateRead:
    def test_of_bytes_that_stayed_is_a_broken_order_only(self) -> None:
        story = Story().alloc("r1", "t-a", 3).write("r1", 0, 4, 3)
        story.read("r1", 0, 4, 3, op="offload", phase="begin").free("r1", 3)
        story.alloc("r2", "t-b", 3).read("r1", 0, 4, 3, op="offload", phase="end")
        assert told("late-read", story) == [("r1", "exposure")]

    def test_past_a_lease_is_a_broken_order_even_while_the_page_is_held(self) -> None:
        story = Story("p/0/kv", "d/0/kv")
        for engine in ("p", "d"):
            story.then("engine.clock", engine=engine, offset_s=0, uncertainty_s=0.01)
        story.alloc("r1", "t-a", 3).write("r1", 0, 4, 3).alloc("r1", "t-a", 5, pool="d/0/kv")
        story.then("transfer.begin", transfer="x", request="r1", **moved([5], [3]), tokens=4)
        story.then("transfer.lease", transfer="x", until=story.now + 1)
        story.write("r1", 0, 4, 5, op="transfer", pool="d/0/kv", after=5)
        (finding,) = found("late-read", story)
        assert (finding["request"], finding["verdict"], finding["pages"]) == ("r1", "exposure", [3])
        assert "ended after the lease had" in finding["why"]


def moved(dst: list[int], src: list[int] | None = None) -> dict[str, object]:
    return {
        "src_pool": "p/0/kv",
        "src_pages": src or [n + 20 for n in dst],
        "dst_pool": "d/0/kv",
        "dst_pages": dst,
    }


class TestTransfers:
    """r1 is computed at p and decoded at d, on pages 3 and 4 that r0 of another tenant has left."""

    def begun(self) -> Story:
        story = Story("d/0/kv", "p/0/kv").left_behind("t-b", 3, 4).alloc("r1", "t-a", 3, 4)
        return story.then("transfer.begin", transfer="x", request="r1", **moved([3, 4]), tokens=8, source="d/0")

    def done(self, story: Story, source: str = "d/0", **fields: object) -> Story:
        return story.then("transfer.done", transfer="x", request="r1", source=source, **fields)

    def test_a_short_report_is_false_when_more_is_read(self) -> None:
        story = self.begun().write("r1", 0, 4, 3, op="transfer")
        self.done(story, tokens=4).read("r1", 0, 8, 3, 4)
        (false,), (past,) = found("false-transfer-complete", story), found("uncovered-read", story)
        assert (false["pages"], past["pages"]) == ([4], [4])
        assert false["why"].startswith("its transfer was reported done with 4 tokens, and it then read 4 pos")
        assert "only its first 4 positions" in past["why"]

    def test_a_report_without_tokens_claims_nothing(self) -> None:
        story = self.begun().write("r1", 0, 4, 3, op="transfer")
        self.done(story).read("r1", 0, 8, 3, 4)
        assert found("false-transfer-complete", story) == []
        assert told("uncovered-read", story) == [("r1", "integrity")]

    def test_a_short_report_is_true_when_the_rest_is_computed(self) -> None:
        story = self.begun().write("r1", 0, 4, 3, op="transfer")
        self.done(story, tokens=4).write("r1", 4, 8, 4).read("r1", 0, 8, 3, 4)
        assert found("false-transfer-complete", story) == found("uncovered-read", story) == []

    def test_a_sender_s_claim_is_refuted_by_what_the_reader_meets(self) -> None:
        story = self.begun().write("r1", 0, 4, 3, op="transfer")
        self.done(story, source="p/0", tokens=8, observer="sender").read("r1", 0, 8, 3, 4)
        (finding,) = found("false-transfer-complete", story)
        assert (finding["request"], finding["pages"], finding["other_tenants"]) == ("r1", [4], [])
        assert told("unwritten-page-read", story) == [("r1", "leak")]

    def test_the_unwritten_rest_of_a_page_is_beyond_a_claim_that_was_met(self) -> None:
        story = self.begun().write("r1", 0, 6, 3, 4, op="transfer")
        self.done(story, source="p/0", tokens=6, observer="sender").read("r1", 0, 8, 3, 4)
        (finding,) = found("false-transfer-complete", story)
        assert finding["why"].startswith("its transfer was reported done with 6 tokens")

    def test_a_claim_refuted_at_once_is_told_of_once(self) -> None:
        story = self.begun()
        self.done(story, tokens=8, observer="receiver").read("r1", 0, 8, 3, 4)
        (finding,) = found("false-transfer-complete", story)
        assert "8 positions of 2 pages that the report claims" in finding["why"]

    def test_done_after_failed_contradicts_itself(self) -> None:
        story = self.begun().then("transfer.failed", transfer="x", request="r1", source="d/0")
        self.done(story.write("r1", 0, 8, 3, 4), tokens=8)
        assert [f["why"] for f in found("false-transfer-complete", story)] == [
            "d/0 was told that transfer x is done after it had failed"
        ]

    def test_what_nobody_had_written_is_unwritten_wherever_it_was_sent(self) -> None:
        story = Story("p/0/kv", "d/0/kv").alloc("r1", "t-a", 3).alloc("r1", "t-a", 5, pool="d/0/kv")
        story.then("transfer.begin", transfer="x", request="r1", **moved([5], [3]), tokens=4)
        story.write("r1", 0, 4, 5, op="transfer", pool="d/0/kv")
        self.done(story, tokens=4, observer="receiver").read("r1", 0, 4, 5, pool="d/0/kv")
        (finding,) = found("unwritten-page-read", story)
        assert (finding["verdict"], finding["pages"], finding["other_requests"]) == ("integrity", [5], [])
        assert finding["why"].endswith("that its own transfer had filled from pages that nothing had written")
        assert found("false-transfer-complete", story) == []

    def test_what_a_stranger_had_left_is_foreign_wherever_it_was_sent(self) -> None:
        story = Story("p/0/kv", "d/0/kv").left_behind("t-b", 3).alloc("r1", "t-a", 3)
        story.alloc("r1", "t-a", 5, pool="d/0/kv")
        story.then("transfer.begin", transfer="x", request="r1", **moved([5], [3]), tokens=4)
        story.write("r1", 0, 4, 5, op="transfer", pool="d/0/kv").read("r1", 0, 4, 5, pool="d/0/kv")
        (finding,) = found("foreign-page-read", story)
        assert (finding["verdict"], finding["other_requests"], finding["pool"]) == ("leak", ["r0"], "d/0/kv")


class TestStrayWrites:
    def test_on_a_page_of_the_index_is_the_engine_s(self) -> None:
        story = Story().alloc("r1", "t-a", 3).write("r1", 0, 4, 3).free("r1", 3, to="cache")
        (finding,) = found("reserved-page-use", story.write(None, 0, 1, 3, op="dummy"))
        assert (finding["request"], finding["engine"], finding["verdict"]) == (None, "e", "integrity")
        assert "the reuse index" in finding["why"]

    def test_a_reserved_page_in_a_request_s_table_is_the_request_s(self) -> None:
        assert told("reserved-page-use", Story().alloc("r1", "t-a", 0)) == [("r1", "integrity")]


class TestDoubleFree:
    @pytest.mark.parametrize(("tenant", "verdict"), [("t-b", "leak"), ("t-a", "integrity")])
    def test_is_judged_by_whose_page_it_was(self, tenant: str, verdict: str) -> None:
        story = Story().alloc("r1", "t-a", 3).free("r1", 3).alloc("r2", tenant, 3).free("r1", 3)
        (finding,) = found("double-ownership", story)
        assert (finding["request"], finding["verdict"]) == ("r1", verdict)
        assert finding["why"].endswith("which did not hold it; r2 did")

    def test_by_a_holder_is_the_engine_s(self) -> None:
        story = Story().alloc("r1", "t-a", 3)
        story.then("page.free", pages=[3], holder="cache", tenant="t-a", reason="evict")
        (finding,) = found("double-ownership", story)
        assert (finding["request"], finding["engine"], finding["verdict"]) == (None, "e", "integrity")


class TestOrphans:
    def left(self, seconds: float) -> Story:
        story = Story().alloc("r1", "t-a", 3).then("request.aborted", request="r1", by="client")
        return story.then("page.alloc", after=seconds, pages=[4], request="r2", tenant="t-b")

    def test_count_from_the_end_of_the_request(self) -> None:
        assert told("orphaned-pages", self.left(590)) == []
        (finding,) = found("orphaned-pages", self.left(700))
        assert finding["why"] == "1 page was still held 700 s after the request had ended"

    def test_obey_a_larger_bound(self) -> None:
        assert told("orphaned-pages", self.left(700), bound_s=800) == []
        assert told("orphaned-pages", self.left(900), bound_s=800) == [("r1", "exposure")]

    def test_that_are_released_in_the_end_were_held_until_then(self) -> None:
        story = Story().alloc("r1", "t-a", 3).then("request.aborted", request="r1", by="client")
        story.free("r1", 3, reason="abort", after=650).alloc("r2", "t-b", 3, after=1000)
        (finding,) = found("orphaned-pages", story)
        assert finding["why"] == "1 page was still held 650 s after the request had ended"


class TestTaint:
    """r1 reads what r0 of t-a left on page 3, computes page 4 and publishes it."""

    def origin(self, tenant: str = "t-b") -> Story:
        story = Story().left_behind("t-a", 3).alloc("r1", tenant, 3, 4).read("r1", 0, 4, 3)
        return story.write("r1", 4, 8, 4).publish("r1", "k1", 4)

    @pytest.mark.parametrize(("tenant", "verdict"), [("t-b", "leak"), ("t-a", "integrity")])
    def test_is_a_leak_when_the_origin_is_another_tenant_s(self, tenant: str, verdict: str) -> None:
        story = self.origin(tenant).share("r2", tenant, "k1", 4, 8, 4).read("r2", 4, 8, 4)
        (finding,) = found("tainted-content", story)
        assert (finding["request"], finding["verdict"], finding["other_requests"]) == ("r2", verdict, ["r1"])
        assert finding["other_tenants"] == (["t-a"] if verdict == "leak" else [])
        assert finding["why"].startswith("read 4 positions of 1 page whose content derives from")

    def test_travels_on_and_the_chain_is_named(self) -> None:
        story = self.origin().share("r2", "t-b", "k1", 4, 8, 4).read("r2", 4, 8, 4)
        story.alloc("r2", "t-b", 5).write("r2", 8, 12, 5).publish("r2", "k2", 5)
        story.share("r3", "t-b", "k2", 8, 12, 5).read("r3", 8, 12, 5)
        third = next(f for f in found("tainted-content", story) if f["request"] == "r3")
        assert (third["verdict"], third["other_requests"]) == ("leak", ["r1", "r2"])
        assert third["other_tenants"] == ["t-a"]

    def test_comes_from_what_was_read_before_and_not_from_what_was_read_after(self) -> None:
        story = Story().left_behind("t-b", 3).then("page.alloc", pages=[7], request="r9", tenant="t-a")
        story.write("r9", 0, 4, 7).free("r9", 7)
        story.alloc("r1", "t-b", 3, 4, 7).read("r1", 0, 4, 3).write("r1", 4, 8, 4).publish("r1", "k1", 4)
        story.read("r1", 8, 12, 7).share("r2", "t-b", "k1", 4, 8, 4).read("r2", 4, 8, 4)
        (finding,) = found("tainted-content", story)
        assert (finding["request"], finding["verdict"], finding["other_tenants"]) == ("r2", "integrity", [])

    def test_is_as_uncertain_as_its_origin(self) -> None:
        story = Story().left_behind("t-a", 3).alloc("r1", "t-b", 3, 4)
        story.read("r1", 0, 4, 3, seq=9).alloc("r1", "t-b", 5).write("r1", 4, 8, 4).publish("r1", "k1", 4)
        story.share("r2", "t-b", "k1", 4, 8, 4).read("r2", 4, 8, 4)
        assert told("unwritten-page-read", story) == [("r1", "unproven")]
        assert told("tainted-content", story) == [("r2", "unproven")]


def test_a_pool_that_was_made_anew_owes_nothing_to_its_earlier_life() -> None:
    """An engine that died released nothing; the next one begins with pages of nobody."""

    def restarted(**start: object) -> dict[str, Any]:
        story = Story().alloc("r1", "t-a", 3).then("page.write", request="r1", pages=[3], op="forward", tok=[0, 4])
        story.then("engine.pool", source="e/0/b", page_tokens=4, pages_total=64, reserved=[0], **start)
        story.then("page.alloc", source="e/0/b", request="r2", tenant="t-b", pages=[3])
        story.then("page.read", source="e/0/b", request="r2", pages=[3], op="decode", tok=[0, 4])
        return judge_trace(io.BytesIO(story.text().encode()))

    def found(answer: dict[str, Any]) -> set[tuple[str, str | None, tuple[str, ...]]]:
        return {(f["rule"], f["request"], tuple(f["other_tenants"])) for f in answer["findings"]}

    assert {("unwritten-page-read", "r2", ("t-a",))} < found(restarted())
    assert found(restarted(reason="start")) == {("unwritten-page-read", "r2", ())}
