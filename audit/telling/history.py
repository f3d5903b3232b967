"""Histories: what happened to one page, and what one request did and held, in replay order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from kvwitness.audit.api import request_name
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.rules.model import STRENGTH
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.exhibits import as_recorded, shows

_PAIRS = [("pool", "pages"), ("to_pool", "to_pages"), ("src_pool", "src_pages"), ("dst_pool", "dst_pages")]
"""Columns in which an event names pages, each with that of their pool; an absent `to_pool` means `pool`."""
_REPEATED = {"page.read", "page.write", "step.begin", "step.end"}


def split_page(name: str) -> tuple[str, int]:
    """`dec-1/0/full/17` -> (`dec-1/0/full`, 17). Raises `KvwitnessError` when it is no pool and page."""
    pool, _, page = name.rpartition("/")
    if not pool or not page.isdecimal():
        raise KvwitnessError(
            f"{name!r} does not name a page.",
            "Write the pool, a slash and the id of the page: dec-1/0/full/17.",
        )
    return pool, int(page)


def page_history(answer: Answer, pool: str, page: int) -> list[dict[str, Any]]:
    """Every event that names the page, in replay order.

    Each: time_ns (reference time), generation (allocations so far on record, or as the source counted),
    source, seq, event (with op and phase), who (request or holder), tenant, positions (token positions of
    the request that lie on the page: first, end), note, findings (what those say that name the event and
    this page: `leak of r1017: unwritten-page-read`).
    Raises `KvwitnessError` when the record does not know the pool, or no event names the page.
    """
    at_target = (pl.col("to_pool").fill_null(pl.col("pool")) == pool) & pl.col("to_pages").list.contains(page)
    named = at_target | pl.any_horizontal(
        *[(pl.col(p) == pool) & pl.col(ids).list.contains(page) for p, ids in _PAIRS if p != "to_pool"]
    )
    chosen = named.fill_null(False) | (pl.col("event") == "engine.clock") | _about(pool)
    events = ordered(answer.collect(answer.events.filter(chosen), arrival=True))
    tokens = _page_tokens(events, pool)
    rows = events.filter(named.fill_null(False))
    if rows.is_empty():
        _refuse(answer, events, pool, page)
    tenants = _tenants(answer, rows)
    marks = _marks(answer, pool, page)
    generation, history = 0, []
    for row in rows.iter_rows(named=True):
        generation = _generation(row, pool, page, generation)
        history.append(
            {
                "time_ns": row["ref_ns"],
                "generation": generation,
                "source": row["source"],
                "seq": row["seq"],
                "event": " ".join(word for word in (row["event"], row["op"], row["phase"]) if word),
                "who": row["request"] or row["holder"],
                "tenant": row["tenant"] or tenants.get(row["request"] or ""),
                "positions": _positions(row, pool, page, tokens),
                "note": _note(row, pool, page),
                "findings": marks.get(tuple(row[name] for name in answer.proof_key), []),
            }
        )
    return history


def _about(pool: str) -> pl.Expr:
    return (pl.col("event") == "engine.pool") & (pl.col("pool") == pool)


def _page_tokens(events: pl.DataFrame, pool: str) -> int | None:
    stated = events.filter(_about(pool))["page_tokens"].drop_nulls()
    return int(stated[-1]) if len(stated) else None


def _refuse(answer: Answer, events: pl.DataFrame, pool: str, page: int) -> None:
    described = events.filter(_about(pool))
    if described.is_empty():
        pools = answer.collect(answer.events.select("pool").unique())["pool"].drop_nulls().sort().to_list()
        if pool not in pools:
            raise KvwitnessError(
                f"No event names the pool {pool!r}.",
                f"There are: {', '.join(pools[:20])}{', ...' if len(pools) > 20 else ''}." if pools else "",
            )
    total = described["pages_total"].drop_nulls()
    size = f" It has {total[-1]:,} pages, 0 to {total[-1] - 1:,}." if len(total) else ""
    raise KvwitnessError(f"No event names page {page} of {pool}.", size.strip())


def _tenants(answer: Answer, rows: pl.DataFrame) -> dict[str, str]:
    """Tenants of the requests in `rows`: as the audit settled them, else as their events name them."""
    wanted = rows["request"].drop_nulls().unique().to_list()
    settled = answer.requests.filter(pl.col("request").is_in(wanted) & pl.col("tenant").is_not_null())
    if answer.judged:
        return dict(settled.select("request", "tenant").iter_rows())
    named = answer.events.filter(pl.col("request").is_in(wanted) & pl.col("tenant").is_not_null())
    return dict(answer.collect(named.select("request", "tenant").unique()).iter_rows())


def _marks(answer: Answer, pool: str, page: int) -> dict[tuple[Any, ...], list[str]]:
    """`proof_key` -> what the findings on this page say that it proves, the strongest first."""
    here = answer.findings.filter((pl.col("pool") == pool) & pl.col("pages").list.contains(page))
    marks: dict[tuple[str, int], list[str]] = {}
    for row in sorted(here.iter_rows(named=True), key=lambda row: -STRENGTH[row["verdict"]]):
        whose = f" of {request_name(row['request'], row['incarnation'])}" if row["request"] else ""
        for proof in row["places" if answer.stored else "seqs"] or []:
            told = marks.setdefault(tuple(proof[name] for name in answer.proof_key), [])
            if (mark := f"{row['verdict']}{whose}: {row['rule']}") not in told:
                told.append(mark)
    return marks


def _generation(row: dict[str, Any], pool: str, page: int, before: int) -> int:
    """The generation after the event."""
    if row["gen"] is not None and row["pool"] == pool and page in (row["pages"] or ()):
        return int(row["gen"])
    taken = row["event"] == "page.alloc" or (row["event"] == "page.move" and _is_target(row, pool, page))
    return before + 1 if taken else before


def _is_target(row: dict[str, Any], pool: str, page: int) -> bool:
    return (row["to_pool"] or row["pool"]) == pool and page in (row["to_pages"] or ())


def _positions(row: dict[str, Any], pool: str, page: int, tokens: int | None) -> list[int] | None:
    """Token positions that the event covers on this page; None for all of it, or where nobody can say."""
    if tokens is None or row["tok_first"] is None or row["pool"] != pool or page not in (row["pages"] or ()):
        return None
    ordinal = row["tok_first"] // tokens + row["pages"].index(page)
    first, end = max(row["tok_first"], ordinal * tokens), min(row["tok_end"], (ordinal + 1) * tokens)
    return [first, end] if first < end else None


def _note(row: dict[str, Any], pool: str, page: int) -> str:
    """What else the event says that matters to the page."""
    if row["event"].startswith("transfer."):
        target = row["dst_pool"] == pool and page in (row["dst_pages"] or ())
        return f"{'target' if target else 'source'} of transfer {row['transfer']}"
    if row["to_pages"]:
        role = "target" if _is_target(row, pool, page) else "source"
        return f"{role} ({row['cause']})" if row["cause"] else role
    if row["event"].startswith("step."):
        return f"step {row['step']}"
    told = [
        row["reason"],
        f"passed on to {row['to']}" if row["to"] else None,
        f"key {row['key']}" if row["key"] else None,
    ]
    return ", ".join(part for part in told if part)


def collapsed(
    rows: Sequence[dict[str, Any]], same: Sequence[str], span: str, note: str = "note"
) -> list[dict[str, Any]]:
    """Rows for reading: what is done over and over, at every step, in one row for each thing that is done.

    Reads, writes and steps that are equal in the columns `same` and have only one another in between are one
    row, with `times` (how many), `until_ns` (time of the last; None for a single one), the column `span`
    (first, end) widened to hold all, and the first and last text of the column `note`.
    """
    merged: list[dict[str, Any]] = []
    current: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        if row["event"].split(" ")[0] not in _REPEATED:
            current.clear()
        key = tuple(str(row[name]) for name in same)
        if key in current:
            _join(current[key], row, span, note)
        else:
            merged.append({**row, "times": 1, "until_ns": None})
            current[key] = merged[-1]
    return merged


def _join(kept: dict[str, Any], row: dict[str, Any], span: str, note: str) -> None:
    kept["times"] += 1
    kept["until_ns"] = row["time_ns"]
    if kept[span] and row[span]:
        kept[span] = [min(kept[span][0], row[span][0]), max(kept[span][1], row[span][1])]
    first = kept[note].partition(" ... ")[0]
    kept[note] = first if first == row[note] else f"{first} ... {row[note]}"


def lives(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A page's history with one row for each generation.

    Each: generation, from_ns, until_ns (its first and last event), who and tenant (of its first event that
    names somebody), events (how many), findings (the strongest first).
    """
    rows: dict[int, dict[str, Any]] = {}
    for event in history:
        row = rows.setdefault(
            event["generation"],
            {
                "generation": event["generation"],
                "from_ns": event["time_ns"],
                "until_ns": event["time_ns"],
                "who": None,
                "tenant": None,
                "events": 0,
                "findings": [],
            },
        )
        row["until_ns"] = event["time_ns"]
        row["events"] += 1
        if row["who"] is None:
            row["who"], row["tenant"] = event["who"], event["tenant"]
        row["findings"] += [mark for mark in event["findings"] if mark not in row["findings"]]
    for row in rows.values():
        row["findings"].sort(key=lambda mark: -STRENGTH[mark.partition(" ")[0].rstrip(":")])
    return list(rows.values())


