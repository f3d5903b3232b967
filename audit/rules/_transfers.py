"""What transfer events prove on their own, without any page state."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import SECOND_NS, with_tenant
from kvwitness.audit.rules.model import Context

STARTS = ["transfer.offer", "transfer.begin"]
TERMINAL = ["transfer.done", "transfer.failed", "transfer.drained"]


def _moves(context: Context) -> pl.LazyFrame:
    """Starts and ends of transfers, numbered by `life`: a start after an end opens another life of the id."""
    wanted = pl.col("transfer").is_not_null() & pl.col("event").is_in([*STARTS, *TERMINAL])
    moves = context.events.filter(wanted).sort("ev")
    start = pl.col("event").is_in(STARTS)
    reopened = start & ~start.shift(fill_value=True).over("transfer")
    return moves.with_columns(
        incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0),
        life=reopened.cast(pl.Int64).cum_sum().over("transfer"),
    )


def unterminated_transfers(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Transfers that nobody reported as done, failed or drained for longer than `bound_s` (seconds).

    The time counts from the end of the request, or from the last start while the request is alive. One row
    per transfer and pool, with columns of the finding schema. Where no party ever reports an end, nothing
    is returned: such a record cannot tell a hanging transfer from a finished one. Transfers of no page at
    all are left out.
    """
    moves = _moves(context)
    start = pl.col("event").is_in(STARTS)
    lives = (
        moves.group_by("transfer", "life")
        .agg(
            request=pl.col("request").filter(start).last(),
            incarnation=pl.col("incarnation").filter(start).last(),
            evs=pl.col("ev").filter(start),
            begun_ns=pl.col("ref_ns").filter(start).max(),
            ended=(~start).any(),
            src_pool=pl.col("src_pool").drop_nulls().last(),
            src_pages=pl.col("src_pages").drop_nulls().last(),
            dst_pool=pl.col("dst_pool").drop_nulls().last(),
            dst_pages=pl.col("dst_pages").drop_nulls().last(),
        )
        .collect()
    )
    if not lives["ended"].any():
        return pl.DataFrame()
    hanging = lives.filter(~pl.col("ended") & pl.col("request").is_not_null())
    known = context.requests.select(*KEY, "tenant", "ended_ns")
    dated = hanging.join(known, on=KEY, how="left").with_columns(
        waiting_ns=context.horizon_ns - pl.max_horizontal("ended_ns", "begun_ns")
    )
    old = dated.filter(pl.col("waiting_ns") > int(float(settings["bound_s"]) * SECOND_NS))
    sides = [
        old.with_columns(pool=pl.col(f"{side}_pool"), pages=pl.col(f"{side}_pages"))
        for side in ("src", "dst")
    ]
    rows = pl.concat(sides).filter(pl.col("pages").list.len() > 0).sort("begun_ns", "pool")
    return rows.select(
        *KEY,
        "tenant",
        "pool",
        "pages",
        "evs",
        verdict=pl.lit("exposure"),
        why=pl.format(
            "transfer {} has had no terminal signal for {} s", "transfer", pl.col("waiting_ns") // SECOND_NS
        ),
    )


def event_level(context: Context) -> pl.DataFrame:
    """Completions that contradict themselves: done after failed, or tokens with no byte or no page landed.

    A `transfer.done` without tokens claims nothing about arrival and is not judged. One row per completion,
    with columns of the finding schema.
    """
    moves = _moves(context)
    failed = pl.col("event") == "transfer.failed"
    start = pl.col("event").is_in(STARTS)
    seen = moves.with_columns(
        request=pl.col("request").forward_fill().over("transfer"),
        incarnation=pl.when(start).then("incarnation").forward_fill().over("transfer"),
        tok_first=pl.when(start).then("tok_first").forward_fill().over("transfer", "life"),
        failed_ev=pl.when(failed).then("ev").forward_fill().over("transfer", "life"),
        start_ev=pl.when(start).then("ev").forward_fill().over("transfer", "life"),
    )
    claims = seen.filter((pl.col("event") == "transfer.done") & (pl.col("tokens") > 0))
    empty = (pl.col("bytes") == 0) | (pl.col("pages_ok") == 0)
    nothing_to_move = pl.col("tok_first") >= pl.col("tokens")
    empty = empty.fill_null(False) & ~nothing_to_move.fill_null(False)
    rows = claims.filter(pl.col("failed_ev").is_not_null() | empty).collect()
    observer = pl.coalesce("observer", "source")
    return with_tenant(rows, context).select(
        *KEY,
        "tenant",
        verdict=pl.lit("integrity"),
        evs=pl.concat_list("start_ev", "failed_ev", "ev").list.drop_nulls(),
        why=pl.when(pl.col("failed_ev").is_not_null())
        .then(pl.format("{} was told that transfer {} is done after it had failed", observer, "transfer"))
        .otherwise(
            pl.format(
                "{} was told that transfer {} is done for {} tokens with {} bytes and {} good pages",
                observer,
                "transfer",
                "tokens",
                pl.col("bytes").cast(pl.String).fill_null("unknown"),
                pl.col("pages_ok").cast(pl.String).fill_null("unknown"),
            )
        ),
    )
