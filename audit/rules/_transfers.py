"""What transfer events prove on their own, without any page state."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import SECOND_NS, of_requests, with_tenant
from kvwitness.audit.rules._losses import births, lost_meanwhile
from kvwitness.audit.rules.model import Context
from kvwitness.audit.wording import number_of, several_of

STARTS = ["transfer.offer", "transfer.begin"]
TERMINAL = ["transfer.done", "transfer.failed", "transfer.drained"]


def _moves(context: Context, transfers: pl.LazyFrame) -> pl.LazyFrame:
    """Starts and ends of the given transfers, numbered by `life`: a start after an end opens another."""
    wanted = pl.col("transfer").is_not_null() & pl.col("event").is_in([*STARTS, *TERMINAL])
    columns = [
        "transfer",
        "event",
        *KEY,
        "ev",
        "source",
        "observer",
        "src_pool",
        "tok_first",
        "tokens",
        "bytes",
        "pages_ok",
    ]
    moves = context.events.filter(wanted).select(columns)
    moves = moves.join(transfers, on="transfer", how="semi").sort("ev")
    start = pl.col("event").is_in(STARTS)
    reopened = start & ~start.shift(fill_value=True).over("transfer")
    return moves.with_columns(
        incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0),
        life=reopened.cast(pl.Int64).cum_sum().over("transfer"),
    )


def uses(moves: pl.LazyFrame) -> pl.LazyFrame:
    """Starts and ends of transfers with `use`: an id is used anew when, after an end, another request starts with it,
    or after a failure anybody.

    A start of the same request after a completion is its next piece.
    """
    rows = moves.filter(pl.col("event").is_in([*STARTS, *TERMINAL])).sort("ev")
    start, failed = pl.col("event").is_in(STARTS), pl.col("event") == "transfer.failed"
    owner = pl.when(start).then(pl.struct(*KEY)).forward_fill().shift().over("transfer")
    after_end = start & ~start.shift(fill_value=True).over("transfer")
    last = [pl.when(kind).then("ev").forward_fill().shift().over("transfer") for kind in (failed, start)]
    anew = after_end & (owner.ne_missing(pl.struct(*KEY)) | (last[0] > last[1]).fill_null(False))
    return rows.with_columns(use=anew.cast(pl.Int64).cum_sum().over("transfer"))


def unterminated_transfers(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Transfers that nobody reported as done, failed or drained for longer than `bound_s` (seconds).

    The time counts from the end of the request, or from the last start while the request is alive. One row
    per transfer and pool, with columns of the finding schema. Where no party ever reports an end, nothing
    is returned: such a record cannot tell a hanging transfer from a finished one. Transfers of no page at
    all are left out.
    """
    hanging = _hanging(context)
    if hanging.is_empty():
        return pl.DataFrame()
    known = context.requests.select(*KEY, "tenant", "ended_ns")
    dated = hanging.join(known, on=KEY, how="left").with_columns(
        waiting_ns=context.horizon_ns - pl.max_horizontal("ended_ns", "begun_ns")
    )
    old = dated.filter(pl.col("waiting_ns") > int(float(settings["bound_s"]) * SECOND_NS))
    sides = [old.with_columns(pool=pl.col(f"{side}_pool"), pages=pl.col(f"{side}_pages")) for side in ("src", "dst")]
    rows = pl.concat(sides).filter(pl.col("pages").list.len() > 0).sort("begun_ns", "pool")
    return rows.select(
        *KEY,
        "tenant",
        "pool",
        "pages",
        "evs",
        verdict=pl.lit("exposure"),
        why=pl.format(
            "transfer {} has had no terminal signal for {} s", "transfer", number_of(pl.col("waiting_ns") // SECOND_NS)
        ),
    )


def _hanging(context: Context) -> pl.DataFrame:
    """Transfers that began, and that nobody ended since; none where the record never shows an end."""
    moves = context.events.filter(pl.col("transfer").is_not_null())
    starts = moves.filter(pl.col("event").is_in(STARTS)).with_columns(
        incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0)
    )
    ends = moves.filter(pl.col("event").is_in(TERMINAL))
    last_end = ends.group_by("transfer").agg(end_ev=pl.col("ev").max())
    if last_end.select(pl.len()).collect().item() == 0:
        return pl.DataFrame()
    # A start after the last end opened the life that hangs; all lives before it ended.
    return (
        starts.join(last_end, on="transfer", how="left")
        .filter(pl.col("ev") > pl.col("end_ev").fill_null(-1))
        .sort("ev")
        .group_by("transfer", maintain_order=True)
        .agg(
            pl.col(*KEY).last(),
            pl.col("src_pool", "src_pages", "dst_pool", "dst_pages").drop_nulls().last(),
            evs=pl.col("ev"),
            begun_ns=pl.col("ref_ns").max(),
        )
        .collect()
    )


