"""One SGLang server whose `fake` transfer backend says at once that everything has come, on any version: what decode
then reads was never written for the request."""

from __future__ import annotations

from pathlib import Path

from kvwitness.gpu_tracer.engines.identity import KEY_FILE, Identity
from tests.engines.judged import judged
from tests.engines.sglang.pair import PAGE_TOKENS, Server

POOL_TOKENS = 50 * PAGE_TOKENS
"""Decode keeps 512 positions free beside a prompt before it takes it."""
NOBODY = "2.2.2.2"
"""The host by which SGLang knows that a request's pages come from nowhere."""


def test_reads_of_pages_that_were_never_transferred_are_found(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    server = Server(
        "decode-1", tmp_path, rings, "--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake",
        "--max-total-tokens", str(POOL_TOKENS), "--disaggregation-decode-retraction-backup", "cpu_tensor",
    )  # fmt: skip
    try:
        server.wait()
        identity = Identity((rings / KEY_FILE).read_bytes())
        for n in range(6):
            tokens = 100 + 30 * n
            answer = server.post({
                "input_ids": [7 + n] * tokens, "rid": f"r{n}", "bootstrap_host": NOBODY, "bootstrap_room": n + 1,
                "routing_key": identity.attest("t-ash" if n % 3 else "t-birch"),
                "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True},
            }, 240)  # fmt: skip
            assert (answer.status, answer.prompt_tokens) == (200, tokens)
    finally:
        server.stop()
    record = judged(rings, tmp_path)
    assert record.rows("telemetry.gap") == []
    for n in range(6):
        rules = {f["rule"] for f in record.findings if f.get("request") == f"r{n}"}
        assert rules >= {"unwritten-page-read", "uncovered-read"}, f"r{n}: {rules}"
    # The pool is used up, and begins again: a longer prompt reads where answers to shorter ones stood.
    assert "leak" in record.verdicts.values()
