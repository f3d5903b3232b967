"""vLLM's own scheduler and page pool under the adapter: what is recorded is what the engine did."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import vllm as adapter
from kvwitness.gpu_tracer.engines.base import Engine, attach, detach
from kvwitness.gpu_tracer.engines.identity import ATTESTED, Identity
from tests.engines.judged import Judged, judged
from tests.engines.vllm.core import PAGE_TOKENS, Core

COMMON = range(1, 97)
Tables = dict[int, dict[str, list[int]]]
PLANNED = "test.planned"
"""An event of this test's own that stands in the record where a step had been planned."""


def drive(core: Core, rng: random.Random, requests: int, salts: tuple[str | None, ...]) -> Tables:
    """Mixed traffic with common prefixes and clients that hang up; by step, the engine's own tables of its batch."""
    tables: Tables = {}
    alive: list[str] = []
    step = sent = 0
    while sent < requests or core.scheduler.has_unfinished_requests():
        while sent < requests and rng.random() < 0.3:
            prompt = [
                *COMMON[: rng.choice((0, 32, 64, 96))],
                *(rng.randrange(2, 500) for _ in range(rng.randint(1, 150))),
            ]
            alive.append(core.add(f"cmpl-r{sent}", prompt, salt=rng.choice(salts), new=rng.randint(1, 90)))
            sent += 1
        plan = core.plan()
        if plan.num_scheduled_tokens:
            step += 1
            tables[step] = {rid: core.table(rid) for rid in plan.num_scheduled_tokens}
            core.scheduler._kvwitness.tracer.event(PLANNED, step=step)
        core.take(plan)
        if alive and rng.random() < 0.02:
            core.abort(alive.pop(rng.randrange(len(alive))))
    return tables


def replayed(record: Judged) -> Tables:
    """By step, what the recorded events say each request's table was."""
    tables: dict[str, list[int]] = defaultdict(list)
    out: Tables = {}
    for row in record.rows("page.alloc", "page.share", "page.free", PLANNED):
        match row["event"]:
            case "test.planned":
                out[row["step"]] = {name: list(pages) for name, pages in tables.items() if pages}
            case "page.free" if "request" in row:
                gone = set(row["pages"])
                tables[row["request"]] = [page for page in tables[row["request"]] if page not in gone]
            case "page.alloc" | "page.share":
                tables[row["request"]] += row["pages"]
    return out


def positions(spans: Iterable[tuple[int, int]]) -> Counter[int]:
    """How often each position is covered."""
    return Counter(itertools.chain.from_iterable(range(first, end) for first, end in spans))


@pytest.mark.parametrize("salts", [("ash", "birch"), (None,)], ids=["salted", "unsalted"])
def test_a_healthy_engine_is_clean_and_its_tables_are_on_record(
    rings: Path, model: str, tmp_path: Path, salts: tuple[str | None, ...]
) -> None:
    core = Core(model, pages=48)
    tables = drive(core, random.Random(7), 60, salts)
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    assert (record.lost, record.differing) == (0, {})

    said = replayed(record)
    assert said.keys() == tables.keys()
    for step, engine in tables.items():
        for rid, pages in engine.items():
            assert said[step][rid[:-9]] == pages, f"step {step}, {rid}"

    kinds = record.kinds()
    for kind in ("page.share", "page.unpublish", "request.preempted", "request.resumed", "request.aborted"):
        assert kinds[kind], f"the traffic led to no {kind}"
    assert record.findings == []
    if salts[0]:  # else nobody says whose a request is
        assert list(record.verdicts.values()) == ["clean"] * 60


