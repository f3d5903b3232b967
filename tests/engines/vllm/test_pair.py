"""A prefill and a decode engine of vLLM, joined by the NIXL connector over the loopback: what goes right is clean, and
what goes wrong in stock vLLM is found, although the client gets its answer each time."""

from __future__ import annotations

import importlib.util
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvwitness.audit.trace import expand_pages
from tests.engines.judged import Judged, judged
from tests.engines.vllm.model import tiny_weights
from tests.engines.vllm.peers import Peer, Reply

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="nixl is not installed here")

LEASE_S = 6
ASK = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip


def prompt(seed: int, length: int) -> list[int]:
    return [5 + (seed * 97 + n * 7 + n * n % 13) % 490 for n in range(length)]


@dataclass
class Played:
    """What was sent, what came back, and what the audit says."""

    replies: dict[str, Reply] = field(default_factory=dict)
    record: Judged | None = None

    def findings(self, request: str) -> list[dict[str, Any]]:
        assert self.record is not None
        return [f for f in self.record.document["findings"] if f["request"] == f"cmpl-{request}"]

    def verdict(self, request: str) -> str:
        assert self.record is not None
        return self.record.verdicts[f"cmpl-{request}"]

    def tenant(self, request: str) -> str:
        assert self.record is not None
        rows = self.record.rows("request.received")
        return next(row["tenant"] for row in rows if row["request"] == f"cmpl-{request}")


CONNECTOR = {
    "kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    work = tmp_path_factory.mktemp("pair")
    options = {
        "model": tiny_weights(work / "weights"), "pages": 20, "length": 512, "kv_transfer_config": CONNECTOR,
    }  # fmt: skip
    rings = work / "rings"
    rings.mkdir()
    peers = []
    for number, name in enumerate(("prefill-0", "decode-0")):
        env = {
            "KVWITNESS_RING_DIR": str(rings), "KVWITNESS_ENGINE": name, "KVWITNESS_CLOCK_UNCERTAINTY_S": "0.000001",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(5600 + number),
            "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        peers.append(Peer(work / f"{name}.log", env, options))
    out = Played()
    try:
        prefill, decode = (peer.ready() for peer in peers)
        play(prefill, decode, out)
    finally:
        for peer in peers:
            peer.stop()
    out.record = judged(rings, work)
    out.record.events.write_parquet(work / "events.parquet")  # for whoever looks into a failure
    return out


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def play(prefill: Peer, decode: Peer, out: Played) -> None:
    def both(name: str, tokens: list[int], salt: str, *, shorter: list[int] | None = None, wait: float = 0) -> None:
        first = prefill.ask(f"cmpl-{name}", tokens, salt, new=1, transfer=dict(ASK))
        out.replies[f"{name}/prefill"] = first
        if wait:
            time.sleep(wait)
            for n in range(4):  # other tenants' prompts take the pages that the lease gave up
                prefill.ask(f"cmpl-taker-{n}", prompt(40 + n, 130), f"birch-{n}", new=2)
        out.replies[name] = decode.ask(f"cmpl-{name}", shorter or tokens, salt, transfer=first.handover)

    for n in range(3):  # the first handshake may take longer than it is given
        both(f"warm-{n}", prompt(90 + n, 70), "warm")
        if out.replies[f"warm-{n}"].finish == "length":
            break
    # healthy
    out.replies["truth"] = decode.ask("cmpl-truth", prompt(1, 150), "truth")
    both("healthy", prompt(1, 150), "ash")
    both("again", prompt(1, 150), "ash")
    # the decode side asks when the lease is over
    out.replies["late-truth"] = decode.ask("cmpl-late-truth", prompt(2, 150), "truth")
    both("late", prompt(2, 150), "ash", wait=LEASE_S + 3)
    # the two sides do not agree on the prompt's length
    both("mismatch", prompt(3, 130), "ash", shorter=prompt(3, 70))
    # a client that names another tenant's pages
    victim = prefill.ask("cmpl-victim", prompt(4, 96), "ash", new=1, transfer=dict(ASK))
    out.replies["thief"] = decode.ask("cmpl-thief", prompt(5, 96), "birch", transfer=victim.handover)
    out.replies["poisoned"] = decode.ask("cmpl-poisoned", [*prompt(5, 96), 7], "birch")
    # nobody answers where the pages are said to be: vLLM reports the request as received, and its pages as invalid
    unanswered = prefill.ask("cmpl-unanswered", prompt(6, 96), "ash", new=1, transfer=dict(ASK))
    assert unanswered.handover is not None
    nowhere = {"remote_engine_id": "nobody", "remote_port": free_port()}
    out.replies["unanswered"] = decode.ask(
        "cmpl-unanswered", prompt(6, 96), "ash", transfer=unanswered.handover | nowhere
    )


def test_a_healthy_pair_is_clean(played: Played) -> None:
    assert played.replies["healthy"].tokens == played.replies["truth"].tokens == played.replies["again"].tokens
    assert played.verdict("healthy") == played.verdict("again") == "clean"
    assert played.verdict("truth") == "clean"


def test_a_fetch_after_the_lease_brings_the_next_tenants_pages(played: Played) -> None:
    assert played.replies["late"].finish == "length"
    assert played.replies["late"].tokens != played.replies["late-truth"].tokens
    assert played.verdict("late") == "leak"
    findings = played.findings("late")
    assert "late-read" in {f["rule"] for f in findings}
    takers = {played.tenant(f"taker-{n}") for n in range(4)}
    others = {tenant for f in findings for tenant in f["other_tenants"]}
    assert others
    assert others <= takers
    shown = {page for f in findings if f["rule"] == "late-read" for page in expand_pages(f["pages"]).tolist()}
    assert shown
    assert played.record is not None
    begun = [r for r in played.record.rows("transfer.begin") if r["request"] == "cmpl-late"]
    assert shown <= set(begun[-1]["src_pages"])


def test_lengths_that_differ_between_the_sides_are_found(played: Played) -> None:
    assert played.replies["mismatch"].finish == "length"
    assert played.verdict("mismatch") == "integrity"


def test_a_client_that_names_another_tenants_pages_is_found(played: Played) -> None:
    assert played.replies["thief"].finish == "length"
    assert played.verdict("thief") == "leak"
    assert {t for f in played.findings("thief") for t in f["other_tenants"]} == {played.tenant("victim")}
    assert played.verdict("poisoned") == "leak"


def test_a_handshake_that_fails_is_no_transfer_although_it_is_reported_as_received(played: Played) -> None:
    assert played.replies["unanswered"].finish == "error"
    assert played.record is not None
    rows = [r for r in played.record.rows() if r.get("request") == "cmpl-unanswered"]
    decode = [r for r in rows if r["source"].startswith("decode-0")]
    assert [r["event"] for r in decode if r["event"].startswith("transfer.")] == ["transfer.begin", "transfer.failed"]
    assert [r for r in decode if r["event"] in ("page.write", "page.read")] == []
    assert {r["status"] for r in decode if r["event"] == "request.finished"} == {500}
    assert "leak" not in {f["verdict"] for f in played.findings("unanswered")}
