"""Queries while a collector writes and the compactor runs: no error, nothing wrong, nothing staler than a flush."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from tests.queries import busy

RUNS = int(os.environ.get("KVWITNESS_QUERY_RUNS", "100"))
"""Of all that ask together. The store grows all the while, so that many runs need many cores."""
ASKERS = 4


@pytest.mark.slow
def test_answers_while_the_store_is_at_work(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = Store.create(path)
    with store.writer("collector") as writer:
        writer.append(busy.batch(0))
    (tmp_path / "acknowledged").write_text("1")
    audit_store(store)
    context = multiprocessing.get_context("spawn")
    stop, failures = context.Event(), context.Queue()
    workers = [context.Process(target=work, args=(path, stop)) for work in (busy.collect, busy.compact)]
    askers = [context.Process(target=busy.ask, args=(path, n, RUNS // ASKERS, failures)) for n in range(ASKERS)]
    for process in (*workers, *askers):
        process.start()
    try:
        for process in askers:
            process.join()
        assert [p.is_alive() for p in workers] == [True, True]
    finally:
        stop.set()
        for process in (*workers, *askers):
            process.join(60)
    told = []
    while not failures.empty():
        told.append(failures.get())
    assert told == []
    assert [p.exitcode for p in (*workers, *askers)] == [0] * (len(workers) + ASKERS)
    assert busy.acknowledged(path) > 1
    assert [problem for problem in store.verify() if problem.severity == "error"] == []
