"""vLLM's API server: what goes wrong behind it, the client is told with status 200."""

from __future__ import annotations

import json
from pathlib import Path

from kvwitness.audit.trace import expand_pages
from tests.engines.judged import judged
from tests.engines.vllm.model import tiny_weights
from tests.engines.vllm.server import ApiServer

ASH = [5 + n * 7 % 450 for n in range(90)]
BIRCH = [9 + n * 11 % 450 for n in range(120)]
LOADS_NOTHING = {
    "kv_connector": "ClaimsAndLoadsNothing", "kv_role": "kv_both",
    "kv_connector_module_path": "tests.engines.vllm.connectors",
}  # fmt: skip


def test_an_answer_from_the_previous_tenants_pages_has_status_200(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    flags = (
        "--num-gpu-blocks-override", "12", "--max-model-len", "256", "--no-enable-prefix-caching",
        "--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps(LOADS_NOTHING),
    )  # fmt: skip
    with ApiServer(tiny_weights(tmp_path / "weights"), tmp_path, rings, *flags) as server:
        ash = server.complete("a1", ASH, "t-ash")
        birch = server.complete("b1", BIRCH, "t-birch")
    assert (ash.status, birch.status, birch.finish, len(birch.tokens)) == (200, 200, "length", 8)
    record = judged(rings, tmp_path)
    assert record.rows("telemetry.gap") == []
    tenants = {row["request"]: row["tenant"] for row in record.rows("request.received")}
    assert tenants == {"cmpl-a1-0": "t-ash", "cmpl-b1-0": "t-birch"}
    assert record.verdicts == {"cmpl-a1-0": "clean", "cmpl-b1-0": "leak"}
    leaks = [f for f in record.findings if f["verdict"] == "leak"]
    assert {(f["rule"], f["request"], *f["other_tenants"]) for f in leaks} >= {
        ("unwritten-page-read", "cmpl-b1-0", "t-ash")
    }
    shown = {page for f in leaks if f["rule"] == "unwritten-page-read" for page in expand_pages(f["pages"]).tolist()}
    held = {page for row in record.rows("page.alloc") if row["request"] == "cmpl-a1-0" for page in row["pages"]}
    assert shown
    assert shown <= held
    told = {row["request"]: row["status"] for row in record.rows("request.finished")}
    assert told == {"cmpl-a1-0": 200, "cmpl-b1-0": 200}
