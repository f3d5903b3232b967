"""What a dossier holds is the same from a store as from a trace, however the store's rows lie."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.api import judge_file
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import open_dossier, stretches
from kvwitness.audit.trace import load_trace

CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize("case", ["k01-oversize-stub-handoff", "real-sglang-0519-placeholder"])
def test_a_store_in_pieces_gives_the_dossier_of_the_trace(case: str, tmp_path: Path) -> None:
    judgement, _, events = judge_file(CASES / f"{case}.jsonl")
    of_trace = Answer.of_trace(judgement, events)
    store, (table, _) = Store.create(tmp_path / "store"), load_trace(CASES / f"{case}.jsonl")
    with store.writer("a") as one, store.writer("b") as other:
        for start in range(0, len(table), 50):
            writer = (one, other)[start // 50 % 2]
            writer.append(table.slice(start, 50))
            writer.flush()
    audit_store(store)
    of_store = Answer.of_store(store)
    assert len(of_trace.incidents) > 0
    for name in of_trace.incidents["incident"].to_list():
        wanted, found = open_dossier(of_trace, name).events, open_dossier(of_store, name).events
        same = ["source", "seq", "event", "request", "pages", "rules"]
        assert found.select(same).rows() == wanted.select(same).rows(), name


def test_places_far_apart_lie_in_stretches_of_their_own() -> None:
    rows = [("a", 1), ("a", 5), ("a", 900_000), ("b", 3)]
    places = pl.DataFrame(rows, schema={"ingest": pl.String, "ingest_row": pl.Int64}, orient="row")
    assert stretches(places) == [("a", 1, 5), ("a", 900_000, 900_000), ("b", 3, 3)]
    assert stretches(places, most=2) == [("a", 1, 900_000), ("b", 3, 3)]
    assert stretches(places.clear()) == []
