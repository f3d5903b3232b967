"""Relations that every rule starts from: one row per request, and one row per known loss of telemetry.

Both are derived from the events alone, in frames of the form that `kvwitness.audit.rules.model.Context`
describes.
"""

from __future__ import annotations

import polars as pl

from kvwitness.audit.acts import acts_of
from kvwitness.audit.turns import in_turn

KEY = ["request", "incarnation"]

REQUEST_SCHEMA = pl.Schema(
    {
        "request": pl.String(),
        "incarnation": pl.Int32(),
        "tenant": pl.String(),  # by its most trusted receiver, else the first on any of its events
        "tenants": pl.List(pl.String()),  # every tenant that was ever named for it
        "tenant_source": pl.String(),
        "prompt_tokens": pl.Int64(),  # true length
        "max_new_tokens": pl.Int64(),
        "salt_hmac": pl.String(),
        "adapter": pl.String(),
        "model": pl.String(),
        "traffic": pl.String(),  # "user" where nothing was said
        "received_ev": pl.Int64(),
        "received_ns": pl.Int64(),
        "received_source": pl.String(),
        "rejected_ev": pl.Int64(),  # first refusal by anybody
        "rejected_ns": pl.Int64(),
        "rejected_source": pl.String(),
        "rejected_status": pl.Int64(),
        "aborted_ev": pl.Int64(),  # first abort by anybody
        "aborted_ns": pl.Int64(),
        "aborted_source": pl.String(),
        "status": pl.Int64(),  # of the final answer, as are the next six
        "finish_reason": pl.String(),
        "answered_prompt_tokens": pl.Int64(),
        "cached_tokens": pl.Int64(),
        "completion_tokens": pl.Int64(),
        "finished_ev": pl.Int64(),
        "finished_ns": pl.Int64(),
        "answered_by": pl.String(),
        "ok": pl.Boolean(),  # some answer was a 2xx
        "first_ev": pl.Int64(),  # over all events that name the request
        "last_ev": pl.Int64(),
        "ended_ev": pl.Int64(),  # first of final answer, abort and refusal; null while alive
        "ended_ns": pl.Int64(),
    }
)

GAP_SCHEMA = pl.Schema(
    {
        "source": pl.String(),
        "before_ev": pl.Int64(),  # last event of the source before the loss; null at its beginning
        "after_ev": pl.Int64(),  # first event of the source after it; null at its end
        "from_seq": pl.Int64(),
        "to_seq": pl.Int64(),  # inclusive
        "dropped": pl.Int64(),  # events lost, as far as known
        "reason": pl.String(),  # `hole`, `declared`, `unread`, `doubled` or `midlife`
    }
)

REJECTED_SCHEMA = pl.Schema(
    {
        "source": pl.String(),
        "seq": pl.Int64(),  # null where the line's place is told by the times of its neighbours in the source
        "first_ns": pl.Int64(),  # `time_ns` of the event before it; null: it came before all others
        "last_ns": pl.Int64(),  # and of the one after it; null: it came after all others
    }
)
"""Lines that could not be read; `kvwitness.audit.unread` finds their places."""


def keyed(events: pl.LazyFrame) -> pl.LazyFrame:
    """The events that name a request, with `incarnation` filled in (an absent one is the first life, 0)."""
    named = events.filter(pl.col("request").is_not_null())
    return named.with_columns(pl.col("incarnation").cast(pl.Int32).fill_null(0))


def trust(events: pl.LazyFrame) -> pl.Expr:
    """How far a source's word on a request goes: 0 a gateway, 1 an engine, 2 a client."""
    gateways = (
        events.filter((pl.col("event") == "engine.limits") & (pl.col("role") == "gateway"))
        .select(pl.col("engine").str.split("/").list.first())
        .unique()
        .collect()["engine"]
        .to_list()
    )
    site = pl.col("site")
    is_gateway = site.str.starts_with("gateway") | site.is_in(gateways)
    return pl.when(is_gateway).then(0).when(site.str.starts_with("client")).then(2).otherwise(1)


def requests(events: pl.LazyFrame, acts: pl.LazyFrame | None = None) -> pl.DataFrame:
    """One row per (request, incarnation) in `REQUEST_SCHEMA`, in the order of their first events.

    Requests that only page events name are rows too. Two sources that record one reception give one row; so
    do two receptions that clash, in which case `tenants` holds all that were named. `acts` are those of the events,
    where they have been counted.
    """
    named = keyed(events)
    told = keyed(acts_of(events) if acts is None else acts)
    spans = told.group_by(KEY).agg(pl.col("first_ev").min(), pl.col("last_ev").max())
    parts = [
        _tenants(told),
        _received(named, trust(events)),
        _refusals(named),
        _aborts(named),
        _answers(named),
    ]
    frame = spans.collect()
    for part in parts:
        frame = frame.join(part.collect(), on=KEY, how="left")
    frame = frame.with_columns(
        tenant=pl.coalesce("received_tenant", "any_tenant"),
        tenant_source=pl.coalesce("tenant_source", "any_tenant_source"),
        tenants=pl.col("tenants").fill_null([]),
        traffic=pl.col("traffic").fill_null("user"),
        ok=pl.col("ok").fill_null(False),
        ended_ev=pl.min_horizontal("finished_ev", "aborted_ev", "rejected_ev"),
        ended_ns=pl.min_horizontal("finished_ns", "aborted_ns", "rejected_ns"),
    )
    columns = [pl.col(name).cast(dtype) for name, dtype in REQUEST_SCHEMA.items()]
    return frame.select(columns).sort("first_ev")


