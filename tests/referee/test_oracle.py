"""The referee itself: on the recorded cases, and on generated traces with and without faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .oracle import PAGE_RULES, audit, strongest
from .state import RANK
from .timeline import load

CASES = Path(__file__).resolve().parent.parent / "cases"
NAMES = sorted(p.stem for p in CASES.glob("*.jsonl") if not p.stem.startswith("incident"))


@pytest.fixture(scope="module")
def judged() -> dict[str, list[dict[str, Any]]]:
    return {}


def findings_of(name: str, judged: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    if name not in judged:
        judged[name] = audit(load(CASES / f"{name}.jsonl"))
    return judged[name]


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, judged: dict[str, list[dict[str, Any]]]) -> None:
    """Every page-level rule that a case names is found, with its verdict, and nothing else is."""
    expect = json.loads((CASES / f"{name}.expect.json").read_text())
    findings = findings_of(name, judged)
    verdicts = strongest(findings)
    for incident in expect["incidents"]:
        mine = {rule: v for (r, rule), v in verdicts.items() if r == incident["request"]}
        wanted = {rule for rule in incident["rules"] if rule in PAGE_RULES}
        assert wanted <= set(mine), (incident["request"], mine)
        assert set(mine) <= wanted | set(incident["may"]), (incident["request"], mine)
        if wanted and incident["verdict"] in RANK:
            assert max(mine.values(), key=RANK.__getitem__) == incident["verdict"], mine
        if wanted:
            others = {t for f in findings if f["request"] == incident["request"] for t in f["other_tenants"]}
            assert set(incident["other_tenants"]) <= others
    for request in expect["clean_requests"]:
        assert not [key for key in verdicts if key[0] == request], (request, verdicts)
    engine = {rule for (r, rule) in verdicts if r is None}
    assert engine <= set(expect["engine_findings"])
