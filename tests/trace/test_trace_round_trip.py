"""What is written is read back as the same events."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwitness.audit.trace import (
    EVENT_SCHEMA,
    FIELDS,
    KINDS,
    Field,
    Form,
    load_trace,
    read_jsonl,
    write_jsonl,
)
from kvwitness.audit.trace.fields import COMMON

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))
WORD = st.text("abcxyz019:/-_.\u00e9\u4e2d\U0001f600", min_size=1, max_size=12)
PAGE = st.integers(0, 2**32 - 1) | st.integers(0, 20)
RANGE = st.tuples(PAGE, st.integers(0, 9)).map(lambda r: [r[0], min(r[0] + r[1], 2**32 - 1)])
INT64 = 2**63 - 1
VALUES: dict[Form, st.SearchStrategy[Any]] = {
    Form.TIME: st.integers(10**12, INT64) | st.integers(0, 9 * 10**9) | st.decimals(0, 9 * 10**9, places=6).map(float),
    Form.TEXT: WORD,
    Form.NAME: WORD | st.integers(0, 2**64 - 1),
    Form.NUMBER: st.floats(0, 1e300) | st.integers(0, 10**6),
    Form.BOOL: st.booleans(),
    Form.PAGES: st.lists(PAGE | RANGE, max_size=12),
    Form.SPAN: st.tuples(st.integers(0, INT64), st.integers(0, INT64)).map(sorted),
    Form.OBJECT: st.dictionaries(WORD, WORD | st.integers(0, 99) | st.dictionaries(WORD, WORD, max_size=2), max_size=3),
}


def values(field: Field) -> st.SearchStrategy[Any]:
    least = field.minimum if field.minimum is not None else -INT64
    match field.form:
        case Form.INT:
            return st.integers(least, INT64) | st.integers(max(least, 0), 100)
        case Form.INT32:
            return st.integers(0, 2**31 - 1)
        case Form.INTS:
            one = st.integers(least, INT64)
            return one | st.lists(one, max_size=3)
        case Form.TEXTS:
            return st.lists(WORD, max_size=4)
        case form:
            return VALUES[form]


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """An event with all that its kind requires and some of what it may have; lists that go together do."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    names = ["t", *kind.required, *kind.one_of]
    names += draw(st.lists(st.sampled_from([*kind.optional, *COMMON]), max_size=8, unique=True))
    event = {name: draw(values(FIELDS[name])) for name in names if name != "event"}
    for items, pages in kind.parallel:
        if items in event and pages in event:
            event[pages] = draw(st.lists(PAGE, min_size=1, max_size=5, unique=True))
            size = len(event[pages])
            one = {Form.PAGES: PAGE, Form.TEXTS: WORD}.get(FIELDS[items].form, st.integers(0, 9))
            event[items] = draw(st.lists(one, min_size=size, max_size=size))
    return {
        "event": kind.name,
        **event,
        **draw(st.dictionaries(st.sampled_from(["layer", "b2"]), st.integers(0, 9))),
    }


def write(table: pa.Table) -> bytes:
    file = io.BytesIO()
    assert write_jsonl(table, file) == table.num_rows
    return file.getvalue()


@settings(max_examples=50)
@given(st.lists(events(), max_size=8))
def test_reading_undoes_writing(drawn: list[dict[str, Any]]) -> None:
    first, report = load_trace(io.BytesIO(b"\n".join(map(orjson.dumps, drawn))))
    assert report.bad == []
    assert report.dropped_content == {}
    written = write(first)
    second, report = load_trace(io.BytesIO(written))
    assert report.bad == []
    assert second.drop_columns("line").equals(first.drop_columns("line"))
    assert write(second) == written


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_the_cases_survive_the_round_trip(case: Path) -> None:
    first, _ = load_trace(case)
    second, report = load_trace(io.BytesIO(write(first)))
    assert report.bad == []
    assert second.equals(first)


def test_ranges_and_extra_fields_are_written_as_people_write_them() -> None:
    line = (
        b'{"t":1788221380500000000,"event":"page.move","source":"s","seq":1,"pool":"p","pages":[[1,3],9],'
        b'"to_pages":[[4,6],2],"tok":[0,64],"ns":{"a":1},"digest":"\xc3\xa9","layer":3}\n'
    )
    table, report = load_trace(io.BytesIO(line))
    assert report.bad == []
    assert write(table) == line


def test_batches_sliced_tables_and_missing_columns_can_be_written() -> None:
    lines = b"".join(b'{"t":%d,"event":"page.write","pool":"p","pages":[[%d,9]]}\n' % (n, n) for n in range(1, 6))
    table, _ = load_trace(io.BytesIO(lines))
    seven = io.BytesIO()
    assert write_jsonl(iter(table.to_batches(max_chunksize=2)), seven) == 5
    assert seven.getvalue() == write(table)
    tail = table.slice(3).select(["time_ns", "event", "pages"]).combine_chunks()
    assert [orjson.loads(x)["pages"] for x in write(tail).splitlines()] == [[[4, 9]], [[5, 9]]]
    assert write_jsonl(tail.to_batches()[0], io.BytesIO()) == 2
    assert write(EVENT_SCHEMA.empty_table()) == b""


def test_large_lists_from_polars_can_be_written() -> None:
    import polars as pl

    table, _ = load_trace(io.BytesIO(b'{"t":1,"event":"page.write","pool":"p","pages":[[1,4]]}'))
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    assert write(frame.to_arrow()) == write(table)


def test_what_is_written_in_pieces_is_read_as_one() -> None:
    table, _ = load_trace(CASES[0])
    file = io.BytesIO()
    for batch in table.to_batches(max_chunksize=3):
        write_jsonl(batch, file)
    assert sum(b.num_rows for b in read_jsonl(io.BytesIO(file.getvalue()))) == table.num_rows
