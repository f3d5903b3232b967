"""The event vocabulary of a trace, and the doors through which traces come in and go out.

The vocabulary and the page lists need numpy alone, so that the page tracer can import them inside a serving
process; what needs pyarrow or orjson is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.model import Field, Form, Kind
from kvwitness.audit.trace.pages import compress_pages, expand_pages
from kvwitness.audit.trace.vocabulary import KINDS

if TYPE_CHECKING:
    from kvwitness.audit.trace.reader import TraceReader, load_trace, read_jsonl
    from kvwitness.audit.trace.report import ImportReport, TraceError
    from kvwitness.audit.trace.schema import (
        EVENT_SCHEMA,
        column_comments,
        duckdb_ddl,
        duckdb_types,
        polars_schema,
    )
    from kvwitness.audit.trace.writer import write_jsonl

_LATER = {
    "TraceReader": "reader",
    "load_trace": "reader",
    "read_jsonl": "reader",
    "ImportReport": "report",
    "TraceError": "report",
    "EVENT_SCHEMA": "schema",
    "column_comments": "schema",
    "duckdb_ddl": "schema",
    "duckdb_types": "schema",
    "polars_schema": "schema",
    "write_jsonl": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = [
    "EVENT_SCHEMA",
    "FIELDS",
    "KINDS",
    "Field",
    "Form",
    "ImportReport",
    "Kind",
    "TraceError",
    "TraceReader",
    "column_comments",
    "compress_pages",
    "duckdb_ddl",
    "duckdb_types",
    "expand_pages",
    "load_trace",
    "polars_schema",
    "read_jsonl",
    "write_jsonl",
]
