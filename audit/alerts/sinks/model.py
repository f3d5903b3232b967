"""What a sink is: it takes one notice, and either has delivered it when it returns, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section


class Unreachable(Exception):
    """The other side could not take it now, and may later: it is tried again, and what follows waits.

    `after_s` is how long the other side asked for, if it did.
    """

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class Refused(Exception):
    """The other side will never take this one: it is put aside, told, and the next one is sent."""


class Sink(Protocol):
    """Where notices go."""

    def deliver(self, notice: Notice) -> None:
        """Send one notice. Returns when the other side has taken it; raises `Unreachable` or `Refused`."""
        ...


@runtime_checkable
class Standing(Protocol):
    """A sink that forgets what it is not reminded of."""

    def remind(self, firing: Sequence[Notice], now_ns: int) -> None:
        """Say again which alerts fire. Raises `Unreachable` or `Refused`."""
        ...


@runtime_checkable
class Beating(Protocol):
    """A sink that can carry a sign of life."""

    def beat(self, now_ns: int, every_ns: int) -> None:
        """Say that checks run; the next time in about `every_ns`. Raises `Unreachable` or `Refused`."""
        ...


@dataclass(frozen=True)
class SinkKind:
    """One kind of sink, as configuration names it by `type`."""

    name: str
    about: str
    make: Callable[[Section], Sink]
    """Reads its keys from the table of configuration; the caller complains about keys that nobody read."""
