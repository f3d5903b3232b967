"""Mapping files: what the fields of a log are called, said by a person.

source = "client/acme"           # who wrote it
tenant = "t-acme"                # whose the requests are that name nobody
form = "$time_local $status"     # of an access log: how its lines are made up (see `forms`)

[columns]                        # what is meant = what it is called there
start = "Sent (UTC)"
request = "Request ID"
prompt_tokens = "usage.in"       # a path, in JSON
status = "HTTP"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import cast

from kvwitness.audit.errors import KvwitnessError
from kvwitness.collectors.heads import lines
from kvwitness.collectors.logs import forms, json_lines, tables
from kvwitness.collectors.logs.calls import Given
from kvwitness.collectors.logs.fields import ALIASES
from kvwitness.collectors.salts import salt_key
from kvwitness.collectors.sources import FileCollector

_KEYS = {"source", "tenant", "form", "columns"}
_HEAD = 16_384


def given_for(source: str | None, tenant: str | None, mapping: Path | None) -> Given:
    """What a person said, by options and in a mapping file; options win.

    Raises KvwitnessError for a mapping file that is none.
    """
    said = _read(mapping) if mapping is not None else {}
    columns = said.get("columns", {})
    if not isinstance(columns, dict) or not all(isinstance(name, str) for name in columns.values()):
        raise KvwitnessError(f"{mapping}: [columns] is not a table of strings.", "docs/logs.md shows such a file.")
    if unknown := sorted(set(columns) - set(ALIASES)):
        raise KvwitnessError(
            f"{mapping}: {unknown[0]!r} is nothing that a log is read for.", f"Known: {', '.join(ALIASES)}."
        )
    texts = [value for value in map(said.get, ("source", "tenant", "form")) if value is not None]
    if not all(isinstance(value, str) and value for value in texts):
        raise KvwitnessError(f"{mapping}: source, tenant and form are strings with something in them.")
    form = cast("str | None", said.get("form"))
    if form is not None:
        forms.Form.of(form)
    return Given(
        source=source or cast("str | None", said.get("source")),
        tenant=tenant or cast("str | None", said.get("tenant")),
        columns=columns,
        form=form,
        salt_key=salt_key(),
    )


def _read(path: Path) -> dict[str, object]:
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KvwitnessError(f"{path} cannot be read: {error}", "docs/logs.md shows such a file.") from None
    if unknown := sorted(set(said) - _KEYS):
        raise KvwitnessError(f"{path}: unknown key {unknown[0]!r}.", f"Known are {', '.join(sorted(_KEYS))}.")
    return said


def mapped(file: str, given: Given) -> FileCollector | None:
    """Who reads a file whose fields a mapping names; None without a mapping, or where it cannot be looked at."""
    path = Path(file)
    if given.form is not None:
        return cast(FileCollector, forms)
    if not given.columns or not path.is_file():
        return None
    with path.open("rb") as opened:
        head = opened.read(_HEAD)
    first = lines(head, 1)
    in_json = bool(first) and first[0].lstrip().startswith(b"{")
    return cast(FileCollector, json_lines if in_json else tables)
