"""A store that grows between audits is judged as if all of it had come at once, and only what is new is replayed."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.pipeline import judge
from kvwitness.audit.provenance.encode import Lists
from kvwitness.audit.provenance.replay import Replay
from kvwitness.audit.runs import AuditRun, audit_store
from kvwitness.audit.store import Store
from tests.provenance.support import Event, add, findings, frame_of, incidents, verdicts
from tests.referee.generate import generate
from tests.rules.traces import Trace

PAUSE_S = 10.0
"""Between the pieces: long enough for new events to leave those before it alone."""

TRACES: list[tuple[str | None, int]] = [
    ("late-write-after-abort", 12),
    ("seq-hole", 20),
    ("stub-transfer", 24),
    ("timeout-with-writer-open", 26),
    ("hanging-transfer", 9),
]

LATER_POOLS: list[tuple[str | None, int]] = [("mid-life", 13), ("evicted-under-sharer", 7)]
"""Traces that use a pool, or hear of one more source, only in a later piece."""


def cut(events: list[Event], pieces: int, seed: int) -> list[list[Event]]:
    """Pieces of a trace, with a pause between each and the next."""
    at = sorted(random.Random(seed).sample(range(1, len(events)), pieces - 1))
    return [
        [{**event, "t": round(event["t"] + number * PAUSE_S, 6)} for event in events[first:end]]
        for number, (first, end) in enumerate(pairwise([0, *at, len(events)]))
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each replay was fed."""
    counts: list[int] = []
    feed = Replay.feed

    def counting(self: Replay, events: pl.DataFrame, lists: Lists) -> None:
        counts.append(len(events))
        feed(self, events, lists)

    monkeypatch.setattr(Replay, "feed", counting)
    return counts


def audited(store: Store, pieces: list[list[Event]]) -> list[AuditRun]:
    """The audit after each piece."""
    runs = []
    for events in pieces:
        add(store, frame_of(events), f"{len(store.imports())}")
        runs.append(audit_store(store))
    return runs


def assert_as_of_one_piece(run: AuditRun, events: list[Event]) -> None:
    whole = judge(frame_of(events))
    assert findings(run.judgement) == findings(whole)
    assert incidents(run.judgement) == incidents(whole)
    assert verdicts(run.judgement) == verdicts(whole)
    assert run.judgement.events == len(events)
    assert run.judgement.page_events == whole.page_events


@pytest.mark.parametrize(("fault", "seed"), TRACES)
def test_pieces_in_order(fault: str | None, seed: int, store: Store, fed: list[int]) -> None:
    """Each audit replays its own piece; ids of what befell the same request stay."""
    pieces = cut(generate(seed, fault, requests=5).events, 2 + seed % 2, seed)
    runs = audited(store, pieces)
    assert fed == [len(piece) for piece in pieces]
    assert_as_of_one_piece(runs[-1], [event for piece in pieces for event in piece])
    assert_ids_stay(runs)


@pytest.mark.parametrize(("fault", "seed"), LATER_POOLS)
def test_pieces_that_change_what_earlier_ones_mean(fault: str | None, seed: int, store: Store, fed: list[int]) -> None:
    """A state that was reached without knowing of a pool is not gone on from."""
    pieces = cut(generate(seed, fault, requests=5).events, 2 + seed % 2, seed)
    runs = audited(store, pieces)
    assert sum(fed) > sum(len(piece) for piece in pieces)
    assert_as_of_one_piece(runs[-1], [event for piece in pieces for event in piece])
    assert_ids_stay(runs)


def assert_ids_stay(runs: list[AuditRun]) -> None:
    for earlier, later in pairwise(runs):
        before, after = subjects(earlier), subjects(later)
        assert {whom: before[whom] for whom in before.keys() & after.keys()} == {
            whom: after[whom] for whom in before.keys() & after.keys()
        }


def subjects(run: AuditRun) -> dict[tuple[Any, ...], str]:
    """Whom an incident befell -> its id."""
    columns = run.judgement.incidents.select("incident", "request", "incarnation", "tenant", "engine", "rules")
    return {
        (request, incarnation) if request else (tenant, engine, *rules): name
        for name, request, incarnation, tenant, engine, rules in columns.rows()
    }


