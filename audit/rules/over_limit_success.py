"""A prompt beyond the limit in force was answered with success."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import acting_engine, of_requests, report, site_of
from kvwitness.audit.rules._paths import SERVICE, unseen, with_paths
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import for_one, number_of, several_of

ID = "over-limit-success"


def _limits(context: Context) -> pl.DataFrame:
    """Each announcement of an enforced limit, in replay order."""
    announced = context.events.filter((pl.col("event") == "engine.limits") & pl.col("input_limit_tokens").is_not_null())
    return announced.select("ev", engine=site_of("engine"), limit="input_limit_tokens").sort("ev").collect()


def _first_services(context: Context, wanted: pl.DataFrame) -> pl.DataFrame:
    """Per wanted request and engine, the event with which that engine began to serve it."""
    served = of_requests(context, wanted).filter(pl.col("event").is_in(SERVICE))
    by_engine = served.with_columns(engine=acting_engine(context)).group_by(*KEY, "engine")
    return by_engine.agg(ev=pl.col("ev").min()).sort("ev").collect()


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Compare the true prompt length with the limit of each serving engine at its first service."""
    limits = _limits(context)
    if limits.is_empty():
        return report(context, ID, pl.DataFrame())
    smallest = limits["limit"].min()
    unknown = pl.col("prompt_tokens").is_null() & pl.col("received_ev").is_not_null()
    doubtful = unknown & (pl.col("traffic") == "user")
    wanted = context.requests.filter(pl.col("ok") & ((pl.col("prompt_tokens") > smallest) | doubtful))
    served = _first_services(context, wanted).join_asof(
        limits.rename({"ev": "limit_ev"}),
        left_on="ev",
        right_on="limit_ev",
        by="engine",
        check_sortedness=False,
    )
    first = limits.group_by("engine", maintain_order=True).agg(first_limit=pl.col("limit").first())
    rows = served.join(first, on="engine").join(wanted, on=KEY)
    over = pl.col("prompt_tokens") > pl.col("limit")
    late = pl.col("limit").is_null() & (pl.col("prompt_tokens") > pl.col("first_limit"))
    rows = rows.filter(over | late | pl.col("prompt_tokens").is_null())
    parts = [_describe(rows), _without_pages(context, wanted.filter(pl.col("prompt_tokens") > smallest))]
    return report(context, ID, pl.concat(parts, how="diagonal"))


def _without_pages(context: Context, wanted: pl.DataFrame) -> pl.DataFrame:
    """Requests of which nothing shows the engines at work, held against all that could have served them."""
    rows = with_paths(context, unseen(context, wanted.filter(pl.col("received_ns").is_not_null())))
    none = pl.col("prompt_tokens") > pl.col("limit")
    rows = rows.filter(none | (pl.col("prompt_tokens") > pl.col("least")))
    return rows.select(
        *KEY,
        "tenant",
        "engine",
        verdict=pl.when(none).then(pl.lit("integrity")).otherwise(pl.lit("unproven")),
        evs=pl.concat_list("received_ev", "limit_ev", "finished_ev"),
        at_ev=pl.coalesce("finished_ev", "received_ev"),
        why=pl.when(none)
        .then(
            pl.format(
                "answered with success although its {} {} the {} of {}, and no engine on record could have taken more",
                several_of("prompt_tokens", "prompt token"),
                for_one("prompt_tokens", "exceeds", "exceed"),
                number_of("limit"),
                "engine",
            )
        )
        .otherwise(
            pl.format(
                "answered with success; its {} {} the {} that {} enforces, but not what another engine does",
                several_of("prompt_tokens", "prompt token"),
                for_one("prompt_tokens", "exceeds", "exceed"),
                number_of("least"),
                "least_engine",
            )
        ),
        missing=pl.when(~none).then(pl.lit("which engine served it")),
    )


def _describe(rows: pl.DataFrame) -> pl.DataFrame:
    proved = pl.col("prompt_tokens") > pl.col("limit")
    length = pl.col("prompt_tokens").is_null()
    return rows.with_columns(
        verdict=pl.when(proved.fill_null(False)).then(pl.lit("integrity")).otherwise(pl.lit("unproven")),
        evs=pl.concat_list("received_ev", "limit_ev", "ev", "finished_ev"),
        at_ev=pl.coalesce("finished_ev", "ev"),
        why=pl.when(length)
        .then(pl.format("answered with success by way of {}, and its true prompt length is not on record", "engine"))
        .when(proved.fill_null(False))
        .then(
            pl.format(
                "answered with success although its {} {} the {} that {} enforced when it first served it",
                several_of("prompt_tokens", "prompt token"),
                for_one("prompt_tokens", "exceeds", "exceed"),
                number_of("limit"),
                "engine",
            )
        )
        .otherwise(
            pl.format(
                "{} {} answered with success before {} announced its limit of {}",
                several_of("prompt_tokens", "prompt token"),
                for_one("prompt_tokens", "was", "were"),
                "engine",
                number_of("first_limit"),
            )
        ),
        missing=pl.when(length)
        .then(pl.lit("prompt_tokens of request.received"))
        .when(proved.fill_null(False))
        .then(None)
        .otherwise(pl.format("engine.limits of {} before its first service", "engine")),
    )


RULE = Rule(
    id=ID,
    title="A prompt beyond the enforced limit was answered with success",
    verdicts=(Verdict.INTEGRITY,),
    severity="high",
    meaning=(
        "The gateway measured a prompt that is longer than what an engine on its path enforces, and the "
        "client got a success all the same. Whatever was answered was not computed from that prompt: it "
        "was cut, or continued from a placeholder. The limit is the engine's own enforced one as "
        "announced before its first service of the request, never the advertised one. Where no event shows "
        "which engines served, as in a record of spans alone, it is what no way through the engines on record "
        "could have taken."
    ),
    needs=("engine.limits", "request.received", "request.finished"),
    false_positives=(
        "An engine that enforces another limit than it announces; a gateway that counts tokens with another "
        "tokenizer than the engine, for prompts within that difference of the limit; without page events, an "
        "engine that serves the model and is not on record."
    ),
    references=("sgl-project/sglang#30233", "sgl-project/sglang#35421", "sgl-project/sglang#4048"),
    atlas=("AML.T0031",),
    cwe=("CWE-1284", "CWE-393"),
    query=query,
    positive=Example(
        title="120 tokens against a limit of 100",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"input_limit_tokens":100}
{"t":2.0,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a",\
"prompt_tokens":120}
{"t":2.1,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[[1,8]],"request":"r1"}
{"t":3.0,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":200,\
"prompt_tokens":120}
""",
    ),
    negative=Example(
        title="the limit is lowered only after the request was served",
        trace="""\
{"t":1.0,"seq":1,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"input_limit_tokens":200}
{"t":2.0,"seq":1,"source":"gateway","event":"request.received","request":"r1","tenant":"t-a",\
"prompt_tokens":120}
{"t":2.1,"seq":2,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[[1,8]],"request":"r1"}
{"t":2.5,"seq":3,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"input_limit_tokens":100}
{"t":3.0,"seq":2,"source":"gateway","event":"request.finished","request":"r1","status":200,\
"prompt_tokens":120}
""",
    ),
)
