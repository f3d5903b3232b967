"""Faults in transformers' continuous batching: writes of a prompt that never land, as when a transfer is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import transformers as adapter
from tests.engines.judged import judged
from tests.engines.transformers.engine import ask, batching, tokens

PROMPT = 36


def drop_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the keys and values of a prompt of this length never reach the cache."""
    from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator

    method = FullAttentionCacheAllocator.update

    def update(self: Any, keys: Any, values: Any, layer: int, read: Any, write: Any) -> Any:
        if write.numel() == PROMPT and read.numel() == 0:
            return keys, values
        return method(self, keys, values, layer, read, write)

    monkeypatch.setattr(FullAttentionCacheAllocator, "update", update)


def answered_after(model: Any, first: int) -> list[int]:
    """What birch gets, when the pages of its prompt held those of ash before."""
    with batching(model, sharing=False) as manager:
        ask(manager, (f"ash-{first}", tokens(first, 60)), new=4)
        (answer,) = ask(manager, (f"birch-{first}", tokens(3, PROMPT)), new=8).values()
        return list(answer.generated_tokens)


def test_writes_that_never_land_show_the_previous_tenants_pages(
    rings: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = answered_after(model, 1)
    drop_writes(monkeypatch)
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(tmp_path / "faulty"))
    adapter.register()
    one, other = answered_after(model, 1), answered_after(model, 2)
    assert one != other != truth  # what birch is told depends on what ash had asked
    record = judged(tmp_path / "faulty", tmp_path)
    assert not adapter.guard.errors
    assert record.verdicts == {"ash-1": "clean", "birch-1": "leak", "ash-2": "clean", "birch-2": "leak"}
    for name in ("birch-1", "birch-2"):
        findings = [f for f in record.findings if f["request"] == name and f["rule"] == "unwritten-page-read"]
        assert {tenant for f in findings for tenant in f["other_tenants"]} == {"t-ash"}


def test_the_same_traffic_without_the_fault_is_clean(rings: Path, model: Any, tmp_path: Path) -> None:
    assert answered_after(model, 1) == answered_after(model, 2)
    record = judged(rings, tmp_path)
    assert set(record.verdicts.values()) == {"clean"}
    assert record.findings == []


def test_a_read_that_is_refused_is_answered_by_an_error(
    rings: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuse")
    drop_writes(monkeypatch)
    with batching(model, sharing=False) as manager:
        ask(manager, ("ash-1", tokens(1, 60)), new=4)
        got = ask(manager, ("birch-1", tokens(3, PROMPT)), new=8)
        after = ask(manager, ("birch-2", tokens(3, PROMPT + 1)), ("ash-2", tokens(2, 50)), new=8)
    assert "refused" in got["birch-1"].error
    assert len(got["birch-1"].generated_tokens) <= 1  # the first comes from the prompt's own step, not from the cache
    assert after["ash-2"].error is after["birch-2"].error is None
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    assert record.grave() == []
    assert [(r["request"], r["by"]) for r in record.rows("request.aborted")] == [("birch-1", "kvwitness")]
    assert [r["request"] for r in record.rows("shadow.finding")] == ["birch-1"]
    assert [r["status"] for r in record.rows("request.finished") if r["request"] == "birch-1"] == [500]


def test_with_refusal_on_healthy_traffic_goes_on_as_before(
    rings: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuse")
    with batching(model, pages=24, safety_margin=0.0) as manager:
        got = ask(manager, *((f"{'ash' if n % 2 else 'birch'}-{n}", tokens(n // 2, 60)) for n in range(6)), new=90)
    assert [one.error for one in got.values()] == [None] * 6
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    assert record.rows("shadow.finding") == []
    assert set(record.verdicts.values()) == {"clean", "shared"}
