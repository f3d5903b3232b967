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
path, text, variables = sys.argv[1], sys.argv[2], ast.literal_eval(sys.argv[3])
con = duckdb.connect()
con.execute("ATTACH '" + path + "' AS store (READ_ONLY)")
con.execute("USE store")
for name, value in variables.items():
    con.execute("SET VARIABLE " + name + " = " + repr(value))
print(con.execute(text).fetchall())
"""


def by_variables(python: str, store: Path, query: Query, parameters: dict[str, Any]) -> str:
    """What a bare DuckDB answers to the file of the query, its parameters set as variables."""
    return by_text(python, store, query.text, parameters)


def by_macro(python: str, store: Path, query: Query, parameters: dict[str, Any]) -> str:
    """What a bare DuckDB answers to the macro in store.duckdb."""
    given = ", ".join(f"{name} := {value!r}" for name, value in parameters.items())
    return by_text(python, store, f"FROM {query.name}({given})", {})


def by_text(python: str, store: Path, text: str, variables: dict[str, Any]) -> str:
    """What a bare DuckDB answers to SQL."""
    command = [python, "-I", "-c", _ASK, str(store / "store.duckdb"), text, repr(variables)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shell(binary: str, store: Path, statement: str) -> str:
    """What the DuckDB shell prints, as JSON."""
    command = [binary, "-readonly", "-json", str(store / "store.duckdb"), statement]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True, env={**os.environ, "HOME": "/"})
    return done.stdout