def _tenants(told: pl.LazyFrame) -> pl.LazyFrame:
    """Per request, every tenant that any of its events names, and the first of them; from acts."""
    said = told.filter(pl.col("tenant").is_not_null())
    each = said.group_by(*KEY, "tenant", "tenant_source").agg(ev=pl.col("first_ev").min()).sort("ev")
    return each.group_by(KEY, maintain_order=True).agg(
        any_tenant=pl.col("tenant").first(),
        any_tenant_source=pl.col("tenant_source").first(),
        tenants=pl.col("tenant").unique().sort(),
    )


def _received(named: pl.LazyFrame, trusted: pl.Expr) -> pl.LazyFrame:
    """Per request, what its reception said, the most trusted observer first."""
    facts = ["tenant", "tenant_source", "prompt_tokens", "max_new_tokens"]
    facts += ["salt_hmac", "adapter", "model", "traffic"]
    received = named.filter(pl.col("event") == "request.received").with_columns(rank=trusted)
    rows = received.sort("rank", "ev").select(
        *KEY, *facts, received_ev="ev", received_ns="ref_ns", received_source="source"
    )
    # Nearly all requests are received once; only the others need to be put together, which is slow.
    count = pl.len().over(KEY)
    once = rows.filter(count == 1)
    when = pl.col("received_ev", "received_ns", "received_source").first()
    merged = rows.filter(count > 1).group_by(KEY, maintain_order=True)
    several = merged.agg(*[pl.col(name).drop_nulls().first() for name in facts], when)
    return pl.concat([once, several]).rename({"tenant": "received_tenant"})


def _refusals(named: pl.LazyFrame) -> pl.LazyFrame:
    refused = named.filter(pl.col("event") == "request.rejected").sort("ev")
    return refused.group_by(KEY, maintain_order=True).agg(
        rejected_ev=pl.col("ev").first(),
        rejected_ns=pl.col("ref_ns").first(),
        rejected_source=pl.col("source").first(),
        rejected_status=pl.col("status").first(),
    )


def _aborts(named: pl.LazyFrame) -> pl.LazyFrame:
    aborted = named.filter(pl.col("event") == "request.aborted").sort("ev")
    return aborted.group_by(KEY, maintain_order=True).agg(
        aborted_ev=pl.col("ev").first(),
        aborted_ns=pl.col("ref_ns").first(),
        aborted_source=pl.col("source").first(),
    )


def _answers(named: pl.LazyFrame) -> pl.LazyFrame:
    """Per request, its final answer: the one that no engine signed, else the last that one did."""
    answers = named.filter(pl.col("event") == "request.finished")
    final = answers.sort(pl.col("answered_by").is_null(), "ev").group_by(KEY, maintain_order=True)
    return final.agg(
        pl.col("status", "finish_reason", "cached_tokens", "completion_tokens", "answered_by").last(),
        answered_prompt_tokens=pl.col("prompt_tokens").last(),
        finished_ev=pl.col("ev").last(),
        finished_ns=pl.col("ref_ns").last(),
        ok=pl.col("status").is_between(200, 299).any(),
    )


def gaps(events: pl.LazyFrame, rejected: pl.DataFrame | None = None) -> pl.DataFrame:
    """Known loss per source in `GAP_SCHEMA`: holes in `seq`, declared losses, lives older than the record.

    `rejected` (in `REJECTED_SCHEMA`) are lines that could not be read. What they said is lost like what never came:
    mostly they are a hole already, the others are added. A source without `seq` has only these and what it declares.
    One that used a number twice has no order at all: two records of the same name, or a life after a restart.
    """
    opening = pl.col("prev_ev").is_null() & (pl.col("seq") > 1)
    step = pl.col("seq") - pl.col("prev_seq")
    said = events.filter(pl.col("event") == "telemetry.gap").select("ev", "from_seq", "to_seq", "dropped").collect()
    says = pl.col("ev").is_in(said["ev"].to_list())
    turns = in_turn(events, ["seq"], before=["seq"])
    steps = pl.concat(turn.filter(opening | (step > 1) | (step <= 0) | says) for turn in turns)
    kept = steps.join(said.with_columns(declares=pl.lit(True)), on="ev", how="left", maintain_order="left")
    kept = kept.with_columns(pl.col("declares").fill_null(False))
    holes = _holes(kept)
    declared = _declared(kept, holes)
    covered = declared.select("source", "before_ev", "after_ev")
    rest = holes.join(covered, on=["source", "before_ev", "after_ev"], how="anti", nulls_equal=True)
    unread = [] if rejected is None else [_unnumbered(events, rejected), _beyond_the_last(events, rejected)]
    return pl.concat([rest, declared, _doubled(kept), *unread]).sort("after_ev", "source")


