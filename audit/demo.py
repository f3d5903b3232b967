"""Two incidents whose answer is known, judged from scratch: a recorded one, and a generated one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.pipeline import Progress
from kvwitness.audit.runs import audit_store
from kvwitness.audit.scenarios.incident_155 import generate
from kvwitness.audit.scenarios.recorded import SGLANG_PLACEHOLDER
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.trace import TraceReader

RECORDED_LEAKS: Mapping[str, frozenset[str]] = {
    "r1017": frozenset({"t-ash", "t-birch"}),
    "r1020": frozenset({"t-birch", "t-cedar"}),
}
"""Request -> tenants whose content it read, in the recorded trace (see the README beside it)."""

_NAMES = {"recorded", "recorded.jsonl", "incident-155", "incident-155.jsonl"}


@dataclass(frozen=True)
class Scene:
    """One trace, judged, beside what is known to have happened in it."""

    trace: Path
    store: Path
    answer: Answer
    page_events: int
    known: Mapping[str, frozenset[str]]
    """Request that leaked -> tenants whose content it read."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What was done -> how long it took."""

    @property
    def found(self) -> dict[str, frozenset[str]]:
        """The leaks that the audit found, in the form of `known`."""
        leaks = self.answer.incidents.filter((pl.col("verdict") == "leak") & pl.col("request").is_not_null())
        pairs = leaks.select("request", "other_tenants").iter_rows()
        return {name: frozenset(whose) for name, whose in pairs}

    @property
    def deviations(self) -> list[str]:
        """Where the audit and what is known disagree; empty when the audit is right."""
        found, known = self.found, self.known
        return [
            *(f"{name} leaked, and was not found" for name in sorted(known.keys() - found.keys())),
            *(f"{name} was found, and did not leak" for name in sorted(found.keys() - known.keys())),
            *(
                f"{name} read {', '.join(sorted(known[name]))}; found: {', '.join(sorted(found[name]))}"
                for name in sorted(known.keys() & found.keys())
                if known[name] != found[name]
            ),
        ]


def prepare(directory: Path) -> None:
    """Make the demo's directory, or accept that of an earlier demo.

    Raises `KvwitnessError` when it holds something else.
    """
    strangers = {path.name for path in directory.iterdir()} - _NAMES if directory.is_dir() else set()
    if strangers:
        raise KvwitnessError(
            f"{directory} holds something else than a demo: {', '.join(sorted(strangers)[:3])}.",
            "Choose a new or empty directory with --dir.",
        )
    directory.mkdir(parents=True, exist_ok=True)


def recorded(directory: Path, progress: Progress) -> Scene:
    """Import and judge the trace that was recorded from two real servers."""
    trace = directory / "recorded.jsonl"
    shutil.copyfile(SGLANG_PLACEHOLDER, trace)
    return _judged(trace, directory / "recorded", RECORDED_LEAKS, {}, progress)


def incident_155(directory: Path, progress: Progress) -> Scene:
    """Generate, import and judge the thirteen days."""
    trace = directory / "incident-155.jsonl"
    seconds: dict[str, float] = {}
    with _timed(seconds, "generating"):
        unfinished = trace.with_suffix(".unfinished")
        try:
            with unfinished.open("w", encoding="ascii", newline="\n") as file:
                truth = generate(file, progress=lambda done, total: progress("generating thirteen days", done / total))
            os.replace(unfinished, trace)
        finally:
            unfinished.unlink(missing_ok=True)
    known = {i.request: frozenset(i.exposure.tenants) for i in truth.incidents if i.verdict == "leak"}
    return _judged(trace, directory / "incident-155", known, seconds, progress)


def _judged(
    trace: Path,
    path: Path,
    known: Mapping[str, frozenset[str]],
    seconds: dict[str, float],
    progress: Progress,
) -> Scene:
    store = Store.create(path, exist_ok=True)
    reader = TraceReader(trace, progress=lambda done, total: progress("importing", done / (total or 1)))
    with _timed(seconds, "importing"):
        store.import_batches(reader, sha256=lambda: reader.report.sha256, name=trace.name)
    if len(store.imports()) > 1:
        raise KvwitnessError(
            f"{path} holds the demo of another version.", f"Remove {trace.parent}, or choose another --dir."
        )
    with _timed(seconds, "judging"):
        run = audit_store(store, progress=progress)
    return Scene(trace, path, Answer.of_store(store), run.judgement.page_events, known, seconds)


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - started
