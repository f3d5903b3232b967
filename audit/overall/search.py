"""Finding a request by what somebody has of it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.traces import requests_of_trace, trace_id


@dataclass(frozen=True)
class Found:
    """Requests that are like what was asked for."""

    rows: pl.DataFrame
    """Rows of the result table `request_index`, at most as many as were wanted."""
    total: int
    """How many there are."""


def find_requests(
    store: Store,
    answer: Answer,
    text: str = "",
    *,
    outcome: str | None = None,
    verdict: str | None = None,
    most: int = 200,
) -> Found:
    """The requests whose id begins with a text; where there are none, those that carry it as their trace id
    (OpenTelemetry), or those of the transfer that goes by that name.

    `outcome` and `verdict` choose further. Raises StoreError before the first audit.
    """
    like = pl.lit(True)
    for column, value in (("outcome", outcome), ("verdict", verdict)):
        if value is not None:
            like = like & (pl.col(column) == value)
    index = store.scan_result("request_index").filter(like)
    wanted = text.strip()
    if not wanted:
        return _found(index, most)
    found = _found(index.filter(pl.col("request").str.starts_with(wanted)), most, first=wanted)
    if found.total:
        return found
    traced = of_trace(store, wanted)
    named = pl.lit(pl.Series(traced, dtype=pl.String).implode()) if traced else _of_transfer(answer, wanted)
    return _found(index.filter(pl.col("request").is_in(named)), most)


def of_trace(store: Store, text: str) -> list[str]:
    """The requests that carry a trace id (OpenTelemetry), given as such or as a `traceparent`; none for other texts.

    Needs no audit. Reads the store's own events: those of an answer may have been stripped of what it looks for.
    """
    trace = trace_id(text)
    if trace is None:
        return []
    with store.reading():
        return requests_of_trace(store.events(["request", "extra"]), trace).collect()["request"].to_list()


def _found(like: pl.LazyFrame, most: int, first: str | None = None) -> Found:
    """Some of the rows and the number of all; the request `first` before the others."""
    rows, total = like.head(most).collect(), like.select(pl.len()).collect().item()
    if first is not None:
        exact = like.filter(pl.col("request") == first).collect()
        rows = pl.concat([exact, rows.filter(pl.col("request") != first)]).head(most)
    return Found(rows, int(total))


def _of_transfer(answer: Answer, transfer: str) -> pl.Expr:
    named = answer.events.filter((pl.col("transfer") == transfer) & pl.col("request").is_not_null())
    return pl.lit(answer.collect(named.select("request").unique())["request"].implode())
