"""A marker that one tenant planted came out in another tenant's output."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import report
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import several_of

ID = "canary-leak"


def _marks(context: Context, event: str) -> pl.DataFrame:
    marks = context.events.filter((pl.col("event") == event) & pl.col("marker").is_not_null())
    known = context.requests.lazy().select(*KEY, known_tenant="tenant")
    named = keyed(marks).join(known, on=KEY, how="left")
    unnamed = marks.filter(pl.col("request").is_null()).with_columns(known_tenant=pl.lit(None, pl.String))
    rows = pl.concat([named, unnamed], how="diagonal_relaxed")
    columns = ["marker", *KEY, "ev", "pool", "pages"]
    return rows.select(columns, tenant=pl.coalesce("tenant", "known_tenant")).sort("ev").collect()


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Match sightings with plantings; a marker that nobody planted, or that its planter sees, proves
    nothing."""
    planted = (
        _marks(context, "canary.planted")
        .group_by("marker", maintain_order=True)
        .agg(
            planted_ev=pl.col("ev").first(),
            planters=pl.col("tenant").drop_nulls().unique().sort(),
            planted_in=pl.col("request").drop_nulls().unique().sort(),
        )
    )
    seen = _marks(context, "canary.seen").join(planted, on="marker")
    anonymous = pl.col("tenant").is_null() | (pl.col("planters").list.len() == 0)
    rows = seen.filter(anonymous | ~pl.col("planters").list.contains(pl.col("tenant")))
    held = pl.col("pages").list.len().fill_null(0)
    on_pages = held > 0
    rows = rows.with_columns(
        verdict=pl.when(anonymous).then(pl.lit("unproven")).otherwise(pl.lit("leak")),
        other_requests="planted_in",
        other_tenants="planters",
        evs=pl.concat_list("planted_ev", "ev"),
        why=pl.format(
            "{} {} of {} was seen {} of {}",
            pl.when(on_pages).then(pl.lit("content of marker")).otherwise(pl.lit("marker")),
            "marker",
            pl.col("planters").list.join(", ").replace("", "an unknown tenant"),
            pl.when(on_pages).then(pl.format("on {}", several_of(held, "page"))).otherwise(pl.lit("in an output")),
            pl.col("tenant").fill_null("an unknown tenant"),
        ),
        missing=pl.when(anonymous).then(pl.lit("the tenant of canary.planted or canary.seen")),
    )
    return report(context, ID, rows)


RULE = Rule(
    id=ID,
    title="A planted marker was seen by another tenant",
    verdicts=(Verdict.LEAK,),
    severity="critical",
    meaning=(
        "A unique random marker that one tenant's prompt carried appeared in another tenant's output, or the keys "
        "and values that were computed from it lay on pages that another tenant's request had filled. "
        "Nothing but that prompt's content can produce it, so content crossed tenants, whatever the page "
        "record says."
    ),
    needs=(),
    false_positives="A marker that is not unique, or that the other tenant knew from elsewhere.",
    references=(),
    atlas=("AML.T0057", "AML.T0024"),
    cwe=("CWE-200", "CWE-668"),
    query=query,
    positive=Example(
        title="planted by one, seen by another",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"canary.planted","marker":"m:1","request":"r1","tenant":"t-a"}
{"t":2,"seq":2,"source":"gateway","event":"canary.seen","marker":"m:1","request":"r2","tenant":"t-b"}
""",
    ),
    negative=Example(
        title="seen by its own tenant, and a marker that nobody planted",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"canary.planted","marker":"m:1","request":"r1","tenant":"t-a"}
{"t":2,"seq":2,"source":"gateway","event":"canary.seen","marker":"m:1","request":"r2","tenant":"t-a"}
{"t":3,"seq":3,"source":"gateway","event":"canary.seen","marker":"m:9","request":"r3","tenant":"t-b"}
""",
    ),
)
