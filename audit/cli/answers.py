"""Where a command takes an answer from: a trace that it judges itself, or the newest run of a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvwitness.audit.api import judge_file
from kvwitness.audit.cli.output import say
from kvwitness.audit.cli.progress import stages
from kvwitness.audit.cli.remarks import remarks
from kvwitness.audit.cli.stores import age, open_store
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.inforce import Parameters
from kvwitness.audit.pipeline import Judgement
from kvwitness.audit.telling.answer import Answer

STDIN = "-"

TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", help="Judge this trace (.jsonl, plain, gzip or zstd; - is standard input)."
    ),
]


@dataclass(frozen=True)
class Judged:
    """A trace that was judged without a store."""

    name: str
    answer: Answer
    judgement: Judgement


def judge_named(trace: str, *, quiet: bool, parameters: Parameters | None = None) -> Judged:
    """Judge a trace file; lines that gave no event are told. `parameters`: of the rules; None: their defaults.

    Raises `KvwitnessError` when it holds no event.
    """
    name = "standard input" if trace == STDIN else trace
    chosen = parameters or Parameters()
    with stages(quiet=quiet) as stage:
        judgement, report, events = judge_file(trace, overrides=chosen.overrides, progress=stage)
    for remark in remarks(report):
        say(f"{name}: {remark}", quiet=quiet)
    if not report.events:
        raise KvwitnessError(
            f"{name} holds no event.",
            "A trace is JSON Lines, one event per line, plain or compressed with gzip or zstd.",
        )
    return Judged(name, Answer.of_trace(judgement, events), judgement)


def find_answer(store: Path, trace: str | None, *, quiet: bool, required: bool = True) -> Answer:
    """The answer to look things up in; for a store also what a reader should know of its age."""
    if trace is not None:
        return judge_named(trace, quiet=quiet).answer
    opened = open_store(store)
    answer = Answer.of_store(opened, required=required)
    if not answer.judged:
        say(f"{opened.path} was not audited yet; `kvwitness audit` judges it.", quiet=quiet)
    elif answer.run is not None and (told := age(opened, answer.run["started_ns"], answer.run["events"])):
        say(told, quiet=quiet)
    return answer
