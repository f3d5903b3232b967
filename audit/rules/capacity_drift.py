"""What is advertised, what the roles enforce and what the pools hold do not fit together."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import acting_engine, report, site_of
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import number_of, several_of

ID = "capacity-drift"

FIGURES = ["advertised_tokens", "input_limit_tokens", "pool_tokens"]


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Every announcement is compared with the one before it, and the latest ones with each other."""
    announced = (
        context.events.filter((pl.col("event") == "engine.limits") & pl.col("engine").is_not_null())
        .select("ev", "role", "model", *FIGURES, engine=site_of("engine"))
        .sort("ev")
        .with_columns(pl.col("role", "model", *FIGURES).forward_fill().over("engine"))
        .collect()
    )
    if announced.is_empty():
        return report(context, ID, pl.DataFrame())
    sized = announced.join(_pool_sizes(context), on="engine", how="left").with_columns(
        holds=pl.coalesce("pool_tokens", "measured"),
        promises=pl.coalesce("advertised_tokens", "input_limit_tokens"),
    )
    latest = sized.group_by("engine", maintain_order=True).last()
    paths = _paths(context, latest)
    parts = [_changed(announced), _overpromised(sized, latest, paths), _disagreeing(latest, paths)]
    rows = pl.concat(parts, how="diagonal").with_columns(verdict=pl.lit("exposure"))
    return report(context, ID, rows)


def _pool_sizes(context: Context) -> pl.DataFrame:
    """Per engine, the tokens that its pages hold, for engines that do not state `pool_tokens`.

    Groups of one rank may be small on purpose (a window), so the largest K/V group counts; of ranks
    the smallest.
    """
    pools = context.events.filter(pl.col("event") == "engine.pool").sort("ev")
    last = pools.group_by("pool", maintain_order=True).last()
    kv = last.filter(pl.col("kind").fill_null("kv") == "kv")
    usable = pl.col("pages_total") - pl.col("reserved").list.len().fill_null(0)
    sizes = kv.select(
        engine=site_of("pool"),
        rank=pl.col("pool").str.split("/").list.get(1, null_on_oob=True),
        tokens=usable.cast(pl.Int64) * pl.col("page_tokens"),
    )
    by_rank = sizes.group_by("engine", "rank").agg(pl.col("tokens").max())
    return by_rank.group_by("engine").agg(measured=pl.col("tokens").min()).collect()


def _paths(context: Context, latest: pl.DataFrame) -> pl.DataFrame:
    """Pairs of engines that answer together.

    Prefill and decode that served one request (before any did: that have one model), and a gateway with each
    engine of its model.
    """
    role = pl.col("role")
    sides = latest.select("engine", "role", "model")
    prefill, decode = sides.filter(role == "prefill"), sides.filter(role == "decode")
    pairs = prefill.join(decode, how="cross", suffix="_2").filter(_same_model())
    if pairs.height > 1:
        seen = _served_together(context)
        linked = pairs.join(seen, on=["engine", "engine_2"], how="semi")
        pairs = linked if linked.height else pairs
    gateways = sides.filter(role == "gateway")
    fronted = gateways.join(sides.filter(role != "gateway"), how="cross", suffix="_2").filter(_same_model())
    return pl.concat([pairs, fronted]).select("engine", "engine_2", "role")


def _same_model() -> pl.Expr:
    return (pl.col("model") == pl.col("model_2")).fill_null(True)


def _served_together(context: Context) -> pl.DataFrame:
    served = keyed(context.events.filter(pl.col("event").is_in(["page.alloc", "transfer.begin"])))
    by_engine = served.select(*KEY, engine=acting_engine(context)).unique().collect()
    both = by_engine.join(by_engine, on=KEY, suffix="_2")
    return both.select("engine", "engine_2").unique()


def _changed(announced: pl.DataFrame) -> pl.DataFrame:
    steps = announced.with_columns(
        *[pl.col(name).shift().over("engine").alias(f"old_{name}") for name in FIGURES],
        old_ev=pl.col("ev").shift().over("engine"),
    )
    parts = []
    for name in FIGURES:
        moved = steps.filter(pl.col(name) != pl.col(f"old_{name}"))
        parts.append(
            moved.select(
                "engine",
                evs=pl.concat_list("old_ev", "ev"),
                why=pl.format(
                    "{} of {} changed from {} to {} after start",
                    pl.lit(name),
                    "engine",
                    number_of(f"old_{name}"),
                    number_of(name),
                ),
            )
        )
    return pl.concat(parts)


