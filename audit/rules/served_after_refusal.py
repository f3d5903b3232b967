"""A request was served although it had been refused or aborted."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import SECOND_NS, SUCCESS, TOLD_ABORTED, of_requests, of_the_last_life, report
from kvwitness.audit.rules._losses import births, lost_meanwhile
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict

ID = "served-after-refusal"

REFUSALS = ["request.rejected", "request.aborted"]
COPIER_READS = ["transfer", "offload", "copy"]
"""Reads by a copier: a transfer counts by its begin, and saving pages elsewhere is cleanup."""


def _refusals(touched: pl.LazyFrame) -> pl.DataFrame:
    """First refusal and first abort per request and source."""
    said = of_the_last_life(touched, touched.filter(pl.col("event").is_in(REFUSALS))).sort("ev")
    first = said.group_by(*KEY, "source", "event", maintain_order=True).first()
    return first.select(
        *KEY,
        refusal=pl.col("event"),
        refusal_ev=pl.col("ev"),
        refusal_ns=pl.col("ref_ns"),
        refusal_source=pl.col("source"),
        refusal_unc=pl.col("unc_ns"),
    ).collect()


def _services(touched: pl.LazyFrame, own_traffic: pl.DataFrame) -> pl.DataFrame:
    """Events that serve a request: alloc, a new transfer, a read that begins, a 2xx."""
    kind, op = pl.col("event"), pl.col("op")
    begins = pl.col("phase").fill_null("begin") == "begin"
    compute_read = (kind == "page.read") & begins & ~op.is_in(COPIER_READS).fill_null(False)
    success = (kind == "request.finished") & SUCCESS
    served = touched.filter(kind.is_in(["page.alloc", "transfer.begin"]) | compute_read | success.fill_null(False))
    columns = [*KEY, "event", "ev", "ref_ns", "unc_ns", "source", "pool", "step", "pages"]
    rows = served.select(*columns, told_aborted=TOLD_ABORTED).collect()
    exempt = rows.filter(kind == "page.read").join(own_traffic, on=KEY, how="semi")
    return rows.join(exempt.select("ev"), on="ev", how="anti")


def _dispatched_before(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    """Reads of a device step that was already running when the refusal came."""
    reads = rows.filter((pl.col("event") == "page.read") & pl.col("step").is_not_null())
    steps = context.events.filter(
        (pl.col("event") == "step.begin") & pl.col("step").is_in(reads["step"].unique().to_list())
    )
    begun = steps.select("pool", "step", "source", step_ev="ev").collect()
    return reads.join(begun, on=["pool", "step", "source"]).filter(
        (pl.col("step_ev") < pl.col("refusal_ev")) & (pl.col("source") == pl.col("refusal_source"))
    )


def _re_entries(touched: pl.LazyFrame, refused: pl.DataFrame) -> pl.DataFrame:
    """Refusals that met a request while it was preempted: pages given on re-entry are no service."""
    moves = touched.filter(pl.col("event").is_in(["request.preempted", "request.resumed"]))
    marks = moves.select(*KEY, "ev", "event").sort("ev").collect()
    last = refused.select(*KEY, "refusal_ev").sort("refusal_ev")
    last = last.join_asof(marks, left_on="refusal_ev", right_on="ev", by=KEY, check_sortedness=False)
    return last.filter(pl.col("event") == "request.preempted").select(*KEY, "refusal_ev")


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Pair each refusal with what was done for the request afterwards."""
    ended = pl.col("rejected_ev").is_not_null() | pl.col("aborted_ev").is_not_null()
    wanted = context.requests.filter(ended)
    if wanted.is_empty():
        return report(context, ID, pl.DataFrame())
    touched = of_requests(context, wanted)
    refused = _refusals(touched)
    own = wanted.filter(pl.col("traffic") != "user").select(KEY)
    pairs = _services(touched, own).join(refused, on=KEY)
    delay_ns = int(float(settings["propagation_s"]) * SECOND_NS)
    pairs = _after(pairs, delay_ns)
    re_entry = (pl.col("event") == "page.alloc") & pl.col("re_entry").fill_null(False)
    entries = _re_entries(touched, refused).with_columns(re_entry=True)
    pairs = pairs.join(entries, on=[*KEY, "refusal_ev"], how="left").filter(~re_entry)
    pairs = _unless_set_aside_unseen(context, pairs)
    running = _dispatched_before(context, pairs).select("ev", "refusal_ev")
    pairs = pairs.join(running, on=["ev", "refusal_ev"], how="anti")
    return report(context, ID, _describe(pairs, wanted))