def _holes(steps: pl.DataFrame) -> pl.DataFrame:
    jump = steps.filter((pl.col("seq") - pl.col("prev_seq").fill_null(0)) > 1)
    first = pl.col("prev_seq").fill_null(0) + 1
    midlife = pl.col("prev_ev").is_null()
    rows = jump.select(
        "source",
        before_ev="prev_ev",
        after_ev="ev",
        from_seq=first,
        to_seq=pl.col("seq") - 1,
        dropped=pl.col("seq") - first,
        reason=pl.when(midlife).then(pl.lit("midlife")).otherwise(pl.lit("hole")),
    )
    return rows.cast(GAP_SCHEMA)


def _doubled(steps: pl.DataFrame) -> pl.DataFrame:
    """Sources that used numbers twice, from their beginning to their end: what came when cannot be told."""
    again = steps.filter(pl.col("seq") <= pl.col("prev_seq"))
    nothing = pl.lit(None, pl.Int64)
    rows = again.group_by("source").agg(from_seq=pl.col("seq").min(), to_seq=pl.col("seq").max())
    whole = rows.with_columns(before_ev=nothing, after_ev=nothing, dropped=nothing, reason=pl.lit("doubled"))
    return whole.select(GAP_SCHEMA.names()).cast(GAP_SCHEMA)


def _beyond_the_last(events: pl.LazyFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    """Unreadable lines whose numbers follow the last one of their source on record: no hole shows them."""
    last = events.group_by("source").agg(pl.col("ev").max(), last_seq=pl.col("seq").max()).collect()
    rows = rejected.drop_nulls("seq").unique().join(last, on="source").filter(pl.col("seq") > pl.col("last_seq"))
    return _unread(
        rows.group_by("source").agg(
            before_ev=pl.col("ev").first(),
            after_ev=pl.lit(None, pl.Int64),
            from_seq=pl.col("seq").min(),
            to_seq=pl.col("seq").max(),
            dropped=pl.len(),
        )
    )


def _unnumbered(events: pl.LazyFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    """Unreadable lines that no number places: somewhere between the events of their source that have these times."""
    lines = rejected.filter(pl.col("seq").is_null())
    own = events.filter(pl.col("source").is_in(lines["source"].unique().to_list())).select("source", "ev", "time_ns")
    near = lines.join(own.collect(), on="source")
    key = ["source", "first_ns", "last_ns"]
    before = pl.col("ev").filter(pl.col("time_ns") == pl.col("first_ns")).min()
    after = pl.col("ev").filter(pl.col("time_ns") == pl.col("last_ns")).max()
    rows = near.group_by(key, maintain_order=True).agg(before_ev=before, after_ev=after)
    nothing = pl.lit(None, pl.Int64)
    return _unread(rows.with_columns(from_seq=nothing, to_seq=nothing, dropped=nothing))


def _unread(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(reason=pl.lit("unread")).select(GAP_SCHEMA.names()).cast(GAP_SCHEMA)


def _declared(steps: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Declared losses, each at the hole in `seq` that it explains where there is one."""
    said = steps.filter(pl.col("declares") & (pl.col("dropped").is_null() | (pl.col("dropped") > 0)))
    hole = holes.select("source", "before_ev", "after_ev", hole_from="from_seq", hole_to="to_seq")
    pairs = said.join(hole, on="source").filter(
        pl.when(pl.col("from_seq").is_not_null() & pl.col("to_seq").is_not_null())
        .then((pl.col("from_seq") <= pl.col("hole_to")) & (pl.col("to_seq") >= pl.col("hole_from")))
        .otherwise(pl.col("after_ev") == pl.col("ev"))
    )
    at_hole = pairs.select(
        "source",
        "before_ev",
        "after_ev",
        from_seq="hole_from",
        to_seq="hole_to",
        dropped=pl.col("dropped"),
    )
    alone = said.join(pairs.select("source", "ev"), on=["source", "ev"], how="anti").select(
        "source", "from_seq", "to_seq", "dropped", before_ev="prev_ev", after_ev="ev"
    )
    both = pl.concat([at_hole, alone.select(at_hole.columns)]).unique(["source", "before_ev", "after_ev"])
    return both.with_columns(reason=pl.lit("declared")).cast(GAP_SCHEMA).select(GAP_SCHEMA.names())
