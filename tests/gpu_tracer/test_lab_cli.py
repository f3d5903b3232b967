"""`kvwitness lab`, as it is called; what needs torch is skipped where it is not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

MAIN = "from kvwitness.audit.cli import main; main()"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=REASON)


def lab(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + MAIN, "lab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_torch
@pytest.mark.lab
def test_the_leak_and_its_incident_on_one_screen(tmp_path: Path) -> None:
    done = lab("run", "--fault", "placeholder", "--dir", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    (leaked,) = [line for line in lines if "the secret of t-ash" in line]
    assert leaked.split()[:5] == ["r-long", "t-birch", "148", "200", "'7391;'"]
    (incident,) = [line for line in lines if line.startswith("inc-")]
    assert incident.endswith("LEAK  request r-long of t-birch, content of t-ash")
    assert "  pages 1-19 of decode-0/0/kv, generations 2, 5, 6, 7" in lines


@needs_torch
@pytest.mark.lab
def test_the_same_traffic_without_a_fault_is_clean_and_a_run_replaces_the_one_before(tmp_path: Path) -> None:
    for left in ("rings", "store"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "left over").touch()
    done = lab("run", "--fault", "none", "--dir", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the secret of" not in done.stdout
    assert "nothing: 9 requests, all clean" in done.stdout
    assert not [*tmp_path.glob("*/left over")]


@needs_torch
@pytest.mark.lab
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    done = lab("run", "--fault", "none", "--dir", tmp_path)
    assert done.returncode == 2
    assert "letters" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_without_torch_it_says_what_to_do(tmp_path: Path) -> None:
    done = lab("run", "--fault", "none", "--dir", tmp_path / "run", before="import sys; sys.modules['torch'] = None\n")
    assert done.returncode == 2
    assert "pip install torch" in done.stderr
    assert not (tmp_path / "run").exists()
    assert "placeholder" in lab("faults", before="import sys; sys.modules['torch'] = None\n").stdout
