"""An incident as a document and as marks for drawing; and under pseudonyms."""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.api import judge_file
from kvwitness.audit.overall.masking import Mask
from kvwitness.audit.store import Pseudonyms
from kvwitness.audit.telling import report
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import Dossier, open_dossier
from kvwitness.audit.telling.lanes import lanes

CASE = Path(__file__).parents[1] / "cases" / "real-sglang-0519-placeholder.jsonl"


@pytest.fixture(scope="module")
def answer() -> Answer:
    judgement, _, events = judge_file(CASE)
    return Answer.of_trace(judgement, events)


@pytest.fixture(scope="module")
def dossier(answer: Answer) -> Dossier:
    return open_dossier(answer, "r1017")


def test_the_document_tells_everything_and_fetches_nothing(dossier: Dossier) -> None:
    html = report.as_html(dossier, [{"at_ns": 1, "by": "ada", "deed": "note", "assignee": None, "text": "<script>x"}])
    for told in ("r1017", "t-ash", "t-birch", "unwritten-page-read", "SELECT", "May be wrong where"):
        assert told in html
    assert "&lt;script&gt;x" in html
    for fetching in ("<script", "<img", "<link", "http://", "https://", "url("):
        assert fetching not in html


def test_proofs_are_marked(dossier: Dossier) -> None:
    rows = report.evidence(dossier)
    assert {row["event"] for row in rows if row["proof"]} >= {"page.read decode"}
    assert any(not row["proof"] for row in rows)


def test_the_events_leave_as_they_are_on_record(dossier: Dossier) -> None:
    buffer = io.BytesIO()
    report.events_of(dossier).write_parquet(buffer)
    back = pl.read_parquet(io.BytesIO(buffer.getvalue()))
    lines = [json.loads(line) for line in report.as_jsonl(dossier).splitlines()]
    assert len(back) == len(lines) == len(dossier.events)
    assert [line["seq"] for line in lines] == dossier.events["seq"].to_list()
    assert all(value is not None for line in lines for value in line.values())


def test_whom_to_notify_is_said_with_what_shows_it(dossier: Dossier) -> None:
    told = report.to_notify(dossier)
    assert told["tenant"].to_list() == ["t-ash", "t-birch"]
    proofs = {f"{e['source']}:{e['seq']}" for e in dossier.proofs.iter_rows(named=True)}
    for row in told.iter_rows(named=True):
        assert (row["request"], row["reader"]) == ("r1017", "t-cedar")
        assert "unwritten-page-read" in row["rules"]
        assert row["since"] <= row["until"]
        assert row["evidence"]
        assert set(row["evidence"]) <= proofs


def test_the_drawing_shows_both_tenants_on_the_pages_of_the_leak(dossier: Dossier) -> None:
    drawn, cut = lanes(dossier)
    assert not cut
    assert {"t-cedar", "t-ash", "t-birch"} <= set(drawn["tenant"])
    assert {"alloc", "write", "transfer", "read"} <= set(drawn["kind"])
    assert drawn["order"].is_sorted()
    (read,) = [row for row in drawn.iter_rows(named=True) if row["kind"] == "read" and row["proof"]][:1]
    pages = {page for f in dossier.findings if f["verdict"] == "leak" for page in f["pages"]}
    assert any(read["first_page"] <= page < read["end_page"] for page in pages)


def test_a_drawing_that_is_cut_says_so(dossier: Dossier) -> None:
    drawn, cut = lanes(dossier, most=3)
    assert cut
    assert len(drawn) == 3


def test_under_pseudonyms_nothing_names_a_tenant(answer: Answer) -> None:
    mask = Mask.for_answer(Pseudonyms(b"k" * 32), answer)
    hidden = open_dossier(mask.answer(answer), "r1017")
    shown = report.as_html(hidden) + report.as_jsonl(hidden).decode() + str(lanes(hidden)[0].to_dicts())
    for name in ("t-ash", "t-birch", "t-cedar"):
        assert name not in shown
    assert Pseudonyms(b"k" * 32).of("t-ash") in shown
