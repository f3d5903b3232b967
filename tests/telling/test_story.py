"""The story of an incident: facts on record in sentences, nothing presumed, nothing left out that is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvwitness.audit.api import judge_file
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import Dossier, open_dossier
from kvwitness.audit.telling.story import headline, tell, victims

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def dossier() -> Callable[[str, str], Dossier]:
    answers: dict[str, Answer] = {}

    def open_one(case: str, name: str) -> Dossier:
        if case not in answers:
            judgement, _, events = judge_file(CASES / f"{case}.jsonl")
            answers[case] = Answer.of_trace(judgement, events)
        return open_dossier(answers[case], name)

    return open_one


Open = Callable[[str, str], Dossier]


@pytest.mark.parametrize(
    ("case", "name", "told"),
    [
        (
            "k02-decode-abort-late-write",
            "r2002",
            "Request r2002 of tenant t-birch read content of 1 other tenant: t-ash.",
        ),
        (
            "k02-decode-abort-late-write",
            "r2001",
            "Request r2001 of tenant t-ash met wrong or undefined content; no other tenant's content is shown.",
        ),
        (
            "k03-lease-outlived-by-get",
            "r3042",
            "Request r3042 of tenant t-fir shows a side channel or a broken contract; no content is shown.",
        ),
        (
            "u05-dropped-events-hide-a-release",
            "r0052",
            "Whether request r0052 of tenant t-birch is sound cannot be told, because evidence is missing.",
        ),
        (
            "u05-dropped-events-hide-a-release",
            "r0054",
            "Nothing was found against request r0054 of tenant",
        ),
    ],
)
def test_headline_says_the_verdict_in_words(dossier: Open, case: str, name: str, told: str) -> None:
    assert headline(dossier(case, name)).startswith(told)


def test_sentences_follow_the_order_of_events(dossier: Open) -> None:
    course = tell(dossier("k02-decode-abort-late-write", "r2001"))[1]
    order = ["was received", "was given 32 pages", "began transfer x-501", "recorded its abort", "answered 499"]
    places = [course.index(words) for words in order]
    assert places == sorted(places)


def test_what_never_came_is_said(dossier: Open) -> None:
    course = tell(dossier("k02-decode-abort-late-write", "r2001"))[1]
    assert "transfer x-501 of 2,048 tokens to 32 pages of dec-1/0/full; no end of it is on record" in course
    aborted = " ".join(tell(dossier("real-sglang-0519-placeholder", "r1019")))
    assert aborted.endswith("No answer to it is on record.")


def test_missing_evidence_is_named(dossier: Open) -> None:
    told = tell(dossier("u05-dropped-events-hide-a-release", "r0052"))[-1]
    assert told.startswith("Not on record: ")
    assert "6 to 217 of eng-1/0" in told


def test_victims_are_those_of_the_leak_and_nobody_else(dossier: Open) -> None:
    leak = dossier("real-sglang-0519-placeholder", "r1017")
    assert victims(leak) == ["t-ash", "t-birch"]
    assert victims(dossier("k02-decode-abort-late-write", "r2001")) == []
    # Pages of the reader's own tenant are in the findings as well, and are nobody's loss.
    assert "r1013" in {name for finding in leak.findings for name in finding["other_requests"]}
    assert "t-cedar" not in " ".join(tell(leak)[3:])
    beside = [{**f, "other_tenants": ["t-else"]} for f in leak.findings if f["verdict"] != "leak"]
    assert victims(replace(leak, findings=[*leak.findings, *beside])) == ["t-ash", "t-birch"]


def test_every_leak_in_the_cases_names_its_victims(dossier: Open) -> None:
    for expected in sorted(CASES.glob("k0*.expect.json")):
        case = expected.name.removesuffix(".expect.json")
        for incident in json.loads(expected.read_text())["incidents"]:
            if incident["verdict"] != "leak" or not incident.get("other_tenants"):
                continue
            told = headline(dossier(case, incident["request"]))
            assert all(tenant in told for tenant in incident["other_tenants"]), (case, told)


def test_a_leak_from_pages_of_an_unknown_tenant_says_that_it_is_unknown(dossier: Open) -> None:
    known = dossier("k02-decode-abort-late-write", "r2002")
    unknown = replace(known, findings=[{**f, "other_tenants": []} for f in known.findings])
    assert headline(unknown) == "Request r2002 of tenant t-birch read content of another tenant."
    assert "Not known: whose content it was; " in tell(unknown)[-1]


def test_incident_of_an_engine(dossier: Open) -> None:
    one = dossier("real-sglang-0519-placeholder", "inc-45ba760aafbf")
    first, second = tell(one)
    assert first.startswith("Engine dec-1 shows")
    assert "(capacity-drift): dec-1 advertises 2,048 tokens, its pool holds 1,200." in second