@pytest.mark.parametrize(("fault", "seed"), TRACES[1:3])
def test_late_pieces(fault: str | None, seed: int, store: Store, fed: list[int]) -> None:
    """What comes late is put where it belongs, and everything from there on is replayed again."""
    pieces = cut(generate(seed, fault, requests=5).events, 2, seed)
    runs = audited(store, pieces[::-1])
    assert fed == [len(pieces[1]), len(pieces[0]) + len(pieces[1])]
    assert_as_of_one_piece(runs[-1], [event for piece in pieces for event in piece])


def test_without_a_pause_the_last_part_is_opened_again(store: Store, fed: list[int]) -> None:
    events = generate(5, "dropped-write", requests=5).events
    half = len(events) // 2
    runs = audited(store, [events[:half], events[half:]])
    assert fed == [half, len(events)]
    assert_as_of_one_piece(runs[-1], events)


def test_nothing_new_is_nothing_to_replay(store: Store, fed: list[int]) -> None:
    (first,) = audited(store, [generate(3, "double-alloc", requests=5).events])
    fed.clear()
    second = audit_store(store)
    assert fed == []
    assert findings(second.judgement) == findings(first.judgement)
    assert incidents(second.judgement) == incidents(first.judgement)


def test_an_empty_store_and_its_first_events(store: Store) -> None:
    assert audit_store(store).judgement.events == 0
    events = generate(3, "double-alloc", requests=5).events
    assert_as_of_one_piece(audited(store, [events])[-1], events)


def test_many_events_are_dealt_with_in_stretches(store: Store, fed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwitness.audit.sequence.WHOLE_ROWS", 0)
    monkeypatch.setattr("kvwitness.audit.sequence.STRETCH_ROWS", 60)
    events = generate(26, "timeout-with-writer-open", requests=6).events
    (run,) = audited(store, [events])
    assert len(fed) > 2
    assert sum(fed) == len(events)
    assert_as_of_one_piece(run, events)


@pytest.mark.parametrize("bound", [("PART_ROWS", 60), ("PART_PAGES", 150)])
def test_parts_are_bounded(
    bound: tuple[str, int], store: Store, fed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"kvwitness.audit.sequence.{bound[0]}", bound[1])
    pieces = cut(generate(26, "timeout-with-writer-open", requests=6).events, 2, 1)
    runs = audited(store, pieces)
    assert len(fed) > 3
    states = list((store.checkpoint_dir / "audit").glob("part-*.state.npz"))
    assert 2 <= len(states) <= 3
    assert sum(fed) == sum(map(len, pieces))
    assert_as_of_one_piece(runs[-1], [event for piece in pieces for event in piece])


# ------------------------------------------------------------- what only the whole record says


def served(trace: Trace, t: float, request: str, tenant: str, page: int, engine: str = "e") -> Trace:
    """A request that is given a page, writes and reads it, and lets it go."""
    where: dict[str, Any] = {"pool": f"{engine}/0/kv", "pages": [page], "request": request}
    trace.add(t, f"{engine}/0", "page.alloc", **where, tenant=tenant)
    trace.add(t + 0.1, f"{engine}/0", "page.write", **where, op="forward", tok=[0, 16])
    trace.add(t + 0.2, f"{engine}/0", "page.read", **where, op="decode", tok=[0, 16])
    return trace.add(t + 0.3, f"{engine}/0", "page.free", **where, reason="finish")


def pool(trace: Trace, engine: str = "e") -> Trace:
    return trace.add(1, f"{engine}/0", "engine.pool", pool=f"{engine}/0/kv", page_tokens=16, pages_total=32)


def events_in(trace: Trace, first: float, end: float) -> list[Event]:
    return [e for e in trace.events() if first <= e["t"] < end]


def order_of(store: Store) -> list[tuple[str, int]]:
    """(source, seq) in replay order, as the store keeps it for the next audit."""
    parts = sorted((store.checkpoint_dir / "audit").glob("part-*.parquet"))
    parts = [part for part in parts if part.name.count(".") == 1]
    return pl.concat([pl.read_parquet(part, columns=["source", "seq"]) for part in parts]).rows()


def test_a_clock_is_off_in_all_parts(store: Store) -> None:
    """The clock of d is 100 s ahead, which it says once, in the first part."""
    trace = pool(pool(Trace()), "d").add(102, "d/0", "engine.clock", engine="d", offset_s=100.0, uncertainty_s=0.001)
    for t in (10, 50, 90):
        served(served(trace, t, f"e{t}", "t-a", 3), 100.05 + t, f"d{t}", "t-b", 3, "d")
    first = [e for e in trace.events() if e["t"] < 20 or (e["source"] == "d/0" and e["t"] < 120)]
    second = [e for e in trace.events() if e not in first]
    runs = audited(store, [first, second])
    assert_as_of_one_piece(runs[-1], trace.events())
    assert order_of(store)[-4:] == [("e/0", 12), ("d/0", 13), ("e/0", 13), ("d/0", 14)]


def test_a_clock_that_is_told_late_counts_from_the_beginning(store: Store, fed: list[int]) -> None:
    trace = served(pool(Trace()), 10, "r1", "t-a", 3)
    trace.add(60, "e/0", "engine.clock", engine="e", offset_s=4.0, uncertainty_s=0.001)
    served(trace, 61, "r2", "t-b", 3)
    served(trace, 90, "r3", "t-c", 3)
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 80), events_in(trace, 80, 99)])
    assert fed == [5, 10, 4]
    assert_as_of_one_piece(runs[-1], trace.events())


