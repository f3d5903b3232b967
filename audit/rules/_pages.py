"""From facts of the replay to findings: whose content it was, whether the order is certain, one row per cause."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kvwitness.audit.pagesets import union_pages
from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import site_of
from kvwitness.audit.rules._losses import births, first_losses, on_pools, on_receptions, on_requests
from kvwitness.audit.rules.model import Context, findings, no_findings

OTHER_TENANT = pl.col("other_tenant").is_not_null() & (pl.col("other_tenant") != pl.col("tenant"))
"""The other side is known to be another tenant."""

BY_TENANT = pl.when(OTHER_TENANT).then(pl.lit("leak")).otherwise(pl.lit("integrity"))
"""`leak` when the content or the page was another tenant's, `integrity` when it was not, or when nobody can say."""

ORDERED_OTHERWISE = ["unwritten", "not_ready", "uncovered", "false_done", "orphan", "timeout_free", "position"]
"""Facts whose two events are ordered by ids, or whose order does not matter."""

OF_A_WHOLE_LIFE = ["position", "uncovered"]
"""Facts that rest on everything that befell the request in the pool, not on the state of one page."""

READS = ["unwritten", "foreign", "not_ready", "tainted", "uncovered", "late_read"]
"""Facts that say what a request read."""

OF_TWO_HOLDERS = ["double_alloc", "double_free", "double_write"]
"""Facts that say of another request that it holds a page still."""


def facts(context: Context, names: Sequence[str]) -> pl.DataFrame:
    """The facts of these names (see `kvwitness.audit.provenance.facts`)."""
    return context.facts.filter(pl.col("fact").is_in(list(names)))


def judge(context: Context, rule: str, rows: pl.DataFrame, verdict: pl.Expr | None, why: pl.Expr) -> pl.DataFrame:
    """Findings from facts: `verdict` per fact, or the column of that name; `why` per finding.

    A fact whose order of events neither a source nor the clocks establish, or which relies on page state across a
    loss of telemetry, becomes `unproven` and names what is missing. `why` may use `n_pages`, `positions` (token
    positions concerned), `others` and `other_names` (other requests), besides the columns of the finding.
    """
    if rows.is_empty():
        return no_findings()
    if verdict is not None:
        rows = rows.with_columns(verdict=verdict)
    rows = _against_clocks(context, _against_losses(context, _dated(context, rows)))
    rows = rows.with_columns(verdict=pl.when(pl.col("missing").is_null()).then("verdict").otherwise(pl.lit("unproven")))
    merged = _merged(rows)
    merged = merged.with_columns(
        n_pages=pl.col("pages").list.len(),
        others=pl.col("other_requests").list.len(),
        other_names=_some("other_requests"),
        tenant_names=_some("other_tenants"),
    ).with_columns(why=why)
    unsure = pl.col("missing").is_not_null()
    merged = merged.with_columns(
        why=pl.when(unsure).then(pl.format("{}; not proved: {}", "why", "missing")).otherwise("why"),
        engine=pl.when(pl.col("request").is_null()).then(site_of("pool")),
    )
    return findings(merged.sort("time_ns", maintain_order=True), rule)


def _some(column: str) -> pl.Expr:
    few = pl.col(column).list.head(3).list.join(", ")
    more = pl.col(column).list.len().cast(pl.Int64) - 3
    return pl.when(more > 0).then(pl.format("{} and {} more", few, more)).otherwise(few)


