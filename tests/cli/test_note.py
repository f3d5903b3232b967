"""`kvwitness note`: entries about incidents, from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from tests.cli.conftest import Command

CASE = Path(__file__).parents[1] / "cases" / "k01-oversize-stub-handoff.jsonl"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.create(tmp_path / "store")
    reader = TraceReader(CASE)
    made.import_batches(reader, sha256=lambda: reader.report.sha256, name=CASE.name)
    audit_store(made)
    return made


def test_an_incident_is_taken_up_and_closed(command: Command, store: Store) -> None:
    incident = store.result("incidents")["incident"][0]
    here = ("--store", store.path, "--by", "ada")
    assert command("note", incident[:8], "--do", "acknowledge", *here).status == 0
    assert command("note", incident[:8], "to bob", "--to", "bob", *here).status == 0
    refused = command("note", incident, "--do", "close", *here)
    assert refused.status == 2
    assert "needs a reason" in refused.err
    shown = command("note", incident, "--store", store.path, "--format", "json")
    told = [(e["deed"], e["by"], e["assignee"]) for e in json.loads(shown.out)]
    assert told == [("acknowledge", "ada", None), ("assign", "ada", "bob")]
    assert "ada" in command("note", incident, "--store", store.path, "--format", "table").out


def test_an_unknown_incident_is_refused(command: Command, store: Store) -> None:
    said = command("note", "inc-0000", "x", "--store", store.path)
    assert said.status == 2
    assert "There is no incident 'inc-0000'" in said.err
