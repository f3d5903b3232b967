"""Part of the record is missing, so that a request cannot be judged."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.provenance.actors import OWN_TRAFFIC
from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import ENDS, SECOND_NS, report, site_of
from kvwitness.audit.rules._losses import across_losses
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import for_one, several_of

ID = "telemetry-gap"

BIRTHS = [
    "request.received",
    "request.rejected",
    "page.alloc",
    "page.share",
    "transfer.offer",
    "transfer.begin",
]
"""Events with which the life of a request on a source can begin."""


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find the requests that a loss touched: alive on its source, or relying on page state across it.

    A loss that touches no request is a finding of its engine. A request that read what was written
    before the record began cannot be judged either.
    """
    parts = [_reading_the_unknown(context), _reading_the_untold(context), _without_reads(context)]
    unknown = pl.concat(parts, how="diagonal_relaxed")
    if context.gaps.is_empty():
        return report(context, ID, unknown)
    lives = _with_pages_left(context, _lives(context))
    across = _across(lives, context.gaps.filter(pl.col("reason") != "midlife"))
    older = _older(lives, context.gaps.filter(pl.col("reason") == "midlife"), float(settings["skew_s"]))
    touched = pl.concat([across, older])
    requests = _describe(_with_first_read(context, touched))
    resting = _resting_on_lost_state(context)
    met = pl.concat([touched.select("source", "after_ev"), resting.select("source", "after_ev")])
    losses = context.gaps.filter(pl.col("reason") != "midlife")
    alone = losses.join(met, on=["source", "after_ev"], how="anti", nulls_equal=True)
    unknown = unknown.join(touched, on=KEY, how="anti")
    parts = [requests, _describe(resting), _describe(alone), unknown]
    return report(context, ID, pl.concat(parts, how="diagonal_relaxed"))


def _lives(context: Context) -> pl.DataFrame:
    """The life of each request on each source that has a gap, as events of that source tell it."""
    sources = context.gaps["source"].unique().to_list()
    named = keyed(context.events.filter(pl.col("source").is_in(sources)))
    given_up = (pl.col("event") == "page.free") & ~pl.col("reason").is_in(["window", "preempt"]).fill_null(False)
    over = given_up | pl.col("event").is_in(ENDS)
    spans = (
        named.with_columns(over=over)
        .group_by(*KEY, "source")
        .agg(
            first_ev=pl.col("ev").min(),
            first_ns=pl.col("ref_ns").min(),
            last_ev=pl.col("ev").max(),
            born=pl.col("event").sort_by("ev").first().is_in(BIRTHS),
            over=pl.col("over").sort_by("ev").last(),
            released=pl.col("event").sort_by("ev").last() == "page.free",
        )
    )
    known = context.requests.lazy().select(*KEY, "tenant", "received_ev", "received_ns", "ended_ev")
    lives = spans.join(known, on=KEY, how="left")
    forever = pl.lit(2**62, pl.Int64)
    open_end = pl.max_horizontal("last_ev", pl.col("ended_ev").fill_null(forever))
    return lives.with_columns(end_ev=pl.when("over").then("last_ev").otherwise(open_end), open_end=open_end).collect()


def _with_pages_left(context: Context, lives: pl.DataFrame) -> pl.DataFrame:
    """A release as the last word of a source on a request is its end there only if it left it no page.

    Only where a loss lies between that word and the end of the request does it matter, so page lists are looked at for
    the few of which that is so.
    """
    released = pl.col("over") & pl.col("released") & (pl.col("open_end") > pl.col("last_ev"))
    doubted = lives.filter(released).select(*KEY, "source", since="last_ev", ev="open_end")
    met = across_losses(doubted, context.gaps)
    if met.is_empty():
        return lives
    left = _holding(context, met.select(*KEY, "source"))
    going_on = pl.col("left").fill_null(False)
    told = lives.join(left, on=[*KEY, "source"], how="left", maintain_order="left")
    return told.with_columns(end_ev=pl.when(going_on).then("open_end").otherwise("end_ev")).drop("left")