def test_writes_and_reads_are_those_of_the_plans(rings: Path, model: str, tmp_path: Path) -> None:
    core = Core(model, pages=48)
    rng = random.Random(3)
    for n in range(12):
        prompt = [*COMMON, *(rng.randrange(2, 500) for _ in range(rng.randint(1, 200)))]
        core.add(f"cmpl-r{n}", prompt, salt="ash", new=40)
    planned: list[tuple[int, str, int, int]] = []
    step = 0
    while core.scheduler.has_unfinished_requests():
        plan = core.plan()
        step += 1
        cached = plan.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for rid, first in starts.items():
            planned.append((step, rid[:-9], first, first + plan.num_scheduled_tokens[rid]))
        core.take(plan)
    record = judged(rings, tmp_path)
    # Prompts are written down as planned, step by step; what is decoded once per page, and nothing is left out.
    writes = record.rows("page.write")
    prompts = {r["request"]: r["prompt_tokens"] for r in record.rows("request.received")}
    said = [
        (r["step"], r["request"], r["tok_first"], r["tok_end"])
        for r in writes
        if r["tok_first"] < prompts[r["request"]]
    ]
    assert sorted(said) == sorted(one for one in planned if one[2] < prompts[one[1]])
    for row in writes:
        assert row["tok_end"] - row["tok_first"] <= PAGE_TOKENS or row["tok_first"] < prompts[row["request"]]
    for name in prompts:
        done = sorted((first, end) for _, who, first, end in planned if who == name)
        told = sorted((r["tok_first"], r["tok_end"]) for r in writes if r["request"] == name)
        assert positions(told) == positions(done)
    # Per life in the batch, reads cover from 0 to the last position computed, without a hole.
    reads: dict[str, int] = defaultdict(int)
    for row in record.rows("page.read", "request.preempted"):
        if row["event"] == "request.preempted":
            reads[row["request"]] = 0
            continue
        assert row["tok_first"] <= reads[row["request"]], row
        assert len(row["pages"]) == -(-row["tok_end"] // PAGE_TOKENS) - row["tok_first"] // PAGE_TOKENS
        reads[row["request"]] = row["tok_end"]
    last = {name: max(end for _, who, _, end in planned if who == name) for name in reads}
    assert reads == last


def test_what_a_step_does_is_on_record_before_the_step_runs(rings: Path, model: str, tmp_path: Path) -> None:
    core = Core(model, pages=48)
    core.add("cmpl-r0", list(COMMON), salt="ash")
    core.plan()  # and the process dies here
    record = judged(rings, tmp_path)
    assert [r["event"] for r in record.rows("page.write", "page.read")] == ["page.write", "page.read"]


def test_who_a_request_belongs_to(rings: Path, model: str, tmp_path: Path) -> None:
    core = Core(model, pages=48)
    identity = Identity.from_environment()
    core.add("cmpl-salted", [5] * 40, salt="secret-salt")
    core.add("cmpl-attested", [5] * 40, salt="secret-salt", extra={ATTESTED: identity.attest("t-ash")})
    core.add("cmpl-forged", [5] * 40, salt="secret-salt", extra={ATTESTED: "0123456789abcdef:t-ash"})
    core.add("cmpl-session", [5] * 40, session_id="s1")
    core.add("cmpl-unknown", [5] * 40)
    core.run()
    record = judged(rings, tmp_path)
    who = {r["request"]: (r["tenant"], r["tenant_source"]) for r in record.rows("request.received")}
    salted = (f"salt-{identity.hashed('salt', 'secret-salt')}", "cache_salt")
    assert who == {
        "cmpl-salted": salted,
        "cmpl-attested": ("t-ash", "middleware"),
        "cmpl-forged": salted,
        "cmpl-session": (f"session-{identity.hashed('session', 's1')}", "session"),
    }
    assert "secret-salt" not in str(record.rows())


def test_an_id_that_a_client_uses_again_names_one_request_only(rings: Path, model: str, tmp_path: Path) -> None:
    core = Core(model, pages=48)
    core.add("cmpl-x", [5] * 40, salt="ash")
    again = core.add("cmpl-x", [6] * 40, salt="ash")
    core.run()
    record = judged(rings, tmp_path)
    assert {r["request"] for r in record.rows("request.received")} == {"cmpl-x", again}
    assert record.findings == []


def test_tenants_that_share_without_salts_are_told_apart(rings: Path, model: str, tmp_path: Path) -> None:
    core = Core(model, pages=48)
    identity = Identity.from_environment()
    core.add("cmpl-a", [*COMMON, 7], extra={ATTESTED: identity.attest("t-ash")})
    core.run()
    core.add("cmpl-b", [*COMMON, 8], extra={ATTESTED: identity.attest("t-birch")})
    core.run()
    record = judged(rings, tmp_path)
    assert record.verdicts == {"cmpl-a": "clean", "cmpl-b": "shared"}


def test_sharing_that_the_operator_forbids_is_found(
    rings: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_SHARING", "tenant")
    core = Core(model, pages=48)
    identity = Identity.from_environment()
    core.add("cmpl-a", [*COMMON, 7], extra={ATTESTED: identity.attest("t-ash")})
    core.run()
    core.add("cmpl-b", [*COMMON, 8], extra={ATTESTED: identity.attest("t-birch")})
    core.run()
    record = judged(rings, tmp_path)
    assert [(f["rule"], f["request"], f["verdict"]) for f in record.findings] == [
        ("salt-crossing", "cmpl-b", "exposure")
    ]


def test_a_hook_that_is_not_there_leaves_requests_unproven(
    rings: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detach(adapter.ENGINE.hooks)
    hooks = tuple(
        replace(hook, target=hook.target + "_of_old") if hook.name == "BlockPool.touch" else hook
        for hook in adapter.ENGINE.hooks
    )
    monkeypatch.setattr(adapter, "attachment", attach(hooks, adapter.guard))
    assert adapter.attachment is not None
    assert [(m.hook.name, m.reason) for m in adapter.attachment.missing] == [
        ("BlockPool.touch_of_old", "this version does not have it")
    ]
    core = Core(model, pages=48)
    core.add("cmpl-a", [*COMMON, 7], salt="ash")
    core.run()
    record = judged(rings, tmp_path)
    assert record.verdicts == {"cmpl-a": "unproven"}
    assert "page.share" in record.rows("telemetry.gap")[0]["reason"]


def test_an_observer_that_fails_costs_a_gap_and_nothing_else(
    rings: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(model, pages=48)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("of all things")

    monkeypatch.setattr(core.scheduler._kvwitness, "released", broken)
    core.add("cmpl-a", [*COMMON, 7], salt="ash")
    assert core.run() > 0
    assert adapter.guard.errors == {"BlockPool.free_blocks: KeyError": 1}
    record = judged(rings, tmp_path)
    assert record.verdicts == {"cmpl-a": "unproven"}


def test_to_attach_twice_is_to_attach_once(rings: Path, model: str, tmp_path: Path) -> None:
    adapter.register()
    core = Core(model, pages=48)
    core.add("cmpl-a", [*COMMON, 7], salt="ash")
    core.run()
    record = judged(rings, tmp_path)
    assert record.kinds()["request.received"] == 1
    assert record.findings == []


def test_without_a_directory_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.block_pool import BlockPool

    monkeypatch.delenv("KVWITNESS_RING_DIR", raising=False)
    before = BlockPool.touch
    adapter.register()
    assert BlockPool.touch is before


def test_the_engine_is_described(rings: Path, model: str, tmp_path: Path) -> None:
    engine: Engine = adapter.ENGINE
    core = Core(model, pages=48)
    record = judged(rings, tmp_path)
    (pool,), (limits,) = record.rows("engine.pool"), record.rows("engine.limits")
    assert (pool["pages_total"], pool["page_tokens"], pool["reserved"]) == (48, PAGE_TOKENS, [0])
    assert (limits["advertised_tokens"], limits["input_limit_tokens"]) == (1024, 1023)
    assert limits["pool_tokens"] == 47 * PAGE_TOKENS
    assert limits["version"] == " ".join(engine.installed() or ())
    assert core.scheduler.has_unfinished_requests() is False


def test_vllms_own_events_tell_of_the_same_pages(
    rings: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config.kv_events import KVEventsConfig

    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    core = Core(model, pages=48, kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
    witnessed: list[Any] = []
    monkeypatch.setattr(core.scheduler.kv_event_publisher, "publish", lambda batch: witnessed.extend(batch.events))
    drive(core, random.Random(7), 60, ("ash", "birch"))
    record = judged(rings, tmp_path)
    identity = Identity.from_environment()

    def keys(kind: str) -> Counter[str]:
        group = (0).to_bytes(4, "big")
        return Counter(
            identity.hashed("key", block_hash + group)
            for event in witnessed
            if type(event).__name__ == kind
            for block_hash in event.block_hashes
        )

    assert keys("BlockStored").total() > 100
    assert keys("BlockRemoved").total() > 50
    published = record.rows("page.publish", "page.unpublish")
    assert Counter(row["key"] for row in published if row["event"] == "page.publish") == keys("BlockStored")
    under: dict[int, str] = {}
    removed: list[str] = []
    for row in published:
        for page in row["pages"]:
            if row["event"] == "page.publish":
                under[page] = row["key"]
            else:
                removed.append(under.pop(page))
    assert Counter(removed) == keys("BlockRemoved")
