"""The story of an incident in sentences that can be read aloud: what is on record, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl

from kvwitness.audit.rules import RULES
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.wording import counted_pages, listing, moment, page_text, positions_text, several

READING = {
    "foreign-page-read",
    "unwritten-page-read",
    "read-before-ready",
    "tainted-content",
    "stale-content",
    "late-read",
}
"""Rules whose leak is a read that is on record; the leak of another rule is that content could be read."""

Row = Mapping[str, Any]
Told = list[tuple[int, str]]
"""Sentences with the time (ns) of what they tell."""
_TRANSFERS_TOLD = 3
_TENANTS_TOLD = 8
_STATED = 4


def tell(dossier: Dossier) -> list[str]:
    """Paragraphs: what happened, how it came about, what was found, whose content it was, what is not known.

    Every sentence states what events or findings say; none presumes a cause.
    """
    parts: list[Callable[[Dossier], Told]] = [_ends, _pages_given, _transfers, _reads, _answers]
    course = sorted((told for part in parts for told in part(dossier)), key=lambda told: told[0])
    sentences = [
        *_received(dossier),
        *_limits(dossier),
        *(sentence for _, sentence in course),
        *_unanswered(dossier),
    ]
    told = " ".join(sentences)
    paragraphs = [headline(dossier), told, _found(dossier), _whose(dossier), _unknown(dossier)]
    return [paragraph for paragraph in paragraphs if paragraph]


def headline(dossier: Dossier) -> str:
    """What happened, in one or two sentences."""
    who, verdict = _subject(dossier), dossier.verdict
    others = victims(dossier)
    if verdict == "leak":
        whose = "another tenant"
        if others:
            whose = f"{several(len(others), 'other tenant')}: {listing(others, _TENANTS_TOLD)}"
        rules = {f["rule"] for f in dossier.findings if f["verdict"] == "leak"}
        if rules & READING:
            return f"{who} read content of {whose}."
        return f"Content of {whose} could be read by {_lowered(who)}."
    told = {
        "integrity": f"{who} met wrong or undefined content; no other tenant's content is shown.",
        "exposure": f"{who} shows a side channel or a broken contract; no content is shown.",
        "unproven": f"Whether {_lowered(who)} is sound cannot be told, because evidence is missing.",
        "shared": f"{who} read another tenant's pages as the sharing policy allows, and nothing else was found.",
        "clean": f"Nothing was found against {_lowered(who)}: every read on record was of content that "
        "it wrote itself or was allowed to share.",
    }
    return told[verdict]


def victims(dossier: Dossier) -> list[str]:
    """The tenants whose content could be read: those of the leak findings."""
    leaks = [f for f in dossier.findings if f["verdict"] == "leak"]
    return sorted({tenant for f in leaks for tenant in f["other_tenants"]})


def _subject(dossier: Dossier) -> str:
    if dossier.name is not None:
        return f"Request {dossier.name}{_of_tenant(dossier.request)}"
    incident = dossier.incident or {}
    if incident.get("engine"):
        return f"Engine {incident['engine']}"
    return f"Tenant {incident['tenant']}" if incident.get("tenant") else "An engine"


def _of_tenant(request: Row | None) -> str:
    tenant = request["tenant"] if request else None
    return f" of tenant {tenant}" if tenant else ", whose tenant is not on record,"


def _lowered(subject: str) -> str:
    return subject[0].lower() + subject[1:]


# -- the course of it --------------------------------------------------------------------------------


def _clock(dossier: Dossier) -> Callable[[int], str]:
    """Times are told with their date where it is not that of the request's first event."""
    own = dossier.own["ref_ns"]
    first = own.min() if len(own) else None
    return lambda time_ns: moment(time_ns, day_of=first if isinstance(first, int) else None)


