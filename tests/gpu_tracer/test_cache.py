"""The short way for pages of a prefix cache: what it records is what the general way records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.cache import CacheRecorder
from kvwitness.gpu_tracer.engines.identity import Identity
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.support import recorded

POOL, KEY, DIGEST = "e/0/kv", "0123456789abcdef", "fedcba9876543210"
_OWN = ("seq", "source", "time_ns")


def told(tracer: Tracer) -> list[dict[str, Any]]:
    rings = tracer.rings[0].parent
    return [{name: value for name, value in row.items() if name not in _OWN} for row in recorded(rings)]


@pytest.mark.parametrize(
    ("key", "digest", "page"),
    [
        (KEY, DIGEST, 7),
        (KEY, None, 0),
        ("a key of another length", DIGEST, 7),
        (KEY, "short", 2**32 - 1),
        ("schlüssel-0123456", DIGEST, 7),
    ],
)
def test_it_is_the_general_way_but_shorter(tmp_path: Path, key: str, digest: str | None, page: int) -> None:
    short, general = Tracer(tmp_path / "short", "e/0"), Tracer(tmp_path / "general", "e/0")
    cache = CacheRecorder(short, POOL)
    cache.publish(page, "r1", key, digest)
    cache.share(page, "r2", "t-ash", key, digest, (32, 64))
    cache.share(page, "r3", None, key, digest, (32, 64))
    cache.unpublish(page, "evict")
    general.publish(POOL, [page], request="r1", key=key, digest=digest)
    general.share(POOL, [page], "r2", tenant="t-ash", key=key, digest=digest, tok=(32, 64))
    general.share(POOL, [page], "r3", key=key, digest=digest, tok=(32, 64))
    general.unpublish(POOL, [page], reason="evict")
    said = told(short)
    assert said == told(general)
    assert [row["event"] for row in said] == ["page.publish", "page.share", "page.share", "page.unpublish"]
    assert short.errors == {}


def test_what_cannot_be_recorded_is_a_loss_and_raises_nothing(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, "e/0")
    cache = CacheRecorder(tracer, POOL)
    cache.publish(-1, "r1", KEY, DIGEST)
    cache.unpublish(2**40, "evict")
    cache.publish(3, "r1", KEY, DIGEST)
    assert sum(tracer.errors.values()) == 2
    assert [row["event"] for row in told(tracer)] == ["telemetry.gap", "telemetry.gap", "page.publish"]


def test_without_a_directory_nothing_happens() -> None:
    cache = CacheRecorder(Tracer(None, "e/0"), POOL)
    cache.publish(3, "r1", KEY, DIGEST)
    cache.unpublish(3, "evict")


ELSEWHERE = """
import os, sys, threading
from kvwitness.gpu_tracer.cache import CacheRecorder
from kvwitness.gpu_tracer.tracer import Tracer

tracer = Tracer(sys.argv[1], "e/0")
cache = CacheRecorder(tracer, "e/0/kv")
reading = tracer.reader("e/0/kv", "decode")

def work(who):
    for _ in range(2):
        cache.publish(3, who, "0123456789abcdef", None)
        cache.unpublish(3, "evict")

def read(who):
    for _ in range(2):
        reading(3, who, 0, 16, 1)
        tracer.decoded("e/0/kv", 3, who, tok=(0, 16), step=1)

work("parent"), read("parent")
child = os.fork()
if not child:
    work("child"), read("child")
    assert not tracer.errors, tracer.errors
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread = threading.Thread(target=work, args=("thread",))
thread.start()
thread.join()
work("parent")
assert not tracer.errors, tracer.errors
"""


def test_each_process_and_thread_writes_into_its_own_ring(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path)], check=True, timeout=60)
    by_source: dict[str, set[str]] = {}
    found = recorded(tmp_path)
    for row in found:
        if "request" in row:
            by_source.setdefault(row["source"], set()).add(row["request"])
    assert sorted(map(sorted, by_source.values())) == [["child"], ["parent"], ["thread"]]
    events = [row["event"] for row in found]
    assert (events.count("page.publish"), events.count("page.unpublish")) == (8, 8)
    assert (events.count("page.read"), events.count("page.write")) == (8, 4)


def test_a_key_is_hashed_the_same_in_both_ways() -> None:
    identity = Identity(b"x" * 16)
    for value in (b"", b"a hash", bytes(36)):
        assert identity.hasher("key")(value) == identity.hashed("key", value)
