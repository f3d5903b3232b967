"""Every case through the public command line: what must be found is found, and nothing else is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.cli.app import CLEAN, FINDINGS, run
from kvwitness.audit.scenarios.incident_155 import generate

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.jsonl"))
PROGRAM = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]
PROCESSES = ("f01-common-system-prompt", "k01-oversize-stub-handoff", "real-sglang-0519-placeholder")
"""Cases that are judged by the program itself too: a clean one, a leak, a recorded one."""
PROVEN = ("leak", "integrity")
ALARMING = ("leak", "integrity", "exposure")
FINE = ("clean", "shared")


def expanded(pages: list[int | list[int]]) -> set[int]:
    """A page list with its ranges written out."""
    return {p for item in pages for p in (range(item[0], item[1] + 1) if isinstance(item, list) else (item,))}


@dataclass
class Answer:
    """What the command said of one trace."""

    status: int
    document: dict[str, Any]
    by_request: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for finding in self.document["findings"]:
            self.by_request.setdefault(finding["request"], []).append(finding)

    @property
    def expected_status(self) -> int:
        """As documented: 1 for findings that say something happened; `shared` and `unproven` say no such thing."""
        findings = [*self.document["findings"], *self.document["engine_findings"]]
        return FINDINGS if any(finding["verdict"] in ALARMING for finding in findings) else CLEAN

    def complaints(self, expected: dict[str, Any]) -> list[str]:
        """Everything in which the answer is not the expected one, in words."""
        said = [line for incident in expected["incidents"] for line in self._incident(incident)]
        for request in expected["clean_requests"]:
            verdict = self.document["requests"].get(request)
            proven = {f["rule"] for f in self.by_request.get(request, []) if f["verdict"] in PROVEN}
            if verdict not in FINE or proven:
                said.append(f"{request}: expected nothing, got {verdict} {sorted(proven)}")
        engine = {finding["rule"] for finding in self.document["engine_findings"]}
        if engine != set(expected["engine_findings"]):
            said.append(f"of the engine: expected {expected['engine_findings']}, got {sorted(engine)}")
        return said

    def _incident(self, expected: dict[str, Any]) -> list[str]:
        request, verdict = expected["request"], expected["verdict"]
        findings = self.by_request.get(request, [])
        got = self.document["requests"].get(request)
        said = [f"{request}: expected {verdict}, got {got}"] if got != verdict else []
        rules = {finding["rule"] for finding in findings}
        if missing := set(expected["rules"]) - rules:
            said.append(f"{request}: missing {sorted(missing)}")
        if beyond := rules - {*expected["rules"], *expected["may"]}:
            said.append(f"{request}: beyond the expected {sorted(beyond)}")
        if verdict == "shared":  # not a finding against anybody: it names no other side
            return said
        others = {tenant for finding in findings for tenant in finding["other_tenants"]}
        if others != set(expected["other_tenants"]):
            said.append(f"{request}: other tenants {sorted(others)}, expected {expected['other_tenants']}")
        for pool, listed in expected["pages"].items():
            pages = [expanded(f["pages"]) for f in findings if f["verdict"] == verdict and f["pool"] == pool]
            if lacking := expanded(listed) - set().union(*pages):
                said.append(f"{request}: {len(lacking)} pages of {pool} missing, such as {min(lacking)}")
        return said


def expectation(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((HERE / f"{name}.expect.json").read_text(encoding="utf-8"))
    return loaded


MUMBLED = re.compile(
    r"(?<![\w.,:/#-])\d{4,}(?![\w:/-])"  # a count without a comma between thousands
    r"|\b1 (?:token|page|position|event|prompt|byte|key|good page|prompt token)s\b"
    r"|\(s\)"
    r"|\b1 position of .*\b(?:they|them|were)\b"
)


def mumbled(document: dict[str, Any]) -> list[str]:
    """Sentences that are not said as a person says them; what is missing is named by its numbers, not counted."""
    found = [*document["findings"], *document["engine_findings"]]
    sentences = [finding["why"].partition("; not proved: ")[0] for finding in found]
    return [sentence for sentence in sentences if MUMBLED.search(sentence)]


def judged(trace: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """The command in this process."""
    status = run(["audit", "--trace", str(trace), "--format", "json"])
    return Answer(status, json.loads(capsys.readouterr().out))


def test_every_case_has_its_expectation() -> None:
    assert len(CASES) > 60
    generated = {"incident-155"}
    assert {p.name.removesuffix(".expect.json") for p in HERE.glob("*.expect.json")} == {*CASES, *generated}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = expectation(name)
    answer = judged(HERE / f"{name}.jsonl", capsys)
    assert answer.complaints(expected) == []
    assert answer.status == answer.expected_status
    assert mumbled(answer.document) == []


@pytest.mark.parametrize("name", PROCESSES)
def test_case_as_a_process(name: str, tmp_path: Path) -> None:
    """From the shell, anywhere: the document on standard output and nothing else, the status as documented."""
    done = subprocess.run(
        [*PROGRAM, "audit", "--trace", str(HERE / f"{name}.jsonl"), "--format", "json"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
    )
    answer = Answer(done.returncode, json.loads(done.stdout))
    assert answer.complaints(expectation(name)) == []
    assert answer.status == answer.expected_status
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_155(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thirteen days: each of the 155 with its victims and pages, and nothing of anybody else."""
    trace = tmp_path / "incident-155.jsonl"
    with trace.open("w", encoding="utf-8", newline="\n") as out:
        generate(out)
    expected = expectation("incident-155")
    answer = judged(trace, capsys)
    assert answer.complaints(expected) == []
    leaks = {request for request, verdict in answer.document["requests"].items() if verdict == "leak"}
    assert leaks == {incident["request"] for incident in expected["incidents"]}
    assert len(leaks) == 155
    others = {request: v for request, v in answer.document["requests"].items() if request not in leaks}
    assert {request: v for request, v in others.items() if v not in FINE} == {}