def timeline(dossier: Dossier) -> list[dict[str, Any]]:
    """What all sources recorded of a request and of its transfers, in replay order.

    Each: time_ns (reference time), source, seq, event (with op and phase), pool, pages (compressed), tok
    (first, end), note, findings (rules of the findings that name the event).
    """
    own = dossier.own["ev"].implode()
    moves = pl.col("event").str.starts_with("transfer.") & pl.col("request").is_null()
    rows = dossier.events.filter(pl.col("ev").is_in(own) | moves)
    return [_moment(row, dossier) for row in rows.iter_rows(named=True)]


def _moment(row: dict[str, Any], dossier: Dossier) -> dict[str, Any]:
    target = row["event"].startswith("transfer.") and row["dst_pool"]
    pool, pages = (row["dst_pool"], row["dst_pages"]) if target else (row["pool"], row["pages"])
    return as_recorded(row, pool, pages) | {
        "note": shows(row, dossier),
        "findings": row["rules"],
    }


def holdings(dossier: Dossier) -> pl.DataFrame:
    """The pages that a request held: pool, pages (list, in order), how (`alloc`, `share`, `move`), from_ns,
    until_ns (null: no release is on record), released (reason).

    Pages that came and went together stand in one row.
    """
    own = dossier.own
    came = pl.concat(
        [
            _came(own, "page.alloc"),
            _came(own, "page.share"),
            _came(own.with_columns(pl.col("to_pool").fill_null(pl.col("pool"))), "page.move", "to_"),
        ]
    )
    went = (
        own.filter(pl.col("event") == "page.free")
        .select("pool", "ev", page="pages", until_ns="ref_ns", released="reason")
        .explode("page")
    )
    held = came.sort("ev").join_asof(
        went.sort("ev"), on="ev", by=["pool", "page"], strategy="forward", check_sortedness=False
    )
    groups = held.group_by("pool", "how", "from_ns", "until_ns", "released", maintain_order=True)
    return groups.agg(pages=pl.col("page")).select("pool", "pages", "how", "from_ns", "until_ns", "released")


def _came(own: pl.DataFrame, event: str, side: str = "") -> pl.DataFrame:
    rows = own.filter(pl.col("event") == event).select(
        pool=f"{side}pool",
        ev="ev",
        page=f"{side}pages",
        from_ns="ref_ns",
        how=pl.lit(event.removeprefix("page.")),
    )
    return rows.explode("page").drop_nulls("page")
