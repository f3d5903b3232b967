"""Progress on standard error, for people only: silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None], None]
"""Called with what is done and, where known, the total; both in one unit."""


def _ignore(done: int, total: int | None) -> None:
    """Nobody watches."""


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Report]:
    """A progress bar named `what` for the duration of the block; yields the function that moves it."""
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield report