def test_a_hole_at_the_seam(store: Store, fed: list[int]) -> None:
    """That something was lost after the last event of a part shows only in the next."""
    trace = served(pool(Trace()), 10, "r1", "t-a", 3)
    trace.add(10.4, "e/0", "page.alloc", pool="e/0/kv", pages=[4], request="r2", tenant="t-b")
    trace.add(10.5, "f/0", "page.alloc", pool="e/0/kv", pages=[4], request="r3", tenant="t-c")
    trace.add(10.6, "f/0", "page.read", pool="e/0/kv", pages=[3], request="r3", tok=[0, 16], op="decode")
    trace.add(60, "e/0", "page.free", pool="e/0/kv", pages=[4], request="r2", reason="finish", seq=20)
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 99)])
    assert fed == [8, 8, 1]
    assert_as_of_one_piece(runs[-1], trace.events())


def test_a_tenant_that_is_told_late(store: Store, fed: list[int]) -> None:
    """Whether a hit on another's pages is admitted depends on the tenants of both."""
    trace = Trace().add(1, "e/0", "engine.pool", pool="e/0/kv", page_tokens=16, pages_total=32, sharing="tenant")
    where: dict[str, Any] = {"pool": "e/0/kv", "pages": [3]}
    trace.add(2, "e/0", "page.alloc", **where, request="r1", tenant="t-a")
    trace.add(3, "e/0", "page.write", **where, request="r1", op="forward", tok=[0, 16])
    trace.add(4, "e/0", "page.publish", **where, request="r1", key="k")
    trace.add(5, "e/0", "page.share", **where, request="r2", key="k", tok=[0, 16])
    trace.add(6, "e/0", "page.read", **where, request="r2", op="decode", tok=[0, 16])
    trace.add(60, "e/0", "page.free", **where, request="r2", reason="finish", tenant="t-a")
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 99)])
    assert_as_of_one_piece(runs[-1], trace.events())


def test_who_sees_bytes_land_shows_late(store: Store, fed: list[int]) -> None:
    """That a transfer is done counts from one who sees the bytes land; of w this shows only with the second."""
    trace = pool(pool(Trace(), "p"), "d")
    where: dict[str, Any] = {"pool": "p/0/kv", "pages": [3], "request": "r1"}
    trace.add(2, "p/0", "page.alloc", **where, tenant="t-a")
    trace.add(3, "p/0", "page.write", **where, op="forward", tok=[0, 16])
    for t, request, transfer, page in ((5, "r1", "x", 7), (60, "r2", "y", 8)):
        trace.add(t, "d/0", "page.alloc", pool="d/0/kv", pages=[page], request=request, tenant="t-a")
        ends: dict[str, Any] = {"src_pool": "p/0/kv", "src_pages": [3], "dst_pool": "d/0/kv", "dst_pages": [page]}
        trace.add(t + 1, "p/0", "transfer.begin", transfer=transfer, request=request, tokens=16, **ends)
        if request == "r2":
            trace.add(t + 2, "w/0", "page.write", pool="d/0/kv", pages=[8], request="r2", op="transfer", tok=[0, 16])
        trace.add(t + 3, "w/0", "transfer.done", transfer=transfer, tokens=16)
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 99)])
    assert fed == [7, 7, 4]
    assert_as_of_one_piece(runs[-1], trace.events())
    assert ("false-transfer-complete", "r1") in runs[-1].judgement.findings.select("rule", "request").rows()


