"""The machine code that GPUs would run: few instructions per byte, and all of it in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON, TRITON

pytest.importorskip("torch", reason=REASON)
pytest.importorskip("triton", reason=TRITON)

ROOT = Path(__file__).resolve().parents[3]


def test_instructions_are_few_and_registers_suffice(tmp_path: Path) -> None:
    # in a process of its own, since in this one Triton interprets
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "benchmarks/fingerprint.py", "--compiled", "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        env={**alone, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads((tmp_path / "out.json").read_text())
    seen = {(one["layout"], one["capability"], one["bits"]) for one in rows}
    assert len(seen) == len(rows) == 11 * 3 * 2
    assert {capability for _, capability, _ in seen} == {80, 90, 100}
    limited = [one for one in rows if one["limited"]]
    assert len(limited) == 10 * 3
    assert max(one["per_word"] for one in limited) <= 24
    # a kernel that went over nothing would have fewer still: each word takes two additions and a product at least
    assert min(one["per_word"] for one in rows) > 3
    assert {one["spilled"] for one in rows} == {0}