def _received(dossier: Dossier) -> list[str]:
    request = dossier.request
    if request is None:
        return []
    if request["received_ns"] is None:
        return ["That it was received by anybody is not on record."]
    asked = []
    if request["prompt_tokens"] is not None:
        asked.append(f"a prompt of {several(request['prompt_tokens'], 'token')}")
    if request["max_new_tokens"] is not None:
        asked.append(f"at most {several(request['max_new_tokens'], 'token')} to be generated")
    traffic = "" if request["traffic"] == "user" else f" ({request['traffic']} traffic)"
    told = f"It was received by {request['received_source']} on {moment(request['received_ns'])}{traffic}"
    return [f"{told}: {', '.join(asked)}." if asked else f"{told}; its length is not on record."]


def _limits(dossier: Dossier) -> list[str]:
    """The limits of the engines that acted for it, where the prompt exceeds one of them."""
    length = dossier.request["prompt_tokens"] if dossier.request else None
    acting = set(dossier.own["site"]) | {pool.split("/")[0] for pool in dossier.own["pool"].drop_nulls()}
    stated = dossier.events.filter(pl.col("event") == "engine.limits").unique(
        "engine", keep="last", maintain_order=True
    )
    limits = [
        row
        for row in stated.iter_rows(named=True)
        if (row["engine"] or row["site"]).split("/")[0] in acting and row["input_limit_tokens"] is not None
    ]
    if length is None or not any(length > row["input_limit_tokens"] for row in limits):
        return []
    first, *rest = [(row["engine"], row["input_limit_tokens"]) for row in limits]
    named = [
        f"{first[0]} enforced an input limit of {first[1]:,} tokens",
        *(f"{e} one of {n:,}" for e, n in rest),
    ]
    advertised = sorted({row["advertised_tokens"] for row in limits if row["advertised_tokens"] is not None})
    while_advertised = f"; {listing([f'{n:,}' for n in advertised])} were advertised" if advertised else ""
    return [f"{listing(named)}{while_advertised}."]


def _unanswered(dossier: Dossier) -> list[str]:
    if dossier.request is None or "request.finished" in dossier.own["event"]:
        return []
    return ["No answer to it is on record."]


def _ends(dossier: Dossier) -> Told:
    """Refusals and aborts."""
    clock, told = _clock(dossier), []
    for row in dossier.own.filter(pl.col("event") == "request.rejected").iter_rows(named=True):
        status = f" with status {row['status']}" if row["status"] is not None else ""
        sentence = f"At {clock(row['ref_ns'])} {row['source']} refused it{status}{_because(row)}."
        told.append((row["ref_ns"], sentence))
    for row in dossier.own.filter(pl.col("event") == "request.aborted").iter_rows(named=True):
        by = f" by {row['by']}" if row["by"] else ""
        sentence = f"At {clock(row['ref_ns'])} {row['source']} recorded its abort{by}{_because(row)}."
        told.append((row["ref_ns"], sentence))
    return told


def _because(row: Row) -> str:
    return f" ({row['reason']})" if row["reason"] else ""


def _pages_given(dossier: Dossier) -> Told:
    clock, told = _clock(dossier), []
    given = dossier.own.filter(pl.col("event") == "page.alloc")
    for (pool,), rows in given.group_by("pool", maintain_order=True):
        first = rows["ref_ns"][0]
        when = f"At {clock(first)}" if len(rows) == 1 else f"From {clock(first)} on"
        told.append((first, f"{when} it was given {counted_pages(_ids(rows), 3)} of {pool}."))
    return told


def _transfers(dossier: Dossier) -> Told:
    begun = dossier.own.filter(pl.col("event") == "transfer.begin")
    first = begun.head(_TRANSFERS_TOLD).iter_rows(named=True)
    told = [(row["ref_ns"], _transfer(row, dossier)) for row in first]
    if len(begun) > _TRANSFERS_TOLD:
        more = several(len(begun) - _TRANSFERS_TOLD, "more transfer")
        told.append((begun["ref_ns"][_TRANSFERS_TOLD], f"{more} began for it."))
    return told


