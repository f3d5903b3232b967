"""The benchmark command runs, its competitors find the planted reads, and its report says on what machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[2] / "benchmarks" / "audit.py"


@pytest.mark.slow
def test_report_of_a_small_run(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    only = [part for name in ("ids", "shadow", "polars") for part in ("--only", name)]
    command = [sys.executable, str(COMMAND), "--size", "200k", "--repeat", "1", "--json", str(report), *only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    assert {"cores", "python", "packages"} <= told["machine"].keys()
    measured = told["sizes"]["200k"]
    assert set(measured) == {"ids", "shadow", "polars"}
    for result in measured.values():
        assert result["page_events"] >= 200_000
        assert result["cpu_s"] > 0
        assert result["peak_mib"] > 0
    assert measured["shadow"]["as_planted"]
    assert measured["shadow"]["digest"] == measured["polars"]["digest"]
    assert "same answer, exactly the planted reads" in done.stdout
