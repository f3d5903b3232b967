"""The product and the referee on the same generated traces: the same requests leaked, and none where none did."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .compare import product
from .generate import FAULTS, generate
from .oracle import PAGE_RULES, audit
from .state import RANK

# how many traces: healthy ones and each fault in turn
SEEDS = int(os.environ.get("KVW_AGREEMENT_SEEDS", "62"))
NAMES = ("healthy", *sorted(FAULTS))
LOSSY = ("seq-hole", "mid-life")
PROVEN = ("leak", "integrity")
# of a write onto another's page one side names the writer and the other the owner, see READINGS.md
INTRUSIONS = ("double-ownership", "late-write", "reserved-page-use")

Page = tuple[str, int]


class Leaks:
    """Of one side: which requests leaked, under which rules, on which pages."""

    def __init__(self, findings: list[dict[str, Any]]) -> None:
        self.by_request: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.intruded: set[Page] = set()
        for finding in findings:
            if finding["verdict"] == "leak" and finding["rule"] in PAGE_RULES:
                self.by_request[finding["request"]].append(finding)
            if finding["rule"] in INTRUSIONS and finding["verdict"] in RANK:
                self.intruded |= pages_of(finding)

    def beyond(self, other: Leaks) -> list[str]:
        """Requests that leaked here and not there, but for who is named in an intrusion that both saw."""
        return [
            request
            for request in sorted(self.by_request.keys() - other.by_request.keys())
            if not all(f["rule"] in INTRUSIONS and pages_of(f) & other.intruded for f in self.by_request[request])
        ]


def pages_of(finding: dict[str, Any]) -> set[Page]:
    expanded = (range(p[0], p[1] + 1) if isinstance(p, list) else (p,) for p in finding["pages"] or ())
    return {(finding["pool"], page) for pages in expanded for page in pages}


def every(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [*answer["findings"], *answer["engine_findings"]]


@pytest.mark.parametrize("name", NAMES)
def test_product_and_referee_agree(name: str, tmp_path: Path) -> None:
    for seed in range(NAMES.index(name), max(SEEDS, len(NAMES)), len(NAMES)):
        trace = generate(seed, None if name == "healthy" else name)
        path = tmp_path / f"{seed}.jsonl"
        trace.write(str(path))
        answer = product(str(path))
        proven = [f for f in every(answer) if f["verdict"] in PROVEN]
        mine, theirs = Leaks(audit(trace.events)), Leaks(every(answer))
        if name == "healthy" or name in LOSSY:
            assert proven == [], seed
            assert not mine.by_request, seed
        else:
            assert mine.beyond(theirs) == [], f"seed {seed}: only the referee says leak"
            assert theirs.beyond(mine) == [], f"seed {seed}: only the product says leak"
