"""What is missing from the record, and which conclusions it takes away: whatever something lost could explain."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules.model import Context

_POOLS = ["pool", "src_pool", "dst_pool", "to_pool"]


def across_losses(rows: pl.DataFrame, losses: pl.DataFrame) -> pl.DataFrame:
    """Rows that rely on state from `since` to `ev` across a loss at their `source`, with the columns of the first.

    What was lost happened somewhere between the last event before the loss and the first after it; either may lie
    outside the span when other sources saw its ends. A loss without an event before it lies before all others.
    """
    open_ended = losses.with_columns(_after=pl.col("after_ev").fill_null(2**62)).sort("_after")
    met = rows.sort("since").join_asof(
        open_ended,
        left_on="since",
        right_on="_after",
        by="source",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    return met.filter(pl.col("_after").is_not_null() & (pl.col("before_ev").fill_null(-1) < pl.col("ev"))).drop(
        "_after"
    )


def births(context: Context) -> pl.DataFrame:
    """request, incarnation, `born`: from which event on all that befell a request would be on record if nothing was
    lost; -1, the beginning of the record, where its reception is not there."""
    received = pl.col("received_ev").is_not_null()
    return context.requests.select(*KEY, born=pl.when(received).then("first_ev").otherwise(-1))


def on_pools(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (`_row`, `pool`) once for each `source` with losses that reports on the pool."""
    return rows.join(context.once("pools of losers", lambda: _pools_of_losers(context)), on="pool")


def _pools_of_losers(context: Context) -> pl.DataFrame:
    """source, pool: what each source with losses reports on."""
    named = _of_losers(context).select("source", *_POOLS).unique().collect()
    return named.select("source", pool=pl.concat_list(_POOLS)).explode("pool").drop_nulls().unique()


def on_requests(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (`_row`, request, incarnation) once for each `source` with losses that reports on pages or slots of the
    request: as the other end of a transfer, say, it may have lost the landing."""
    named = keyed(_of_losers(context)).filter(pl.col("request").is_in(rows["request"].drop_nulls().unique().to_list()))
    return rows.join(named.select(*KEY, "source").unique().collect(), on=KEY)


def on_receptions(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (request, incarnation) of requests whose reception is not on record, once for each `source` with losses
    that tells of requests; `since` is the beginning of the record, for that is when it may have been."""
    received = context.requests.filter(pl.col("received_ev").is_not_null()).select(KEY)
    unannounced = rows.filter(pl.col("request").is_not_null()).join(received, on=KEY, how="anti")
    return on_kinds(context, unannounced.with_columns(since=pl.lit(-1, pl.Int64)), "request.")


def on_kinds(context: Context, rows: pl.DataFrame, kinds: str) -> pl.DataFrame:
    """Rows once for each `source` with losses that tells of events whose kinds begin so."""
    losers = context.gaps["source"].unique().to_list()
    told = context.events.filter(pl.col("source").is_in(losers) & pl.col("event").str.starts_with(kinds))
    return rows.join(told.select("source").unique().collect(), how="cross")


def _of_losers(context: Context) -> pl.LazyFrame:
    losers = context.gaps["source"].unique().to_list()
    about_memory = pl.any_horizontal(pl.col(*_POOLS, "slot", "transfer").is_not_null())
    return context.events.filter(pl.col("source").is_in(losers) & about_memory)


def first_losses(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """`_row` and `lost`, in words, of the rows that rely from `since` to `ev` on what `source` lost meanwhile."""
    # What a source did before its record began is known to matter only to what has no beginning on record either.
    relying = rows.select("_row", "since", "ev", "source").unique()
    midlife = pl.col("reason") == "midlife"
    met = [
        across_losses(relying, context.gaps.filter(~midlife)),
        across_losses(relying.filter(pl.col("since") < 0), context.gaps.filter(midlife)),
    ]
    lost = pl.coalesce(
        pl.format("events {} to {} of {}", "from_seq", "to_seq", "source"), pl.format("what {} lost", "source")
    )
    found = pl.concat(met).sort("_row", "source").unique("_row", keep="first", maintain_order=True)
    return found.select("_row", lost=lost)


def lost_meanwhile(context: Context, rows: pl.DataFrame, kinds: str | None = None) -> pl.DataFrame:
    """Add `lost`: what sources lost from `since` to `ev` that report on the request (request, incarnation), in words.

    With `kinds`, it is any source that tells of events of which the kinds begin so. Null where nothing is known to
    be lost.
    """
    if rows.is_empty() or context.gaps.is_empty():
        return rows.with_columns(lost=pl.lit(None, pl.String))
    index = rows.with_row_index("_row")
    spans = index.select("_row", *KEY, "since", "ev")
    relying = on_requests(context, spans) if kinds is None else on_kinds(context, spans, kinds)
    return index.join(first_losses(context, relying), on="_row", how="left", maintain_order="left").drop("_row")
