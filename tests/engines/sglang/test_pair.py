"""SGLang 0.5.19, prefill and decode apart: healthy traffic is clean, and a prompt that prefill refuses is served by
decode over pages that hold other tenants' content (sgl-project/sglang#30233). Both servers answer 200."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import pytest

from kvwitness.gpu_tracer.engines import sglang as adapter
from tests.engines.judged import Judged, judged
from tests.engines.sglang.pair import PAGE_TOKENS, Pair
from tests.engines.sglang.traffic import Gateway, Sent, healthy, oversize

_, VERSION = adapter.ENGINE.installed() or ("", "")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mooncake") is None, reason="mooncake is not installed here"),
    pytest.mark.skipif(VERSION != "0.5.19", reason=f"the bug is that of SGLang 0.5.19, this is {VERSION}"),
]


@dataclass(frozen=True)
class Run:
    """What was sent, and what the record says."""

    healthy: list[Sent]
    refused: Sent
    record: Judged


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    work = tmp_path_factory.mktemp("pair")
    rings = work / "rings"
    rings.mkdir()
    with Pair(work, rings) as pair:
        gateway = Gateway(pair, rings)
        healthy(gateway)
        before = list(gateway.sent)
        refused = oversize(gateway, "t-cedar", 600)
    return Run(before, refused, judged(rings, work))


def test_both_servers_answer_as_if_all_were_well(run: Run) -> None:
    assert (run.refused.prefill.status, run.refused.prefill.prompt_tokens) == (200, 1)
    assert (run.refused.decode.status, run.refused.decode.prompt_tokens) == (200, 600)


def test_healthy_traffic_is_clean(run: Run) -> None:
    assert all(sent.prefill.status == sent.decode.status == 200 for sent in run.healthy)
    assert {sent.name: run.record.verdicts[sent.name] for sent in run.healthy} == {
        sent.name: "clean" for sent in run.healthy
    }


def test_nothing_is_missing_from_the_record(run: Run) -> None:
    assert (run.record.lost, run.record.differing) == (0, {})
    assert run.record.rows("telemetry.gap") == []


def test_the_request_the_pages_the_positions_and_the_tenants_are_named(run: Run) -> None:
    assert run.record.verdicts[run.refused.name] == "leak"
    by_rule = {f["rule"]: f for f in run.record.findings if f.get("request") == run.refused.name}
    assert by_rule.keys() >= {
        "unwritten-page-read", "uncovered-read", "over-limit-success", "served-after-refusal", "status-mismatch",
        "false-transfer-complete",
    }  # fmt: skip
    (announced,) = [
        row["dst_announced"] for row in run.record.rows("transfer.begin")
        if row["request"] == run.refused.name and "src_pages" not in row
    ]  # fmt: skip
    assert len(announced) == -(-600 // PAGE_TOKENS)
    unwritten = by_rule["unwritten-page-read"]
    assert set(unwritten["pages"]) <= set(announced)
    assert len(set(unwritten["pages"])) >= len(announced) - 2  # the first has one position of its own, the last a token
    assert set(unwritten["other_tenants"]) <= {"t-ash", "t-birch"}
    assert unwritten["other_tenants"]


def test_what_was_sent_never_stands_in_the_record(run: Run) -> None:
    assert "salt of" not in str(run.record.rows())
