"""The SQL that `explain` prints finds the very pages of the incident, in every case that has any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.derivation import derived, pages_of
from kvwitness.audit.telling.dossier import open_dossier
from kvwitness.audit.telling.exhibits import statements
from kvwitness.collectors.importing import import_file

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.jsonl"))
FROM_EVENTS = {
    "k01-oversize-stub-handoff": "leak",
    "k04-zero-byte-success": "integrity",
    "k08-orphan-recycled-through-index": "leak",
    "real-sglang-0519-placeholder": "leak",
}
"""Cases of which an incident with this verdict can be told from the events alone."""


def audited(case: str, directory: Path) -> tuple[Store, Answer]:
    store = Store.create(directory / "store")
    import_file(store, CASES / f"{case}.jsonl")
    audit_store(store)
    return store, Answer.of_store(store)


def pages_in(rows: list[dict[str, Any]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["pool"], set()).update(row["which"])
    return found


def answers(store: Store, answer: Answer) -> Iterator[tuple[dict[str, Any], list[tuple[str, list[dict[str, Any]]]]]]:
    """Each incident, with every printed question and what any DuckDB answers to its SQL."""
    with duckdb.connect(str(store.path / "store.duckdb"), read_only=True) as connection:
        for incident in answer.incidents.iter_rows(named=True):
            asked = statements(open_dossier(answer, incident["incident"]))
            yield incident, [(question, connection.sql(query).pl().to_dicts()) for question, query in asked]


@pytest.mark.parametrize("case", NAMES)
def test_the_printed_sql_finds_the_pages_of_every_incident(case: str, tmp_path: Path) -> None:
    for incident, told in answers(*audited(case, tmp_path)):
        assert told[0][1], f"{incident['incident']}: no event proves it"
        wanted = pages_of(incident)
        assert len(told) == (2 if wanted else 1)
        if wanted:
            assert pages_in(told[1][1]) == wanted, incident["incident"]


@pytest.mark.parametrize("case", FROM_EVENTS)
def test_reads_of_what_was_not_the_reader_s_are_told_from_the_events(case: str, tmp_path: Path) -> None:
    _, answer = audited(case, tmp_path)
    told = {row["verdict"] for row in answer.incidents.to_dicts() if derived(open_dossier(answer, row["incident"]))}
    assert FROM_EVENTS[case] in told


def test_what_no_query_tells_is_said_and_read_from_the_findings(tmp_path: Path) -> None:
    _, answer = audited("k08-tainted-prefix-served-on", tmp_path)
    [tainted] = [row for row in answer.incidents.to_dicts() if row["rules"] == ["tainted-content"]]
    _, (question, query) = statements(open_dossier(answer, tainted["incident"]))
    assert "what tainted-content says cannot be told from the events by one query" in question
    assert "FROM findings" in query
