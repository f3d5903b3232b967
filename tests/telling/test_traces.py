"""A request is found by the trace id that spans or logs brought along."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.overall.search import find_requests, of_trace
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import open_request
from kvwitness.audit.telling.traces import trace_id

CASE = Path(__file__).parents[1] / "cases" / "k01-oversize-stub-handoff.jsonl"
ALONE, SHARED, NOBODYS = "5b8efff798038103d269b633813fc60c", "0af7651916cd43dd8448eb211c80319c", "f" * 32
CARRIED = {"r1001": SHARED, "r1002": SHARED, "r1003": ALONE}


def traced(path: Path) -> Path:
    """The case, its requests with trace ids as a collector keeps them."""
    lines = [json.loads(line) for line in CASE.read_text().splitlines()]
    for line in lines:
        if line["event"] == "request.received":
            line["trace_id"] = CARRIED[line["request"]]
        elif line.get("request") == "r1001":
            line["about"] = f"see {ALONE}"  # not the trace id of this one
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("traces")
    trace = traced(root / "traced.jsonl")
    assert run(["import", str(trace), "--store", str(root / "store"), "--quiet"]) == 0
    made = Store.open(root / "store")
    audit_store(made)
    return made


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ALONE, ALONE),
        (f" {ALONE.upper()} ", ALONE),
        (f"00-{ALONE}-00f067aa0ba902b7-01", ALONE),
        ("0" * 32, None),
        (ALONE[:-1], None),
        ("r1003", None),
        ("", None),
    ],
)
def test_a_trace_id_is_told_from_other_texts(text: str, found: str | None) -> None:
    assert trace_id(text) == found


def test_requests_are_found_by_the_trace_that_they_carry(store: Store) -> None:
    answer = Answer.of_store(store)
    assert of_trace(store, ALONE) == ["r1003"]
    assert of_trace(store, SHARED.upper()) == ["r1001", "r1002"]
    assert of_trace(store, NOBODYS) == of_trace(store, "r1003") == []
    assert find_requests(store, answer, f"00-{ALONE}-00f067aa0ba902b7-01").rows["request"].to_list() == ["r1003"]
    assert find_requests(store, answer, SHARED).total == 2
    assert find_requests(store, answer, SHARED, verdict="leak").total == 0
    assert find_requests(store, answer, NOBODYS).total == 0


def test_a_trace_stands_for_the_one_request_that_carries_it(store: Store) -> None:
    answer = Answer.of_store(store)
    assert open_request(answer, ALONE).name == "r1003"
    with pytest.raises(KvwitnessError, match=r"2 requests carry the trace id .*: r1001 and r1002"):
        open_request(answer, SHARED)
    with pytest.raises(KvwitnessError, match=r"No request on record goes by 'ffff.*', or carries it as its trace id"):
        open_request(answer, NOBODYS)


def test_the_command_takes_it_and_shows_it(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--store", str(store.path)], ["--trace", str(traced(tmp_path / "traced.jsonl"))]):
        capsys.readouterr()
        assert run(["request", ALONE, *given, "--format", "json", "--quiet"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["request"], told["trace_ids"]) == ("r1003", [ALONE])
