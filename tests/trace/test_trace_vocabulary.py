"""One definition: what is derived from it must agree with it and with itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from kvwitness.audit.trace import (
    EVENT_SCHEMA,
    FIELDS,
    KINDS,
    column_comments,
    duckdb_ddl,
    duckdb_types,
    polars_schema,
)
from kvwitness.audit.trace.fields import COMMON
from kvwitness.audit.trace.reference import render

ROOT = Path(__file__).parents[2]


def test_every_field_of_a_kind_is_defined_and_every_field_belongs_to_a_kind() -> None:
    used = set(COMMON)
    for kind in KINDS.values():
        used |= {*kind.required, *kind.one_of, *kind.optional, *(n for pair in kind.parallel for n in pair)}
    assert used == set(FIELDS)


def test_no_field_of_a_kind_is_named_twice() -> None:
    for kind in KINDS.values():
        names = [*kind.required, *kind.one_of, *kind.optional]
        assert len(names) == len(set(names)), kind.name


def test_column_names_are_unique_and_the_fields_columns_are_all_there() -> None:
    assert len(set(EVENT_SCHEMA.names)) == len(EVENT_SCHEMA.names)
    assert {c for f in FIELDS.values() for c in f.column_names} == set(EVENT_SCHEMA.names) - {"line", "extra"}


def test_polars_reads_the_arrow_schema_as_the_polars_schema() -> None:
    frame = pl.from_arrow(EVENT_SCHEMA.empty_table())
    assert isinstance(frame, pl.DataFrame)
    assert frame.schema == polars_schema()


def test_duckdb_creates_the_table_with_its_comments_and_takes_the_arrow_types() -> None:
    with duckdb.connect() as db:
        db.execute(duckdb_ddl('ev"ents'))
        empty = EVENT_SCHEMA.empty_table()
        assert empty.num_rows == 0
        db.execute('INSERT INTO "ev""ents" SELECT * FROM empty')
        rows = db.execute("SELECT column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal").fetchall()
    assert [(name, comment) for name, _, comment in rows] == list(column_comments().items())
    assert {name: kind for name, kind, _ in rows} == duckdb_types()


def test_the_committed_reference_is_what_the_vocabulary_says() -> None:
    committed = (ROOT / "docs" / "trace-format.md").read_text()
    assert committed == render(), "stale; run: python -m kvwitness.audit.trace.reference > docs/trace-format.md"


def test_the_reference_names_every_kind_field_and_column() -> None:
    page = render()
    for name in (*KINDS, *FIELDS, *EVENT_SCHEMA.names):
        assert f"`{name}`" in page


@pytest.mark.parametrize("blocked", ["pyarrow", "orjson", "polars", "zstandard"])
def test_the_vocabulary_loads_without_what_a_serving_process_may_lack(blocked: str) -> None:
    code = f"""
import sys
sys.modules[{blocked!r}] = None
from kvwitness.audit.trace import FIELDS, KINDS, compress_pages, expand_pages
assert expand_pages([[1, 3]]).tolist() == [1, 2, 3] and compress_pages([1, 2, 3]) == [[1, 3]]
assert FIELDS and KINDS
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import kvwitness.audit.trace as trace

    with pytest.raises(AttributeError, match="no_such_name"):
        trace.no_such_name  # noqa: B018
    assert all(hasattr(trace, name) for name in trace.__all__)
