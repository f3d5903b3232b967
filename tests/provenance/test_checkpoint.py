"""A replay that was interrupted, saved and restored sees what an uninterrupted one sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np
import polars as pl
import pytest

from kvwitness.audit.provenance import checkpoint, kernel
from kvwitness.audit.provenance.encode import COLUMNS, Lists
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.replay import Replay
from tests.provenance.support import CASES, facts_of, frame_of, replay_of
from tests.referee.generate import generate
from tests.rules.traces import Trace

FAULTS = [
    (None, 5),
    ("seq-hole", 20),
    ("snapshot-into-stranger", 21),
    ("source-freed-early", 22),
    ("late-write-after-abort", 12),
    ("tainted-publish", 25),
    ("host-page-recycled-during-load", 10),
    ("free-in-step", 8),
    ("hanging-transfer", 9),
]

SOME_CASES = ["k05-object-read-while-being-stored", "k06-abort-in-step-reallocated", "k08-tainted-prefix-served-on"]


def traces() -> dict[str, pl.DataFrame]:
    made = {fault or "healthy": frame_of(generate(seed, fault, requests=5).events) for fault, seed in FAULTS}
    return made | {name: frame_of(CASES / f"{name}.jsonl") for name in SOME_CASES}


TRACES = traces()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.npz"


def saved(events: pl.DataFrame, upto: int, state: Path) -> pl.DataFrame:
    """Replay the first events, save; the facts so far."""
    replay = replay_of(events)
    replay.feed(events[:upto].select(COLUMNS), Lists.of_frame(events[:upto]))
    facts = replay.take_facts()
    checkpoint.save(replay, state)
    return facts


def loss_before_a_transfer() -> pl.DataFrame:
    """Whose content leaves page 3 with r1's transfer is not certain: something was lost at its source before."""
    trace = Trace()
    for engine in ("p", "d"):
        trace.add(1, f"{engine}/0", "engine.pool", pool=f"{engine}/0/kv", page_tokens=16, pages_total=32)
    trace.add(2, "p/0", "page.alloc", pool="p/0/kv", pages=[3], request="r2", tenant="t-b")
    trace.add(3, "p/0", "page.write", pool="p/0/kv", pages=[3], request="r2", op="forward", tok=[0, 16])
    trace.add(4, "p/0", "page.read", pool="p/0/kv", pages=[3], request="r2", op="decode", tok=[0, 16], seq=20)
    trace.add(5, "d/0", "page.alloc", pool="d/0/kv", pages=[7], request="r1", tenant="t-a")
    between = {"src_pool": "p/0/kv", "src_pages": [3], "dst_pool": "d/0/kv", "dst_pages": [7], "tokens": 16}
    trace.add(6, "p/0", "transfer.begin", transfer="x", request="r1", **between)
    trace.add(7, "d/0", "page.write", pool="d/0/kv", pages=[7], request="r1", op="transfer", tok=[0, 16])
    trace.add(8, "d/0", "page.read", pool="d/0/kv", pages=[7], request="r1", op="decode", tok=[0, 16])
    return frame_of(trace.events())


