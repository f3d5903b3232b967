"""`kvwitness lab`: a leak that can be seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kvwitness.gpu_tracer.lab.faults import TOLD, Fault, Guard

app = typer.Typer(no_args_is_help=True, help="Run a small engine in which a leak can be seen.")

_FAILED = 2
_RINGS, _STORE = "rings", "store"


@app.callback()
def lab() -> None:
    """Run a small engine in which a leak can be seen."""


@app.command("faults")
def faults() -> None:
    """List the faults that can be switched on."""
    for fault in Fault:
        print(f"{fault:19} {TOLD[fault].happens}")


@app.command("run")
def run(
    fault: Annotated[Fault, typer.Option(help="What the engine does wrong; `kvwitness lab faults` says more.")],
    scrub: Annotated[bool, typer.Option("--scrub", help="Overwrite pages with zeros when they are freed.")] = False,
    poison: Annotated[bool, typer.Option("--poison", help="Overwrite pages with marks when they are freed.")] = False,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="Mark freed pages, and refuse to read rows that still have the mark.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Chooses the words of the prompts.")] = 0,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where rings and store go; those of an earlier run are replaced.")
    ] = Path("kvwitness-lab"),
) -> None:
    """Serve a few prompts of three tenants, with or without a fault, and show the answers beside what was found.

    Status 0 when a fault was found as it has to be, or nothing where there is none; else 2.
    """
    try:
        import torch

        from kvwitness.gpu_tracer.lab import judge, screen
        from kvwitness.gpu_tracer.lab.run import run as run_lab
    except ImportError as error:
        _refuse(
            f"the lab needs torch, which cannot be imported here ({error}); `pip install torch`, a CPU build will do"
        )
    wishes = {Guard.SCRUB: scrub, Guard.POISON: poison, Guard.REFUSE: refuse}
    chosen = [guard for guard, wanted in wishes.items() if wanted]
    if len(chosen) > 1:
        _refuse(f"choose one of {' and '.join(f'--{guard}' for guard in chosen)}")
    guard = chosen[0] if chosen else Guard.NONE
    rings, store = _prepared(directory)
    torch.set_num_threads(1)  # its matrices are too small to be shared out
    outcome = run_lab(rings, fault, guard=guard, seed=seed)
    print("\n".join(screen.answers(outcome, fault, guard)), flush=True)
    try:
        judged = judge.judge(rings, store)
        print("\n".join(screen.findings(judged)))
        if (where := screen.stale_page(judged)) is not None:
            print("\n".join(screen.fingerprints(*where, judge.fingerprints(store, *where))))
    except judge.Failed as failure:
        _refuse(str(failure))
    print("\n".join(screen.onward(judged, store)))
    if not _as_it_has_to_be(judged.findings, fault, guard):
        _refuse("what was found is not what has to be found; this is a fault in kvwitness")


def _as_it_has_to_be(findings: list[dict[str, Any]], fault: Fault, guard: Guard) -> bool:
    """Whether a fault was found by its rules at its request; a guard leaves something of it for other rules."""
    if fault is Fault.NONE:
        return not findings
    found = {row["rule"] for row in findings if row["request"] == TOLD[fault].request}
    return bool(found) and (guard is not Guard.NONE or found >= {*TOLD[fault].rules})


def _prepared(directory: Path) -> tuple[Path, Path]:
    """Folders for rings and store, empty."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        strangers = {path.name for path in directory.iterdir()} - {_RINGS, _STORE}
    except OSError as error:
        _refuse(f"{directory} cannot be used: {error.strerror}")
    if strangers:
        _refuse(f"{directory} holds something else than a run of the lab ({min(strangers)}); choose another with --dir")
    for name in (_RINGS, _STORE):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / _RINGS).mkdir()
    return directory / _RINGS, directory / _STORE


def _refuse(why: str) -> NoReturn:
    typer.echo(f"error: {why}", err=True)
    raise typer.Exit(_FAILED)
