"""An hour's worth of healthy traffic through transformers' continuous batching, followed while it runs: nothing is
found."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.api import as_document
from kvwitness.audit.pipeline import judge
from kvwitness.audit.store import Store
from kvwitness.collectors.ring_tail import Tail
from kvwitness.gpu_tracer.engines import transformers as adapter
from tests.engines.transformers.engine import batching

REQUESTS = int(os.environ.get("KVWITNESS_HEALTHY_REQUESTS", "20000"))
TENANTS = ("ash", "birch", "cedar", "fir")
COMMON = list(range(1, 97))
AT_ONCE = 48


def prompt(rng: random.Random) -> list[int]:
    """A prompt with a beginning that others have too, or have not; some take two steps."""
    shared = COMMON[: rng.choice((0, 16, 32, 48, 96))]
    return [*shared, *(rng.randrange(2, 500) for _ in range(min(1 + int(rng.expovariate(1 / 25)), 200)))]


@pytest.mark.slow
def test_nothing_is_found_in_healthy_traffic(rings: Path, model: Any, tmp_path: Path) -> None:
    rng, store = random.Random(17), Store.create(tmp_path / "store")
    sent = done = 0
    with Tail(rings, store) as tail, batching(model, pages=96) as manager:
        while done < REQUESTS:
            while sent < REQUESTS and sent - done < AT_ONCE:
                name = f"{rng.choice(TENANTS)}-{sent}"
                manager.add_request(
                    prompt(rng), request_id=name, max_new_tokens=min(1 + int(rng.expovariate(1 / 8)), 60)
                )
                sent += 1
            result = manager.get_result(timeout=120)
            assert result is not None, f"{done} of {sent} answers came"
            assert result.error is None
            done += result.is_finished()
            if not done % 200:
                tail.poll()
        tail.once()
        assert not tail.lost()
    assert not adapter.guard.errors
    events = store.events().sort("source", "seq").collect()
    document = as_document(judge(events))
    found = [*document["findings"], *document["engine_findings"]]
    assert [one for one in found if one["verdict"] in ("leak", "integrity")] == []
    assert len(document["requests"]) == REQUESTS
    assert set(document["requests"].values()) <= {"clean", "shared"}
