"""SGLang 0.5.19 without the tracer: the two servers' own request logs are enough to find the request that prefill
refused and decode served. They tell lengths, not pages."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import sglang as adapter
from kvwitness.gpu_tracer.engines.identity import KEY_FILE
from tests.engines.sglang.pair import Pair
from tests.engines.sglang.traffic import Gateway, healthy, oversize

_, VERSION = adapter.ENGINE.installed() or ("", "")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mooncake") is None, reason="mooncake is not installed here"),
    pytest.mark.skipif(VERSION != "0.5.19", reason=f"the bug is that of SGLang 0.5.19, this is {VERSION}"),
]
pytest.importorskip("kvwitness.collectors.logs.sglang")
LOGGING = ("--log-requests", "--log-requests-level", "0", "--log-requests-format")


def kvwitness(store: Path, *arguments: str) -> str:
    done = subprocess.run(
        [Path(sys.prefix) / "bin/kvwitness", *arguments, "--store", str(store)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_request_is_found_in_the_two_servers_logs_alone(form: str, tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    (rings / KEY_FILE).write_bytes(b"nobody records here, so nobody has made a key")
    with Pair(tmp_path, rings, *LOGGING, form, KVWITNESS_RING_DIR="") as pair:
        gateway = Gateway(pair, rings)
        healthy(gateway, 6)
        refused = oversize(gateway, "t-cedar", 600)
        healthy(gateway, 2)
    assert (refused.prefill.status, refused.decode.status) == (200, 200)
    assert [path.name for path in rings.iterdir() if path.suffix == ".ring"] == []
    for server in (pair.prefill, pair.decode):
        kvwitness(tmp_path / "store", "import", str(server.log), "--source", f"{server.log.stem}/0")
    document: dict[str, Any] = json.loads(kvwitness(tmp_path / "store", "audit", "--format", "json"))
    grave = [f for f in document["findings"] if f["verdict"] in ("leak", "integrity")]
    assert {f["request"] for f in grave} == {refused.name}
    assert {f["rule"] for f in grave} >= {"served-after-refusal", "status-mismatch"}
    asked = (
        f"SELECT answered_by, prompt_tokens FROM events WHERE event = 'request.finished' AND request = '{refused.name}'"
    )
    told = json.loads(kvwitness(tmp_path / "store", "sql", asked, "--format", "json"))
    assert {row["answered_by"]: row["prompt_tokens"] for row in told} == {"prefill-1": 1, "decode-1": 600}
