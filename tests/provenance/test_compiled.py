"""The compiled kernel sees what the interpreted one sees, also while it gives back what is over."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kvwitness.audit.provenance import replay as driver
from kvwitness.audit.provenance.encode import COLUMNS, Lists
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.replay import Replay
from tests.provenance.support import CASES, facts_of, frame_of, ground_of
from tests.referee.generate import FAULTS, generate

NAMES = [None, *sorted(FAULTS)]
SEEDS = range(40, 62)
REPEATED = ["timeout-with-writer-open", "read-past-share", "source-freed-early", "evicted-under-sharer"]


def traces() -> dict[str, pl.DataFrame]:
    """Generated traces, each with its fault, and every seventh case."""
    made = {f"seed {seed}": frame_of(generate(seed, NAMES[seed % len(NAMES)], requests=8).events) for seed in SEEDS}
    return made | {path.stem: frame_of(path) for path in sorted(CASES.glob("*.jsonl"))[::7]}


def told(facts: pl.DataFrame) -> list[dict[str, Any]]:
    return facts.to_dicts()


def test_compiled_and_interpreted_see_the_same() -> None:
    found = 0
    for name, frame in traces().items():
        expected = told(facts_of(frame))
        assert told(facts_of(frame, compiled=True)) == expected, name
        found += len(expected)
    assert found > 100


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


@pytest.mark.parametrize(
    "name",
    [
        "h20-backed-up-and-loaded-back",
        "h20-longer-run-over-a-shared-prefix",
        "x07-two-owners-and-a-backup",
        "x11-host-copy-recycled-within-a-tenant",
        "x11-recycled-host-copy",
    ],
)
def test_a_key_stands_for_the_copies_of_evicted_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = ordered(frame_of(CASES / f"{name}.jsonl"))
    plain, _ = facts_in_batches(frame, monkeypatch, reclaim_pages=1 << 30, rows=1)
    monkeypatch.setattr(Replay, "_reclaim_at", property(lambda _: 0, lambda *_: None), raising=False)
    spare, _ = facts_in_batches(frame, monkeypatch, reclaim_pages=0, rows=1)
    assert told(spare) == told(plain)


def facts_in_batches(
    frame: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, *, reclaim_pages: int, rows: int = 40
) -> tuple[pl.DataFrame, int]:
    """Facts of a compiled replay in small batches, and how many records of transfers were given back."""
    monkeypatch.setattr(driver, "BATCH_ROWS", rows)
    monkeypatch.setattr(driver, "RECLAIM_PAGES", reclaim_pages)
    replay = Replay(ground_of(frame).encoder, compiled=True)
    replay.feed(frame.select(COLUMNS), Lists.of_frame(frame))
    begun = frame["event"].is_in(["transfer.begin", "transfer.offer"]).sum()
    return replay.take_facts(), begun - replay.world.used("transfers")
