"""One SGLang server, prefill and decode together, with a pool too small for what is asked of it at once: prefixes are
shared, pages evicted, requests set aside, and all of it is clean."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvwitness.gpu_tracer.engines.identity import KEY_FILE, Identity
from tests.engines.judged import judged
from tests.engines.sglang.pair import PAGE_TOKENS, Answer, Server

POOL_TOKENS = 48 * PAGE_TOKENS
TENANTS = ("t-ash", "t-birch")


def test_mixed_traffic_in_a_small_pool_is_clean(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    server = Server(
        "unified-1", tmp_path, rings, "--max-total-tokens", str(POOL_TOKENS), "--schedule-conservativeness", "0.05",
        "--chunked-prefill-size", "128",
    )  # fmt: skip

    def send(n: int) -> Answer:
        rng, tenant = random.Random(n), TENANTS[n % 2]
        prefix = [random.Random(tenant).randrange(2, 500) for _ in range(96)]
        identity = Identity((rings / KEY_FILE).read_bytes())
        return server.post({
            "input_ids": prefix + [rng.randrange(2, 500) for _ in range(rng.randrange(1, 120))], "rid": f"r{n}",
            "cache_salt": tenant, "routing_key": identity.attest(tenant),
            "sampling_params": {"max_new_tokens": 40 + n * 7 % 90, "temperature": 0, "ignore_eos": True},
        })  # fmt: skip

    try:
        server.wait()
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(send, range(40)))
    finally:
        server.stop()
    assert [answer.status for answer in answers] == [200] * 40
    record = judged(rings, tmp_path)
    assert (record.lost, record.differing) == (0, {})
    assert record.rows("telemetry.gap") == []
    assert record.grave() == []
    assert list(record.verdicts.values()) == ["clean"] * 40
    kinds = record.kinds()
    for kind in ("page.share", "page.publish", "page.unpublish", "request.preempted", "request.resumed"):
        assert kinds[kind], f"the traffic led to no {kind}"
