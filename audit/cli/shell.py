"""The shell of `kvwitness sql`: SQL and incident queries, one after another, against a store that goes on growing."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl

from kvwitness.audit.asking import ask, checked, connect, run
from kvwitness.audit.cli.output import Format, Printer, say
from kvwitness.audit.cli.sql import named_values, print_answer, tell_age, warn
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.queries import find, queries
from kvwitness.audit.store import Reader, Store

ROWS = 100
PROMPT, CONTINUED = "kvwitness> ", "      ...> "
_HISTORY_LINES = 10_000
_SQL = """
select from where group by all order limit desc join left using with as distinct count explain analyze describe
summarize show tables and or not in is null between like union case when then else end"""
_WORDS = frozenset(_SQL.split()) | frozenset(_SQL.upper().split())
_HELP = """\
SQL ends with a semicolon. What begins with a dot:
  .views                    the views, with what they hold
  .describe VIEW            its columns, with what they mean
  .queries                  the incident queries
  .show QUERY               one of them, with what its answer means
  .run QUERY NAME=VALUE ... ask it
  .format table|json|jsonl|csv
  .limit ROWS               most rows of an answer; 0 for all
  .timeout SECONDS          after which a query is stopped; 0 for never
  .quit                     or Ctrl-D
Ctrl-C stops a query, or drops what was typed. EXPLAIN shows what a SELECT would do. Nothing can be changed."""


class Leave(Exception):
    """The person has had enough."""


class Shell:
    """Reads, answers, reads on. Errors are told and do not end it."""

    def __init__(self, store: Store, *, format: Format | None, limit: int | None, timeout: float) -> None:
        self._reader = Reader(store.path / "store.duckdb", lambda: connect(store))
        self._store = store
        self._printer = Printer.choose(format)
        self._limit = ROWS if limit is None else limit
        self._timeout = timeout
        self._commands: dict[str, Callable[[list[str]], None]] = {
            ".help": lambda words: say(_HELP),
            ".views": self._views,
            ".describe": self._describe,
            ".queries": self._queries,
            ".show": lambda words: say(find(_one(words)).text),
            ".run": self._run,
            ".format": self._set_format,
            ".limit": self._set_limit,
            ".timeout": self._set_timeout,
            ".quit": self._leave,
            ".exit": self._leave,
        }

    def run(self) -> None:
        """Go on until Ctrl-D or `.quit`."""
        history = _prepare_line(self._complete)
        say(f"{self._store.path}: .help says what there is, Ctrl-D leaves")
        try:
            while True:
                self._turn()
        except (EOFError, Leave):
            say("")
        finally:
            self._reader.close()
            _keep_history(history)

    def _turn(self) -> None:
        try:
            typed = _statement()
            if typed:
                self._answer(typed)
        except KeyboardInterrupt:
            say("\nstopped")
        except KvwitnessError as error:
            say(f"error: {error.message}")
            if error.advice:
                say(error.advice)

    def _answer(self, typed: str) -> None:
        if typed.startswith("."):
            name, *words = _words(typed)
            found = [command for command in self._commands if command.startswith(name)]
            if name not in self._commands and len(found) != 1:
                raise KvwitnessError(f"There is no {name}.", "`.help` lists what there is.")
            self._commands[name if name in self._commands else found[0]](words)
        else:
            self._print(lambda con: self._select(con, typed))

    def _select(self, connection: duckdb.DuckDBPyConnection, statement: str) -> tuple[pl.DataFrame, bool]:
        checked(connection, statement)
        tell_age(self._store, connection, statement)
        return ask(connection, statement, limit=self._limit, timeout=self._timeout)

    def _print(self, fetch: Callable[[duckdb.DuckDBPyConnection], tuple[pl.DataFrame, bool]]) -> None:
        begun = time.perf_counter()
        with self._store.reading():
            frame, more = fetch(self._reader.connection())
        took = time.perf_counter() - begun
        print_answer(self._printer, frame)
        limited = "; only the first, .limit 0 gives all" if more else ""
        say(f"{len(frame):,} row{'' if len(frame) == 1 else 's'}, {took:.2f} s{limited}")

    def _views(self, words: list[str]) -> None:
        self._print(
            lambda con: ask(
                con,
                "SELECT view_name AS view, comment AS holds FROM duckdb_views() "
                "WHERE database_name = 'store' AND NOT internal ORDER BY ALL",
            )
        )

    def _describe(self, words: list[str]) -> None:
        view = _one(words)

        def columns(connection: duckdb.DuckDBPyConnection) -> tuple[pl.DataFrame, bool]:
            found = connection.execute(
                "SELECT column_name AS column, data_type AS type, comment AS meaning FROM duckdb_columns() "
                "WHERE database_name = 'store' AND table_name = $1 ORDER BY column_index",
                [view],
            )
            frame = pl.DataFrame(found.fetchall(), schema=["column", "type", "meaning"], orient="row")
            if frame.is_empty():
                raise KvwitnessError(f"There is no view {view!r}.", "`.views` lists all.")
            return frame, False

        self._print(columns)

    def _queries(self, words: list[str]) -> None:
        rows = [(q.name, q.question, ", ".join(p.name for p in q.parameters)) for q in queries().values()]
        self._printer.rows(pl.DataFrame(rows, schema=["query", "question", "parameters"], orient="row"))

    def _run(self, words: list[str]) -> None:
        query = find(_one(words[:1]))
        values = named_values(words[1:])
        warn(query)

        def answer(connection: duckdb.DuckDBPyConnection) -> tuple[pl.DataFrame, bool]:
            tell_age(self._store, connection, query.select)
            return run(connection, query, values, limit=self._limit, timeout=self._timeout)

        self._print(answer)

    def _set_format(self, words: list[str]) -> None:
        known = [f.value for f in Format if f is not Format.PARQUET]
        if _one(words) not in known:
            raise KvwitnessError(f"There is no format {words[0]!r} here.", f"One of: {', '.join(known)}.")
        self._printer = Printer(Format(words[0]))

    def _set_limit(self, words: list[str]) -> None:
        self._limit = int(_number(words))

    def _set_timeout(self, words: list[str]) -> None:
        self._timeout = _number(words)

    def _leave(self, words: list[str]) -> None:
        raise Leave

    def _complete(self, text: str) -> list[str]:
        """What a word may go on to: views, columns, queries, words of SQL, commands."""
        names = {*queries(), *self._commands, *_WORDS}
        with self._store.reading():
            found = self._reader.connection().execute(
                "SELECT table_name FROM duckdb_columns() WHERE database_name = 'store' "
                "UNION SELECT column_name FROM duckdb_columns() WHERE database_name = 'store'"
            )
            names |= {name for (name,) in found.fetchall()}
        return sorted(name for name in names if name.startswith(text))


def _statement() -> str:
    """What a person types: a line that begins with a dot, or lines up to a semicolon."""
    typed = input(PROMPT).strip()
    while typed and not typed.startswith(".") and not typed.endswith(";"):
        typed = f"{typed}\n{input(CONTINUED).rstrip()}"
    return typed


def _words(typed: str) -> list[str]:
    """The words of a line that begins with a dot; raises `KvwitnessError` where a quote is not closed."""
    try:
        return shlex.split(typed.rstrip(";"))
    except ValueError as error:
        raise KvwitnessError(f"This line cannot be taken apart: {error}.", "Close the quote.") from None


def _one(words: list[str]) -> str:
    if len(words) != 1:
        raise KvwitnessError("This takes one word.", "`.help` says which.")
    return words[0]


def _number(words: list[str]) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", _one(words)):
        raise KvwitnessError(f"{words[0]!r} is no number.", "Give one of 0 or more.")
    return float(words[0])


def _history_file() -> Path | None:
    """Where lines are kept: $KVWITNESS_HISTORY (empty: nowhere), else among the state of the user's programs."""
    named = os.environ.get("KVWITNESS_HISTORY")
    if named is not None:
        return Path(named) if named else None
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "kvwitness" / "sql_history"


def _prepare_line(complete: Callable[[str], list[str]]) -> Path | None:
    """Line editing, where Python was built with it: completion by Tab, and the history of earlier sessions."""
    try:
        import readline
    except ImportError:
        return None
    found: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            try:
                found[:] = complete(text)
            except (KvwitnessError, duckdb.Error):
                found[:] = []
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n,;()=<>+-*/'\"")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    readline.set_history_length(_HISTORY_LINES)
    path = _history_file()
    if path is not None and path.exists():
        try:
            readline.read_history_file(path)
        except OSError as error:
            say(f"the history {path} cannot be read: {error.strerror}")
    return path


def _keep_history(path: Path | None) -> None:
    """Names of customers may stand in it: only the user may read it."""
    readline = sys.modules.get("readline")
    if path is None or readline is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
    except OSError as error:
        say(f"the history {path} cannot be kept: {error.strerror}")
