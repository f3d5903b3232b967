"""The questions of an incident, one `.sql` file each beside this one; a new file is a new query.

A file begins with comments that say what it asks and what its answer is worth, in this form:

    -- question: one sentence
    -- param NAME TYPE = DEFAULT: meaning          (without a default it must be given; any number of these)
    -- cost: scan                                  (only where it reads most of the store, whatever is asked)
    -- means: what a row is, and what may be concluded
    -- cannot say: what may not

A comment that begins with two more spaces goes on with the one above. Then comes one SELECT over the views of
`store.duckdb`, in which `getvariable('NAME')` stands for a parameter. The same text runs in any DuckDB after
`SET VARIABLE NAME = ...`; `store.duckdb` holds each query also as a macro: `SELECT * FROM query(NAME := ...)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvwitness.audit.errors import KvwitnessError

TYPES = {"VARCHAR", "BIGINT", "DOUBLE", "TIMESTAMP"}
"""Types of parameters."""

_HEAD = re.compile(r"(question|param|cost|means|cannot say)(?: (\w+) (\w+)(?: = ([^:]*(?::\d\d)*))?)?: (.+)", re.DOTALL)
_USE = re.compile(r"getvariable\('(\w+)'\)")


@dataclass(frozen=True)
class Parameter:
    """What a query has to be told, or may be."""

    name: str
    type: str
    """A DuckDB type, one of `TYPES`."""
    default: str | None
    """As text; None: it must be given."""
    meaning: str

    @property
    def literal(self) -> str:
        """The default as SQL."""
        return f"CAST('{self.default}' AS {self.type})"


@dataclass(frozen=True)
class Query:
    """A question with its SQL."""

    name: str
    question: str
    parameters: tuple[Parameter, ...]
    means: str
    cannot_say: str
    scan: bool
    """It reads most of the store, so that it takes long on a large one."""
    text: str
    """The whole file."""

    @property
    def macro(self) -> tuple[tuple[str, ...], str]:
        """Parameters and body of the same query as a macro."""
        named = (p.name if p.default is None else f"{p.name} := {p.literal}" for p in self.parameters)
        return tuple(named), _USE.sub(r"\1", self.select)

    @property
    def select(self) -> str:
        """The SQL without its comments."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("--"))


@cache
def queries() -> dict[str, Query]:
    """Name -> query, in the order of the names."""
    found = (f for f in files(__name__).iterdir() if f.name.endswith(".sql"))
    parsed = [parse(f.name.removesuffix(".sql"), f.read_text(encoding="utf-8")) for f in found]
    return {q.name: q for q in sorted(parsed, key=lambda q: q.name)}


def parse(name: str, text: str) -> Query:
    """A query from its file. Raises ValueError that says what its header lacks."""
    heads: dict[str, str] = {}
    parameters = []
    for comment in _comments(text):
        match = _HEAD.fullmatch(comment)
        if match is None:
            raise ValueError(f"{name}.sql: not a line of a header: {comment}")
        kind, parameter, type_, default, meaning = match.groups()
        if kind == "param":
            parameters.append(Parameter(parameter, type_, default, meaning))
        else:
            heads[kind] = meaning
    if missing := {"question", "means", "cannot say"} - heads.keys():
        raise ValueError(f"{name}.sql: the header lacks {', '.join(sorted(missing))}")
    if wrong := {p.type for p in parameters} - TYPES:
        raise ValueError(f"{name}.sql: unknown type {', '.join(sorted(wrong))}")
    if {p.name for p in parameters} != set(_USE.findall(text)):
        raise ValueError(f"{name}.sql: the parameters that it declares are not those that it uses")
    scan = heads.get("cost") == "scan"
    return Query(name, heads["question"], tuple(parameters), heads["means"], heads["cannot say"], scan, text)


def _comments(text: str) -> list[str]:
    """The comments at the top, each with what goes on in the lines below it."""
    comments: list[str] = []
    for line in text.splitlines():
        if not line.startswith("-- "):
            break
        if line.startswith("--   "):
            comments[-1] += " " + line.removeprefix("--").strip()
        else:
            comments.append(line.removeprefix("-- ").strip())
    return comments


def find(name: str) -> Query:
    """The query of this name; dashes count as underscores. Raises KvwitnessError, with those that read alike."""
    from difflib import get_close_matches

    wanted = name.replace("-", "_")
    if wanted in queries():
        return queries()[wanted]
    alike = get_close_matches(wanted, queries(), 3, 0.5)
    told = f"Did you mean {' or '.join(alike)}? " if alike else ""
    raise KvwitnessError(f"There is no query {name!r}.", f"{told}`kvwitness sql --list` lists all.")