def _unless_set_aside_unseen(context: Context, pairs: pl.DataFrame) -> pl.DataFrame:
    """Pages given where a preemption that excuses them may have been lost prove nothing; adds `lost`."""
    spans = pairs.join(births(context), on=KEY, how="left", maintain_order="left").rename({"born": "since"})
    doubted = lost_meanwhile(context, spans).with_columns(lost=pl.when(pl.col("event") == "page.alloc").then("lost"))
    return doubted.drop("since").with_columns(sure=pl.col("sure") & pl.col("lost").is_null())


def _after(pairs: pl.DataFrame, delay_ns: int) -> pl.DataFrame:
    """Keep services after the refusal and say in `sure` whether the clocks prove the order."""
    same = pl.col("source") == pl.col("refusal_source")
    answer = pl.col("event") == "request.finished"
    rejected = pl.col("refusal") == "request.rejected"
    grace = pl.when(answer).then(0).otherwise(delay_ns)
    late_by = pl.col("ref_ns") - pl.col("refusal_ns") - grace
    doubt = pl.col("unc_ns").fill_null(0) + pl.col("refusal_unc").fill_null(0)
    # A refusal that is answered with success contradicts itself in any order; an abort may follow its answer.
    counts = pl.when(answer & rejected).then(True).when(same).then(pl.col("ev") > pl.col("refusal_ev"))
    told = answer & ~rejected & pl.col("told_aborted")
    after = pairs.filter(counts.otherwise(late_by > 0) & ~told)
    return after.with_columns(sure=(answer & rejected) | same | (late_by > doubt))


def _describe(pairs: pl.DataFrame, wanted: pl.DataFrame) -> pl.DataFrame:
    """One row per request: the earliest refusal that was not heeded, and the first act of each kind after
    it."""
    first = pairs.sort("refusal_ev", "ev").unique([*KEY, "event", "source"], keep="first", maintain_order=True)
    per_request = first.group_by(KEY, maintain_order=True).agg(
        pl.col("refusal", "refusal_source").first(),
        sure=pl.col("sure").any(),
        lost=pl.col("lost").drop_nulls().first(),
        acts=pl.format("{} by {}", "event", "source").str.join(", "),
        first_refusal=pl.col("refusal_ev").first(),
        services=pl.col("ev"),
    )
    rows = per_request.join(wanted.select(*KEY, "tenant", "ok"), on=KEY)
    proved = pl.when(pl.col("ok")).then(pl.lit("integrity")).otherwise(pl.lit("exposure"))
    return rows.with_columns(
        verdict=pl.when(pl.col("sure")).then(proved).otherwise(pl.lit("unproven")),
        evs=pl.concat_list("first_refusal", "services"),
        why=pl.format("after {} by {} it was still served: {}", "refusal", "refusal_source", "acts"),
        missing=pl.when(~pl.col("sure")).then(
            pl.col("lost").fill_null("clocks that order the refusal and the service")
        ),
    )


RULE = Rule(
    id=ID,
    title="A refused or aborted request was served",
    verdicts=(Verdict.INTEGRITY, Verdict.EXPOSURE),
    severity="high",
    meaning=(
        "Some party recorded that the request was refused or aborted, and some engine then still gave it "
        "pages, began a transfer, read for it, or a success was answered. The refusal did not reach "
        "everyone, so the engines disagree on what exists. With a success it is wrong content for the "
        "client; without one it is work and pages held for nobody. Freeing, draining, a failed transfer, "
        "saving pages elsewhere and the re-entry of a preempted request are cleanup."
    ),
    needs=("page.alloc",),
    false_positives=(
        "A gateway that retries on another engine under the same request id after a refusal; give each "
        "attempt its own incarnation. An engine that learns of an abort later than the propagation delay."
    ),
    references=(
        "sgl-project/sglang#30233",
        "sgl-project/sglang#30325",
        "sgl-project/sglang#36988",
        "sgl-project/sglang#33507",
    ),
    atlas=("AML.T0031",),
    cwe=("CWE-672", "CWE-362"),
    query=query,
    params=(
        Param(
            "propagation_s",
            1.0,
            "how long a refusal or abort may take to reach another source before service there counts",
            "s",
        ),
    ),
    positive=Example(
        title="the engine allocates right after its own refusal",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":2.0,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a",\
"prompt_tokens":120}
{"t":2.1,"seq":1,"source":"e/0","event":"request.rejected","request":"r1","status":400}
{"t":2.2,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[1],"request":"r1"}
{"t":3.0,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":200,"prompt_tokens":1}
""",
    ),
    negative=Example(
        title="another engine allocates within the propagation delay, then everything is released",
        trace="""\
{"t":2.0,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a",\
"prompt_tokens":120}
{"t":2.1,"seq":1,"source":"p/0","event":"request.rejected","request":"r1","status":400}
{"t":2.2,"seq":1,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[1],"request":"r1"}
{"t":2.4,"seq":2,"source":"d/0","event":"page.free","pool":"d/0/kv","pages":[1],"request":"r1",\
"reason":"abort"}
{"t":3.0,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":400}
""",
    ),
)
