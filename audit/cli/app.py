"""The command `kvwitness`: finds the subcommands, runs one, turns its end into an exit status.

Exit status: 0 clean, 1 findings, 2 wrong usage or an operational error, 130 interrupted, 141 when whoever
read our output went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvwitness import __version__
from kvwitness.audit.cli.commands import LazyCommands
from kvwitness.audit.cli.output import say
from kvwitness.audit.errors import KvwitnessError

CLEAN, FINDINGS, FAILED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


class _Root(TyperGroup):
    """Loads a subcommand when it is asked for, so that `--version` does not wait for a query engine to
    load."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; leave quietly when the reader of our output is gone."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The interpreter flushes stdout once more when it ends; that must not fail a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:
            say("stopped")
            raise typer.Exit(INTERRUPTED) from None
        except typer.Abort:
            say("nothing was done")
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=_Root,
    name="kvwitness",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvwitness {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Who read which KV-cache page, and whose content it held."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status; never raises."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="kvwitness")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except KvwitnessError as error:
        _failed(error.message, error.advice)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _failed(f"{where}{error.strerror or error}")
    except Exception as error:
        _failed(
            f"{type(error).__name__}: {error}",
            "This is a fault in kvwitness. Set KVWITNESS_DEBUG=1 to see where it happened.",
        )
    return FAILED


def _failed(message: str, advice: str = "") -> None:
    """Tell a person what is wrong and what to do; with KVWITNESS_DEBUG also where in the code."""
    if os.environ.get("KVWITNESS_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    say(f"error: {message}")
    if advice:
        say(advice)


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run())
