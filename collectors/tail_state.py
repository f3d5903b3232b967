"""How far each ring of a directory has come into a store, kept beside the rings.

What is going to be written is noted before, as pending, and confirmed after the store has acknowledged it. After a
crash in between, the store tells which it is: it holds all of it or nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvwitness.audit.errors import KvwitnessError


@dataclass(frozen=True)
class Mark:
    """A place in a ring."""

    source: str
    position: int
    """The last number that is in the store."""
    counts: tuple[int, ...] | None
    """Records up to there, per code; None where that is not known."""


@dataclass
class State:
    """The marks of all rings of a directory, by file name, for one store."""

    path: Path
    done: dict[str, Mark] = field(default_factory=dict)
    pending: dict[str, Mark] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path, store_id: str) -> State:
        """What was left for this store. Raises KvwitnessError where it cannot be read."""
        path = directory / f"tail-{store_id[:16]}.json"
        try:
            document = json.loads(path.read_bytes())
            return cls(path, _marks(document["done"]), _marks(document["pending"]))
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KvwitnessError(
                f"{path} cannot be read: {error}",
                "Move it away; rings are then read from the last number that the store has of each.",
            ) from None

    def resume(self, last: Mapping[str, int]) -> None:
        """Settle what was pending when a tail died; `last` is the last number that the store has of each source."""
        moved = [m for name, m in self.pending.items() if m.position > self._position(name)]
        if any(last.get(mark.source, 0) >= mark.position for mark in moved):
            self.done.update(self.pending)
        self.pending = {}

    def _position(self, name: str) -> int:
        return self.done[name].position if name in self.done else 0

    def begin(self, marks: Mapping[str, Mark]) -> None:
        """Note what is going to be written."""
        self.pending = dict(marks)
        self.save()

    def finish(self) -> None:
        """It is in the store."""
        self.done.update(self.pending)
        self.pending = {}
        self.save()

    def save(self) -> None:
        """Replace the file, synced; as long as a ring can live."""
        document = {"done": _plain(self.done), "pending": _plain(self.pending)}
        new = self.path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)


def _plain(marks: Mapping[str, Mark]) -> dict[str, Any]:
    return {name: [m.source, m.position, m.counts] for name, m in marks.items()}


def _marks(document: Mapping[str, Any]) -> dict[str, Mark]:
    return {
        name: Mark(str(source), int(position), None if counts is None else tuple(map(int, counts)))
        for name, (source, position, counts) in document.items()
    }
