"""The catalogue as a whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.rules import RULES, get, model
from kvwitness.audit.trace import KINDS

FOLDER = Path(model.__file__).parent


def test_every_file_that_is_no_helper_is_a_rule() -> None:
    files = {p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_") and p.stem != "model"}
    assert {rule_id.replace("-", "_") for rule_id in RULES} == files


def test_an_unknown_rule_is_answered_with_the_known_ones() -> None:
    with pytest.raises(KvwitnessError, match="no rule 'no-such'") as caught:
        get("no-such")
    assert "over-limit-success" in caught.value.advice


@pytest.mark.parametrize("rule_id", list(RULES))
def test_a_rule_is_fully_described(rule_id: str) -> None:
    rule = RULES[rule_id]
    assert rule.title
    assert len(rule.meaning) > 80
    assert rule.false_positives
    assert rule.severity in ("critical", "high", "medium", "low", "info")
    assert rule.verdicts
    assert set(rule.needs) <= set(KINDS)
    assert all(re.fullmatch(r"CWE-\d+", cwe) for cwe in rule.cwe)
    assert all(re.fullmatch(r"AML\.T\d{4}(\.\d{3})?", technique) for technique in rule.atlas)
    known = r"[\w.-]+/[\w.-]+#\d+|CVE-\d{4}-\d+|GHSA(-\w{4}){3}"
    assert all(re.fullmatch(known, reference) for reference in rule.references)
    names = [param.name for param in rule.params]
    assert len(names) == len(set(names))
    assert all(param.meaning for param in rule.params)
