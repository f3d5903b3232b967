"""`kvwitness demo`: finds exactly what is known to have happened, keeps it, and says what to do with it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvwitness.audit.cli.demo import open_dashboard
from kvwitness.audit.demo import RECORDED_LEAKS, recorded
from kvwitness.audit.errors import KvwitnessError
from tests.cli.conftest import Command

PROGRAM = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]


def silent(what: str, done: float) -> None:
    return None


def test_recorded_leak_is_found_and_any_difference_is_told(tmp_path: Path) -> None:
    scene = recorded(tmp_path, silent)
    assert scene.found == RECORDED_LEAKS
    assert scene.deviations == []
    other = {"r1017": frozenset({"t-ash"}), "r1021": frozenset({"t-ash"})}
    assert replace(scene, known=other).deviations == [
        "r1021 leaked, and was not found",
        "r1020 was found, and did not leak",
        "r1017 read t-ash; found: t-ash, t-birch",
    ]


def test_recorded_leak_a_second_time_adds_nothing(tmp_path: Path) -> None:
    first, second = recorded(tmp_path, silent), recorded(tmp_path, silent)
    assert second.answer.run is not None
    assert first.answer.run is not None
    assert second.answer.run["events"] == first.answer.run["events"] == 1641


def test_directory_with_something_else_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    said = command("demo", "--dir", tmp_path)
    assert said.status == 2
    assert "thesis.tex" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_demo_at_full_length_and_what_it_proposes(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KVWITNESS_KERNEL"}
    done = subprocess.run(
        [*PROGRAM, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "2 requests leaked: r1017 and r1020. Content of 3 tenants could be read" in words
    assert "Request r1017 of tenant t-cedar read content of 2 other tenants: t-ash and t-birch." in words
    assert "155 requests leaked. Content of 25 tenants could be read" in words
    assert "155 were found with exactly the tenants whose content was read, and 0 besides" in words
    proposed = [line for line in done.stdout.splitlines() if line.startswith("kvwitness ")]
    assert len(proposed) == 7
    for line in proposed:
        tried = subprocess.run(
            [*PROGRAM, *shlex.split(line)[1:]], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert tried.returncode == (1 if " audit " in line else 0), line
        assert tried.stdout, line


def test_open_goes_on_as_the_dashboard_of_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, arguments: became.append(arguments))
    open_dashboard(tmp_path / "store")
    assert became[0][-4:] == ["dashboard", "--store", str(tmp_path / "store"), "--browser"]


def test_open_without_the_dashboard_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kvwitness.audit.cli.demo.find_spec", lambda name: None)
    with pytest.raises(KvwitnessError) as told:
        open_dashboard(tmp_path)
    assert "kvwitness[dashboard]" in told.value.advice
