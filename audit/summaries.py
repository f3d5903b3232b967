"""What every page of a dashboard begins with, computed once by the audit, so that nobody counts events while looking.

`request_index` has a row for every request, with the limit that counted for it; `kinds_seen` says which kinds of event
came from where, and since when. Both are small beside the events.
"""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules.model import Context

_ACTS = ("page.alloc", "transfer.begin", "request.rejected")
"""Events by which an engine serves or refuses a request."""
_FACTS = [
    "tenant", "model", "traffic", "prompt_tokens", "max_new_tokens", "received_ns", "rejected_ns", "aborted_ns",
    "finished_ns", "status", "finish_reason", "answered_prompt_tokens", "completion_tokens",
]  # fmt: skip


OUTCOMES = ("answered", "refused", "aborted", "failed", "none on record")
"""How a request can have ended: the first of these that holds. Answered is with success, failed with an error."""


def tables(context: Context, verdicts: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The result tables `request_index` and `kinds_seen`; `verdicts` are those of the audit, one row per request."""
    return {"request_index": _requests(context, verdicts), "kinds_seen": _kinds(context)}


def _requests(context: Context, verdicts: pl.DataFrame) -> pl.DataFrame:
    """One row per request: what it asked, how it ended, and the smallest enforced limit on its path."""
    told = context.requests.join(_limits_met(context), on=KEY, how="left", maintain_order="left")
    told = told.join(verdicts.select(*KEY, "verdict"), on=KEY, how="left", maintain_order="left")
    answered, refused, aborted, failed, nothing = map(pl.lit, OUTCOMES)
    outcome = (
        pl.when("ok")
        .then(answered)
        .when(pl.col("rejected_ns").is_not_null())
        .then(refused)
        .when(pl.col("aborted_ns").is_not_null())
        .then(aborted)
        .when(pl.col("finished_ns").is_not_null())
        .then(failed)
        .otherwise(nothing)
    )
    return told.select(*KEY, *_FACTS, "limit_tokens", "limit_engine", outcome=outcome, verdict="verdict")


def _limits_met(context: Context) -> pl.DataFrame:
    """Per request, the smallest enforced limit among the engines that served or refused it, as announced then."""
    engine = pl.col("engine").str.split("/").list.first()
    announced = context.events.filter((pl.col("event") == "engine.limits") & pl.col("input_limit_tokens").is_not_null())
    limits = announced.select("ev", engine=engine, limit_tokens="input_limit_tokens").sort("ev").collect()
    site = pl.col("source").str.split("/").list.first()
    where = pl.coalesce(pl.col("pool").str.split("/").list.first(), site)
    acts = keyed(context.acts.filter(pl.col("event").is_in(list(_ACTS))))
    # The begin of a transfer is recorded by the side that sends; its pages are those of the other.
    acting = pl.when(pl.col("event") == "page.alloc").then(where).otherwise(site)
    met = acts.group_by(*KEY, engine=acting).agg(ev=pl.col("first_ev").min()).sort("ev").collect()
    dated = met.join_asof(limits, on="ev", by="engine", check_sortedness=False).drop_nulls("limit_tokens")
    return (
        dated.sort("limit_tokens", "engine")
        .group_by(KEY, maintain_order=True)
        .agg(pl.col("limit_tokens").first(), limit_engine=pl.col("engine").first())
    )


def _kinds(context: Context) -> pl.DataFrame:
    """How many events of each kind came from each source, about each pool, and when."""
    pool = pl.coalesce("pool", "dst_pool")
    rows = context.acts.group_by("source", "event", pool=pool).agg(
        pl.col("events").sum(), pl.col("first_ns").min(), pl.col("last_ns").max()
    )
    return rows.with_columns(pl.col("source").fill_null("")).sort("source", "pool", "event").collect()
