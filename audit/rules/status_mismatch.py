"""What the client was told differs from what happened inside."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import SUCCESS, TOLD_ABORTED, of_requests, of_the_last_life, report
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import number_of, several_of

ID = "status-mismatch"


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Compare every answer with the terminal state of its request, and the prompt served with the one
    received."""
    parts = [_terminal(context), _lengths(context, int(settings["tolerance_tokens"]))]
    return report(context, ID, pl.concat(parts, how="diagonal"))


def _terminal(context: Context) -> pl.DataFrame:
    """Answers of success, or of `length` without a token, after a refusal or an abort."""
    ended = pl.col("rejected_ev").is_not_null() | pl.col("aborted_ev").is_not_null()
    wanted = context.requests.filter(ended)
    if wanted.is_empty():
        return pl.DataFrame()
    touched = of_requests(context, wanted)
    said = touched.filter(pl.col("event").is_in(["request.rejected", "request.aborted"]))
    state = (
        of_the_last_life(touched, said)
        .sort("ev")
        .group_by(*KEY, "event", maintain_order=True)
        .first()
        .select(
            *KEY,
            state=pl.col("event").str.strip_prefix("request."),
            state_ev=pl.col("ev"),
            state_ns=pl.col("ref_ns"),
            state_unc=pl.col("unc_ns"),
            state_source=pl.col("source"),
        )
    )
    answers = touched.filter(pl.col("event") == "request.finished").with_columns(told_aborted=TOLD_ABORTED)
    pairs = answers.join(state, on=KEY).with_columns(**_order())
    empty = (pl.col("finish_reason") == "length") & (pl.col("completion_tokens") == 0)
    aborted = pl.col("state") == "aborted"
    contradicts = pl.when(aborted).then((SUCCESS & ~pl.col("told_aborted")) | empty).otherwise(SUCCESS)
    found = pairs.filter(contradicts.fill_null(False) & (pl.col("later") | ~aborted)).with_columns(
        sure=pl.col("sure") | ~aborted
    )
    rows = (
        found.sort("ev")
        .group_by(KEY, maintain_order=True)
        .agg(
            pl.col("state", "state_source", "status", "finish_reason", "completion_tokens").first(),
            sure=pl.col("sure").any(),
            state_ev=pl.col("state_ev").min(),
            answers=pl.col("ev"),
        )
    )
    tenants = wanted.select(*KEY, "tenant")
    return _describe_terminal(rows.collect().join(tenants, on=KEY))


def _order() -> dict[str, pl.Expr]:
    """Whether an answer came after the terminal state (`later`), and whether the clocks prove it (`sure`)."""
    same = pl.col("source") == pl.col("state_source")
    by = pl.col("ref_ns") - pl.col("state_ns")
    doubt = pl.col("unc_ns").fill_null(0) + pl.col("state_unc").fill_null(0)
    later = pl.when(same).then(pl.col("ev") > pl.col("state_ev")).otherwise(by > 0)
    return {"later": later, "sure": same | (by > doubt)}


def _describe_terminal(rows: pl.DataFrame) -> pl.DataFrame:
    told = pl.format(
        "{} with reason {} and {}",
        pl.col("status").cast(pl.String).fill_null("no status"),
        pl.col("finish_reason").fill_null("none"),
        several_of("completion_tokens", "token").fill_null("an unknown number of tokens"),
    )
    return rows.select(
        *KEY,
        "tenant",
        verdict=pl.when(pl.col("sure")).then(pl.lit("integrity")).otherwise(pl.lit("unproven")),
        evs=pl.concat_list("state_ev", "answers"),
        why=pl.format("{} by {}, yet answered {}", "state", "state_source", told),
        missing=pl.when(~pl.col("sure")).then(pl.lit("clocks that order the abort and the answer")),
    )


def _lengths(context: Context, tolerance: int) -> pl.DataFrame:
    """Answers of success for another prompt length than any that was received under the id."""
    events = keyed(context.events)
    received = events.filter(pl.col("event") == "request.received").join(
        context.requests.lazy().select(*KEY, source="received_source"), on=[*KEY, "source"], how="semi"
    )
    lengths = received.group_by(KEY).agg(
        received=pl.col("prompt_tokens").drop_nulls().unique().sort(), received_ev=pl.col("ev").min()
    )
    answers = events.filter((pl.col("event") == "request.finished") & SUCCESS)
    pairs = answers.join(lengths.filter(pl.col("received").list.len() > 0), on=KEY)
    far = pl.col("received") - pl.col("prompt_tokens")
    found = pairs.filter(far.list.eval(pl.element().abs()).list.min() > tolerance)
    rows = (
        found.sort("ev")
        .group_by(KEY, maintain_order=True)
        .agg(pl.col("received", "received_ev", "prompt_tokens", "answered_by").first(), answers=pl.col("ev"))
    )
    tenants = context.requests.lazy().select(*KEY, "tenant")
    by = pl.when(pl.col("answered_by").is_not_null()).then(pl.format(" by {}", "answered_by")).otherwise(pl.lit(""))
    return (
        rows.join(tenants, on=KEY)
        .select(
            *KEY,
            "tenant",
            verdict=pl.lit("integrity"),
            evs=pl.concat_list("received_ev", "answers"),
            why=pl.format(
                "received with {}, answered{} with success for {}",
                several_of(pl.col("received").list.first(), "prompt token"),
                by,
                number_of("prompt_tokens"),
            ),
        )
        .collect()
    )


RULE = Rule(
    id=ID,
    title="The answer disagrees with what happened",
    verdicts=(Verdict.INTEGRITY,),
    severity="medium",
    meaning=(
        "A request that an engine or the gateway recorded as refused or aborted was answered with "
        "success, or with reason `length` and no token; or a success was computed for another prompt "
        "length than the one received, which means that the prompt was cut or replaced without telling "
        "the client."
    ),
    needs=("request.finished",),
    false_positives=(
        "A client that hangs up in the very moment of its last token; a gateway that counts prompt tokens "
        "with another tokenizer or template than the engine (set `tolerance_tokens`)."
    ),
    references=(
        "sgl-project/sglang#33507",
        "sgl-project/sglang#30937",
        "esengine/DeepSeek-Reasonix#10245",
        "runpod-workers/worker-sglang#14",
    ),
    atlas=("AML.T0031",),
    cwe=("CWE-393", "CWE-394"),
    query=query,
    params=(
        Param(
            "tolerance_tokens",
            0,
            "difference between received and served prompt tokens that is put down to counting",
            "tokens",
        ),
    ),
    positive=Example(
        title="a prompt of 120 tokens is answered as one of 50",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":2,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a",\
"prompt_tokens":120}
{"t":3,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":200,"prompt_tokens":50}
""",
    ),
    negative=Example(
        title="an abort that the client is told, and an ordinary end for length",
        trace="""\
{"t":2,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a","prompt_tokens":12}
{"t":3,"seq":1,"source":"e/0","event":"request.aborted","request":"r1","by":"client"}
{"t":4,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":499,"prompt_tokens":0}
{"t":5,"seq":3,"source":"gateway","event":"request.received","request":"r2","tenant":"t-a","prompt_tokens":12}
{"t":6,"seq":4,"source":"gateway","event":"request.finished","request":"r2","status":200,"prompt_tokens":12,\
"finish_reason":"length","completion_tokens":8}
""",
    ),
)