def _overpromised(sized: pl.DataFrame, latest: pl.DataFrame, paths: pl.DataFrame) -> pl.DataFrame:
    """Promises beyond an engine's own pool, and beyond the pool of another engine on the same path."""
    own = sized.filter(pl.col("promises") > pl.col("holds")).unique(["engine", "promises", "holds"], keep="first")
    alone = own.select(
        "engine",
        evs=pl.concat_list("ev"),
        why=pl.format(
            "{} advertises {}, its pool holds {}", "engine", several_of("promises", "token"), number_of("holds")
        ),
    )
    both = pl.concat([paths, paths.select(engine="engine_2", engine_2="engine", role="role")])
    other = latest.select(engine_2="engine", other_ev="ev", other_holds="holds", own_promise="promises")
    joined = both.join(latest, on="engine").join(other, on="engine_2")
    # The other engine's own promise, where it is as large, is reported above.
    beyond = joined.filter(
        (pl.col("promises") > pl.col("other_holds")) & ~(pl.col("own_promise") > pl.col("other_holds")).fill_null(False)
    )
    on_path = beyond.select(
        "engine",
        evs=pl.concat_list("ev", "other_ev"),
        why=pl.format(
            "{} advertises {}, the pool of {} on its path holds {}",
            "engine",
            several_of("promises", "token"),
            "engine_2",
            number_of("other_holds"),
        ),
    )
    return pl.concat([alone, on_path])


def _disagreeing(latest: pl.DataFrame, paths: pl.DataFrame) -> pl.DataFrame:
    """Prefill and decode of one path that advertise or enforce different figures."""
    pairs = paths.filter(pl.col("role") == "prefill").drop("role")
    other = latest.select(
        engine_2="engine",
        ev_2="ev",
        advertised_tokens_2="advertised_tokens",
        input_limit_tokens_2="input_limit_tokens",
    )
    joined = pairs.join(latest, on="engine").join(other, on="engine_2")
    parts = []
    for name in FIGURES[:2]:
        differing = joined.filter(pl.col(name) != pl.col(f"{name}_2"))
        parts.append(
            differing.select(
                "engine",
                evs=pl.concat_list("ev", "ev_2"),
                why=pl.format(
                    "{} is {} on {} and {} on {}",
                    pl.lit(name),
                    number_of(name),
                    "engine",
                    number_of(f"{name}_2"),
                    "engine_2",
                ),
            )
        )
    return pl.concat(parts)


RULE = Rule(
    id=ID,
    title="Advertised, enforced and real capacity disagree",
    verdicts=(Verdict.EXPOSURE,),
    severity="medium",
    meaning=(
        "An engine promises more tokens than the smallest pool on the path can hold, prefill and decode "
        "advertise or enforce different limits, or a figure changed while the engine ran. Prompts in "
        "between are accepted by one party and refused or never served by another: the ground on which "
        "refused prompts are handed on, cut or left hanging. Pool sizes themselves may differ between "
        "roles."
    ),
    needs=("engine.limits",),
    false_positives=(
        "An engine restarted on purpose with other limits under the same name; a pool that grows on "
        "demand and announces its present size."
    ),
    references=(
        "sgl-project/sglang#4048",
        "sgl-project/sglang#30326",
        "sgl-project/sglang#30325",
        "FlashML-org/FreeToken#111",
    ),
    atlas=("AML.T0029",),
    cwe=("CWE-1284", "CWE-770"),
    query=query,
    lasting=True,
    positive=Example(
        title="1000 tokens promised, 512 in the pool",
        verdict="exposure",
        trace="""\
{"t":1,"seq":1,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"advertised_tokens":1000,"input_limit_tokens":1000,"pool_tokens":512}
""",
    ),
    negative=Example(
        title="a reserve below the advertised figure, and the same limits sent again",
        trace="""\
{"t":1,"seq":1,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"advertised_tokens":512,"input_limit_tokens":506,"pool_tokens":512}
{"t":9,"seq":2,"source":"e/0","event":"engine.limits","engine":"e","role":"unified",\
"advertised_tokens":512,"input_limit_tokens":506,"pool_tokens":512}
""",
    ),
)
