"""Distributed traces (OpenTelemetry) of requests: the ids that spans and logs brought along, and finding by them."""

from __future__ import annotations

import re

import polars as pl

_TRACE_ID = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}(?:-[0-9a-f]{2})?)?")
"""A trace id as OpenTelemetry writes it, or the `traceparent` of W3C that holds one."""
_IN_EXTRA = pl.col("extra").str.json_path_match("$.trace_id")
"""Collectors keep what is outside the vocabulary, such as the ids of a span, as JSON in the column `extra`."""


def trace_id(text: str) -> str | None:
    """The trace id that a text is, in any case, or that it holds as a `traceparent`; None where it is neither."""
    found = _TRACE_ID.fullmatch(text.strip().lower())
    return found[1] if found and found[1].strip("0") else None


def requests_of_trace(events: pl.LazyFrame, trace: str) -> pl.LazyFrame:
    """One column, `request`: the requests that an event carrying this trace id names, each once, in their order.

    `events` are those of a store or a trace file; `trace` is of the form of `trace_id`.
    """
    bearing = pl.col("extra").str.to_lowercase().str.contains(trace, literal=True).fill_null(False)
    named = events.filter(bearing & pl.col("request").is_not_null()).select("request", trace=_IN_EXTRA)
    return named.filter(pl.col("trace").str.to_lowercase() == trace).select(pl.col("request").unique().sort())


def traces_of(events: pl.DataFrame) -> list[str]:
    """The trace ids that events carry, each once, in their order."""
    return events.select(_IN_EXTRA).to_series().drop_nulls().unique().sort().to_list()
