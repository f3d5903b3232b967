"""The shell of `kvwitness sql` as a person meets it: on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ENDLESS = "SELECT count(*) FROM range(1000000000000) AS t(a) WHERE a % 3 = 1;"
PATIENCE = 60.0


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, store: Path, home: Path, *options: str) -> None:
        master, slave = pty.openpty()
        program = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()"]
        state = {"KVWITNESS_HISTORY": str(home / "history"), "TERM": "dumb", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*program, "sql", "--store", str(store), *options],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, **state},
            preexec_fn=self._take_terminal,
        )  # fmt: skip
        os.close(slave)
        self._master = master
        self.seen = ""

    @staticmethod
    def _take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> str:
        """Wait for a text that was not there before; returns what came up to it."""
        end = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"{pattern!r} did not come: {self.seen!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 65_536).decode(errors="replace")
                except OSError:
                    pytest.fail(f"the shell ended before {pattern!r}: {self.seen!r}")
        said, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return said

    def interrupt(self) -> str:
        """Press Ctrl-C, again where nobody heard it; returns what is said until the next prompt.

        A signal that arrives after Python's readline has drawn a prompt and before it waits for keys is noticed with
        the next key only.
        """
        for _ in range(5):
            self.type("\x03")
            if select.select([self._master], [], [], 10.0)[0]:
                break
        return self.until("kvwitness> ")

    def ask(self, text: str) -> str:
        """Type a line; returns what is said until the next prompt."""
        self.type(text + "\n")
        return self.until("kvwitness> ")

    def close(self) -> int:
        self.type("\x04")
        status = self.process.wait(PATIENCE)
        os.close(self._master)
        return status


@pytest.fixture
def shell(recorded: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(recorded, tmp_path)
    try:
        terminal.until("kvwitness> ")
        yield terminal
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_questions_one_after_another(shell: Terminal, tmp_path: Path) -> None:
    assert "1970" in shell.ask("SELECT count(*) AS n\nFROM events;")
    said = shell.ask(".run over_limit_successes until=2026-11-30T17:48:00Z")
    assert "r1017" in said
    assert "r1020" not in said
    assert "1 row," in said
    assert "t-birch" in shell.ask("FROM tenants_to_notify();")
    assert "read_causes" in shell.ask(".views")
    assert "True prompt length" in shell.ask(".describe requests")
    assert "readers_of_tenant" in shell.ask(".queries")
    assert "cannot say" in shell.ask(".show foreign_decodes")
    assert "physical_plan" in shell.ask("EXPLAIN SELECT * FROM requests;")
    shell.ask(".format jsonl")
    shell.ask(".limit 2")
    said = shell.ask("SELECT seq FROM events ORDER BY seq;")
    assert said.count('{"seq":') == 2
    assert "only the first" in said
    assert shell.close() == 0
    history = tmp_path / "history"
    assert "FROM tenants_to_notify();" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("DROP VIEW events;", "DROP is not allowed here"),
        ("COPY (SELECT 1) TO 'file';", "not allowed here"),
        ("SELECT * FROM read_csv('/etc/hostname');", "disabled by configuration"),
        ("SELECT nothing FROM events;", "nothing"),
        (".run over_limit", "There is no query 'over_limit'"),
        (".run could_have_read", "needs request_id"),
        (".run could_have_read request_id='r9", "Close the quote"),
        (".describe nothing", "There is no view 'nothing'"),
        (".limit many", "'many' is no number"),
        (".format parquet", "There is no format"),
        (".nonsense", "There is no .nonsense"),
    ],
)
def test_mistakes_are_told_and_do_not_end_it(shell: Terminal, typed: str, told: str) -> None:
    assert told in shell.ask(typed).replace("\r\n", " ")
    assert "42" in shell.ask("SELECT 6 * 7;")


def test_ctrl_c_stops_a_query_and_drops_what_was_typed(shell: Terminal) -> None:
    shell.type(ENDLESS + "\n")
    time.sleep(2)
    assert "stopped" in shell.interrupt()
    shell.type("SELECT half\n")
    shell.until(r"\.\.\.> ")
    assert "stopped" in shell.interrupt()
    assert "42" in shell.ask("SELECT 6 * 7;")


def test_a_query_that_takes_too_long_is_stopped(shell: Terminal) -> None:
    shell.ask(".timeout 0.5")
    assert "stopped after 0.5 s" in shell.ask(ENDLESS)


def test_tab_completes_views_columns_queries_and_commands(shell: Terminal) -> None:
    shell.type("SELECT received_s\t")
    shell.until("received_source")
    shell.type(" FROM request_v\t LIMIT 0;\n")
    shell.until("request_verdicts")
    shell.until("kvwitness> ")
    shell.type(".run tenants_to_n\t\n")
    shell.until("tenants_to_notify")
    assert "t-ash" in shell.until("kvwitness> ")


def test_an_end_of_the_terminal_ends_it(shell: Terminal) -> None:
    shell.process.send_signal(signal.SIGHUP)
    assert shell.process.wait(PATIENCE) != 0
