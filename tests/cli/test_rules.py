"""`kvwitness rules`: the catalogue as a person and as a program sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.rule_examples import check_examples
from kvwitness.audit.rule_reference import reference
from kvwitness.audit.rules import RULES
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict, no_findings

RULE = Rule(
    id="some-rule",
    title="Something | happens",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="high",
    meaning="What it means.",
    needs=("page.read",),
    false_positives="None known.",
    references=("an/issue#1",),
    atlas=(),
    cwe=("CWE-200",),
    query=lambda context, settings: no_findings(),
    positive=Example("fires", '{"event":"a"}\n', request="r1", verdict="leak"),
    negative=Example("does not", '{"event":"b"}\n'),
    params=(Param("bound_s", 600, "How long.", "s"),),
)


def judge_of(*fired: tuple[str, str | None, str], engine: bool = False) -> Any:
    """A judge that finds (event, request, verdict) in traces that hold the event."""

    def judge(path: Path) -> Mapping[str, Any]:
        text = path.read_text()
        found = [
            {"rule": "some-rule", "request": request, "verdict": verdict}
            for event, request, verdict in fired
            if f'"{event}"' in text
        ]
        other = [{"rule": "other-rule", "request": "r1", "verdict": "leak"}]
        return {"findings": [] if engine else found + other, "engine_findings": found if engine else []}

    return judge


def outcome(judge: Any, rule: Rule = RULE) -> list[bool]:
    return [result.passed for result in check_examples(rule, judge)]


def test_examples_pass_when_the_rule_fires_as_stated() -> None:
    assert outcome(judge_of(("a", "r1", "leak"))) == [True, True]


@pytest.mark.parametrize("fired", [("a", "r2", "leak"), ("a", "r1", "integrity"), ("a", None, "leak")])
def test_positive_example_needs_its_request_and_verdict(fired: tuple[str, str | None, str]) -> None:
    failed, _ = check_examples(RULE, judge_of(fired))
    assert not failed.passed
    assert failed.why.startswith("expected leak for r1, found ")


def test_negative_example_allows_nothing_at_all() -> None:
    assert outcome(judge_of(("a", "r1", "leak"), ("b", "r9", "unproven"))) == [True, False]


def test_judge_that_raises_fails_the_example_and_says_how() -> None:
    def judge(path: Path) -> Mapping[str, Any]:
        raise IndexError("out of bounds")

    assert [(r.passed, r.why) for r in check_examples(RULE, judge)] == [(False, "raised IndexError: out of bounds")] * 2


def test_engine_findings_count() -> None:
    rule = replace(RULE, positive=Example("fires", '{"event":"a"}', request=None, verdict="exposure"))
    assert outcome(judge_of(("a", None, "exposure"), engine=True), rule) == [True, True]


def test_reference_holds_every_rule_once() -> None:
    page = reference([RULE])
    for text in ("## some-rule", "leak, integrity", "Something \\| happens", "`bound_s`", '{"event":"a"}'):
        assert text in page


def test_list_show_and_reference_agree_with_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [rule["rule"] for rule in listed] == list(RULES)
    name, rule = next(iter(RULES.items()))
    assert run(["rules", "show", name, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["rule"], shown["title"], shown["needs"]) == (name, rule.title, list(rule.needs))
    assert run(["rules", "reference"]) == 0
    assert capsys.readouterr().out == reference(RULES.values())


def test_unknown_rule_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "show", "no-such-rule"]) == 2
    said = capsys.readouterr().err
    assert "no-such-rule" in said
    assert next(iter(RULES)) in said


def test_settings_of_a_rule_are_its_defaults_with_overrides() -> None:
    empty = pl.DataFrame()
    context = Context(empty.lazy(), empty.lazy(), empty, empty, empty, 0, {"some-rule": {"bound_s": 5}})
    assert RULE.settings(context) == {"bound_s": 5}
