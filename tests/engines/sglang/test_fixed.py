"""SGLang from 0.5.20 on, prefill and decode apart: the traffic that shows content of others in 0.5.19 does not."""

from __future__ import annotations

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.api import as_document
from kvwitness.audit.pipeline import judge
from kvwitness.gpu_tracer.engines import sglang as adapter
from tests.engines.judged import judged
from tests.engines.sglang.pair import Pair
from tests.engines.sglang.traffic import Gateway, healthy, oversize

_, VERSION = adapter.ENGINE.installed() or ("", "")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mooncake") is None, reason="mooncake is not installed here"),
    pytest.mark.skipif(VERSION in ("0.5.16", "0.5.19"), reason=f"SGLang {VERSION} has the bug: see test_pair.py"),
]


WAITED_S = 45
"""How long the client waits for decode, which waits for 300 s for a prefill that has refused."""
BOUND_S = 3
"""After how long without an end a transfer counts as an orphan here; the rule's own bound is 10 minutes."""


def test_a_prompt_that_prefill_refuses_reads_nothing_and_leaves_decode_waiting(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    with Pair(tmp_path, rings) as pair:
        gateway = Gateway(pair, rings)
        healthy(gateway)
        with ThreadPoolExecutor(1) as client:
            asked = client.submit(oversize, gateway, "t-cedar", 600, seconds=WAITED_S)
            until, refusals = time.monotonic() + 5 * BOUND_S, 0
            while time.monotonic() < until:  # decode has no room for others now; the record goes on with refusals
                refusals += 1
                late = pair.prefill.post(pair.body(f"late{refusals}", [7] * 600))
                assert late.status == 400
                time.sleep(0.5)
            while_waiting = time.time_ns()
            assert not asked.done()
            refused = asked.result()
        healthy(gateway, 2)
    assert (refused.prefill.status, refused.decode.status) == (400, 0)
    record = judged(rings, tmp_path)
    assert record.rows("telemetry.gap") == []
    assert record.grave() == []
    names = [sent.name for sent in gateway.sent if sent is not refused]
    assert {name: record.verdicts[name] for name in names} == dict.fromkeys(names, "clean")
    assert {row["op"] for row in record.rows("page.read") if row["request"] == refused.name} == set()
    assert refused.name in {row["request"] for row in record.rows("request.rejected")}
    # Decode is never told, and keeps pages ready for as long as SGLang's own timeout: an orphan, and no leak.
    until_then = record.events.filter(pl.col("time_ns") <= while_waiting)
    waiting = as_document(judge(until_then, overrides={"orphaned-pages": {"bound_s": BOUND_S}}))
    orphans = [f for f in waiting["findings"] if f["rule"] == "orphaned-pages"]
    assert {(f["request"], f["verdict"]) for f in orphans} == {(refused.name, "exposure")}
    assert waiting["requests"][refused.name] == "exposure"