def event_level(context: Context) -> pl.DataFrame:
    """Completions that contradict themselves: done after failed, or tokens with no byte or no page landed.

    A `transfer.done` without tokens claims nothing about arrival and is not judged, nor does one say anything wrong
    that moved nothing because its request had all of that in its cache. One row per completion, with columns of the
    finding schema.
    """
    failed = pl.col("event") == "transfer.failed"
    start = pl.col("event").is_in(STARTS)
    claim = (pl.col("event") == "transfer.done") & (pl.col("tokens") > 0)
    empty = ((pl.col("bytes") == 0) | (pl.col("pages_ok") == 0)).fill_null(False)
    ends = context.events.filter(pl.col("transfer").is_not_null() & pl.col("event").is_in(TERMINAL))
    marked = ends.select("transfer", failed=failed, claim=claim, empty=claim & empty)
    told = marked.group_by("transfer").agg(pl.col("failed", "claim", "empty").max())
    doubtful = told.filter((pl.col("failed") & pl.col("claim")) | pl.col("empty"))
    seen = _moves(context, doubtful).with_columns(
        request=pl.col("request").forward_fill().over("transfer"),
        incarnation=pl.when(start).then("incarnation").forward_fill().over("transfer"),
        tok_first=pl.when(start).then("tok_first").forward_fill().over("transfer", "life"),
        src_pool=pl.when(start).then("src_pool").forward_fill().over("transfer", "life"),
        failed_ev=pl.when(failed).then("ev").forward_fill().over("transfer", "life"),
        start_ev=pl.when(start).then("ev").forward_fill().over("transfer", "life"),
    )
    nothing_to_move = (pl.col("tok_first") >= pl.col("tokens")).fill_null(False)
    empty = empty & ~nothing_to_move
    claims = seen.filter(claim)
    rows = _unless_present(context, claims.filter(pl.col("failed_ev").is_not_null() | empty).with_columns(empty=empty))
    rows = rows.filter(pl.col("failed_ev").is_not_null() | pl.col("empty"))
    # Another start may have been lost: what failed was then an earlier attempt than the one that is done. So may the
    # share that brought what was not moved, or, with the only start, whose transfer it was.
    spans = rows.join(births(context), on=KEY, how="left", maintain_order="left").rename({"born": "since"})
    spans = spans.with_columns(pl.col("since").fill_null(-1))
    named = pl.col("start_ev").is_not_null()
    rows = pl.concat(
        [
            lost_meanwhile(context, spans.filter(named)),
            lost_meanwhile(context, spans.filter(~named), ""),
        ]
    ).sort("ev")
    # Of whom nobody says that it ever began, it is not known what there was to move.
    nameless = pl.col("start_ev").is_null() & pl.col("request").is_null() & pl.col("failed_ev").is_null()
    rows = rows.with_columns(
        lost=pl.coalesce("lost", pl.when(nameless).then(pl.format("the beginning of transfer {}", "transfer")))
    )
    sure = pl.col("lost").is_null()
    observer = pl.coalesce("observer", "source")
    return with_tenant(rows, context).select(
        *KEY,
        "tenant",
        verdict=pl.when(sure).then(pl.lit("integrity")).otherwise(pl.lit("unproven")),
        missing=pl.when(~sure).then("lost"),
        evs=pl.concat_list("start_ev", "failed_ev", "ev").list.drop_nulls(),
        why=pl.when(pl.col("failed_ev").is_not_null())
        .then(pl.format("{} was told that transfer {} is done after it had failed", observer, "transfer"))
        .otherwise(
            pl.format(
                "{} was told that transfer {} is done for {} with {} and {}",
                observer,
                "transfer",
                several_of("tokens", "token"),
                several_of("bytes", "byte").fill_null("an unknown number of bytes"),
                several_of("pages_ok", "good page").fill_null("an unknown number of good pages"),
            )
        ),
    )


def _unless_present(context: Context, claims: pl.LazyFrame) -> pl.DataFrame:
    """`claims`, with `empty` cleared where shares of the request had brought every position by then.

    Shares count outside the pool that the transfer reads.
    """
    rows = claims.with_row_index("_row").collect()
    wanted = rows.filter("empty").select("_row", *KEY, "src_pool", "tokens", done="ev")
    if wanted.is_empty():
        return rows.drop("_row", "src_pool")
    shares = of_requests(context, wanted.select(KEY).unique()).filter(
        (pl.col("event") == "page.share") & pl.col("tok_first").is_not_null()
    )
    begun = shares.select(*KEY, "pool", "ev", "tok_first", "tok_end").collect()
    before = wanted.join(begun, on=KEY).filter(
        (pl.col("ev") < pl.col("done")) & (pl.col("pool") != pl.col("src_pool")).fill_null(True)
    )
    # A run that begins behind the end of those before it leaves a hole.
    reached = before.sort("tok_first").with_columns(
        past=pl.col("tok_end").cum_max().shift(fill_value=0).over("_row", "pool")
    )
    whole = reached.group_by("_row", "pool").agg(
        hole=(pl.col("tok_first") > pl.col("past")).any(), end=pl.col("tok_end").max(), tokens=pl.col("tokens").first()
    )
    present = whole.filter(~pl.col("hole") & (pl.col("end") >= pl.col("tokens"))).select("_row").unique()
    met = pl.col("_row").is_in(present["_row"].implode())
    return rows.with_columns(empty=pl.col("empty") & ~met).drop("_row", "src_pool")
