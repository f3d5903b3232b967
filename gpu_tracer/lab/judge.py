"""Asks `kvwitness`, as anybody would who has the rings, what happened in the lab."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMAND = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]

_FINGERPRINTS = """
SELECT strftime(ts, '%H:%M:%S.%g') AS time, "at", request, digests[list_position(pages, {page})] AS digest
FROM events WHERE event = 'content.digest' AND pool = '{pool}' AND list_contains(pages, {page})
ORDER BY time_ns, seq
"""


class Failed(Exception):
    """The command did not do its work; the text is what it said."""


@dataclass(frozen=True)
class Judged:
    """What the audit says."""

    incidents: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    requests: dict[str, str]
    """Request -> verdict."""


def judge(rings: Path, store: Path) -> Judged:
    """Bring the rings into the store and have it audited. Raises `Failed`."""
    _ask("tail", str(rings), "--once", "--store", str(store))
    audit = json.loads(_ask("audit", "--store", str(store)))
    incidents = json.loads(_ask("incidents", "--store", str(store)))
    return Judged(incidents, [*audit["findings"], *audit["engine_findings"]], audit["requests"])


def fingerprints(store: Path, pool: str, page: int) -> list[dict[str, str]]:
    """Those on record for a page, in their order: `time`, `at`, `request` and `digest`. Raises `Failed`."""
    found: list[dict[str, str]] = json.loads(
        _ask("sql", _FINGERPRINTS.format(page=int(page), pool=pool.replace("'", "''")), "--store", str(store))
    )
    return found


def _ask(*arguments: str) -> str:
    command = [*_COMMAND, *arguments, "--format", "json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise Failed(f"kvwitness {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