def _dated(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Add source, reference time and clock uncertainty of the two events that a fact compares."""
    known = context.at(pl.concat([rows["ev"], rows["ev2"], rows["since"]]), "source", "ref_ns", "unc_ns")
    second = known.rename({"ev": "ev2", "source": "source2", "ref_ns": "ref2_ns", "unc_ns": "unc2_ns"})
    unordered = pl.col("fact").is_in(ORDERED_OTHERWISE) | ((pl.col("fact") == "foreign") & (pl.col("x") == 1))
    rows = rows.with_columns(pair=pl.when(~unordered).then(pl.coalesce("ev2", "since")))
    return (
        rows.join(known, on="ev", how="left", maintain_order="left")
        .join(second.rename({"ev2": "pair"}), on="pair", how="left", maintain_order="left")
        .with_columns(time_ns=pl.col("ref_ns"), missing=pl.lit(None, pl.String))
    )


def _against_clocks(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Events of two sources that clocks cannot order prove nothing about which came first."""
    apart = pl.col("source2").is_not_null() & (pl.col("source") != pl.col("source2"))
    width = pl.col("unc_ns").fill_null(2**61) + pl.col("unc2_ns").fill_null(2**61)
    near = (pl.col("ref_ns") - pl.col("ref2_ns")).abs() <= width
    rows = rows.with_columns(
        missing=pl.when(pl.col("missing").is_null() & apart & near)
        .then(pl.format("clocks that order {} and {}", "source2", "source"))
        .otherwise("missing")
    )
    return _late_landings(context, rows)


def _late_landings(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """A read found positions unwritten, but another source reports the reader's own bytes at about that time."""
    if not rows["fact"].is_in(["unwritten", "not_ready", "uncovered"]).any():
        return rows
    landings = (
        context.events.filter(
            (pl.col("event") == "page.write")
            & (pl.col("op") == "transfer")
            & (pl.col("phase") != "begin").fill_null(True)
        )
        .select(
            *[pl.col(k) for k in ("request", "pool")],
            landed_ev=pl.col("ev"),
            landed_by=pl.col("source"),
            landed_ns=pl.col("ref_ns"),
            landed_unc=pl.col("unc_ns").fill_null(2**61),
        )
        .collect()
    )
    index = rows.with_row_index("_row")
    met = index.join(landings, on=["request", "pool"]).filter(
        (pl.col("landed_by") != pl.col("source"))
        & (pl.col("landed_ev") > pl.col("ev"))
        & (pl.col("landed_ns") - pl.col("ref_ns") <= pl.col("unc_ns").fill_null(2**61) + pl.col("landed_unc"))
        & pl.col("fact").is_in(["unwritten", "not_ready", "uncovered"])
    )
    late = met.select("_row", landed_by="landed_by").unique("_row")
    return (
        index.join(late, on="_row", how="left", maintain_order="left")
        .with_columns(
            missing=pl.when(pl.col("missing").is_null() & pl.col("landed_by").is_not_null())
            .then(pl.format("clocks that order {} and {}", "landed_by", "source"))
            .otherwise("missing")
        )
        .drop("_row", "landed_by")
    )


def _against_losses(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """A loss at a source that may have seen what mattered, after the state was set and before it was relied upon."""
    if context.gaps.is_empty():
        return rows
    index = rows.with_row_index("_row")
    relying = _relied_upon(context, index).select("_row", *KEY, "pool", "since", "ev")
    # An engine's own traffic may read anything, and only the reception says that it is such.
    reads = relying.filter(index["fact"].is_in(READS))
    seen = [on_pools(context, relying), on_requests(context, relying), on_receptions(context, reads)]
    lost = first_losses(context, pl.concat(seen))
    return (
        index.join(lost, on="_row", how="left", maintain_order="left")
        .with_columns(missing=pl.coalesce("lost", "missing"))
        .drop("_row", "lost")
    )


def _relied_upon(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """`since` as the event from which on nothing may be lost; -1 for the beginning of the record.

    Of a page that nobody was ever given, the allocation itself may be what was lost. What is said of somebody else
    than whoever the page was given to last, rests on all that befell that one before; a place in a page table, or what
    has been covered, on all that befell the request. What shows that a reader had nothing to do with another tenant's
    content is all that befell the reader, and the page since that was written: whatever came before does not excuse it,
    once it is on record how the pool is made and which of its pages are anybody's.
    """
    given = context.at(rows["since"], "request").rename({"ev": "since", "request": "given_to"})
    others = context.requests.group_by(other_request="request").agg(other_born=pl.col("first_ev").min())
    told = (
        rows.join(given, on="since", how="left", maintain_order="left")
        .join(births(context), on=KEY, how="left", maintain_order="left")
        .join(others, on="other_request", how="left", maintain_order="left")
    )
    of_another = pl.col("request").is_not_null() & (pl.col("given_to") != pl.col("request")).fill_null(True)
    brought = pl.col("fact").is_in(["unwritten", "foreign"]) & (pl.col("x") == 1)  # by its transfer, from elsewhere
    whole = of_another | brought | pl.col("fact").is_in(OF_A_WHOLE_LIFE)
    since = pl.min_horizontal(
        pl.col("since").fill_null(-1),
        pl.when(whole).then(pl.col("born").fill_null(-1)),
        # What was written may have been published and copied to another tier ever since its writer came.
        pl.when(pl.col("fact").is_in([*OF_TWO_HOLDERS, "foreign"])).then("other_born"),
    )
    described = pl.col("pool").is_in(context.once("described pools", lambda: _described(context))["pool"].implode())
    unattached = (
        (pl.col("fact") == "foreign") & (pl.col("x") == 0) & OTHER_TENANT & pl.col("ev2").is_not_null() & described
    )
    written = pl.min_horizontal("ev2", pl.when(of_another).then(pl.col("born").fill_null(-1)))
    since = pl.when(unattached.fill_null(False)).then(written).otherwise(since)
    return told.with_columns(since=since).drop("given_to", "born", "other_born")


def _described(context: Context) -> pl.DataFrame:
    return context.events.filter(pl.col("event") == "engine.pool").select("pool").drop_nulls().unique().collect()


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per affected side, pool and verdict, with all pages (and the generation last seen) and events."""
    key = [*KEY, "tenant", "pool", "verdict", "missing"]
    rows = rows.with_columns(
        pl.when(pl.col("holder").is_null() | pl.col("request").is_not_null()).then("tenant").alias("tenant")
    )
    heads = rows.group_by(key, maintain_order=True).agg(
        pl.col("other_request").drop_nulls().unique().sort().alias("other_requests"),
        pl.col("other_tenant")
        .filter(pl.col("other_tenant").is_not_null() & OTHER_TENANT.fill_null(True))
        .unique()
        .sort()
        .alias("other_tenants"),
        evs=pl.concat_list("ev2", "ev").explode().drop_nulls().unique().sort(),
        time_ns=pl.col("time_ns").min(),
        positions=pl.col("positions").sum(),
        x=pl.col("x").max(),
        facts=pl.col("fact").unique().sort(),
    )
    heads = heads.with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))
    numbered = rows.join(heads.select(*key, "group"), on=key, how="left", nulls_equal=True, maintain_order="left")
    pages = union_pages(numbered["group"], numbered["pages"], numbered["gens"])
    return heads.join(pages, on="group", how="left", maintain_order="left").drop("group")
