"""A transfer was reported done that was not, or that brought less than its consumer read."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._extent import EXTENT, counted
from kvwitness.audit.rules._frames import report
from kvwitness.audit.rules._pages import facts, judge
from kvwitness.audit.rules._transfers import STARTS, event_level, uses
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict
from kvwitness.audit.wording import several_of

ID = "false-transfer-complete"

_EMPTY = pl.format(
    "a transfer was reported done for it although {} that the report claims had no complete write", EXTENT
)
_SHORT = pl.format(
    "its transfer was reported done with {}, and it then read {} beyond what had arrived",
    several_of("x", "token"),
    EXTENT,
)


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find completions whose claim is not met, that fall short of what is read, or contradict themselves."""
    claims = _claims(context)
    unmet = pl.concat([facts(context, ["false_done"]), _found_unwritten(context, claims)])
    integrity = pl.lit("integrity")
    return pl.concat(
        [
            judge(context, ID, counted(unmet), integrity, _EMPTY),
            judge(context, ID, counted(_read_beyond(context, claims)), integrity, _SHORT),
            report(context, ID, event_level(context)),
        ]
    )


def _claims(context: Context) -> pl.DataFrame:
    """Every start of a transfer with each report of its end that claims tokens: `done_ev`, `claimed`."""
    moves = uses(
        context.events.filter(pl.col("transfer").is_not_null()).select(
            *[pl.col("request"), pl.col("incarnation").cast(pl.Int32).fill_null(0)],
            *["ev", "event", "transfer", "dst_pool", "dst_pages", "tok_first", "tok_end", "tokens"],
        )
    )
    starts = moves.filter(pl.col("event").is_in(STARTS) & pl.col("request").is_not_null()).select(
        *[*KEY, "transfer", "use", "dst_pool", "dst_pages", "tok_first", "tok_end"], start_ev="ev"
    )
    dones = moves.filter((pl.col("event") == "transfer.done") & pl.col("tokens").is_not_null()).select(
        "transfer", "use", done_ev="ev", claimed="tokens"
    )
    return starts.join(dones, on=["transfer", "use"]).filter(pl.col("start_ev") < pl.col("done_ev")).collect()


def _read_beyond(context: Context, claims: pl.DataFrame) -> pl.DataFrame:
    """Reads past what had arrived by requests whose transfer had been reported done; `x` = tokens claimed."""
    rows = facts(context, ["uncovered"])
    return (
        rows.drop("ev2", "x")
        .sort("ev")
        .join_asof(
            claims.select(*KEY, "done_ev", x="claimed").sort("done_ev"),
            left_on="ev",
            right_on="done_ev",
            by=KEY,
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("done_ev").is_not_null())
        .rename({"done_ev": "ev2"})
        .select(rows.columns)
    )


def _found_unwritten(context: Context, claims: pl.DataFrame) -> pl.DataFrame:
    """Reads that found pages unwritten which a report had claimed, where nothing refuted it at the time."""
    rows = facts(context, ["unwritten"]).filter(pl.col("x") == 0).with_row_index("_row")
    claimed = _claimed_pages(context, claims.join(rows.select(KEY).unique(), on=KEY, how="semi"))
    # Facts may name millions of pages, claims mostly few: let the page numbers decide before anything else is carried.
    pages = rows.select("_row", "pages", "gens").explode("pages", "gens")
    pages = pages.filter(pl.col("pages").is_in(claimed["pages"].unique().implode()))
    pages = pages.join(rows.select("_row", *KEY, "pool", "ev", "since"), on="_row", maintain_order="left")
    known = facts(context, ["false_done"]).select(*KEY, "pool", "pages").explode("pages")
    met = (
        pages.join(claimed, on=[*KEY, "pool", "pages"])
        .filter((pl.col("since") < pl.col("done_ev")) & (pl.col("done_ev") <= pl.col("ev")))
        .join(known, on=[*KEY, "pool", "pages"], how="anti")
        .unique(["_row", "pages"], maintain_order=True)
        .group_by("_row", maintain_order=True)
        .agg("pages", "gens", ev2=pl.col("done_ev").min())
    )
    whole = pl.col("pages").list.len() == pl.col("all_pages").list.len()
    found = rows.drop("gens", "ev2").rename({"pages": "all_pages"})
    return (
        found.join(met, on="_row", maintain_order="left")
        .with_columns(
            positions=pl.when(whole).then("positions").otherwise(0),
            other_request=pl.lit(None, pl.String),
            other_tenant=pl.lit(None, pl.String),
        )
        .select(context.facts.columns)
    )