@pytest.mark.parametrize("name", list(TRACES))
def test_restored_and_continued_as_if_never_interrupted(name: str, state: Path) -> None:
    count = len(TRACES[name])
    assert_the_same_in_pieces(TRACES[name], [0, count // 4, count // 2, count * 7 // 8, count], state)


@pytest.mark.parametrize("name", ["k08-tainted-prefix-served-on", "loss"])
def test_restored_after_every_single_event(name: str, state: Path) -> None:
    frame = loss_before_a_transfer() if name == "loss" else TRACES[name]
    assert_the_same_in_pieces(frame, list(range(len(frame) + 1)), state)


def assert_the_same_in_pieces(frame: pl.DataFrame, cuts: list[int], state: Path) -> None:
    events = ordered(frame)
    facts = []
    for number, (first, end) in enumerate(pairwise(cuts)):
        replay = replay_of(events)
        assert number == 0 or checkpoint.restore(replay, state)
        replay.feed(events[first:end].select(COLUMNS), Lists.of_frame(events[first:end]))
        facts.append(replay.take_facts())
        checkpoint.save(replay, state)
    replay.orphans(cast(int, events["ref_ns"].max()), len(events) - 1)
    assert pl.concat([*facts, replay.take_facts()]).equals(facts_of(frame))


def test_the_traces_have_something_to_see() -> None:
    codes = {code for frame in TRACES.values() for code in facts_of(frame)["code"].unique()}
    assert len(codes) >= 8


def test_a_state_of_another_kernel_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = ordered(TRACES["seq-hole"])
    saved(events, 100, state)
    monkeypatch.setattr(kernel, "fingerprint", lambda: "another release")
    assert not checkpoint.restore(replay_of(events), state)


def widened(events: pl.DataFrame) -> pl.DataFrame:
    """The same, but that a pool is larger."""
    return events.with_columns(pl.col("pages_total") + 1)


def joined(events: pl.DataFrame) -> pl.DataFrame:
    """The same, but that one more source is heard, last."""
    last = pl.int_range(pl.len()) == pl.len() - 1
    return events.with_columns(source=pl.when(last).then(pl.lit("another")).otherwise("source"))


def closed(events: pl.DataFrame) -> pl.DataFrame:
    """The same, but that pools are shared by nobody."""
    return events.with_columns(sharing=pl.when(pl.col("sharing").is_not_null()).then(pl.lit("none")))


def renamed(events: pl.DataFrame) -> pl.DataFrame:
    """The same, but that a tenant has another name."""
    return events.with_columns(pl.col("tenant").replace("t-ash", "t-oak"))


def torn(events: pl.DataFrame) -> pl.DataFrame:
    """The same, but that events were lost where none seemed to be."""
    at = (pl.col("source") == events["source"][50]) & (pl.int_range(pl.len()) > 50)
    return events.with_columns(seq=pl.when(at).then(pl.col("seq") + 5).otherwise("seq"))


@pytest.mark.parametrize("change", [widened, joined, closed, renamed, torn], ids=lambda change: change.__name__)
def test_a_state_of_another_record_is_refused(change: Callable[[pl.DataFrame], pl.DataFrame], state: Path) -> None:
    events = ordered(TRACES["snapshot-into-stranger"])
    saved(events, 100, state)
    other = ordered(change(TRACES["snapshot-into-stranger"]))
    replay = replay_of(other)
    assert not checkpoint.restore(replay, state)
    replay.feed(other.select(COLUMNS), Lists.of_frame(other))
    assert replay.take_facts().equals(fresh(other))


def fresh(events: pl.DataFrame) -> pl.DataFrame:
    replay = replay_of(events)
    replay.feed(events.select(COLUMNS), Lists.of_frame(events))
    return replay.take_facts()


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_state_says_so_and_leaves_the_replay_fresh(part: float, state: Path) -> None:
    events = ordered(TRACES["tainted-publish"])
    saved(events, 100, state)
    state.write_bytes(state.read_bytes()[: int(state.stat().st_size * part)])
    replay = replay_of(events)
    with pytest.raises((OSError, EOFError, ValueError, KeyError, BadZipFile)):
        checkpoint.restore(replay, state)
    assert as_fresh(replay, events)


def test_a_state_without_one_of_its_columns_says_so_and_leaves_the_replay_fresh(state: Path) -> None:
    events = ordered(TRACES["tainted-publish"])
    saved(events, 100, state)
    with np.load(state) as whole:
        arrays = {name: whole[name] for name in whole.files if name != "keys"}
    np.savez(state, **arrays)
    replay = replay_of(events)
    with pytest.raises(KeyError):
        checkpoint.restore(replay, state)
    assert as_fresh(replay, events)


def as_fresh(replay: Replay, events: pl.DataFrame) -> bool:
    replay.feed(events.select(COLUMNS), Lists.of_frame(events))
    return replay.take_facts().equals(fresh(events))


def test_a_state_holds_numbers_and_names_only(state: Path) -> None:
    """Reading one runs nothing: no array in it needs pickle."""
    saved(ordered(TRACES["seq-hole"]), 100, state)
    with np.load(state, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)
        assert json.loads(arrays["names"].tobytes())["upto"] == 100
