"""One pool at one moment: who held each page, and whose content was in it.

Read backwards from the moment, over as little time as it takes: what happened to a page last says what it was. It is a
picture of what was recorded, and no judgement; the replay (`kvwitness.audit.provenance`) is what findings rest on.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.order import clock_statements, ordered
from kvwitness.audit.telling.answer import ARRIVAL, Answer

HELD, SHARED, KEPT, FREE, RESERVED, UNKNOWN = "held", "shared", "kept", "free", "reserved", "unknown"
STATES = {
    HELD: "given to a request",
    SHARED: "several requests are attached",
    KEPT: "kept by the cache, a session or a snapshot",
    FREE: "given to nobody; old content stays in it",
    RESERVED: "reserved: null or padding page",
    UNKNOWN: "nothing on record in the time that was looked at",
}
"""State of a page -> what it says."""

_COLUMNS = [
    "time_ns", "source", "seq", "event", "op", "phase", "request", "incarnation", "holder", "tenant", "reason", "to",
    "pool", "pages", "to_pool", "to_pages", "gen", "transfer",
]  # fmt: skip
_TOUCHING = ["page.alloc", "page.free", "page.share", "page.write", "page.copy", "page.move"]
_FIRST_LOOK_NS = 900 * 1_000_000_000
_WIDER = 8
_ENOUGH = 6_000_000
"""Entries of page lists after which no wider stretch of time is read."""


@dataclass(frozen=True)
class Pool:
    """A pool as it was announced, and how long it is on record."""

    name: str
    page_tokens: int | None
    pages_total: int
    """As announced; where it never was, the highest page on record and one."""
    reserved: frozenset[int]
    kind: str
    scrub: str | None
    sharing: str | None
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class PageMap:
    """One pool at one moment."""

    pool: Pool
    at_ns: int
    since_ns: int
    """Nothing before this was looked at."""
    whole: bool
    """Whether that reaches back to the beginning of the record."""
    pages: pl.DataFrame
    """One row per page, ascending: page, state, request, holder, tenant (of the holder), sharers (how many requests are
    attached besides), held_ns (since when), writer (request that wrote last), writer_tenant, written_ns, foreign (held
    by one tenant while the last write on record was of another), generation (null: unknown)."""


def pools(answer: Answer, kinds: pl.DataFrame) -> list[Pool]:
    """The pools of which page events are on record; `kinds` is the result table `kinds_seen`."""
    spans = (
        kinds.filter(pl.col("pool").is_not_null() & pl.col("event").str.starts_with("page."))
        .group_by("pool")
        .agg(pl.col("first_ns").min(), pl.col("last_ns").max())
        .sort("pool")
    )
    if spans.is_empty():
        return []
    wanted = ["time_ns", "pool", "page_tokens", "pages_total", "reserved", "kind", "scrub", "sharing"]
    stated = answer.events.filter(pl.col("event") == "engine.pool").select(*wanted, *_arrival(answer))
    told = answer.collect(stated).group_by("pool", maintain_order=True).agg(pl.all().drop_nulls().last())
    by_name = {row["pool"]: row for row in told.iter_rows(named=True)}
    return [_pool(answer, by_name.get(name, {}), name, first, last) for name, first, last in spans.iter_rows()]


def _arrival(answer: Answer) -> list[str]:
    return [name for name in ARRIVAL if name in answer.events.collect_schema()]


def _pool(answer: Answer, row: dict[str, object], name: str, first: int, last: int) -> Pool:
    total = row.get("pages_total")
    if not isinstance(total, int):
        mine = answer.events.filter((pl.col("pool") == name) & pl.col("pages").is_not_null())
        with answer.reading():
            highest = mine.select(pl.col("pages").list.max().max()).collect().item()
        total = int(highest or 0) + 1
    tokens, reserved = row.get("page_tokens"), row.get("reserved")
    return Pool(
        name,
        tokens if isinstance(tokens, int) else None,
        total,
        frozenset(reserved) if isinstance(reserved, list) else frozenset(),
        str(row.get("kind") or "kv"),
        _text(row.get("scrub")),
        _text(row.get("sharing")),
        first,
        last,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def page_map(answer: Answer, pool: Pool, at_ns: int) -> PageMap:
    """The pool as of a moment, that included. Raises `KvwitnessError` when nothing of it is on record by then."""
    if at_ns < pool.first_ns:
        raise KvwitnessError(
            f"Nothing of {pool.name} is on record at that time.", "Its record begins later; choose a later moment."
        )
    span = _FIRST_LOOK_NS
    while True:
        since = max(pool.first_ns, at_ns - span)
        events = _events(answer, pool.name, since, at_ns)
        pages = _state(events, pool, whole=since <= pool.first_ns)
        entries = int(events["pages"].list.len().sum() or 0)
        known = (pages["state"] != UNKNOWN).all()
        if since <= pool.first_ns or known or entries > _ENOUGH:
            return PageMap(pool, at_ns, since, since <= pool.first_ns, _tenants(answer, pages))
        span *= _WIDER


def _events(answer: Answer, pool: str, since: int, until: int) -> pl.DataFrame:
    """The events that touch pages of the pool, in replay order, with `pages` those of this pool."""
    at_target = pl.col("to_pool").fill_null(pl.col("pool")) == pool
    mine = (pl.col("pool") == pool) | (pl.col("to_pages").is_not_null() & at_target)
    with answer.reading():
        clocks = clock_statements(answer.events).collect()
    off = int(1e9 * max(map(abs, clocks["offset_s"].drop_nulls().to_list()), default=0.0))
    near = pl.col("time_ns").is_between(since - off, until + off)
    chosen = answer.events.filter(near & pl.col("event").is_in(_TOUCHING) & mine.fill_null(False))
    events = ordered(answer.collect(chosen.select(*_COLUMNS, *_arrival(answer))), clocks=clocks)
    return events.filter(pl.col("ref_ns") <= until)


def _state(events: pl.DataFrame, pool: Pool, *, whole: bool) -> pl.DataFrame:
    numbers = pl.DataFrame({"page": pl.Series(range(pool.pages_total), dtype=pl.UInt32)})
    here = events.filter(pl.col("pool") == pool.name)
    came = _exploded(
        pl.concat(
            [
                here.filter(pl.col("event") == "page.alloc"),
                _targets(events, "page.move", pool.name),
            ]
        )
    )
    held = came.group_by("page", maintain_order=True).agg(
        came_ev=pl.col("ev").last(),
        held_ns=pl.col("ref_ns").last(),
        request=pl.col("request").last(),
        holder=pl.col("holder").last(),
        tenant=pl.col("tenant").last(),
        allocs=pl.len().cast(pl.Int64),
        gen=pl.col("gen").last(),
    )
    went = _exploded(here.filter((pl.col("event") == "page.free") | (pl.col("event") == "page.move")))
    shared = _exploded(here.filter(pl.col("event") == "page.share"))
    ended = _ends(went, shared, held)
    sharers = _sharers(shared, went)
    table = numbers.join(held, on="page", how="left").join(ended, on="page", how="left")
    table = table.join(sharers, on="page", how="left").join(_writers(events, here, pool.name), on="page", how="left")
    return _told(table.with_columns(pl.col("sharers").fill_null(0)), pool, whole=whole)


def _exploded(events: pl.DataFrame) -> pl.DataFrame:
    return events.rename({"pages": "page"}).explode("page").drop_nulls("page")


def _targets(events: pl.DataFrame, kind: str, pool: str) -> pl.DataFrame:
    """Events of a kind with the pages that they lead to instead of those that they come from."""
    led = events.filter(
        (pl.col("event") == kind) & (pl.col("to_pool").fill_null(pl.col("pool")) == pool).fill_null(False)
    )
    return led.with_columns(pages=pl.col("to_pages"), gen=pl.lit(None, led.schema["gen"]))


def _ends(went: pl.DataFrame, shared: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """page, ended, to, freed_ns: whether the holder has let go since it came (or, where that is not known, at all)."""
    after = went.join(held.select("page", "came_ev", owner="request", keeper="holder"), on="page", how="left")
    since = pl.col("came_ev").is_null() | (pl.col("ev") > pl.col("came_ev"))
    by_owner = pl.col("came_ev").is_null() | pl.col("request").eq_missing(pl.col("owner"))
    passed = pl.col("holder").is_not_null() | pl.col("keeper").is_not_null()
    ends = _without_detachments(after, shared).filter(since & (by_owner | passed | (pl.col("event") == "page.move")))
    return ends.group_by("page", maintain_order=True).agg(
        ended=pl.lit(True), to=pl.col("to").last(), freed_ns=pl.col("ref_ns").last()
    )


def _without_detachments(went: pl.DataFrame, shared: pl.DataFrame) -> pl.DataFrame:
    """Releases without those by which a request only detached itself: it had attached since its last release."""
    key = ["page", "request"]
    came = shared.select(*key, "ev", attached="ev").sort("ev")
    rows = went.sort("ev").with_columns(before=pl.col("ev").shift().over(key))
    told = rows.join_asof(came, on="ev", by=key, check_sortedness=False)
    detached = pl.col("attached").is_not_null() & (pl.col("attached") > pl.col("before").fill_null(-1))
    return told.filter(pl.col("request").is_null() | ~detached)


def _sharers(shared: pl.DataFrame, went: pl.DataFrame) -> pl.DataFrame:
    """page, sharers: how many requests attached themselves and have not let go."""
    key = ["page", "request"]
    came = shared.group_by(key).agg(pl.col("ev").max())
    left = went.group_by(key).agg(left_ev=pl.col("ev").max())
    on = came.join(left, on=key, how="left").filter(pl.col("left_ev").is_null() | (pl.col("left_ev") < pl.col("ev")))
    return on.group_by("page").agg(sharers=pl.len().cast(pl.Int64))


def _writers(events: pl.DataFrame, here: pl.DataFrame, pool: str) -> pl.DataFrame:
    """page, writer, writer_tenant, written_ns: the last write on record that landed."""
    landed = here.filter((pl.col("event") == "page.write") & (pl.col("phase").fill_null("end") != "begin"))
    copied = _targets(events, "page.copy", pool)
    writes = _exploded(pl.concat([landed, copied]).sort("ev"))
    return writes.group_by("page", maintain_order=True).agg(
        writer=pl.col("request").last(),
        writer_tenant=pl.col("tenant").last(),
        written_ns=pl.col("ref_ns").last(),
        written_by=pl.col("op").last(),
    )


def _told(table: pl.DataFrame, pool: Pool, *, whole: bool) -> pl.DataFrame:
    kept = pl.col("to").is_not_null() | (pl.col("holder").is_not_null() & pl.col("ended").is_null())
    seen = pl.col("came_ev").is_not_null() | pl.col("ended").is_not_null()
    state = (
        pl.when(pl.col("page").is_in(sorted(pool.reserved)))
        .then(pl.lit(RESERVED))
        .when(pl.col("sharers") > 0)
        .then(pl.lit(SHARED))
        .when(kept)
        .then(pl.lit(KEPT))
        .when(pl.col("came_ev").is_not_null() & pl.col("ended").is_null())
        .then(pl.lit(HELD))
        .when(seen | pl.lit(whole))
        .then(pl.lit(FREE))
        .otherwise(pl.lit(UNKNOWN))
    )
    gone = pl.col("ended").is_not_null()
    generation = pl.coalesce("gen", pl.when(pl.lit(whole)).then(pl.col("allocs").fill_null(0)))
    return table.select(
        "page",
        state=state,
        request=pl.when(~gone | pl.col("to").is_not_null()).then("request"),
        holder=pl.coalesce("to", pl.when(~gone).then("holder")),
        tenant=pl.when(~gone | pl.col("to").is_not_null()).then("tenant"),
        sharers="sharers",
        held_ns=pl.when(gone).then("freed_ns").otherwise("held_ns"),
        writer="writer",
        writer_tenant="writer_tenant",
        written_ns="written_ns",
        written_by="written_by",
        generation=generation.cast(pl.Int64),
    )


def _tenants(answer: Answer, pages: pl.DataFrame) -> pl.DataFrame:
    """Fill in the tenants of requests, as the audit settled them, and mark pages that hold another tenant's content."""
    about = pl.concat([pages["request"], pages["writer"]]).drop_nulls().unique()
    known = answer.requests.filter(pl.col("request").is_in(about.implode()) & pl.col("tenant").is_not_null())
    names = known.unique("request", keep="last").select("request", settled="tenant")
    told = pages.join(names, on="request", how="left", maintain_order="left")
    told = told.join(names.rename({"request": "writer", "settled": "wrote"}), on="writer", how="left")
    told = told.with_columns(
        tenant=pl.coalesce("settled", "tenant"), writer_tenant=pl.coalesce("wrote", "writer_tenant")
    ).drop("settled", "wrote")
    foreign = (pl.col("state") == HELD) & (pl.col("tenant") != pl.col("writer_tenant"))
    return told.with_columns(foreign=foreign.fill_null(False)).sort("page")
