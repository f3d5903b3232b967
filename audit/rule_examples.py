"""Runs the examples that stand beside each rule."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvwitness.audit.rules.model import Example, Rule

Fired = tuple[str | None, str]
"""(request, verdict) of one finding; an engine's finding has no request."""

Judge = Callable[[Path], Mapping[str, Any]]
"""Judges one trace file; the result holds the lists `findings` and `engine_findings`."""


@dataclass(frozen=True)
class ExampleResult:
    """What became of one example."""

    rule: str
    example: str
    """`positive` or `negative`."""
    title: str
    passed: bool
    why: str
    """Empty when it passed, else what was expected and what came."""


def check_examples(rule: Rule, judge: Judge) -> list[ExampleResult]:
    """Judge both examples of a rule: the positive one must make it fire as stated, the negative one not at
    all. A judge that raises makes the example fail, so that one broken rule does not hide the others."""
    return [
        _checked(rule, "positive", rule.positive, judge, lambda fired: _missed(rule, fired)),
        _checked(rule, "negative", rule.negative, judge, _unwanted),
    ]


def _checked(
    rule: Rule, kind: str, example: Example, judge: Judge, complaint: Callable[[list[Fired]], str]
) -> ExampleResult:
    try:
        why = complaint(_fired(rule, example, judge))
    except Exception as error:
        why = f"raised {type(error).__name__}: {error}"
    return ExampleResult(rule.id, kind, example.title, not why, why)


def _fired(rule: Rule, example: Example, judge: Judge) -> list[Fired]:
    """(request, verdict) of every finding that the rule made of the example's trace."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "example.jsonl"
        trace.write_text(example.trace.strip() + "\n", encoding="utf-8")
        judged = judge(trace)
    findings = [*judged["findings"], *judged["engine_findings"]]
    return [(f["request"], f["verdict"]) for f in findings if f["rule"] == rule.id]


def _missed(rule: Rule, fired: list[Fired]) -> str:
    wanted = rule.positive
    if any(request == wanted.request and wanted.verdict in (None, verdict) for request, verdict in fired):
        return ""
    return f"expected {_told([(wanted.request, wanted.verdict or 'any verdict')])}, found {_told(fired)}"


def _unwanted(fired: list[Fired]) -> str:
    return f"expected nothing, found {_told(fired)}" if fired else ""


def _told(fired: list[Fired]) -> str:
    return ", ".join(f"{verdict} for {request or 'no request'}" for request, verdict in fired) or "nothing"
