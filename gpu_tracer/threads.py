"""One ring per thread: made at a thread's first event, passed on when the thread ends, left behind by a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvwitness.gpu_tracer.encode import Encoder
from kvwitness.gpu_tracer.records import Bind, Decoded, General, Own, Publish, Touch
from kvwitness.gpu_tracer.ring import Ring


@dataclass(frozen=True)
class Pen:
    """What a thread writes with: a ring, and the functions that write into it."""

    ring: Ring
    encoder: Encoder
    alloc: Own
    free: Own
    write: Touch
    read: Touch
    reader: Bind
    writer: Bind
    decoded: Decoded
    publish: Publish

    @classmethod
    def of(cls, ring: Ring, encoder: Encoder, general: General) -> Pen:
        """A pen for a new ring; `general` takes what the short ways cannot."""
        owning, touching = ring.writers.owning, ring.writers.touching
        write, read = touching("page.write", general), touching("page.read", general)
        return cls(
            ring,
            encoder,
            owning("page.alloc", general),
            owning("page.free", general),
            write,
            read,
            ring.writers.binding("page.read", read),
            ring.writers.binding("page.write", write),
            ring.writers.decoding(write, read),
            ring.writers.publishing(general),
        )


class Pens:
    """The rings of one process. `make` makes a new one, or None where it cannot be had."""

    def __init__(self, make: Callable[[], Pen | None]) -> None:
        self._make = make
        self._free: deque[Pen] = deque()
        self.made: list[Pen] = []
        self.open = True

    def take(self) -> Lease | None:
        """A ring for the calling thread, that of a thread which has ended if there is one."""
        if not self.open:
            return None
        try:
            pen: Pen | None = self._free.popleft()
        except IndexError:
            pen = self._make()
            if pen is not None:
                self.made.append(pen)
        return None if pen is None else Lease(pen, self._free)

    def close(self) -> None:
        """Give up all rings and make no more."""
        self.open = False
        for pen in self.made:
            pen.ring.close()
        self.made = []

    def leave(self) -> None:
        """In a process that was forked off: the rings are the parent's."""
        for pen in self.made:
            pen.ring.abandon()
        self.made = []
        self._free = deque()


class Lease:
    """Lives as long as the thread that holds the pen; then another thread may have it."""

    def __init__(self, pen: Pen, free: deque[Pen]) -> None:
        self.pen, self._free = pen, free

    def __del__(self) -> None:
        self._free.append(self.pen)


class PerThread(threading.local):
    """An object whose attributes are each thread's own, but for those in `__slots__`, which all threads share."""

    __slots__ = ()

    def forked(self) -> None:
        """Called in a process that was forked off, in its only thread."""
        raise NotImplementedError


_ALL: weakref.WeakSet[PerThread] = weakref.WeakSet()


def tell_of_forks(one: PerThread) -> None:
    """Have `one.forked` called after each fork, in the child."""
    _ALL.add(one)


def _after_fork() -> None:
    for one in list(_ALL):
        one.forked()


os.register_at_fork(after_in_child=_after_fork)
