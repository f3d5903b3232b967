"""Two records under the same names in one store: each is judged as if it were alone."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.api import as_document, judge_trace
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceError
from kvwitness.collectors.importing import import_file

CASES = Path(__file__).parents[1] / "cases"
HEALTHY, ALIKE = CASES / "f01-common-system-prompt.jsonl", CASES / "f03-recycled-page-not-zeroed.jsonl"
LEAK, OTHER_LEAK = CASES / "k02-decode-abort-late-write.jsonl", CASES / "k01-oversize-stub-handoff.jsonl"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def judged(store: Store) -> dict[str, Any]:
    return as_document(audit_store(store).judgement)


def told(document: dict[str, Any], mark: str = "") -> list[tuple[Any, ...]]:
    """Findings about requests, with the names that a mark gives them."""
    return sorted(
        (f"{f['request']}{mark}", f["rule"], f["verdict"], str(f["pages"]), [f"{o}{mark}" for o in f["other_requests"]])
        for f in document["findings"]
    )


@pytest.mark.parametrize(("first", "second"), [(HEALTHY, ALIKE), (LEAK, OTHER_LEAK)])
def test_records_with_the_same_sources_and_numbers_are_judged_apart(store: Store, first: Path, second: Path) -> None:
    assert import_file(store, first).mark is None
    mark = import_file(store, second).mark
    assert mark is not None
    alone, other, both = judge_trace(first), judge_trace(second), judged(store)
    assert told(both) == sorted([*told(alone), *told(other, mark)])
    assert both["requests"] == alone["requests"] | {f"{name}{mark}": v for name, v in other["requests"].items()}


def test_the_mark_follows_from_the_file(store: Store, tmp_path: Path) -> None:
    import_file(store, HEALTHY)
    elsewhere = Store.create(tmp_path / "elsewhere")
    import_file(elsewhere, LEAK)
    import_file(elsewhere, OTHER_LEAK)
    assert import_file(store, ALIKE).mark == import_file(elsewhere, ALIKE).mark


def test_the_same_file_twice_is_one_record(store: Store) -> None:
    import_file(store, HEALTHY)
    again = import_file(store, HEALTHY)
    assert (again.mark, again.result.duplicate, again.result.added) == (None, True, 0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_parts_of_one_record_stay_one(store: Store, tmp_path: Path, interleaved: bool) -> None:
    """One file after the other, or two that take turns: no number is used twice."""
    lines = LEAK.read_text().splitlines()
    half = len(lines) // 2
    parts = [lines[::2], lines[1::2]] if interleaved else [lines[:half], lines[half:]]
    for number, part in enumerate(parts):
        file = tmp_path / f"part-{number}.jsonl"
        file.write_text("\n".join(part))
        assert import_file(store, file).mark is None
    assert judged(store)["requests"] == judge_trace(LEAK)["requests"]


def test_what_could_not_be_read_of_a_marked_record_is_lost_there(store: Store, tmp_path: Path) -> None:
    import_file(store, ALIKE)
    lines = HEALTHY.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "page.write")
    spoilt = tmp_path / "spoilt.jsonl"
    spoilt.write_text("\n".join([*lines[:at], lines[at].replace('"pages":', '"pages":0,"pages":'), *lines[at + 1 :]]))
    mark = import_file(store, spoilt).mark
    alone = judge_trace(spoilt)["requests"]
    assert {name: judged(store)["requests"][f"{name}{mark}"] for name in alone} == alone


def test_what_can_be_read_but_once_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import_file(store, HEALTHY)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ALIKE.read_bytes())))
    with pytest.raises(TraceError, match=r"numbers events of eng-1/0 and gateway"):
        import_file(store, "-")
    assert judged(store)["requests"] == judge_trace(HEALTHY)["requests"]
