"""Stores for the tests of commands, and a way to run a command and look at what it said."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.cli.app import run

CASES = Path(__file__).parents[1] / "cases"
RECORDED = CASES / "real-sglang-0519-placeholder.jsonl"


@dataclass(frozen=True)
class Said:
    """Status of a command, its data and its remarks."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def words(self) -> str:
        """The output with its line ends undone, for looking for sentences."""
        return " ".join(self.out.split())


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Said:
        capsys.readouterr()
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return call


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command as on a terminal of 100 columns; its colours are taken off."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: object) -> Said:
        screen = _Terminal()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", screen)
            status = run([str(argument) for argument in arguments])
        return Said(status, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()), capsys.readouterr().err)

    return call


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the recorded trace, audited. Not to be changed."""
    store = tmp_path_factory.mktemp("recorded") / "store"
    assert run(["import", str(RECORDED), "--store", str(store), "--quiet"]) == 0
    assert run(["audit", "--store", str(store), "--quiet", "--format", "jsonl"]) == 1
    return store
