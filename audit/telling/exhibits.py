"""The evidence of an incident as a table, and SQL that brings it up from the store again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from kvwitness.audit.store.sql import text, texts
from kvwitness.audit.telling.derivation import derived, pages_of
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.trace import compress_pages
from kvwitness.audit.wording import listing, several

Row = Mapping[str, Any]

COURSE = [
    "request.received",
    "request.rejected",
    "request.aborted",
    "request.preempted",
    "request.resumed",
    "request.finished",
    "transfer.begin",
    "transfer.done",
    "transfer.failed",
]
"""Events of a request that are shown even where no rule names them."""


def exhibits(dossier: Dossier) -> list[dict[str, Any]]:
    """The proving events and the course of the request, in replay order.

    Each: time_ns (reference time), source, seq, event (with its op and phase), pool, pages (compressed), tok
    (first, end), request, tenant, shows, rules (ids of the rules that name it; empty: shown for the course
    alone).
    """
    own = dossier.own["ev"].implode()
    moves = pl.col("event").is_in([e for e in COURSE if e.startswith("transfer.")])
    course = pl.col("event").is_in(COURSE) & (pl.col("ev").is_in(own) | moves)
    proof = pl.col("rules").list.len() > 0
    return [_exhibit(row, dossier) for row in dossier.events.filter(proof | course).iter_rows(named=True)]


def as_recorded(row: Row, pool: str | None, pages: list[int] | None) -> dict[str, Any]:
    """When, by whom and what an event is, on the `pages` of `pool` that it is told about."""
    return {
        "time_ns": row["ref_ns"],
        "source": row["source"],
        "seq": row["seq"],
        "event": " ".join(word for word in (row["event"], row["op"], row["phase"]) if word),
        "pool": pool,
        "pages": compress_pages(pages or []),
        "tok": None if row["tok_first"] is None else [row["tok_first"], row["tok_end"]],
    }


def _exhibit(row: Row, dossier: Dossier) -> dict[str, Any]:
    side = "dst_" if row["event"].startswith("transfer.") else ""
    return as_recorded(row, row[f"{side}pool"], row[f"{side}pages"]) | {
        "request": row["request"],
        "tenant": row["tenant"] or dossier.tenants.get(row["request"] or ""),
        "shows": shows(row, dossier),
        "rules": row["rules"],
    }


def shows(row: Row, dossier: Dossier) -> str:
    """What an event of a dossier tells, in short."""
    if row["event"] in _SHOWS:
        return _SHOWS[row["event"]](row)
    return _of_pages(row, dossier) if row["event"].startswith("page.") else ""


_DEEDS = {
    "page.alloc": ("is given", "given to"),
    "page.free": ("gives back", "given back by"),
    "page.share": ("attaches to", "attached to by"),
    "page.write": ("writes", "content of"),
    "page.read": ("reads", "read by"),
}
"""Event -> what the request of the dossier does with pages, and how the deed of another is told."""


def _of_pages(row: Row, dossier: Dossier) -> str:
    """What was done to pages: in the words of the request's own deed, or whose deed it was."""
    own, others = _DEEDS.get(row["event"], (row["event"].partition(".")[2],) * 2)
    why = f" ({row['reason']})" if row["reason"] else ""
    if dossier.request is not None and row["request"] == dossier.request["request"]:
        return f"{own} {several(len(row['pages'] or ()), 'page')}{why}"
    whose = row["tenant"] or dossier.tenants.get(row["request"] or "")
    return f"{others} {whose or row['request'] or row['holder'] or 'nobody'}{why}"


def _said(row: Row, *columns: str) -> str:
    return ", ".join(str(row[column]) for column in columns if row[column] is not None)


def _count(row: Row, column: str, name: str) -> list[str]:
    return [] if row[column] is None else [f"{row[column]:,} {name}"]


def _received(row: Row) -> str:
    length = [] if row["prompt_tokens"] is None else [f"prompt of {several(row['prompt_tokens'], 'token')}"]
    return ", ".join([*length, *([row["tenant"]] if row["tenant"] else [])])


def _finished(row: Row) -> str:
    by = [f"by {row['answered_by']}"] if row["answered_by"] else []
    parts = [str(part) for part in (row["status"], row["finish_reason"]) if part is not None]
    usage = [*_count(row, "prompt_tokens", "prompt"), *_count(row, "completion_tokens", "completion")]
    tokens = [f"{listing(usage)} tokens"] if usage else []
    return "answered " + ", ".join([*parts, *tokens, *by])