def _holding(context: Context, asked: pl.DataFrame) -> pl.DataFrame:
    """Of requests (request, incarnation, source), those that hold pages after all that the source tells of them."""
    kinds = ["page.alloc", "page.share", "page.free", "page.move"]
    ids = asked["request"].unique().to_list()
    seen = keyed(context.page_events.filter(pl.col("event").is_in(kinds) & pl.col("request").is_in(ids)))
    columns = [*KEY, "source", "event", "pool", "pages", "to_pool", "to_pages"]
    told = seen.join(asked.lazy(), on=[*KEY, "source"], how="semi").sort("ev").select(columns)
    held: dict[tuple[str, int, str], set[tuple[str, int]]] = {}
    for request, incarnation, source, event, pool, pages, to_pool, to_pages in told.collect().iter_rows():
        mine = held.setdefault((request, incarnation, source), set())
        listed = {(pool, page) for page in pages or ()}
        if event == "page.move" and mine & listed:
            mine.update((to_pool or pool, page) for page in to_pages or ())
        mine.difference_update(listed) if event in ("page.free", "page.move") else mine.update(listed)
    schema = {"request": pl.String, "incarnation": pl.Int32, "source": pl.String, "left": pl.Boolean}
    return pl.DataFrame([(*key, True) for key, mine in held.items() if mine], schema=schema, orient="row")


