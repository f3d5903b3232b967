"""transformers' continuous batching under the adapter: what goes right is clean, and on record as it was."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import transformers as adapter
from tests.engines.judged import Judged, judged
from tests.engines.transformers.engine import PAGE_TOKENS, answers, ask, batching, tokens

Tables = list[dict[str, list[int]]]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """By step, the engine's own tables of its batch, taken when the step's inputs are ready."""
    from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs

    out: Tables = []
    method = ContinuousBatchingIOs.prepare_batch_tensors

    def noting(self: Any, requests_in_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, requests_in_batch, *args, **kwargs)
        (allocator,) = self.cache.cache_allocators.values()
        out.append({f.state.request_id: list(allocator.block_table[f.state.request_id]) for f in requests_in_batch})
        return result

    monkeypatch.setattr(ContinuousBatchingIOs, "prepare_batch_tensors", noting)
    return out


def replayed(record: Judged) -> dict[int, dict[str, list[int]]]:
    """By step, what the recorded events say each request's table was."""
    tables: dict[str, list[int]] = defaultdict(list)
    out: dict[int, dict[str, list[int]]] = {}
    for row in record.rows("page.alloc", "page.share", "page.free", "page.write"):
        name = row.get("request")
        match row["event"]:
            case "page.write" if "step" in row:
                out.setdefault(row["step"], {}).setdefault(row["request"], list(tables[row["request"]]))
            case "page.free" if name:
                gone = set(row["pages"])
                tables[name] = [page for page in tables[name] if page not in gone]
            case "page.share" if row["tok_first"] < PAGE_TOKENS * len(tables[name]):
                tables[name].insert(row["tok_first"] // PAGE_TOKENS, row["pages"][0])  # in the place of an equal one
            case "page.alloc" | "page.share" if name:
                tables[name] += row["pages"]
    return out


def clean(record: Judged, count: int) -> None:
    assert not adapter.guard.errors
    assert (record.lost, record.differing) == (0, {})
    assert record.rows("telemetry.gap") == []
    assert [f["why"] for f in record.findings] == []
    assert list(record.verdicts.values()) == ["clean"] * count


def test_two_tenants_at_once_are_clean(tables: Tables, rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model) as manager:
        first = ask(manager, ("ash-1", tokens(1, 40)), ("birch-1", tokens(2, 50)), ("birch-2", tokens(3, 7)))
        again = ask(manager, ("ash-2", tokens(1, 40)))
    assert first["ash-1"].generated_tokens == again["ash-2"].generated_tokens
    record = judged(rings, tmp_path)
    clean(record, 4)
    said = replayed(record)
    assert len(said) == len(tables)
    for step, engine in enumerate(tables, 1):
        for rid, pages in engine.items():
            if rid in said[step]:  # a step's write of a prompt is put down when it has landed, of a token before
                assert said[step][rid] == pages, f"step {step}, {rid}"
    told = {row["request"]: (row["cached_tokens"], row["completion_tokens"]) for row in record.rows("request.finished")}
    assert told == {"ash-1": (0, 16), "birch-1": (0, 16), "birch-2": (0, 16), "ash-2": (32, 16)}


def test_a_prompt_that_takes_several_steps_is_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model) as manager:
        ask(manager, ("ash-1", tokens(1, 300)), ("birch-1", tokens(2, 30)))
    record = judged(rings, tmp_path)
    clean(record, 2)
    prefills = [r for r in record.rows("page.read") if r["op"] == "prefill" and r["request"] == "ash-1"]
    assert prefills[-1]["tok_end"] == 300


def test_equal_prompts_at_once_end_in_one_page_and_are_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model) as manager:
        got = ask(manager, *((f"ash-{n}", tokens(1, 40)) for n in range(3)), new=40)
    assert len({tuple(one.generated_tokens) for one in got.values()}) == 1
    record = judged(rings, tmp_path)
    clean(record, 3)
    assert any(row["reason"] == "replaced" for row in record.rows("page.free"))


def test_requests_that_are_set_aside_come_back_and_are_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model, pages=24, safety_margin=0.0) as manager:
        ask(manager, *((f"{'ash' if n % 2 else 'birch'}-{n}", tokens(n, 60)) for n in range(6)), new=90)
    record = judged(rings, tmp_path)
    clean(record, 6)
    kinds = record.kinds()
    for kind in ("request.preempted", "request.resumed"):
        assert kinds[kind], f"the traffic led to no {kind}"


def test_forks_share_and_copy_and_are_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model, children=3) as manager:
        got = ask(manager, ("ash-1", tokens(1, 41)), each=3)
    assert sorted(got) == ["ash-1", "ash-1__child#0", "ash-1__child#1"]
    record = judged(rings, tmp_path)
    assert record.kinds()["page.copy"]
    clean(record, 3)


def test_a_request_that_is_given_up_is_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    with batching(model) as manager:
        manager.add_request(tokens(1, 40), request_id="ash-1", max_new_tokens=300, streaming=True)
        assert manager.get_result(timeout=60) is not None
        manager.cancel_request("ash-1")
        manager.add_request(tokens(2, 40), request_id="birch-1", max_new_tokens=8)
        while True:
            result = manager.get_result(timeout=60)
            if result.request_id == "birch-1" and result.is_finished():
                break
    record = judged(rings, tmp_path)
    clean(record, 2)
    assert [row["request"] for row in record.rows("request.aborted")] == ["ash-1"]


def test_what_the_operator_forbids_to_share_is_found(
    rings: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_SHARING", "tenant")
    with batching(model) as manager:
        ask(manager, ("ash-1", tokens(1, 40)))
        ask(manager, ("birch-1", tokens(1, 40)))
    record = judged(rings, tmp_path)
    assert [(f["rule"], f["request"]) for f in record.findings if f["rule"] == "salt-crossing"] == [
        ("salt-crossing", "birch-1")
    ]


def test_an_observer_that_fails_costs_a_gap_and_nothing_else(
    rings: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batching(model) as manager:
        ask(manager, ("ash-1", tokens(1, 40)))
        view = manager.batch_processor._kvwitness

        def broken(*args: Any, **kwargs: Any) -> None:
            raise KeyError("of all things")

        monkeypatch.setattr(view, "writes", broken)
        got = ask(manager, ("ash-2", tokens(2, 40)))
    assert len(got["ash-2"].generated_tokens) == 16
    assert adapter.guard.errors["ContinuousBatchingIOs.prepare_batch_tensors: KeyError"]
    assert judged(rings, tmp_path).verdicts["ash-2"] == "unproven"


def test_without_a_directory_nothing_is_touched(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation.continuous_batching.cache_allocators import CachePool

    monkeypatch.delenv("KVWITNESS_RING_DIR", raising=False)
    before = CachePool.free_blocks
    adapter.register()
    assert CachePool.free_blocks is before
    with batching(model) as manager:
        manager.add_request(tokens(1, 10), request_id="ash-1", max_new_tokens=2)
        answers(manager, 1)
