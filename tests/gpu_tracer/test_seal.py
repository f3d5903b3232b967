"""Sealed digests are compared as plain ones are, and show nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwitness.gpu_tracer.content.seal import Seal
from kvwitness.gpu_tracer.tracer import Tracer
from tests.engines.judged import judged

SECRET = b"a secret for the tests"
PLAIN = ["nh64/8:0123456789abcdef.fedcba9876543210", "nh64/3:0123456789abcdef.0123456789abcdef"]
PINNED = "nh64-mac/8:6a53061bcaf89f413aa48370fe07f221"


def layers(digest: str) -> list[str]:
    return digest.partition(":")[2].split(".")


def test_equal_digests_have_equal_seals_and_others_have_not() -> None:
    seal = Seal(SECRET)
    first, second = seal.sealed(PLAIN)
    assert seal.sealed(PLAIN) == Seal(SECRET).sealed(PLAIN) == [first, second]
    assert (first.partition(":")[0], second.partition(":")[0]) == ("nh64-mac/8", "nh64-mac/3")
    found = [*layers(first), *layers(second)]
    # one fingerprint in another layer, or over another number of slots, is another thing
    assert len({*found}) == len(found) == 4
    assert {len(one) for one in found} == {32}
    assert not {*layers(first)} & {*layers(Seal(SECRET + b"!").sealed(PLAIN)[0])}
    assert not {*layers(first)} & {*layers(seal.sealed([PLAIN[0].replace("nh64", "nh128")])[0])}


def test_a_seal_does_not_change_from_version_to_version() -> None:
    assert Seal(SECRET).sealed(["nh64/8:0123456789abcdef"]) == [PINNED]


def test_what_is_no_digest_is_refused() -> None:
    seal = Seal(SECRET)
    for text in ("b:1", "", *seal.sealed(PLAIN[:1]), "nh64/8:", "nh64/8:12.", "nh64/x:12"):
        with pytest.raises(ValueError, match="not a digest as"):
            seal.sealed([text])
    with pytest.raises(ValueError, match="has 9 bytes; 16"):
        Seal(b"too short")


@pytest.mark.parametrize("same", [True, False])
def test_the_audit_finds_what_was_left_behind_from_sealed_digests(tmp_path: Path, same: bool) -> None:
    rings, seal = tmp_path / "rings", Seal(SECRET)
    rings.mkdir()
    tracer = Tracer(rings, "e/0")
    tracer.engine_pool("e/0/kv", page_tokens=8, pages_total=16, reason="start")
    for request, tenant, at, digest in (
        ("r1", "t-ash", "free", PLAIN[0]),
        ("r2", "t-birch", "receive", PLAIN[0] if same else PLAIN[0].replace("f", "0")),
    ):
        tracer.request_received(request, tenant, prompt_tokens=8)
        tracer.alloc("e/0/kv", [3], request, tenant=tenant)
        tracer.write("e/0/kv", [3], request, op="load", tok=(0, 8))
        tracer.content_digest("e/0/kv", [3], digests=seal.sealed([digest]), at=at, request=request)
        tracer.free("e/0/kv", [3], request, reason="finish")
    tracer.close()
    found = [(one["rule"], one["verdict"], one["request"]) for one in judged(rings, tmp_path).findings]
    assert found == ([("stale-content", "leak", "r2")] if same else [])
