"""SGLang 0.5.19, prefill and decode apart: healthy traffic is clean, and a prompt that prefill refuses is served by
decode over pages that hold other tenants' content (sgl-project/sglang#30233). Both servers answer 200."""

from __future__ import annotations

import importlib.util
import io
import re
from dataclasses import dataclass
from typing import Any

import pytest

from kvwitness.audit.trace.writer import write_jsonl
from kvwitness.gpu_tracer.engines import sglang as adapter
from tests.engines.judged import Judged, judged
from tests.engines.sglang.pair import PAGE_TOKENS, Pair
from tests.engines.sglang.record import foreign_reads
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
    lines: list[str]
    """The record as a trace."""


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
    record = judged(rings, work)
    trace = io.BytesIO()
    write_jsonl(record.events.sort("time_ns", "source", "seq").to_arrow(), trace)
    return Run(before, refused, record, trace.getvalue().decode().splitlines())


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
    name = run.refused.name
    assert run.record.verdicts[name] == "leak"
    findings = [f for f in run.record.findings if f.get("request") == name]
    assert {f["rule"] for f in findings} >= {
        "unwritten-page-read", "uncovered-read", "over-limit-success", "served-after-refusal", "status-mismatch",
        "false-transfer-complete",
    }  # fmt: skip
    (announced,) = [
        row["dst_announced"]
        for row in run.record.rows("transfer.begin")
        if row["request"] == name and "src_pages" not in row
    ]
    assert len(announced) == -(-run.refused.tokens // PAGE_TOKENS)
    unwritten = [f for f in findings if f["rule"] == "unwritten-page-read"]
    # One position was sent, and those behind the prompt are decode's own.
    assert sum(int(re.findall(r"read (\d+) positions", f["why"])[0]) for f in unwritten) == run.refused.tokens - 1
    assert {page for f in unwritten for page in _pages(f)} == set(announced)
    tenants = {tenant for f in unwritten if f["verdict"] == "leak" for tenant in f["other_tenants"]}
    assert tenants == foreign_reads(run.lines)[name]
    assert tenants


def _pages(finding: dict[str, Any]) -> set[int]:
    """The pages that a finding names."""
    listed = finding["pages"]
    return {p for item in listed for p in (range(item[0], item[1] + 1) if isinstance(item, list) else (item,))}


def test_what_was_sent_never_stands_in_the_record(run: Run) -> None:
    assert "salt of" not in str(run.record.rows())
