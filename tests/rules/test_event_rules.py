"""Every event-level rule on its own examples and on every case."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.rules import RULES, get
from kvwitness.audit.rules.model import STRENGTH, Context, Verdict
from tests.rules.traces import context_of, judge

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))
EVENT_LEVEL = [
    "cache-key-alias",
    "canary-leak",
    "capacity-drift",
    "identity-reuse",
    "near-limit-successes",
    "over-limit-success",
    "prefix-probing",
    "prompt-length-shift",
    "salt-crossing",
    "served-after-refusal",
    "stale-content",
    "status-mismatch",
    "telemetry-gap",
]
NEEDS_PAGE_STATE = {
    ("u05-dropped-events-hide-a-release", "telemetry-gap"),
    ("y01-hole-before-a-hit", "telemetry-gap"),
    ("y08-fetched-from-pages-across-a-loss", "telemetry-gap"),
}


@cache
def case(name: str) -> tuple[Context, dict[str, Any]]:
    path = next(path for path in CASES if path.stem == name)
    expected: dict[str, Any] = json.loads(path.with_name(f"{name}.expect.json").read_text())
    return context_of(path), expected


@cache
def findings(name: str, rule_id: str) -> list[dict[str, Any]]:
    return judge(rule_id, case(name)[0])


@pytest.mark.parametrize("rule_id", EVENT_LEVEL)
def test_a_rule_fires_on_its_positive_example(rule_id: str) -> None:
    example = get(rule_id).positive
    found = judge(rule_id, context_of(example.trace))
    assert (example.request, example.verdict) in [(f["request"], f["verdict"]) for f in found]


@pytest.mark.parametrize("rule_id", EVENT_LEVEL)
def test_a_rule_is_silent_on_its_negative_example(rule_id: str) -> None:
    assert judge(rule_id, context_of(get(rule_id).negative.trace)) == []


@pytest.mark.parametrize("rule_id", EVENT_LEVEL)
@pytest.mark.parametrize("name", [path.stem for path in CASES])
def test_a_rule_says_of_a_case_what_it_must_and_no_more(name: str, rule_id: str) -> None:
    expected = case(name)[1]
    found = findings(name, rule_id)
    by_request = {f["request"]: f for f in found}
    for incident in expected["incidents"]:
        request, listed = incident["request"], incident["rules"]
        if rule_id in listed and (name, rule_id) not in NEEDS_PAGE_STATE:
            assert request in by_request
            assert STRENGTH[by_request[request]["verdict"]] <= STRENGTH[incident["verdict"]]
        elif rule_id not in [*listed, *incident["may"]]:
            assert request not in by_request
    if rule_id in expected["engine_findings"]:
        assert None in by_request
    elif not rule_id.startswith("telemetry"):
        assert None not in by_request
    harmful = [f for f in found if f["verdict"] in (Verdict.LEAK, Verdict.INTEGRITY)]
    assert {f["request"] for f in harmful}.isdisjoint(expected["clean_requests"])


@pytest.mark.parametrize("rule_id", EVENT_LEVEL)
def test_a_rule_gives_only_verdicts_that_it_declares(rule_id: str) -> None:
    rule = RULES[rule_id]
    declared = {*rule.verdicts, Verdict.UNPROVEN}
    for path in CASES:
        assert {f["verdict"] for f in findings(path.stem, rule_id)} <= declared


@pytest.mark.parametrize("rule_id", EVENT_LEVEL)
def test_a_finding_names_its_proof(rule_id: str) -> None:
    for path in CASES:
        for found in findings(path.stem, rule_id):
            assert found["evs"] == sorted(set(found["evs"]))
            assert found["evs"]
            assert found["why"]
            assert found["time_ns"] is not None
            assert (found["missing"] is not None) == (found["verdict"] == Verdict.UNPROVEN)


@pytest.mark.parametrize("rule_id", ["near-limit-successes", "prefix-probing", "prompt-length-shift"])
def test_anomalies_belong_to_no_request(rule_id: str) -> None:
    assert RULES[rule_id].anomaly
    found = judge(rule_id, context_of(RULES[rule_id].positive.trace))
    assert {f["request"] for f in found} == {None}
    assert all(f["tenant"] or f["engine"] for f in found)
