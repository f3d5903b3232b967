"""The time, as something that is handed in: a test turns it by hand, and nothing sleeps that could be woken."""

from __future__ import annotations

import threading
import time
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What the alerts know of time."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...

    def wait_until(self, moment_ns: int) -> bool:
        """Return at that moment, or earlier when there is nothing more to wait for: then False."""
        ...


class SystemClock:
    """The machine's clock; `stop` wakes whoever waits."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()

    def stop(self) -> None:
        """End all waiting, now and later."""
        self._stopped.set()

    def wait_until(self, moment_ns: int) -> bool:
        """Wait; False when stopped."""
        return not self._stopped.wait(max(0, moment_ns - time.time_ns()) / SECOND_NS)
