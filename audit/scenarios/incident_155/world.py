"""What every part of the deployment shares: the time, the random numbers and the trace that is written."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TextIO

from kvwitness.audit.scenarios.incident_155.deployment import MICROSECONDS, START
from kvwitness.audit.scenarios.incident_155.pool import Table
from kvwitness.audit.scenarios.incident_155.rng import SplitMix64

Value = str | int | Decimal | Table | tuple[int, int] | dict[str, str]

Step = Callable[..., None]


class World:
    """A queue of things to come, and the record of what happened."""

    def __init__(self, seed: int, out: TextIO) -> None:
        self.rng = SplitMix64(seed)
        self.now = 0
        """Microseconds since the start."""
        self.lines = 0
        self.bytes = 0
        self._out = out
        self._digest = hashlib.sha256()
        self._sequence: dict[str, int] = {}
        self._coming: list[tuple[int, int, Step, tuple[Any, ...]]] = []
        self._planned = 0

    def after(self, delay: int, step: Step, *args: Any) -> None:
        """Call `step` so many microseconds from now; what was planned first goes first at equal times."""
        self._planned += 1
        heapq.heappush(self._coming, (self.now + delay, self._planned, step, args))

    def advance(self) -> bool:
        """Do what comes next; False when nothing does."""
        if not self._coming:
            return False
        self.now, _, step, args = heapq.heappop(self._coming)
        step(*args)
        return True

    def emit(self, source: str, event: str, **fields: Value) -> None:
        """Write one event as `source` observes it now; the order of the fields is kept."""
        sequence = self._sequence[source] = self._sequence.get(source, 0) + 1
        seconds, micros = divmod(START * MICROSECONDS + self.now, MICROSECONDS)
        rest = ",".join([f'"{name}":{_json(value)}' for name, value in fields.items()])
        line = f'{{"t":{seconds}.{micros:06d},"seq":{sequence},"source":"{source}","event":"{event}",{rest}}}\n'
        encoded = line.encode("ascii")
        self._digest.update(encoded)
        self.bytes += len(encoded)
        self.lines += 1
        self._out.write(line)

    @property
    def sha256(self) -> str:
        """Of all that was written so far."""
        return self._digest.hexdigest()


def _json(value: Value) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ",".join([str(a) if a == b else f"[{a},{b}]" for a, b in value]) + "]"
    if isinstance(value, tuple):
        return f"[{value[0]},{value[1]}]"
    if isinstance(value, dict):
        return "{" + ",".join([f'"{name}":"{text}"' for name, text in value.items()]) + "}"
    return str(value)