def _across(lives: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Per request and source, the first loss during its life there."""
    spans = lives.with_columns(since="first_ev", ev="end_ev")
    return across_losses(spans, gaps).select(_COLUMNS)


def _older(lives: pl.DataFrame, gaps: pl.DataFrame, skew_s: float) -> pl.DataFrame:
    """Requests that lived before the record of a source began: neither born there nor seen to be received."""
    met = lives.join(gaps, on="source")
    lead_ns = pl.col("received_ns") - pl.col("first_ns")
    before = pl.col("received_ev").is_null() | (lead_ns > int(skew_s * SECOND_NS))
    return met.filter(before & ~pl.col("born")).select(_COLUMNS)


def _resting_on_lost_state(context: Context) -> pl.DataFrame:
    """Observations of the replay that rely on the state of a page across a loss at one who reports on its
    pool."""
    losses = context.gaps.filter(pl.col("reason") != "midlife")
    relying = context.facts.filter(
        (pl.col("fact") != "shared") & pl.col("request").is_not_null() & pl.col("since").is_not_null()
    )
    reporters = context.events.filter(
        pl.col("source").is_in(losses["source"].unique().to_list()) & pl.col("pool").is_not_null()
    )
    seen_by = reporters.select("source", "pool").unique().collect()
    hit = across_losses(relying.join(seen_by, on="pool"), losses)
    key = [*KEY, "tenant", "pool", "source", "before_ev", "after_ev", "from_seq", "to_seq", "dropped"]
    grouped = hit.group_by(key, maintain_order=True).agg(
        pages=pl.col("pages").explode().unique().sort(), read_ev=pl.col("ev").min()
    )
    return grouped.with_columns(reason=pl.lit("state"))


def _reading_the_unknown(context: Context) -> pl.DataFrame:
    """Requests that read pages whose content came before the record began, or from pages of which a loss hides whose
    they were: nobody can say what it was."""
    rows = context.facts.filter((pl.col("fact") == "unknown") & pl.col("request").is_not_null())
    grouped = rows.group_by(*KEY, "tenant", "pool", maintain_order=True).agg(
        pages=pl.col("pages").explode().unique().sort(), evs=pl.col("ev").min().implode()
    )
    count = pl.col("pages").list.len()
    return grouped.with_columns(
        verdict=pl.lit("unproven"),
        why=pl.format(
            "{} read {} of {} that {} filled before the record begins, or from pages whose state is not on record",
            "request",
            several_of(count, "page"),
            "pool",
            for_one(count, "was", "were"),
        ),
        missing=pl.format("who wrote what {} of {} held", for_one(count, "that page", "those pages"), "pool"),
    )


def _reading_the_untold(context: Context) -> pl.DataFrame:
    """Requests that computed on pages of a pool of which nothing but reads is on record.

    Who owned those pages and who wrote them is not known. What copies or fetches from such a pool is not meant: a store
    need not be traced, and what it delivers is judged where it arrives.
    """
    about = ["page.alloc", "page.move", "page.write", "page.copy"]
    pages = context.events.filter(pl.col("event").is_in([*about, "page.read"]))
    named = pages.select("event", "pool", "to_pool").unique().collect()
    told = named.filter(pl.col("event").is_in(about))
    traced = pl.concat([told["pool"], told["to_pool"]]).drop_nulls().unique().to_list()
    untold = (
        named.filter((pl.col("event") == "page.read") & ~pl.col("pool").is_in(traced))["pool"].drop_nulls().unique()
    )
    if untold.is_empty():
        return pl.DataFrame()
    attention = ~pl.col("op").is_in(["transfer", "offload", "copy"]).fill_null(False)
    reads = keyed(pages.filter((pl.col("event") == "page.read") & attention & pl.col("pool").is_in(untold.to_list())))
    own = pl.col("traffic").is_in(list(OWN_TRAFFIC)).fill_null(False)
    users = context.requests.lazy().filter(~own).select(*KEY, "tenant")
    rows = reads.group_by(*KEY, "pool").agg(evs=pl.col("ev").min().implode()).join(users, on=KEY).sort("pool", *KEY)
    return rows.select(
        *KEY,
        "tenant",
        "pool",
        "evs",
        verdict=pl.lit("unproven"),
        why=pl.format("{} read pages of {}, of which nothing but reads is on record", "request", "pool"),
        missing=pl.format("page.alloc and page.write of {}", "pool"),
    ).collect()


def _without_reads(context: Context) -> pl.DataFrame:
    """Requests answered with success by engines that put down their pages and not one read of any of them.

    Engines whose role is prefill need not read; but where nothing except prefill tells of pages, the decode side is
    what is missing, for every answer of more than the one token that prefill makes.
    """
    roles = (
        context.events.filter(pl.col("event") == "engine.limits").select("engine", "role").unique("engine", keep="last")
    )
    told = context.acts.filter(pl.col("event").is_in(["page.alloc", "page.write", "page.read"]))
    sites = told.select("event", "pool").unique().collect().with_columns(engine=site_of("pool"))
    seen = sites.group_by("engine").agg(reads=(pl.col("event") == "page.read").any())
    known = seen.join(roles.collect(), on="engine")
    silent = known.filter(pl.col("role").is_in(["decode", "unified"]) & ~pl.col("reads"))
    alone = known.filter(pl.col("role") == "prefill") if not seen["reads"].any() else known.clear()
    if silent.is_empty() and alone.is_empty():
        return pl.DataFrame()
    lacking = pl.concat([silent, alone])["engine"].to_list()
    served = keyed(told).with_columns(engine=site_of("pool")).filter(pl.col("engine").is_in(lacking))
    first = served.group_by(*KEY, "engine").agg(evs=pl.col("first_ev").min().implode(), pool=pl.col("pool").min())
    answers = keyed(context.events.filter(pl.col("event") == "request.finished"))
    tokens = answers.group_by(KEY).agg(tokens=pl.col("completion_tokens").max())
    own = pl.col("traffic").is_in(list(OWN_TRAFFIC))
    answered = context.requests.lazy().filter(pl.col("ok") & ~own.fill_null(False)).select(*KEY, "tenant")
    rows = first.join(answered, on=KEY).join(tokens, on=KEY, how="left").collect()
    answering = pl.col("engine").is_in(silent["engine"].to_list())
    rows = rows.filter(pl.col("tokens").fill_null(2) > pl.when(answering).then(0).otherwise(1))
    return rows.sort("engine", *KEY).select(
        *KEY,
        "tenant",
        "evs",
        verdict=pl.lit("unproven"),
        why=pl.format("{} had pages on {}, and what was read for it is not on record", "request", "engine"),
        missing=pl.when(answering)
        .then(pl.format("page.read of {}", "engine"))
        .otherwise(pl.lit("page.read of whoever decoded")),
    )


_COLUMNS = [*KEY, "tenant", "source", "before_ev", "after_ev", "from_seq", "to_seq", "dropped", "reason"]


def _with_first_read(context: Context, touched: pl.DataFrame) -> pl.DataFrame:
    """Add the pages that the request read first, per pool, after the loss."""
    ids = touched["request"].unique().to_list()
    reads = keyed(context.page_events.filter((pl.col("event") == "page.read") & pl.col("request").is_in(ids)))
    columns = [*KEY, "source", "ev", "pool", "pages"]
    after = touched.lazy().join(reads.select(columns), on=[*KEY, "source"])
    after = after.filter(pl.col("ev") >= pl.col("after_ev")).sort("ev")
    key = [*KEY, "source", "after_ev"]
    first = after.unique([*key, "pool"], keep="first").select(*key, "pool", "pages", read_ev="ev").collect()
    return touched.join(first, on=key, how="left")


def _describe(rows: pl.DataFrame) -> pl.DataFrame:
    subject = pl.lit("no request is known to have been alive")
    if "request" in rows.columns:
        subject = (
            pl.when(pl.col("reason") == "midlife")
            .then(pl.format("{} was alive on {} before its record begins", "request", "source"))
            .when(pl.col("reason") == "state")
            .then(pl.format("the state of pages that {} met was last known to {} before a loss", "request", "source"))
            .otherwise(pl.format("{} was alive on {}", "request", "source"))
        )
    events = pl.coalesce(
        pl.format("seq {} to {} of {}", "from_seq", "to_seq", "source"),
        pl.format("what {} lost", "source"),
    )
    count = several_of("dropped", "event").fill_null("an unknown number of events")
    proof = [name for name in ("before_ev", "after_ev", "read_ev") if name in rows.columns]
    return rows.with_columns(
        verdict=pl.lit("unproven"),
        engine=pl.col("source").str.split("/").list.first(),
        evs=pl.concat_list(proof),
        why=pl.format("{}, and {} {} missing there", subject, count, for_one("dropped", "is", "are")),
        missing=events,
    )


RULE = Rule(
    id=ID,
    title="Telemetry is missing",
    verdicts=(Verdict.UNPROVEN,),
    severity="low",
    meaning=(
        "Events of a source were lost: a hole in its numbering, a line that cannot be read, a loss that it "
        "declared itself, or a life before the record began. A request that was alive there meanwhile may "
        "have met writes, frees or other owners that nobody can see any more, so that even sound reads prove "
        "nothing; nor can one be judged that came later and read what had been written before, such as a "
        "cached prefix; nor one that was answered by an engine which puts down pages and never a read, or "
        "that computed on a pool of which nothing but reads is on record. Unproven is not clean; the finding "
        "names what is missing."
    ),
    needs=(),
    false_positives="A source that skips numbers without losing events.",
    references=(),
    atlas=(),
    cwe=("CWE-778", "CWE-223"),
    query=query,
    params=(
        Param(
            "skew_s",
            1.0,
            "how much earlier than its reception a request may be seen on a source whose record begins mid-life",
            "s",
        ),
    ),
    positive=Example(
        title="two numbers are missing while the request runs",
        request="r1",
        verdict="unproven",
        trace="""\
{"t":1,"seq":1,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r1","tenant":"t-a"}
{"t":2,"seq":4,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4],"request":"r1"}
{"t":3,"seq":5,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[4],"request":"r1"}
""",
    ),
    negative=Example(
        title="the record begins mid-life, the request does not",
        trace="""\
{"t":1,"seq":71,"source":"e/0","event":"page.alloc","pool":"e/0/kv","pages":[4],"request":"r1","tenant":"t-a"}
{"t":2,"seq":72,"source":"e/0","event":"page.read","pool":"e/0/kv","pages":[4],"request":"r1"}
{"t":3,"seq":73,"source":"e/0","event":"page.free","pool":"e/0/kv","pages":[4],"request":"r1"}
""",
    ),
)
