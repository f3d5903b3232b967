"""A judgement at a glance: what was looked at, requests by verdict, one row per incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from kvwitness.audit.api import request_name
from kvwitness.audit.rules.model import Verdict
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.wording import listing, moment, several

ALARMING = (Verdict.LEAK, Verdict.INTEGRITY, Verdict.EXPOSURE)
"""Verdicts that make an audit end with findings."""

MEANING: Mapping[str, str] = {
    Verdict.LEAK: "another tenant's content was readable",
    Verdict.INTEGRITY: "wrong or undefined content, no other tenant's shown",
    Verdict.EXPOSURE: "a side channel or broken contract, no content shown",
    Verdict.UNPROVEN: "evidence is missing; this is not clean",
    Verdict.SHARED: "read other tenants' pages as the sharing policy allows",
    Verdict.CLEAN: "every read on record was its own or allowed",
}
"""Verdict of a request -> what it says."""

_NAMED = 5


@dataclass(frozen=True)
class Overview:
    """What was looked at."""

    events: int
    requests: int
    sources: int
    pools: int
    first_ns: int | None
    """Time of the earliest event, as recorded; None without events."""
    last_ns: int | None

    @classmethod
    def of(cls, answer: Answer) -> Overview:
        """Count in the events themselves, as they are now."""
        events = answer.events.select(
            events=pl.len(),
            sources=pl.col("source").n_unique(),
            pools=pl.col("pool").drop_nulls().n_unique(),
            first_ns=pl.col("time_ns").min(),
            last_ns=pl.col("time_ns").max(),
        )
        row = answer.collect(events).row(0, named=True)
        return cls(requests=len(answer.requests), **row)


def alarming(answer: Answer) -> bool:
    """Whether anything was found that is a leak, an integrity fault or an exposure."""
    return answer.findings["verdict"].is_in(ALARMING).any()


def verdict_counts(answer: Answer) -> dict[str, int]:
    """Verdict -> requests, the strongest first; those without a request are there with 0."""
    counted = dict(answer.requests["verdict"].value_counts().iter_rows())
    return {str(verdict): int(counted.get(str(verdict), 0)) for verdict in Verdict}


def missing_counts(answer: Answer) -> list[tuple[str, int]]:
    """(what is missing, requests) of the unproven requests, the most frequent first."""
    unproven = answer.requests.filter(pl.col("verdict") == Verdict.UNPROVEN)
    return Counter(unproven["missing"].fill_null("unsaid").to_list()).most_common()


def verdict_in_words(answer: Answer) -> str:
    """The outcome in a few sentences, the worst first; `unproven` is said whenever there is any."""
    counts = verdict_counts(answer)
    leaks = answer.incidents.filter((pl.col("verdict") == "leak") & pl.col("request").is_not_null())
    told = []
    if len(leaks):
        names = [request_name(*row) for row in leaks.select("request", "incarnation").iter_rows()]
        which = f": {listing(names)}" if len(names) <= _NAMED else ""
        told.append(f"{several(len(leaks), 'request')} leaked{which}.")
        whose = leaks["other_tenants"].explode().drop_nulls().unique().sort().to_list()
        if whose:
            told.append(f"Content of {several(len(whose), 'tenant')} could be read: {listing(whose, 12)}.")
    others = [several(counts[v], f"{v} request") for v in (Verdict.INTEGRITY, Verdict.EXPOSURE) if counts[v]]
    if others:
        told.append(f"Besides {listing(others)}." if told else f"No leak; {listing(others)}.")
    apart = answer.findings.filter(pl.col("request").is_null() & pl.col("verdict").is_in(ALARMING))
    if len(apart):
        told.append(f"{several(len(apart), 'finding')} about engines or tenants.")
    if not told:
        judged = several(len(answer.requests), "request")
        told.append(f"No leak, no integrity fault and no exposure in {judged}.")
    if unproven := counts[Verdict.UNPROVEN]:
        told.append(f"{several(unproven, 'request')} unproven, which is not the same as clean.")
    return " ".join(told)


def looked_at(answer: Answer, page_events: int | None) -> str:
    """What was looked at, in a sentence."""
    seen = Overview.of(answer)
    pages = f" ({several(page_events, 'page event')})" if page_events is not None else ""
    told = (
        f"{several(seen.events, 'event')}{pages} of {several(seen.requests, 'request')}, "
        f"from {several(seen.sources, 'source')}, on {several(seen.pools, 'pool')}"
    )
    if seen.first_ns is None or seen.last_ns is None:
        return f"{told}."
    return f"{told}, {moment(seen.first_ns)} to {moment(seen.last_ns)}."


def incident_rows(answer: Answer) -> pl.DataFrame:
    """The incidents, strongest first, with `pages`: how many."""
    counted = pl.col("pools").list.eval(pl.element().struct.field("pages").list.len()).list.sum()
    rows = answer.incidents.with_columns(pages=counted.fill_null(0))
    strength = pl.col("verdict").replace_strict({str(v): n for n, v in enumerate(Verdict)}, return_dtype=pl.Int64)
    return rows.sort(strength, "first_ns", maintain_order=True)
