"""Small pieces that several event-level rules share: naming engines and tenants, and finishing findings."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules.model import Context, findings, no_findings

SECOND_NS = 1_000_000_000

SUCCESS = pl.col("status").is_between(200, 299)
"""The answer is a 2xx."""

TOLD_ABORTED = (
    pl.col("finish_reason")
    .str.to_lowercase()
    .is_in(["abort", "aborted", "cancel", "cancelled", "canceled", "disconnect", "error"])
    .fill_null(False)
)
"""The answer itself says that it is none, whatever its status: a stream sends its 200 early."""


def site_of(name: str) -> pl.Expr:
    """The engine part of `engine/rank/group`."""
    return pl.col(name).str.split("/").list.first()


def acting_engine(context: Context) -> pl.Expr:
    """The engine that acted in an event: its site, or the owner of the pool where an outsider observed it."""
    names = context.events.filter(pl.col("event").is_in(["engine.limits", "engine.pool"])).select(
        engine=pl.coalesce(site_of("engine"), site_of("pool"))
    )
    engines = names.unique().collect()["engine"].drop_nulls().to_list()
    outsider = ~pl.col("site").is_in(engines) & pl.col("pool").is_not_null()
    return pl.when(outsider).then(site_of("pool")).otherwise(pl.col("site"))


def of_requests(context: Context, wanted: pl.DataFrame) -> pl.LazyFrame:
    """The events that name one of the requests in `wanted` (columns `request`, `incarnation`)."""
    ids = wanted["request"].unique().to_list()
    named = keyed(context.events.filter(pl.col("request").is_in(ids)))
    return named.join(wanted.lazy().select(KEY).unique(), on=KEY, how="semi")


ENDS = ("request.finished", "request.aborted", "request.rejected")
"""Events that end a life of a request id."""


def of_the_last_life(touched: pl.LazyFrame, said: pl.LazyFrame) -> pl.LazyFrame:
    """Those of the events `said` that belong to the last life of their request; `touched` are all of such requests.

    A client that tries again may use its id again, and not every source counts incarnations: where one that had
    received a request receives it once more, and the request had ended in between, what was said before is of an
    earlier life.
    """
    received, ended = pl.col("event") == "request.received", pl.col("event").is_in(ENDS)
    moments = touched.filter(received | ended).sort("ev").with_columns(ends=ended.cast(pl.Int64).cum_sum().over(KEY))
    earlier = pl.col("ends").min().over(*KEY, "source")
    again = moments.filter(received).filter(pl.col("ends") > earlier)
    begun = again.group_by(KEY).agg(life_ev=pl.col("ev").max())
    rows = said.join(begun, on=KEY, how="left", maintain_order="left")
    return rows.filter(pl.col("ev") > pl.col("life_ev").fill_null(-1)).drop("life_ev")


def with_tenant(frame: pl.DataFrame, context: Context) -> pl.DataFrame:
    """Add the `tenant` of each row's (request, incarnation)."""
    rows = frame.drop("tenant", strict=False)
    return rows.join(context.requests.select(*KEY, "tenant"), on=KEY, how="left", maintain_order="left")


def report(context: Context, rule: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Findings from rows that carry `evs`: the proving events, which are put in replay order.

    A finding is dated by the event `at_ev` where rows have one, else by the first event that proves it.
    """
    if rows.is_empty():
        return no_findings()
    proven = rows.with_columns(evs=pl.col("evs").list.drop_nulls().list.unique().list.sort())
    first = pl.col("evs").list.first()
    dating = pl.coalesce("at_ev", first) if "at_ev" in rows.columns else first
    proven = proven.with_columns(_dating=dating)
    wanted = proven["_dating"].drop_nulls().unique().to_list()
    times = context.events.filter(pl.col("ev").is_in(wanted)).select(_dating="ev", time_ns="ref_ns").collect()
    dated = proven.drop("time_ns", strict=False).join(times, on="_dating", how="left", maintain_order="left")
    return findings(dated.drop("_dating", "at_ev", strict=False), rule)
