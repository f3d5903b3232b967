"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvwitness.audit.cli.output import Format

DEFAULT_STORE = Path("kvwitness-store")

StoreOption = Annotated[
    Path, typer.Option("--store", envvar="KVWITNESS_STORE", help="Directory of the store.", show_default=True)
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How to print the data; a table on a terminal, JSON Lines elsewhere."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the data to this file instead of standard output."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks; errors are still told.")]
