"""Who read what whom had written: one cell for each pair of tenants, allowed, forbidden or not proved."""

from __future__ import annotations

import polars as pl

ALLOWED, FORBIDDEN, DOUBTFUL = "allowed", "forbidden", "unproven"
PROBING = ("prefix-probing", "salt-crossing", "cache-key-alias", "canary-leak")
"""Rules whose findings show somebody who looks for the prompts of others, or a way to do so."""


def sharing(causes: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """One row per pair: tenant (who read), other_tenant (whose content), standing, requests, pages, first_ns, last_ns.

    `causes` and `findings` are the result tables `read_causes` and `findings`. `forbidden`: a finding of verdict leak
    names the pair; `allowed`: the sharing policy admits it; `unproven`: reads met the other's content, and no finding
    proves that it was readable. A tenant's reads of its own content are not in it.
    """
    leaks = (
        findings.filter((pl.col("verdict") == "leak") & pl.col("tenant").is_not_null())
        .select("tenant", "request", "incarnation", "time_ns", other_tenant="other_tenants")
        .explode("other_tenant")
        .drop_nulls("other_tenant")
    )
    pair = ["tenant", "other_tenant"]
    proved = leaks.select(*pair, "request", "incarnation").unique()
    met = causes.filter(
        pl.col("other_tenant").is_not_null()
        & pl.col("tenant").is_not_null()
        & (pl.col("other_tenant") != pl.col("tenant"))
    )
    marked = met.join(proved.with_columns(proved=pl.lit(True)), on=[*pair, "request", "incarnation"], how="left")
    standing = (
        pl.when(pl.col("proved"))
        .then(pl.lit(FORBIDDEN))
        .when(pl.col("soundness") == "shared")
        .then(pl.lit(ALLOWED))
        .otherwise(pl.lit(DOUBTFUL))
    )
    of_reads = marked.select(
        *pair, "request", "incarnation", "first_ns", "last_ns", standing=standing, pages=pl.col("pages").list.len()
    )
    # A leak that no read on record shows (a late write, say) has its finding alone.
    alone = leaks.join(of_reads, on=[*pair, "request", "incarnation"], how="anti").select(
        *pair,
        "request",
        "incarnation",
        first_ns="time_ns",
        last_ns="time_ns",
        standing=pl.lit(FORBIDDEN),
        pages=pl.lit(0, pl.UInt32),
    )
    both = pl.concat([of_reads, alone.select(of_reads.columns)])
    return (
        both.group_by(*pair, "standing")
        .agg(
            requests=pl.struct("request", "incarnation").n_unique().cast(pl.Int64),
            pages=pl.col("pages").cast(pl.Int64).sum(),
            first_ns=pl.col("first_ns").min(),
            last_ns=pl.col("last_ns").max(),
        )
        .sort(*pair, "standing")
    )
