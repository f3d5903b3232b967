"""One id stands for two things that live at the same time, or a record reaches the wrong reader."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._aux_slots import misread, miswritten
from kvwitness.audit.rules._frames import ENDS, report
from kvwitness.audit.rules._losses import lost_meanwhile
from kvwitness.audit.rules._transfers import STARTS, TERMINAL
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "identity-reuse"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Requests and transfers whose id is live twice, and auxiliary slots that are shared by mistake."""
    parts = [_requests(context), _transfers(context), misread(context), miswritten(context)]
    return report(context, ID, pl.concat(parts, how="diagonal"))


def _verdict(strangers: pl.Expr) -> pl.Expr:
    proved = pl.when(strangers).then(pl.lit("leak")).otherwise(pl.lit("integrity"))
    return pl.when(pl.col("lost").is_null()).then(proved).otherwise(pl.lit("unproven"))


def _requests(context: Context) -> pl.DataFrame:
    """A second reception under a live id, by another tenant or by the same observer."""
    moments = keyed(context.events.filter(pl.col("event").is_in(["request.received", *ENDS])))
    received = pl.col("event") == "request.received"
    doubled = moments.filter(received).group_by(KEY).agg(n=pl.len()).filter(pl.col("n") > 1)
    lives = (
        moments.join(doubled, on=KEY, how="semi")
        .sort("ev")
        .with_columns(ends=pl.col("event").is_in(ENDS).cum_sum().over(KEY))
        .filter(received)
        .select(*KEY, "tenant", "source", "ev", "ends")
        .collect()
    )
    # Within one life, every reception is held against the first.
    first = lives.group_by(*KEY, "ends", maintain_order=True).first()
    pairs = lives.join(first, on=[*KEY, "ends"], suffix="_first").filter(pl.col("ev") > pl.col("ev_first"))
    strangers = (pl.col("tenant") != pl.col("tenant_first")).fill_null(False)
    again = pairs.filter(strangers | (pl.col("source") == pl.col("source_first")))
    again = lost_meanwhile(context, again.with_columns(since="ev_first"), "request.")  # such as the end of the first
    both = pl.concat_list("tenant_first", "tenant").list.drop_nulls()
    return again.select(
        *KEY,
        "tenant",
        verdict=_verdict(strangers),
        missing="lost",
        other_requests=pl.concat_list("request"),
        other_tenants=pl.when(strangers).then(both).otherwise(pl.lit([], pl.List(pl.String))),
        evs=pl.concat_list("ev_first", "ev"),
        why=pl.format("request id {} was received again by {} while it was live", "request", "source"),
    )


def _transfers(context: Context) -> pl.DataFrame:
    """A transfer or room id that is begun or offered for a second request before it ended for the first.

    An engine need not say that a transfer ended: once the first request was answered with success, nothing of it is
    under way. After an abort there may be.
    """
    starts = pl.col("event").is_in(STARTS)
    moves = context.events.filter(pl.col("transfer").is_not_null() & (starts | pl.col("event").is_in(TERMINAL)))
    owners = moves.filter(starts).group_by("transfer").agg(n=pl.struct("request", "incarnation").n_unique())
    lives = (
        moves.join(owners.filter(pl.col("n") > 1), on="transfer", how="semi")
        .sort("ev")
        .with_columns(
            incarnation=pl.col("incarnation").cast(pl.Int32).fill_null(0),
            ends=pl.col("event").is_in(TERMINAL).cum_sum().over("transfer"),
        )
        .filter(starts)
        .group_by("transfer", "ends", *KEY, maintain_order=True)
        .agg(pl.col("ev").first())
        .collect()
    )
    known = context.requests.select(*KEY, "tenant")
    lives = lives.join(known, on=KEY, how="left", maintain_order="left")
    first = lives.group_by("transfer", "ends", maintain_order=True).first()
    pairs = lives.join(first, on=["transfer", "ends"], suffix="_first")
    answered = context.requests.filter("ok").select(pl.col(KEY).name.suffix("_first"), answered_ev="finished_ev")
    pairs = pairs.join(answered, on=[f"{name}_first" for name in KEY], how="left", maintain_order="left")
    over = (pl.col("answered_ev") < pl.col("ev")).fill_null(False)
    taken = pairs.filter((pl.col("ev") > pl.col("ev_first")) & ~over)
    taken = lost_meanwhile(context, taken.with_columns(since="ev_first"), "transfer.")
    strangers = (pl.col("tenant") != pl.col("tenant_first")).fill_null(False)
    return taken.select(
        *KEY,
        "tenant",
        verdict=_verdict(strangers),
        missing="lost",
        # The id alone shows nobody's content; findings on pages read through it name the tenants.
        other_requests=pl.concat_list("request_first"),
        evs=pl.concat_list("ev_first", "ev"),
        why=pl.format("transfer {} of {} was bound to {} while live", "transfer", "request_first", "request"),
    )


RULE = Rule(
    id=ID,
    title="An identity was in use twice",
    verdicts=(Verdict.LEAK, Verdict.INTEGRITY),
    severity="critical",
    meaning=(
        "A request, transfer or room id was taken for a second request while the first still used it, an "
        "auxiliary record was consumed by another request than the one it was written for, or a record "
        "with one designated writer had a second. Whatever the engine keys by that identity (pages, first "
        "tokens, hidden states, completions) may then be credited to the wrong request. With different "
        "tenants on the two sides it is a leak."
    ),
    needs=(),
    false_positives=(
        "A gateway that records a retry under the same id without a new incarnation; engines that see "
        "another tenant name for the same request than the gateway."
    ),
    references=(
        "vllm-project/vllm#10583",
        "sgl-project/sglang#17259",
        "sgl-project/sglang#17430",
        "vllm-project/vllm#56468",
        "vllm-project/vllm#49796",
    ),
    atlas=("AML.T0057",),
    cwe=("CWE-694", "CWE-362", "CWE-639"),
    query=query,
    positive=Example(
        title="one transfer id, two live requests",
        request="r2",
        verdict="leak",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b"}
{"t":2,"seq":1,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r1","tokens":8}
{"t":3,"seq":2,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r2","tokens":8}
{"t":4,"seq":3,"source":"p/0","event":"transfer.done","transfer":"x","tokens":8}
""",
    ),
    negative=Example(
        title="an offer and its fetch in two chunks, then the id is used again",
        trace="""\
{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a"}
{"t":1,"seq":2,"source":"gateway","event":"request.received","request":"r2","tenant":"t-b"}
{"t":2,"seq":1,"source":"p/0","event":"transfer.offer","transfer":"x","request":"r1","tokens":8}
{"t":3,"seq":2,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r1","tokens":4}
{"t":3,"seq":3,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r1","tokens":8}
{"t":4,"seq":4,"source":"p/0","event":"transfer.done","transfer":"x","tokens":8}
{"t":5,"seq":5,"source":"p/0","event":"transfer.begin","transfer":"x","request":"r2","tokens":8}
""",
    ),
)
