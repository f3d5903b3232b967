"""Progress on standard error, for people only: silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[int, int | None], None]
"""Called with what is done and, where known, the total; both in one unit."""


Stage = Callable[[str, float], None]
"""Called with what is being done and the fraction of it that is done."""


def _ignore(done: int, total: int | None) -> None:
    """Nobody watches."""


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Report]:
    """A progress bar named `what` for the duration of the block; yields the function that moves it."""
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    with _bar() as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def stages(*, quiet: bool = False) -> Iterator[Stage]:
    """A progress bar for work that goes through stages; yields the function that names them and moves it."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done: None
        return
    with _bar() as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
