"""Checks beside an engine: the right digests, nothing waited for or allocated, and what is left out counted.

No GPU is here: the queues of these tests are those of the host, one of which puts off all work until it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu_tracer.conftest import REASON, TRITON

torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("triton", reason=TRITON)

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from kvwitness.gpu_tracer.content import kernel  # noqa: E402
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints  # noqa: E402
from kvwitness.gpu_tracer.content.lanes import AtOnce, Done, Lanes  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page  # noqa: E402
from tests.gpu_tracer.content.test_fingerprint import SECRET, noise  # noqa: E402


class Late(AtOnce):
    """Work is done when `go` is called, as a device does it: long after it was enqueued, and in order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.finished = 0
        self.enqueued = 0

    def enqueue(self, work: Callable[[], None]) -> Callable[[], bool]:
        self.waiting.append(work)
        self.enqueued += 1
        mine = self.enqueued
        return lambda: self.finished >= mine

    def go(self, count: int) -> None:
        for _ in range(count):
            self.waiting.pop(0)()
            self.finished += 1


class Capturing(AtOnce):
    def capturing(self) -> bool:
        return True


def parts() -> list[Part]:
    """Two layers of K and V, and in the second an odd part that is longer than one program takes."""
    memory = noise((2, 2, 6, 3, 2, 16), torch.float16, 4)
    found = [by_page(at, f"{at} {kv}", memory[at, row]) for at in range(2) for row, kv in enumerate("KV")]
    return [*found, by_page(1, "long", noise((6, 3, 1, 2100), torch.uint8, 9))]


@pytest.mark.parametrize("bits", [64, 128])
def test_digests_are_those_that_are_taken_while_one_waits(bits: int) -> None:
    plain = Fingerprints(parts(), SECRET, bits=bits)
    lanes = Lanes(Fingerprints(parts(), SECRET, bits=bits, kernel=True), room=4)
    for pages, valid in (([5, 0, 2], 9), ([1], 3), ([4, 3, 2, 1], 10), ([2, 4], 1), ([], 0)):
        assert lanes.submit("one", pages, valid)
        assert lanes.poll() == [Done("one", tuple(pages), plain.digests(pages, valid))]
    assert (lanes.poll(), lanes.skipped) == ([], 0)


def test_checks_on_their_way_keep_their_own_page_numbers_and_too_many_are_skipped_and_counted() -> None:
    plain, queue = Fingerprints(parts(), SECRET), Late()
    lanes = Lanes(Fingerprints(parts(), SECRET, kernel=True), room=3, lanes=2, queue=queue)
    assert lanes.submit("a", [5, 0], 6)
    assert lanes.submit("b", [1, 2, 3], 8)
    assert not lanes.submit("c", [4], 3)
    assert (lanes.skipped, lanes.poll()) == (1, [])
    queue.go(1)
    assert lanes.poll() == [Done("a", (5, 0), plain.digests([5, 0], 6))]
    assert lanes.submit("d", [4], 2)
    assert not lanes.submit("e", [4], 3)
    queue.go(2)
    assert lanes.poll() == [
        Done("b", (1, 2, 3), plain.digests([1, 2, 3], 8)),
        Done("d", (4,), plain.digests([4], 2)),
    ]
    assert (lanes.skipped, lanes.poll()) == (2, [])


class Seen(TorchDispatchMode):
    """Which operations of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **kwargs or {})


def test_enqueuing_copies_launches_and_does_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes(Fingerprints(parts(), SECRET, kernel=True), room=3)
    # the interpreter itself calls torch, so the launches are only counted here
    launched: list[str] = []
    monkeypatch.setattr(kernel.Launch, "into", lambda *_: launched.append("cells"))
    monkeypatch.setattr(kernel.RollUp, "into", lambda *_: launched.append("pages"))
    with Seen() as seen:
        assert lanes.submit("one", [1, 2], 5)
    assert launched == ["cells", "cells", "pages"]
    assert seen.names == {"aten.copy_.default"}


def test_it_is_refused_while_a_graph_is_captured() -> None:
    lanes = Lanes(Fingerprints(parts(), SECRET, kernel=True), room=3, queue=Capturing())
    with pytest.raises(RuntimeError, match="a graph is being captured"):
        lanes.submit("one", [1], 3)
    assert (lanes.skipped, lanes.poll()) == (0, [])


def test_what_cannot_be_checked_is_refused_and_takes_no_lane() -> None:
    lanes = Lanes(Fingerprints(parts(), SECRET, kernel=True), room=2, lanes=1, queue=Late())
    with pytest.raises(ValueError, match="3 pages, and these lanes have room for 2"):
        lanes.submit("one", [1, 2, 3], 9)
    with pytest.raises(IndexError, match="no page 6: the cache has 6"):
        lanes.submit("one", [6], 3)
    assert lanes.submit("one", [1], 3)
    with pytest.raises(ValueError, match="kernel=True; torch takes those of 0 K, 0 V"):
        Lanes(Fingerprints(parts(), SECRET), room=2)
