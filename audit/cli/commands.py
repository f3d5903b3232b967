"""Which subcommands there are, and where each is found.

The commands of the audit stand in `OWN`. Other rooms, and other distributions, add theirs through the
entry-point group `kvwitness.commands`: the name is the subcommand, the value a `typer.Typer` (with one
command, or a group of them). Nothing is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from kvwitness.audit.errors import KvwitnessError

GROUP = "kvwitness.commands"

OWN = {
    "demo": "kvwitness.audit.cli.demo",
    "audit": "kvwitness.audit.cli.audit",
    "incidents": "kvwitness.audit.cli.incidents",
    "explain": "kvwitness.audit.cli.explain",
    "note": "kvwitness.audit.cli.note",
    "request": "kvwitness.audit.cli.request",
    "page": "kvwitness.audit.cli.page",
    "sql": "kvwitness.audit.cli.sql",
    "check": "kvwitness.audit.cli.check",
    "watch": "kvwitness.audit.cli.watch",
    "alerts": "kvwitness.audit.cli.alerts",
    "rules": "kvwitness.audit.cli.rules",
    "store": "kvwitness.audit.cli.store",
}
"""Subcommand -> module that defines its `app`, in the order of the help text."""
_FIRST = ("demo", "import")
"""What one does first stands first in the help text, whoever provides it."""


class LazyCommands(MutableMapping[str, Any]):
    """Subcommand -> command object, imported on first use."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _plugged_in(self) -> dict[str, EntryPoint]:
        found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
        return {point.name: point for point in found if point.name not in OWN}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name in OWN:
                app = import_module(OWN[name]).app
            elif name in self._plugged_in:
                app = _load(self._plugged_in[name])
            else:
                raise KeyError(name)
            self._loaded[name] = _command(app, name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys([*OWN, *self._plugged_in, *self._loaded])
        return iter(sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _command(app: typer.Typer, name: str) -> Any:
    command = typer.main.get_command(app)
    command.name = name
    return command


def _load(point: EntryPoint) -> typer.Typer:
    """The command behind an entry point, or one that says why it cannot be had."""
    try:
        loaded = point.load()
    except ImportError as error:
        return _unavailable(point.name, str(error))
    if isinstance(loaded, typer.Typer):
        return loaded
    return _unavailable(point.name, f"{point.value} is not a typer.Typer")


def _unavailable(name: str, reason: str) -> typer.Typer:
    app = typer.Typer(add_completion=False)

    @app.command(
        help=f"Not available here: {reason}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse(context: typer.Context) -> None:
        raise KvwitnessError(
            f"`kvwitness {name}` is not available here: {reason}.",
            "It may belong to an optional part, such as `kvwitness[otlp]`; the README lists them.",
        )

    return app