@pytest.mark.parametrize(("op", "phase"), [("decode", {"phase": "begin"}), ("offload", {})])
def test_a_read_that_ends_in_the_next_part(op: str, phase: dict[str, str], store: Store, fed: list[int]) -> None:
    trace = served(pool(Trace()), 2, "r1", "t-a", 5)
    where: dict[str, Any] = {"pool": "e/0/kv", "pages": [3]}
    trace.add(3, "e/0", "page.alloc", **where, request="r1", tenant="t-a")
    trace.add(4, "e/0", "page.write", **where, request="r1", op="forward", tok=[0, 16])
    trace.add(5, "e/0", "page.read", **where, request="r1", op=op, tok=[0, 16], **phase)
    trace.add(6, "e/0", "page.free", **where, request="r1", reason="finish")
    trace.add(60, "e/0", "page.alloc", **where, request="r2", tenant="t-b")
    trace.add(61, "e/0", "page.write", **where, request="r2", op="forward", tok=[0, 16])
    trace.add(62, "e/0", "page.read", **where, request="r1", op=op, tok=[0, 16], phase="end")
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 99)])
    assert fed == [9, 3]
    assert_as_of_one_piece(runs[-1], trace.events())


def test_a_read_that_shows_to_have_gone_on_in_the_next_part(store: Store, fed: list[int]) -> None:
    """Stated as a whole at first: that it went on is known only with its end, and the first part is replayed again."""
    trace = served(pool(Trace()), 2, "r1", "t-a", 5)
    where: dict[str, Any] = {"pool": "e/0/kv", "pages": [3]}
    trace.add(3, "e/0", "page.alloc", **where, request="r1", tenant="t-a")
    trace.add(4, "e/0", "page.write", **where, request="r1", op="forward", tok=[0, 16])
    trace.add(5, "e/0", "page.read", **where, request="r1", op="decode", tok=[0, 16])
    trace.add(6, "e/0", "page.free", **where, request="r1", reason="finish")
    trace.add(60, "e/0", "page.alloc", **where, request="r2", tenant="t-b")
    trace.add(61, "e/0", "page.write", **where, request="r2", op="forward", tok=[0, 16])
    trace.add(62, "e/0", "page.read", **where, request="r1", op="decode", tok=[0, 16], phase="end")
    runs = audited(store, [events_in(trace, 0, 50), events_in(trace, 50, 99)])
    assert fed == [9, 9, 3]
    assert_as_of_one_piece(runs[-1], trace.events())
    assert "late-read" in runs[-1].judgement.findings["rule"].to_list()


# --------------------------------------------------------------------------- what lies on disk


@pytest.mark.parametrize("suffix", [".state.npz", ".facts.parquet"])
def test_a_truncated_file_costs_a_replay(suffix: str, store: Store, fed: list[int]) -> None:
    pieces = cut(generate(21, "snapshot-into-stranger", requests=5).events, 2, 21)
    audited(store, pieces[:1])
    (damaged,) = (store.checkpoint_dir / "audit").glob(f"part-*{suffix}")
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    fed.clear()
    runs = audited(store, pieces[1:])
    assert fed == [len(piece) for piece in pieces]
    assert_as_of_one_piece(runs[-1], [event for piece in pieces for event in piece])


def test_a_directory_that_was_emptied_is_filled_again(store: Store) -> None:
    events = generate(3, "double-alloc", requests=5).events
    audited(store, [events])
    for path in (store.checkpoint_dir / "audit").iterdir():
        if path.name != "lock":
            path.unlink()
    assert_as_of_one_piece(audit_store(store), events)
