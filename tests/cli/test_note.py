"""`kvwitness note`: entries about incidents, from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from tests.cli.conftest import RECORDED, Command

CASE = Path(__file__).parents[1] / "cases" / "k01-oversize-stub-handoff.jsonl"


def judged(folder: Path, trace: Path) -> Store:
    made = Store.create(folder / "store")
    reader = TraceReader(trace)
    made.import_batches(reader, sha256=lambda: reader.report.sha256, name=trace.name)
    audit_store(made)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return judged(tmp_path, CASE)


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


def test_incidents_say_where_they_stand(command: Command, tmp_path: Path) -> None:
    store = judged(tmp_path, RECORDED)
    ids = store.result("incidents")["incident"].to_list()
    here = ("--store", store.path)
    assert "standing" not in command("incidents", *here, "--format", "table").out
    command("note", ids[0], "known", "--do", "acknowledge", "--by", "ada", *here)
    command("note", ids[1], "--to", "bob", "--by", "ada", *here)
    command("note", ids[2], "patched", "--do", "close", "--by", "cy", *here)
    shown = command("incidents", *here, "--format", "table").words
    for told in ("acknowledged by ada", "open, assigned to bob", "closed by cy: patched"):
        assert told in shown
    rows = {row["incident"]: row for row in command("incidents", *here, "--format", "jsonl").rows}
    assert [rows[i]["standing"] for i in ids[:3]] == ["acknowledged", "open", "closed"]
    assert (rows[ids[2]]["standing_by"], rows[ids[2]]["standing_why"], rows[ids[1]]["assignee"]) == (
        "cy", "patched", "bob",
    )  # fmt: skip
    still = command("incidents", *here, "--standing", "open", "--format", "jsonl").rows
    assert [row["incident"] for row in still] == ids[1:2] + ids[3:]
    both = command("incidents", *here, "--standing", "closed", "--standing", "acknowledged", "--format", "jsonl").rows
    assert [row["incident"] for row in both] == [ids[0], ids[2]]
    on_a_trace = command("incidents", "--trace", CASE, "--standing", "closed", "--format", "jsonl")
    assert on_a_trace.rows == []


def test_an_unknown_incident_is_refused(command: Command, store: Store) -> None:
    said = command("note", "inc-0000", "x", "--store", store.path)
    assert said.status == 2
    assert "There is no incident 'inc-0000'" in said.err
