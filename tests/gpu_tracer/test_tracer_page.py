"""The page about the tracer shows what really happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run

PAGE = Path(__file__).parents[2] / "docs" / "tracer.md"


def test_the_worked_example_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    environment = {"KVWITNESS_RING_DIR": str(tmp_path / "rings"), "PYTHONPATH": str(PAGE.parents[1])}
    subprocess.run([sys.executable, "-c", example[1]], env=environment, check=True, timeout=60)
    store = ["--store", str(tmp_path / "store")]
    assert run(["tail", str(tmp_path / "rings"), "--once", *store]) == 0
    capsys.readouterr()
    assert run(["audit", *store, "--format", "table"]) == 1
    assert "1 request leaked: r2. Content of 1 tenant could be read: t-ash." in capsys.readouterr().out