def _transfer(row: Row, dossier: Dossier) -> str:
    ready = len(row["dst_announced"] or [])
    if ready and row["tokens"] is None and not row["dst_pages"]:
        made = f"{several(ready, 'page')} of {row['dst_pool']} ready for transfer {row['transfer']}"
        return f"At {_clock(dossier)(row['ref_ns'])} {row['source']} made {made}."
    tokens = "an unstated number of tokens" if row["tokens"] is None else several(row["tokens"], "token")
    to = f" to {several(len(row['dst_pages'] or []), 'page')} of {row['dst_pool']}" if row["dst_pool"] else ""
    room = f", where {several(ready, 'page')} had been made ready" if ready else ""
    begun = f"{row['source']} began transfer {row['transfer']} of {tokens}{to}{room}"
    ends = dossier.events.filter(
        (pl.col("transfer") == row["transfer"]) & pl.col("event").is_in(["transfer.done", "transfer.failed"])
    )
    said = dict.fromkeys(_end_of_transfer(end) for end in ends.iter_rows(named=True))
    outcome = listing(said) if said else "no end of it is on record"
    return f"At {_clock(dossier)(row['ref_ns'])} {begun}; {outcome}."


def _end_of_transfer(end: Row) -> str:
    outcome = "had failed" if end["event"] == "transfer.failed" else "was done"
    tokens = f" with {several(end['tokens'], 'token')}" if end["tokens"] is not None else ""
    return f"{end['observer'] or end['source']} was told that it {outcome}{tokens}"


def _reads(dossier: Dossier) -> Told:
    """What was read for it, in the pools that findings name, or in all when they name none."""
    concerned = {f["pool"] for f in dossier.findings if f["pool"]}
    reads = dossier.own.filter((pl.col("event") == "page.read") & (pl.col("phase") != "end").fill_null(True))
    if concerned:
        reads = reads.filter(pl.col("pool").is_in(concerned))
    clock, told = _clock(dossier), []
    for (pool, source), rows in reads.group_by("pool", "source", maintain_order=True):
        first, end = rows["tok_first"].min(), rows["tok_end"].max()
        where = f"{positions_text(first, end)} on " if isinstance(first, int) and isinstance(end, int) else ""
        begun, last = rows["ref_ns"][0], rows["ref_ns"][-1]
        when = f"At {clock(begun)}"
        if len(rows) > 1:
            when = f"From {clock(begun)} to {clock(last)}, in {len(rows):,} reads,"
        told.append((begun, f"{when} {source} read {where}{counted_pages(_ids(rows), 3)} of {pool} for it."))
    return told


def _ids(rows: pl.DataFrame) -> list[int]:
    return rows["pages"].explode().drop_nulls().to_list()


def _answers(dossier: Dossier) -> Told:
    """What the client, or whoever stands for it, was told."""
    clock = _clock(dossier)
    rows = dossier.own.filter(pl.col("event") == "request.finished")
    told = rows.iter_rows(named=True)
    return [(row["ref_ns"], f"At {clock(row['ref_ns'])} {_answer(row)}.") for row in told]


def _answer(row: Row) -> str:
    who = f"{row['answered_by']} answered" if row["answered_by"] else "the client was answered"
    status = f" {row['status']}" if row["status"] is not None else ""
    reason = f" (finish reason {row['finish_reason']})" if row["finish_reason"] else ""
    usage = [
        several(row[column], f"{name} token")
        for column, name in (("prompt_tokens", "prompt"), ("completion_tokens", "completion"))
        if row[column] is not None
    ]
    return f"{who}{status}{reason}{f', for {listing(usage)}' if usage else ''}"


# -- what was found ----------------------------------------------------------------------------------


def _found(dossier: Dossier) -> str:
    """The findings that carry the verdict: what each rule stands for, and what it states."""
    by_rule: dict[str, dict[str, None]] = {}
    for finding in dossier.findings:
        if finding["verdict"] == dossier.verdict:
            by_rule.setdefault(finding["rule"], {})[_stated(finding)] = None
    return " ".join(_by_rule(rule, list(stated)) for rule, stated in by_rule.items())


