"""Digests beside a running engine: enqueued without waiting or allocating, left out when too many are on their way.

A lane is everything that one check needs while it is on its way: a host buffer of page numbers that nothing else writes
to until the device has read it, room for cells, and a host buffer for what comes back. All of it is made beforehand.
`submit` takes a free lane, and where there is none, counts a check as skipped and leaves it; `poll` takes in what has
come back. The work is done on a stream of its own that first waits for what the engine had enqueued so far.

The pages must stay as they are until their digests have come back, as those of a transfer do: who writes to them in
between gets digests of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kvwitness.gpu_tracer.content.fingerprint import Fingerprints, joined


class Queue(Protocol):
    """Where work is done in order, and how one learns that it has been."""

    pins: bool
    """Whether host buffers have to be pinned, so that copies need not wait."""

    def capturing(self) -> bool:
        """Whether what is enqueued now would go into a graph instead of being done."""

    def enqueue(self, work: Callable[[], None]) -> Callable[[], bool]:
        """Have work done after all that the engine has enqueued; a question whether it has been, that never waits."""


class SideStream:
    """A CUDA stream of low priority."""

    pins = True

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device=device, priority=0)  # type: ignore[no-untyped-call, unused-ignore]

    def capturing(self) -> bool:
        """See `Queue`."""
        return bool(torch.cuda.is_current_stream_capturing())

    def enqueue(self, work: Callable[[], None]) -> Callable[[], bool]:
        """See `Queue`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            work()
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            done.record(self._stream)
        return lambda: bool(done.query())


class AtOnce:
    """No queue: the CPU does it before it goes on."""

    pins = False

    def capturing(self) -> bool:
        """See `Queue`."""
        return False

    def enqueue(self, work: Callable[[], None]) -> Callable[[], bool]:
        """See `Queue`."""
        work()
        return lambda: True


@dataclass(frozen=True)
class Done:
    """A check that has come back."""

    name: str
    """As given to `submit`."""
    pages: tuple[int, ...]
    digests: list[str]


@dataclass
class _Lane:
    ids: Any
    """On the host, as numpy sees it: how many pages, their numbers, and how many positions hold something."""
    work: Callable[[], None]
    back: torch.Tensor
    """On the host: `[lane, layer, page]`."""
    busy: bool = False


@dataclass
class _Flight:
    lane: _Lane
    name: str
    pages: tuple[int, ...]
    valid: int
    done: Callable[[], bool]


@dataclass
class Lanes:
    """Takes digests of up to `room` pages at a time, as many checks at once as there are lanes.

    Raises ValueError where the fingerprints do not come from the kernel alone: operations of torch allocate.
    """

    fingerprints: Fingerprints
    room: int
    lanes: int = 4
    queue: Queue | None = None
    """Where the work is done. Absent: a stream of its own on a GPU, else at once."""
    skipped: int = 0
    """Checks that were left out because all lanes were busy."""
    _all: list[_Lane] = field(default_factory=list, repr=False)
    _flying: list[_Flight] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.fingerprints.by_torch:
            names = ", ".join(self.fingerprints.by_torch)
            raise ValueError(f"lanes need fingerprints with kernel=True; torch takes those of {names}")
        device = self.fingerprints.parts[0].data.device
        if self.queue is None:
            self.queue = SideStream(device) if device.type == "cuda" else AtOnce()
        self._queue = self.queue
        self._number = min(int(part.data.shape[0]) for part in self.fingerprints.parts)
        self._all = [self._lane(device) for _ in range(self.lanes)]

    def submit(self, name: str, pages: Sequence[int], valid: int) -> bool:
        """Enqueue a check of the first `valid` positions of some pages; False where it was skipped. Waits for nothing.

        Raises RuntimeError while a graph is being captured, which the check would become a part of; ValueError for more
        pages than there is room for; IndexError for a number that is no page's.
        """
        if self._queue.capturing():
            raise RuntimeError("a graph is being captured: checks are to be made between replays")
        if len(pages) > self.room:
            raise ValueError(f"{len(pages)} pages, and these lanes have room for {self.room}")
        for page in pages:
            if not 0 <= page < self._number:
                raise IndexError(f"there is no page {page}: the cache has {self._number}")
        lane = next((one for one in self._all if not one.busy), None)
        if lane is None:
            self.skipped += 1
            return False
        lane.busy = True
        lane.ids[0], lane.ids[-1] = len(pages), valid
        lane.ids[1 : 1 + len(pages)] = pages
        done = self._queue.enqueue(lane.work)
        self._flying.append(_Flight(lane, name, tuple(pages), valid, done))
        return True

    def poll(self) -> list[Done]:
        """Checks that have come back since the last time, in the order of `submit`. Waits for nothing."""
        back: list[Done] = []
        while self._flying and self._flying[0].done():
            one = self._flying.pop(0)
            layers = one.lane.back[:, :, : len(one.pages)].permute(2, 1, 0).tolist()
            one.lane.busy = False
            numbers = [[joined(lanes) for lanes in of_page] for of_page in layers]
            back.append(Done(one.name, one.pages, self.fingerprints.told(numbers, one.valid)))
        return back

    def _lane(self, device: torch.device) -> _Lane:
        from kvwitness.gpu_tracer.content.kernel import RollUp

        taken = self.fingerprints
        rooms = [launch.room(self.room) for launch, _ in taken.launches]
        places = [[taken.layers.index(taken.parts[at].layer) for at in which] for _, which in taken.launches]
        up = RollUp(rooms, places, taken.page_tokens, self.room)
        ids = torch.zeros(2 + self.room, dtype=torch.int64, pin_memory=self._queue.pins)
        back = torch.zeros(up.shape, dtype=torch.int64, pin_memory=self._queue.pins)
        table, out = ids.to(device, copy=True), back.to(device, copy=True)

        def work() -> None:
            table.copy_(ids, non_blocking=True)
            for (launch, _), room in zip(taken.launches, rooms, strict=True):
                launch.into(room, table)
            up.into(out, table)
            back.copy_(out, non_blocking=True)

        work()  # of no pages: what has to be compiled is compiled now
        return _Lane(ids.numpy(), work, back)
