"""Where each incident stands: what people did with it, and whether it has changed since."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.overall.overview import ALARMING
from kvwitness.audit.store import Deed

OPEN, ACKNOWLEDGED, CLOSED, CHANGED = "open", "acknowledged", "closed", "changed since closed"
STANDINGS = (OPEN, CHANGED, ACKNOWLEDGED, CLOSED)
"""Where an incident can stand, the most urgent first."""

_AFTER = {Deed.ACKNOWLEDGE: ACKNOWLEDGED, Deed.CLOSE: CLOSED, Deed.REOPEN: OPEN}


def standings(incidents: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """`incidents` with where each stands.

    Adds `standing` (one of `STANDINGS`); `standing_by`, `standing_ns` and `standing_why`: who acknowledged, closed or
    reopened it last, when, and with which words; `assignee`; and `said_by`, `said_ns` and `said`: of the last entry of
    any kind. All but `standing` are null where nobody did so.

    `entries` are those of the casebook. An incident that was closed and whose verdict or number of findings is another
    now counts as `CHANGED`: somebody closed what they knew then.
    """
    said = entries.sort("at_ns", maintain_order=True)
    moves = said.filter(pl.col("deed").is_in([str(deed) for deed in _AFTER]))
    last = moves.group_by("incident", maintain_order=True).agg(
        moved=pl.col("deed").last().replace_strict({str(k): v for k, v in _AFTER.items()}, return_dtype=pl.String),
        standing_by=pl.col("by").last(),
        standing_ns=pl.col("at_ns").last(),
        standing_why=pl.col("text").last(),
        then_verdict=pl.col("verdict").last(),
        then_findings=pl.col("findings").last(),
    )
    told = said.group_by("incident", maintain_order=True).agg(
        assignee=pl.col("assignee").drop_nulls().last(),
        said_by=pl.col("by").last(),
        said_ns=pl.col("at_ns").last(),
        said=pl.col("text").last(),
    )
    joined = incidents.join(last, on="incident", how="left", maintain_order="left")
    joined = joined.join(told, on="incident", how="left", maintain_order="left")
    other = (pl.col("verdict") != pl.col("then_verdict")) | (pl.col("findings") != pl.col("then_findings"))
    changed = (pl.col("moved") == CLOSED) & other
    standing = pl.when(changed).then(pl.lit(CHANGED)).otherwise(pl.col("moved").fill_null(OPEN))
    return joined.with_columns(standing=standing).drop("moved", "then_verdict", "then_findings")


def unsettled(incidents: pl.DataFrame) -> pl.DataFrame:
    """Of `standings`, the incidents that nobody has taken up and that are more than missing evidence."""
    return incidents.filter(pl.col("standing").is_in([OPEN, CHANGED]) & pl.col("verdict").is_in(ALARMING))


def by_verdict(incidents: pl.DataFrame) -> pl.DataFrame:
    """Of `standings`: verdict, standing, incidents (how many), first_ns, last_ns, the strongest first."""
    counted = incidents.group_by("verdict", "standing").agg(
        incidents=pl.len().cast(pl.Int64), first_ns=pl.col("first_ns").min(), last_ns=pl.col("last_ns").max()
    )
    ranks = {str(v): n for n, v in enumerate((*ALARMING, "unproven"))}
    urgency = {name: n for n, name in enumerate(STANDINGS)}
    return counted.sort(
        pl.col("verdict").replace_strict(ranks, default=len(ranks), return_dtype=pl.Int64),
        pl.col("standing").replace_strict(urgency, default=len(urgency), return_dtype=pl.Int64),
    )