def _begun(row: Row) -> str:
    ready = f", {len(row['dst_announced']):,} pages made ready" if row["dst_announced"] else ""
    return f"{row['transfer']}: {_tokens(row) or 'begun'}{ready}"


def _told(row: Row) -> str:
    outcome = "failed" if row["event"] == "transfer.failed" else "done"
    said = [f"{row['observer'] or row['source']} told {outcome}", *([_tokens(row)] if _tokens(row) else [])]
    return f"{row['transfer']}: {', '.join(said)}"


def _tokens(row: Row) -> str:
    return "" if row["tokens"] is None else several(row["tokens"], "token")


def _limits(row: Row) -> str:
    parts = [
        *_count(row, "input_limit_tokens", "enforced"),
        *_count(row, "advertised_tokens", "advertised"),
        *_count(row, "pool_tokens", "in the pool"),
    ]
    return f"{row['engine']}: {', '.join(parts)}"


_SHOWS: dict[str, Callable[[Row], str]] = {
    "request.received": _received,
    "request.finished": _finished,
    "request.rejected": lambda row: f"refused: {_said(row, 'reason', 'status')}",
    "request.aborted": lambda row: f"aborted: {_said(row, 'by', 'reason')}",
    "transfer.begin": _begun,
    "content.digest": lambda row: f"fingerprints at {row['at']}" if row["at"] else "fingerprints",
    "transfer.done": _told,
    "transfer.failed": _told,
    "engine.limits": _limits,
    "shadow.finding": lambda row: f"said as it happened: {_said(row, 'reason')}",
    "telemetry.gap": lambda row: ", ".join(_count(row, "dropped", "events lost")),
}


def statements(dossier: Dossier) -> list[tuple[str, str]]:
    """(what it answers, SQL) for the views of `store.duckdb`, after an audit of the store."""
    if dossier.incident is None:
        return [("Everything on record about the request", _everything(dossier))] if dossier.request else []
    told = [("The events that prove it", _proving(dossier.incident))]
    if pages_of(dossier.incident):
        told.append(_of_the_pages(dossier))
    return told


def _of_the_pages(dossier: Dossier) -> tuple[str, str]:
    """The pages of the incident: from events alone where one query can tell them, else as the audit found them."""
    assert dossier.incident is not None
    if (query := derived(dossier)) is not None:
        whose = "another tenant" if dossier.verdict == "leak" else "nobody or its own tenant"
        return f"The pages that it read where the last write was of {whose}, from the events alone", query
    rules = sorted({f["rule"] for f in dossier.findings if f["verdict"] == dossier.verdict and f["pages"]})
    say = f"{listing(rules)} {'says' if len(rules) == 1 else 'say'}"
    question = f"The pages, as the audit found them: what {say} cannot be told from the events by one query"
    return question, _as_found(dossier.incident)


def _everything(dossier: Dossier) -> str:
    assert dossier.request is not None
    return f"""\
SELECT ts, source, seq, event, op, phase, pool, pages, tok_first, tok_end, status, reason
FROM events
WHERE {_is(dossier.request)}
ORDER BY ts, source, seq"""


def _findings_of(incident: Row) -> str:
    """Which rows of `findings` are those of an incident."""
    if incident["request"] is not None:
        mine = _is(incident)
    else:
        about = [name for name in ("engine", "tenant") if incident[name] is not None]
        mine = f"request IS NULL AND rule IN ({texts(incident['rules'])})"
        mine += "".join(f" AND {name} = {text(incident[name])}" for name in about)
    return mine


def _as_found(incident: Row) -> str:
    return f"""\
SELECT pool, rule, count(*) AS pages, min(page) AS first_page, max(page) AS last_page,
       list(page ORDER BY page) AS which
FROM (
  SELECT DISTINCT pool, rule, unnest(pages) AS page FROM findings
  WHERE {_findings_of(incident)} AND verdict = {text(incident["verdict"])}
)
GROUP BY pool, rule ORDER BY pool, rule"""


def _proving(incident: Row) -> str:
    return f"""\
SELECT DISTINCT e.ts, e.source, e.seq, e.event, e.op, e.phase, e.request, e.tenant,
       e.pool, e.pages, e.tok_first, e.tok_end
FROM events AS e JOIN (
  SELECT unnest(places, recursive := true) FROM findings
  WHERE {_findings_of(incident)}
) AS proof ON e.ingest = proof.ingest AND e.ingest_row = proof.ingest_row
ORDER BY e.ts, e.source, e.seq"""


def _is(request: Row) -> str:
    life = int(request["incarnation"] or 0)
    return f"request = {text(request['request'])} AND coalesce(incarnation, 0) = {life}"
