"""Copies of what the alerts remember, in a form that any DuckDB reads: the views of alerts stand on them.

The truth is the ledger. Before a change is committed there, the state beside the copies says, durably, that one is on
its way; when it is committed, the copies of what it touched are replaced, and then the state says that all is settled.
Whoever dies in between leaves that note behind, and the views fail until somebody settles it
(`kvwitness.audit.store.views.alerts`). All of this happens under a lock, so that no older copy comes after a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store.durable import FileLock, make_dir, remove, write_atomic
from kvwitness.audit.store.failures import explained
from kvwitness.audit.store.views.alerts import OF_ALERTS, STATE, file_of
from kvwitness.audit.store.views.model import ResultView

Tables = Mapping[str, Callable[[], Iterable[Mapping[str, Any]]]]
"""View -> its rows as of now, each with at least the columns of the view."""


@dataclass(frozen=True)
class Standing:
    """Where the ledger stands."""

    revision: int
    """Grows with every change."""
    begun: bool
    """Whether any check ever ran."""
    checked_ns: int | None
    """When one judged the store last."""


class Copies:
    """The copies of one ledger."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: set[str] = set()
        self.behind: str | None = None
        """Why the copies could not be replaced; None: they are as the ledger."""
        make_dir(directory)
        self.lock = FileLock(directory / "lock")
        """Held by whoever changes the ledger, from before the change until the copies are replaced."""

    def settled(self, revision: int) -> bool:
        """Whether the copies are those of this revision of the ledger."""
        try:
            state = orjson.loads((self._directory / STATE).read_bytes())
            found: tuple[Any, ...] = state["changing_ns"], state["revision"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return found == (None, revision) and all((self._directory / file_of(v)).exists() for v in OF_ALERTS)

    def announce(self, now: Standing) -> None:
        """Say that a change of the ledger is on its way. Raises `StoreError` where that cannot be said."""
        if not self.settled(now.revision):  # somebody found a copy lost, and put an empty one in its place
            self._waiting |= {view.name for view in OF_ALERTS}
        self._state(now, time.time_ns())

    def settle(self, tables: Tables, touched: Collection[str], now: Standing) -> None:
        """Replace the copies of the views in `touched`, and say that all is settled.

        Where that fails (`behind`), the change was made all the same: the note stays, and the next change tries again.
        """
        self._waiting |= set(touched)
        try:
            for view in OF_ALERTS:
                if view.name in self._waiting:
                    self._write(view, tables[view.name]())
            self._state(now, None)
        except KvwitnessError as exc:
            self.behind = exc.message
            return
        self._waiting.clear()
        self.behind = None

    def tidy(self) -> None:
        """Remove what was being written when somebody died."""
        for path in self._directory.glob("*.json.*"):
            remove(path)

    def _write(self, view: ResultView, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = [orjson.dumps({name: row[name] for name in view.columns if name in row}) for row in rows]
        self._place(file_of(view), b"".join(line + b"\n" for line in lines))

    def _state(self, now: Standing, changing_ns: int | None) -> None:
        self._place(STATE, orjson.dumps(asdict(now) | {"changing_ns": changing_ns}) + b"\n")

    def _place(self, name: str, data: bytes) -> None:
        path = self._directory / name
        with explained("publishing the alerts in", path):
            write_atomic(path, data, self._directory)
