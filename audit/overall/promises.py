"""What engines promise, enforce and can hold, as figures over time; and what their pools do with content."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from kvwitness.audit.alerts.config import Acceptance
from kvwitness.audit.telling.pagemap import Pool

_FIGURES = {
    "advertised_tokens": "advertised",
    "input_limit_tokens": "enforced",
    "capacity_tokens": "backed by the pool",
}
_MEANS = {
    "never": "never wiped: the next holder of a page finds the content of the one before",
    "on_free": "wiped when it is given back",
    "on_alloc": "wiped when it is given out",
}
_SHARES = {
    "none": "no request is given pages of another",
    "tenant": "requests of one tenant may share pages",
    "global": "any request with an equal namespace may share pages, whatever its tenant",
}


def figures(announced: pl.DataFrame, last_ns: int) -> pl.DataFrame:
    """engine, figure, tokens, time_ns, until_ns: the answer to `limit_contradictions`, one row per figure.

    What is still in force is drawn until `last_ns`.
    """
    kept = announced.with_columns(until_ns=pl.coalesce("until_ns", pl.max_horizontal("time_ns", pl.lit(last_ns))))
    long = kept.unpivot(
        on=list(_FIGURES), index=["engine", "time_ns", "until_ns"], variable_name="figure", value_name="tokens"
    )
    named = long.drop_nulls("tokens").with_columns(pl.col("figure").replace(_FIGURES))
    return named.select("engine", "figure", "tokens", "time_ns", "until_ns").sort("engine", "figure", "time_ns")


def policies(pools: Iterable[Pool]) -> pl.DataFrame:
    """One row per pool: what it announced about scrubbing and sharing, and what that means."""
    rows = [
        {
            "pool": pool.name,
            "kind": pool.kind,
            "pages": pool.pages_total,
            "page_tokens": pool.page_tokens,
            "scrubbing": pool.scrub or "not on record",
            "so a page is": _MEANS.get(pool.scrub or "", "not known"),
            "sharing": pool.sharing or "not on record",
            "so": _SHARES.get(pool.sharing or "", "not known"),
        }
        for pool in pools
    ]
    return pl.DataFrame(rows)


def acceptances(accepted: Iterable[Acceptance], now_ns: int) -> pl.DataFrame:
    """One row per risk that somebody accepted: what it is about, who, why, until_ns, and whether it still holds."""
    rows = [
        {
            "risk": one.id,
            "state": "holds" if now_ns < one.until_ns else "has ended",
            "about": one.match.in_words(),
            "accepted by": one.accepted_by,
            "until_ns": one.until_ns,
            "reason": one.reason,
            "its alerts are": one.severity,
        }
        for one in accepted
    ]
    return pl.DataFrame(rows)
