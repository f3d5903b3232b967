"""Random numbers that are the same on every machine and in every Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class SplitMix64:
    """The splitmix64 generator: one 64-bit counter, one finalizer."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * _STEP + 0xD1B54A32D192ED03) & _MASK

    def next(self) -> int:
        """The next number, 0 <= n < 2**64."""
        self._state = (self._state + _STEP) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return low + self.next() % (high - low + 1)

    def low_end(self, low: int, high: int) -> int:
        """As `between`, skewed to the low end."""
        return min(self.between(low, high), self.between(low, high))

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[self.next() % len(choices)]

    def chance(self, per_mille: int) -> bool:
        """True in so many of a thousand cases."""
        return self.next() % 1000 < per_mille
