"""Stores for the queries, and the ways to ask: from Python, and from a DuckDB that knows nothing of this program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from kvwitness.audit.queries import Query

CASES = Path(__file__).parents[1] / "cases"

_ASK = """\
import ast, sys, duckdb
con = duckdb.connect()
con.execute("ATTACH '" + sys.argv[1] + "' AS store (READ_ONLY)")
con.execute("USE store")
for text, variables in ast.literal_eval(sys.stdin.read()):
    for name, value in variables.items():
        con.execute("SET VARIABLE " + name + " = " + repr(value))
    print(con.execute(text).fetchall())
    for name in variables:
        con.execute("RESET VARIABLE " + name)
"""

Question = tuple[str, dict[str, Any]]
"""SQL, and the variables to set before it."""


def by_variables(query: Query, parameters: dict[str, Any]) -> Question:
    """The file of a query, its parameters set as variables."""
    return query.text, parameters


def by_macro(query: Query, parameters: dict[str, Any]) -> Question:
    """The macro in store.duckdb."""
    given = ", ".join(f"{name} := {value!r}" for name, value in parameters.items())
    return f"FROM {query.name}({given})", {}


def bare(python: str, store: Path, questions: list[Question]) -> list[str]:
    """What the DuckDB of another Python, which knows nothing of this program, answers."""
    command = [python, "-I", "-c", _ASK, str(store / "store.duckdb")]
    asked = repr(questions)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shell(binary: str, store: Path, statement: str) -> str:
    """What the DuckDB shell prints, as JSON."""
    command = [binary, "-readonly", "-json", str(store / "store.duckdb"), statement]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True, env={**os.environ, "HOME": "/"})
    return done.stdout
