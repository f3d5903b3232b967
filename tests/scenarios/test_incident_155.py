"""The generated incident: always the same bytes, and a ground truth that a plain replay of them confirms."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvwitness.audit.scenarios.incident_155 import Truth, generate
from kvwitness.audit.scenarios.incident_155.deployment import DECODE_PAGES, DECODE_POOL, PAGE_TOKENS

EXPECTED = Path(__file__).parents[1] / "cases" / "incident-155.expect.json"


def small(seed: int = 7) -> tuple[str, Truth]:
    """The same incident among few ordinary requests."""
    out = io.StringIO(newline="\n")
    truth = generate(out, seed=seed, ordinary=1000)
    return out.getvalue(), truth


def test_full_length_trace_and_truth_are_the_published_ones() -> None:
    out = io.StringIO(newline="\n")
    truth = generate(out)
    assert hashlib.sha256(out.getvalue().encode()).hexdigest() == truth.sha256
    assert truth.expectation() == json.loads(EXPECTED.read_text())


@pytest.mark.parametrize(
    ("seed", "sha256"),
    [
        (7, "c819b9e9097cd068fc9d6d749c9893d559b1a160d9e605349412a30d25aaa7ba"),
        (155, "245bf59e2d4b5704cfc1e45884f7ffc64ca2f94ba3dd0d8720d85166fe7f1f1d"),
    ],
)
def test_a_seed_gives_the_same_bytes_everywhere(seed: int, sha256: str) -> None:
    text, truth = small(seed)
    assert (truth.sha256, truth.bytes, truth.lines) == (sha256, len(text), text.count("\n"))


def pages_of(listed: list[int | list[int]]) -> list[int]:
    """A page list with its ranges written out."""
    pages: list[int] = []
    for item in listed:
        pages += range(item[0], item[1] + 1) if isinstance(item, list) else [item]
    return pages


def replayed(text: str) -> dict[str, dict[str, Any]]:
    """What each over-long request's read met, found by one writer number per row of the decode pool."""
    rows = np.full(DECODE_PAGES * PAGE_TOKENS, -1, np.int32)
    tenants: dict[str, str] = {}
    names: list[str] = []
    refused: set[str] = set()
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        event = json.loads(line)
        kind, request = event["event"], event.get("request")
        if kind == "request.received":
            tenants[request] = event["tenant"]
            names.append(request)
        elif kind == "request.rejected":
            refused.add(request)
        if event.get("pool") != DECODE_POOL or kind not in ("page.write", "page.read"):
            continue
        first, end = event["tok"]
        pages = np.array(pages_of(event["pages"]))
        where = (pages[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).ravel()
        where = where[first % PAGE_TOKENS :][: end - first]
        if kind == "page.write" and event.get("phase") != "begin":
            rows[where] = names.index(request)
        elif kind == "page.read" and request in refused:
            writers = rows[where]
            foreign = [tenants[name] != tenants[request] for name in names]
            hit = np.append(foreign, False)[writers]
            met = np.bincount(writers[hit]).nonzero()[0]
            found[request] = {
                "other_tenants": sorted({tenants[names[n]] for n in met}),
                "foreign_requests": len(met),
                "foreign_tokens": int(hit.sum()),
                "never_written_tokens": int((writers < 0).sum()),
                "pages": np.bincount(where[hit] // PAGE_TOKENS).nonzero()[0].tolist(),
            }
    return found


def test_ground_truth_agrees_with_a_plain_replay_of_the_trace() -> None:
    text, truth = small()
    stated = {}
    for incident in truth.expectation()["incidents"]:
        facts = incident["truth"]
        stated[incident["request"]] = {
            "other_tenants": incident["other_tenants"],
            "pages": pages_of(incident["pages"].get(DECODE_POOL, [])),
        } | {k: facts[k] for k in ("foreign_requests", "foreign_tokens", "never_written_tokens")}
    assert len(stated) == 155
    assert replayed(text) == stated


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    truth = generate(io.StringIO(), ordinary=1000, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (len(truth.requests), len(truth.requests))


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1000"):
        generate(io.StringIO(), ordinary=10)
