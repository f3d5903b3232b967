"""The compiled kernel sees what the interpreted one sees: also from the cache, and while it gives back what is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.provenance import replay as driver
from kvwitness.audit.provenance.encode import COLUMNS
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.replay import Replay
from tests.provenance.support import CASES, facts_of, frame_of, ground_of
from tests.referee.generate import FAULTS, generate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = [None, *sorted(FAULTS)]
SEEDS = range(40, 62)
REPEATED = ["timeout-with-writer-open", "read-past-share", "source-freed-early", "evicted-under-sharer"]


def traces() -> dict[str, pl.DataFrame]:
    """Generated traces, each with its fault, and every seventh case."""
    made = {f"seed {seed}": frame_of(generate(seed, NAMES[seed % len(NAMES)], requests=8).events) for seed in SEEDS}
    return made | {path.stem: frame_of(path) for path in sorted(CASES.glob("*.jsonl"))[::7]}


def told(facts: pl.DataFrame) -> list[dict[str, Any]]:
    return facts.to_dicts()


def main() -> None:
    """Facts of all traces by the compiled kernel, as JSON; and how often a function came out of the cache."""
    facts = {name: told(facts_of(frame, compiled=True)) for name, frame in traces().items()}
    run = sys.modules["kvwitness.audit.provenance.kernel.run"].run
    print(json.dumps({"facts": facts, "loaded": sum(run.stats.cache_hits.values())}))


def compiled_in_a_process(cache: Path) -> dict[str, Any]:
    program = "from tests.provenance.test_compiled import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "KVWITNESS_CACHE": str(cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_compiled_and_loaded_and_interpreted_see_the_same(tmp_path: Path) -> None:
    """Two processes one after the other: the first compiles, the second loads what the first left."""
    expected = {name: told(facts_of(frame)) for name, frame in traces().items()}
    assert len(expected) > 30
    assert sum(map(len, expected.values())) > 100
    first, second = compiled_in_a_process(tmp_path), compiled_in_a_process(tmp_path)
    assert (first["loaded"], second["loaded"]) == (0, 1)
    for name, facts in expected.items():
        assert first["facts"][name] == facts, name
        assert second["facts"][name] == facts, name


def over_again(times: int) -> pl.DataFrame:
    """A trace again and again, 20 minutes apart, each time by other requests: what is over becomes much."""
    rounds = []
    for number in range(times):
        trace = generate(100 + number, REPEATED[number % len(REPEATED)], requests=6)
        for event in trace.events:
            renamed = {name: f"{event[name]}-{number}" for name in ("request", "transfer", "key") if name in event}
            rounds.append(event | renamed | {"t": number * 1200.0 + event["t"] % 1000})
    rounds.sort(key=lambda event: event["t"])
    seq: dict[str, int] = {}
    for event in rounds:
        event["seq"] = seq[event["source"]] = seq.get(event["source"], 0) + 1
    return frame_of(rounds)


def test_giving_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = ordered(over_again(8))
    plain = facts_in_batches(frame, monkeypatch, reclaim_pages=1 << 30)
    assert plain[1] == 0
    spare = facts_in_batches(frame, monkeypatch, reclaim_pages=0)
    assert spare[1] > 20
    assert len(plain[0]) > 20
    assert spare[0].equals(plain[0])


def facts_in_batches(
    frame: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, *, reclaim_pages: int
) -> tuple[pl.DataFrame, int]:
    """Facts of a compiled replay in small batches, and how many records of transfers were given back."""
    monkeypatch.setattr(driver, "BATCH_PAGES", 40)
    monkeypatch.setattr(driver, "RECLAIM_PAGES", reclaim_pages)
    replay = Replay(ground_of(frame).encoder, compiled=True)
    replay.feed(frame.select(COLUMNS))
    begun = frame["event"].is_in(["transfer.begin", "transfer.offer"]).sum()
    return replay.take_facts(), begun - replay.used("_transfers")