def _by_rule(rule: str, stated: list[str]) -> str:
    more = f"; and {len(stated) - _STATED:,} more of this kind" if len(stated) > _STATED else ""
    title = RULES[rule].title if rule in RULES else "Found by a rule that is not in the catalogue any more"
    return f"{title} ({rule}): {'; '.join(stated[:_STATED])}{more}."


def _stated(finding: Row) -> str:
    why = str(finding["why"])
    where = f" of {finding['pool']}" if finding["pool"] else ""
    return f"{why} (pages {page_text(finding['pages'], 4)}{where})" if finding["pages"] else why


def _whose(dossier: Dossier) -> str:
    """Whose content the leaked pages held."""
    told = []
    for pool, pages in _leaked(dossier).items():
        by_tenant = _last_writers(dossier, pool, pages)
        parts = [
            f"{counted_pages(held, 3)} held content of {tenant}, written for {listing(sorted(requests), 4)}"
            for tenant, (held, requests) in sorted(by_tenant.items(), key=lambda item: (-len(item[1][0]), item[0]))
        ]
        if parts:
            told.append(f"In {pool}, by the last write to each page: {'; '.join(parts[:_TENANTS_TOLD])}.")
        if len(parts) > _TENANTS_TOLD:
            told.append(f"So did pages with content of {several(len(parts) - _TENANTS_TOLD, 'more tenant')}.")
    return " ".join(told)


def _leaked(dossier: Dossier) -> dict[str, set[int]]:
    """Pool -> pages of the leak findings."""
    pools: dict[str, set[int]] = {}
    for finding in dossier.findings:
        if finding["verdict"] == "leak" and finding["pool"] and finding["pages"]:
            pools.setdefault(finding["pool"], set()).update(finding["pages"])
    return pools


def _last_writers(dossier: Dossier, pool: str, pages: set[int]) -> dict[str, tuple[list[int], set[str]]]:
    """tenant -> (pages, requests): other tenants' writes that findings name, each page to the last."""
    last: dict[int, tuple[str, str]] = {}
    strangers = set(victims(dossier))
    writes = dossier.proofs.filter((pl.col("event") == "page.write") & (pl.col("pool") == pool))
    for row in writes.iter_rows(named=True):
        tenant = row["tenant"] or dossier.tenants.get(row["request"] or "")
        if tenant in strangers:
            last.update(dict.fromkeys(pages & set(row["pages"] or ()), (tenant, row["request"] or "nobody")))
    found: dict[str, tuple[list[int], set[str]]] = {}
    for page, (tenant, request) in sorted(last.items()):
        held, requests = found.setdefault(tenant, ([], set()))
        held.append(page)
        requests.add(request)
    return found


# -- what is not known -------------------------------------------------------------------------------


def _unknown(dossier: Dossier) -> str:
    missing = [f["missing"] for f in dossier.findings] + [dossier.missing]
    absent = list(dict.fromkeys(what for what in missing if what))
    told = [f"Not on record: {listing(absent)}."] if absent else []
    unknown = list(_unknowable(dossier))
    return " ".join([*told, f"Not known: {'; '.join(unknown)}."] if unknown else told)


def _unknowable(dossier: Dossier) -> Iterator[str]:
    content = dossier.verdict in ("leak", "integrity")
    if dossier.verdict == "leak":
        if not victims(dossier):
            yield "whose content it was"
        yield "what the answer said, since a record holds neither prompts nor outputs"
    on_pages = content and any(f["pages"] for f in dossier.findings)
    if on_pages and "content.digest" not in dossier.events["event"]:
        yield "the bytes themselves, since no fingerprint of these pages is on record"
    unset = dossier.own.filter(pl.col("unc_ns").is_null())["source"].unique().sort().to_list()
    if content and unset and dossier.own["source"].n_unique() > 1:
        yield f"how far the clock of {listing(unset)} was off; times from there stand as they were given"