def _claimed_pages(context: Context, claims: pl.DataFrame) -> pl.DataFrame:
    """The destination pages that each report claims in full, or in part where nothing ever landed on them."""
    pools = context.events.filter(pl.col("event") == "engine.pool")
    sizes = pools.select(dst_pool="pool", size="page_tokens").drop_nulls()
    sizes = sizes.unique("dst_pool", keep="first", maintain_order=True)
    claims = claims.filter((pl.col("claimed") > 0) & (pl.col("dst_pages").list.len() > 0))
    claims = claims.join(sizes.collect(), on="dst_pool", how="left", maintain_order="left")
    # Too few pages to reach the end of the piece hold that piece alone; otherwise the first holds position 0.
    count = pl.col("dst_pages").list.len().cast(pl.Int64)
    late = (count * pl.col("size") < pl.col("tok_end")).fill_null(False)
    first = pl.when(late).then(pl.col("tok_first") // pl.col("size")).otherwise(0)
    places = claims.with_columns(place=pl.int_ranges(first, first + count)).explode("dst_pages", "place")
    begin = pl.col("place") * pl.col("size")
    wanted = (begin < pl.col("claimed")) & (begin + pl.col("size") > pl.col("tok_first").fill_null(0))
    full = (begin + pl.col("size") <= pl.col("claimed")).fill_null(False)
    pages = places.filter(wanted.fill_null(True)).select(
        *KEY,
        pl.col("dst_pool").alias("pool"),
        pl.col("dst_pages").alias("pages"),
        "done_ev",
        full=full,
        begin=begin.fill_null(0),
        end=(begin + pl.col("size")).fill_null(2**62),
    )
    touched = pages.join(_landings(context, pages), on=[*KEY, "pool"]).filter(
        (pl.col("landed_from") < pl.col("end")) & (pl.col("landed_to") > pl.col("begin"))
    )
    seen = touched.select(*KEY, "pool", "pages").unique().with_columns(touched=True)
    return (
        pages.join(seen, on=[*KEY, "pool", "pages"], how="left")
        .filter(pl.col("full") | pl.col("touched").is_null())
        .select(*KEY, "pool", "pages", "done_ev")
    )


def _landings(context: Context, pages: pl.DataFrame) -> pl.DataFrame:
    """The positions at which something landed by transfer, for the requests in `pages`."""
    landed = context.events.filter(
        (pl.col("event") == "page.write")
        & (pl.col("op") == "transfer")
        & (pl.col("phase") != "begin").fill_null(True)
        & pl.col("request").is_in(pages["request"].unique().implode())
    )
    return landed.select(
        "request",
        pl.col("incarnation").cast(pl.Int32).fill_null(0),
        "pool",
        landed_from=pl.col("tok_first").fill_null(0),
        landed_to=pl.col("tok_end").fill_null(2**62),
    ).collect()


RULE = Rule(
    id=ID,
    title="A transfer was reported done that was not",
    verdicts=(Verdict.INTEGRITY,),
    severity="high",
    meaning=(
        "Some party was told that a transfer is done, and the pages say otherwise: positions that the "
        "report claims have no complete write, the report claims fewer tokens than the request goes on to "
        "read, no byte had moved, or the transfer had already failed. The consumer acts on the report and "
        "reads what the pages held before. A report that names no number of tokens claims nothing and is "
        "not judged."
    ),
    needs=("transfer.done",),
    false_positives=(
        "Landings that are not recorded; a count of tokens that leaves out what the consumer already had."
    ),
    references=(
        "sgl-project/sglang#30233",
        "sgl-project/sglang#35421",
        "sgl-project/sglang#33507",
        "sgl-project/sglang#36988",
        "vllm-project/vllm#50754",
        "vllm-project/vllm#52234",
        "NVIDIA/TensorRT-LLM#14633",
    ),
    atlas=("AML.T0031", "AML.T0057"),
    cwe=("CWE-393", "CWE-354", "CWE-703"),
    query=query,
    positive=Example(
        title="done for eight tokens, four have arrived",
        request="r1",
        verdict="integrity",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5,6],"request":"r1",\
"tenant":"t-a"}
{"t":2.1,"seq":3,"source":"d/0","event":"transfer.begin","transfer":"x1","request":"r1","src_pool":"p/0/kv",\
"src_pages":[1,2],"dst_pool":"d/0/kv","dst_pages":[5,6],"tokens":8}
{"t":2.2,"seq":4,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","tok":[0,4]}
{"t":2.3,"seq":5,"source":"d/0","event":"transfer.done","transfer":"x1","request":"r1","tokens":8,\
"observer":"receiver"}
""",
    ),
    negative=Example(
        title="done when everything has arrived; what follows is computed",
        trace="""\
{"t":1.0,"seq":1,"source":"d/0","event":"engine.pool","pool":"d/0/kv","page_tokens":4,"pages_total":16}
{"t":2.0,"seq":2,"source":"d/0","event":"page.alloc","pool":"d/0/kv","pages":[5,6],"request":"r1",\
"tenant":"t-a"}
{"t":2.1,"seq":3,"source":"d/0","event":"transfer.begin","transfer":"x1","request":"r1","src_pool":"p/0/kv",\
"src_pages":[1],"dst_pool":"d/0/kv","dst_pages":[5],"tokens":4}
{"t":2.2,"seq":4,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[5],"request":"r1",\
"op":"transfer","tok":[0,4]}
{"t":2.3,"seq":5,"source":"d/0","event":"transfer.done","transfer":"x1","request":"r1","tokens":4,\
"observer":"receiver"}
{"t":2.4,"seq":6,"source":"d/0","event":"page.write","pool":"d/0/kv","pages":[6],"request":"r1",\
"op":"forward","tok":[4,6]}
{"t":2.5,"seq":7,"source":"d/0","event":"page.read","pool":"d/0/kv","pages":[5,6],"request":"r1",\
"op":"decode","tok":[0,6]}
""",
    ),
)
