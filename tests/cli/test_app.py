"""The command itself: finding subcommands, exit statuses, what is said where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from kvwitness import __version__
from kvwitness.audit.cli import commands
from kvwitness.audit.cli.app import run
from kvwitness.audit.errors import KvwitnessError

PROGRAM = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Makes a function the body of a subcommand `extra` that another distribution provides."""

    def install(body: Callable[[], None]) -> None:
        extra = typer.Typer()
        extra.command(help="From elsewhere.")(body)
        monkeypatch.setattr(sys.modules[__name__], "extra", extra, raising=False)
        point = EntryPoint("extra", f"{__name__}:extra", commands.GROUP)
        monkeypatch.setattr(commands, "entry_points", lambda group: [point])

    return install


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"kvwitness {__version__}\n"


def test_version_loads_no_engine() -> None:
    code = (
        "import sys; from kvwitness.audit.cli.app import run; run(['--version']);"
        "print(sorted({'duckdb', 'llvmlite', 'polars', 'pyarrow'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"kvwitness {__version__}\n[]\n"


def test_help_lists_own_and_plugged_in_commands(
    plug_in: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in(lambda: print("ran"))
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ["rules", "extra", "From elsewhere."])
    assert run(["extra"]) == 0
    assert capsys.readouterr().out == "ran\n"


def test_command_that_cannot_be_loaded_is_listed_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("extra", "no_such_module_anywhere:app", commands.GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda group: [point])
    assert run(["--help"]) == 0
    assert "Not available here" in capsys.readouterr().out
    assert run(["extra", "--some-option", "x"]) == 2
    said = capsys.readouterr().err
    assert "no_such_module_anywhere" in said
    assert "optional part" in said


def test_unknown_command_and_unknown_option_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rulez"]) == 2
    assert "rules" in capsys.readouterr().err
    assert run(["rules", "list", "--nope"]) == 2
    assert capsys.readouterr().out == ""


def test_expected_failure_gives_message_and_advice(
    plug_in: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in(raising(KvwitnessError("the store is locked", "Wait, or stop the other writer.")))
    assert run(["extra"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: the store is locked\nWait, or stop the other writer.\n"


def test_operating_system_errors_name_the_file(
    plug_in: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plug_in(lambda: print(Path("/no/such/file").read_text()))
    assert run(["extra"]) == 2
    assert capsys.readouterr().err == "error: /no/such/file: No such file or directory\n"


def test_fault_of_ours_is_short_unless_debugging(
    plug_in: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(raising(ZeroDivisionError("division by zero")))
    monkeypatch.delenv("KVWITNESS_DEBUG", raising=False)
    assert run(["extra"]) == 2
    said = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in said
    assert "Traceback" not in said
    monkeypatch.setenv("KVWITNESS_DEBUG", "1")
    assert run(["extra"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interruption(plug_in: Callable[[Callable[[], None]], None]) -> None:
    plug_in(raising(KeyboardInterrupt()))
    assert run(["extra"]) == 130


def test_reader_that_goes_away_is_no_error() -> None:
    # A pipe whose reading end is closed before anything is written.
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*PROGRAM, "rules", "reference"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
