"""Queries while a collector writes and the compactor runs: no error, nothing wrong, nothing staler than a flush.

    KVWITNESS_QUERY_RUNS=1000 pytest -s -m slow tests/queries/test_concurrency.py

Prints what was seen: the rate of the collector, and how long each kind of query took at the beginning and at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from pathlib import Path

import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from tests.queries import busy

RUNS = int(os.environ.get("KVWITNESS_QUERY_RUNS", "40"))
"""Of all that ask together. The store grows all the while; KVWITNESS_QUERY_RATE says by how many events a second."""
ASKERS = 4


Run = tuple[str, float, float, str | None]


def show(runs: list[Run], events: int, seconds: float) -> None:
    """What was seen, for `pytest -s`."""
    wrong = sum(told is not None for *_, told in runs)
    print(
        f"\n{len(runs)} runs in {seconds:.0f} s, {wrong} wrong; {events:,} events, {events / seconds:,.0f} per second"
    )
    ordered = sorted(runs, key=lambda run: run[1])
    fifth = max(1, len(ordered) // 5)
    parts = {"first": ordered[:fifth], "last": ordered[-fifth:]}
    for kind in sorted({run[0] for run in runs}):
        times = {when: [run[2] for run in part if run[0] == kind] for when, part in parts.items()}
        shown = [
            f"{when} fifth {statistics.median(took):6.2f} s (at most {max(took):6.2f})"
            for when, took in times.items()
            if took
        ]
        print(f"{kind:12} {'  '.join(shown)}")


@pytest.mark.slow
def test_answers_while_the_store_is_at_work(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = Store.create(path)
    with store.writer("collector") as writer:
        writer.append(busy.batch(0))
    (tmp_path / "acknowledged").write_text("1")
    audit_store(store)
    context = multiprocessing.get_context("spawn")
    stop, told = context.Event(), context.Queue()
    workers = [context.Process(target=work, args=(path, stop)) for work in (busy.collect, busy.compact)]
    askers = [context.Process(target=busy.ask, args=(path, n, RUNS // ASKERS, told)) for n in range(ASKERS)]
    for process in (*workers, *askers):
        process.start()
    began = time.monotonic()
    try:
        runs = [told.get() for _ in range(RUNS // ASKERS * ASKERS)]
        show(runs, busy.acknowledged(path) * busy.BATCH, time.monotonic() - began)
        for process in askers:
            process.join()
        assert [p.is_alive() for p in workers] == [True, True]
    finally:
        stop.set()
        for process in (*workers, *askers):
            process.join(60)
    assert [wrong for _, _, _, wrong in runs if wrong] == []
    assert [p.exitcode for p in (*workers, *askers)] == [0] * (len(workers) + ASKERS)
    assert busy.acknowledged(path) > 1
    assert [problem for problem in store.verify() if problem.severity == "error"] == []
