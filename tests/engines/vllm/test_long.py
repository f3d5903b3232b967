"""An hour's worth of healthy traffic through vLLM's scheduler, followed while it runs: nothing is found."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kvwitness.audit.api import as_document
from kvwitness.audit.pipeline import judge
from kvwitness.audit.store import Store
from kvwitness.collectors.ring_tail import Tail
from kvwitness.gpu_tracer.engines import vllm as adapter
from tests.engines.vllm.core import Core

REQUESTS = int(os.environ.get("KVWITNESS_HEALTHY_REQUESTS", "20000"))
SALTS = ("ash", "birch", "cedar", "fir")
COMMON = list(range(1, 129))


def send(core: Core, rng: random.Random, number: int) -> str:
    """A prompt with a beginning that others have too, or have not; short answers mostly."""
    shared = COMMON[: rng.choice((0, 32, 64, 96, 128))]
    own = [rng.randrange(2, 500) for _ in range(min(1 + int(rng.expovariate(1 / 60)), 400))]
    length = min(1 + int(rng.expovariate(1 / 20)), 300)
    return core.add(f"cmpl-r{number}", [*shared, *own], salt=rng.choice(SALTS), new=length)


@pytest.mark.slow
def test_nothing_is_found_in_healthy_traffic(rings: Path, model: str, tmp_path: Path) -> None:
    core, rng = Core(model, pages=96, batch_tokens=512), random.Random(17)
    store = Store.create(tmp_path / "store")
    sent, alive = 0, list[str]()
    with Tail(rings, store) as tail:
        step = 0
        while sent < REQUESTS or core.scheduler.has_unfinished_requests():
            while sent < REQUESTS and len(core.scheduler.requests) < 24:
                alive.append(send(core, rng, sent))
                sent += 1
            core.step()
            step += 1
            if rng.random() < 0.01:
                core.abort(alive[rng.randrange(len(alive))])
                alive = alive[-64:]
            if not step % 500:
                tail.poll()
        tail.once()
        assert not tail.lost()
    assert not adapter.guard.errors
    document = as_document(judge(store.events().sort("source", "seq").collect()))
    assert [*document["findings"], *document["engine_findings"]] == []
    assert list(document["requests"].values()) == ["clean"] * REQUESTS
