"""`kvwitness demo`: what the audit does, on a recorded leak and on a generated incident of thirteen days."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from kvwitness.audit.cli.explain import story
from kvwitness.audit.cli.options import QuietOption
from kvwitness.audit.cli.output import Format, Printer, say
from kvwitness.audit.cli.progress import stages
from kvwitness.audit.cli.summary import incident_table
from kvwitness.audit.cli.tables import Block, Prose
from kvwitness.audit.demo import Scene, incident_155, prepare, recorded
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.overall.overview import incident_rows, looked_at, verdict_in_words
from kvwitness.audit.telling.dossier import open_dossier
from kvwitness.audit.wording import several

app = typer.Typer(add_completion=False)

_FAILED = 2
_TOP = 5
DEFAULT_DIR = Path("kvwitness-demo")


@app.command("demo")
def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where traces and stores go, and stay.", show_default=True)
    ] = DEFAULT_DIR,
    open_: Annotated[bool, typer.Option("--open", help="Then show the second store in the browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Find a real engine's recorded leak and explain it, then 155 generated ones.

    Status 0 when exactly what is known to have happened was found, else 2. With --open it then goes on as
    `kvwitness dashboard`.
    """
    printer = Printer(Format.TABLE)
    prepare(directory)
    started = time.perf_counter()
    with stages(quiet=quiet) as stage:
        first = recorded(directory, stage)
    printer.blocks(_recorded(first))
    with stages(quiet=quiet) as stage:
        second = incident_155(directory, stage)
    printer.blocks(_incident(second))
    printer.blocks(_next(first, second, time.perf_counter() - started))
    wrong = [*first.deviations, *second.deviations]
    for deviation in wrong[:10]:
        say(f"error: {deviation}")
    if wrong:
        say(f"The audit is wrong in {several(len(wrong), 'place')}. This is a fault in kvwitness.")
        raise typer.Exit(_FAILED)
    if open_:
        open_dashboard(second.store)


def _recorded(scene: Scene) -> list[Block]:
    incidents = incident_rows(scene.answer).filter(pl.col("verdict") == "leak")
    return [
        Prose("1. A trace recorded from two SGLang 0.5.19 servers, in which a known bug happened", heading=True),
        Prose(looked_at(scene.answer, scene.page_events)),
        Prose(verdict_in_words(scene.answer)),
        incident_table(incidents, "What was found"),
        *story(open_dossier(scene.answer, incidents["incident"][0])),
    ]


def _incident(scene: Scene) -> list[Block]:
    incidents = incident_rows(scene.answer).filter(pl.col("verdict") == "leak")
    took = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in scene.seconds.items())
    return [
        Prose("\n2. Thirteen generated days of a prefill/decode deployment", heading=True),
        Prose(looked_at(scene.answer, scene.page_events)),
        Prose(verdict_in_words(scene.answer)),
        incident_table(incidents.head(_TOP), f"The first {_TOP} of {len(incidents):,}"),
        Prose(f"{_compared(scene)} It took: {took}."),
    ]


def _compared(scene: Scene) -> str:
    """The audit's answer beside what the generator wrote down, which shares no code with the audit."""
    hit = sum(scene.known.get(name) == whose for name, whose in scene.found.items())
    extra = len(scene.found.keys() - scene.known.keys())
    return (
        f"The generator had planted {several(len(scene.known), 'leak')}: {hit:,} were found with exactly the "
        f"tenants whose content was read, and {extra:,} besides."
    )


def _next(first: Scene, second: Scene, seconds: float) -> list[Block]:
    one = incident_rows(second.answer)
    request, incident = one["request"][0], one["incident"][0]
    pool = one["pools"][0][0]
    store = shlex.quote(str(second.store))
    lines = [
        f"incidents --store {store} --limit 20",
        f"explain {incident} --store {store}",
        f"request {shlex.quote(request)} --store {store}",
        f"page {shlex.quote(pool['pool'])}/{pool['pages'][0]} --store {store}",
        f'sql "SELECT tenant, count(*) FROM incidents GROUP BY ALL" --store {store}',
        f"audit --trace {shlex.quote(str(first.trace))}",
        "rules list",
    ]
    return [
        Prose(
            f"\n3. What to try next ({seconds:.0f} s so far, stores kept in {second.store.parent})",
            heading=True,
        ),
        *[Prose(f"{program()} {line}", verbatim=True) for line in lines],
    ]


def program() -> str:
    """How the command was called, so that what is printed can be copied: by name where the shell finds it."""
    called = Path(sys.argv[0])
    found = shutil.which("kvwitness")
    if called.name != "kvwitness" or (found and os.path.samefile(found, called)):
        return "kvwitness"
    return shlex.quote(str(called))


def open_dashboard(store: Path) -> None:
    """Go on as the dashboard of a store. It belongs to another room, and is found like any other command."""
    if find_spec("streamlit") is None:
        raise KvwitnessError(
            "The dashboard needs Streamlit, which is not installed here.", "pip install 'kvwitness[dashboard]'"
        )
    sys.stdout.flush()
    start = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]
    os.execv(sys.executable, [*start, "dashboard", "--store", str(store), "--browser"])
