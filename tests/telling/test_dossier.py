"""What a dossier holds is the same from a store as from a trace, however the store's rows lie."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.api import judge_file
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import open_dossier, stretches
from kvwitness.audit.telling.history import page_history
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


def test_two_records_with_the_same_numbers_prove_only_what_is_their_own(tmp_path: Path) -> None:
    """What comes live is the first record once more, a day later and with other names: its sources count from the start
    again."""
    lines = [json.loads(line) for line in (CASES / "k01-oversize-stub-handoff.jsonl").read_text().splitlines()]
    later = tmp_path / "later.jsonl"
    with later.open("w") as out:
        for line in lines:
            renamed = {name: f"x-{line[name]}" for name in ("request", "transfer", "holder") if line.get(name)}
            out.write(json.dumps(line | renamed | {"t": line["t"] + 86_400}) + "\n")
    store = Store.create(tmp_path / "store")
    with store.writer("live") as writer:
        for path in (CASES / "k01-oversize-stub-handoff.jsonl", later):
            writer.append(load_trace(path)[0])
            writer.flush()
    audit_store(store)
    answer = Answer.of_store(store)
    border = int(lines[0]["t"] + 43_200) * 10**9
    told = 0
    for row in answer.incidents.drop_nulls("request").iter_rows(named=True):
        second = row["request"].startswith("x-")
        proving = open_dossier(answer, row["incident"]).events.filter(pl.col("rules").list.len() > 0)
        assert {time >= border for time in proving["time_ns"]} <= {second}, row["request"]
        told += len(proving)
        if not row["pools"]:
            continue
        pool, page = row["pools"][0]["pool"], row["pools"][0]["pages"][0]
        marked = [one for one in page_history(answer, pool, page) if one["findings"]]
        assert marked, row["request"]
        for one in marked:
            assert all(("x-" in text) == (one["time_ns"] >= border) for text in one["findings"])
    assert told > 0
    verdicts = dict(answer.requests.select("request", "verdict").iter_rows())
    assert (verdicts["r1003"], verdicts["x-r1003"]) == ("integrity", "integrity")
    assert "leak" not in verdicts.values()
