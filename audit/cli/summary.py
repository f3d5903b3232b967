"""The outcome of an audit on one screen, for somebody who sees it for the first time."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kvwitness.audit.api import request_name
from kvwitness.audit.cli.tables import Block, Prose, Table
from kvwitness.audit.overall.overview import (
    MEANING,
    incident_rows,
    looked_at,
    missing_counts,
    verdict_counts,
    verdict_in_words,
)
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.wording import first_few, listing, second

SHOWN = 10
"""Incidents in a summary."""
_SHOWN_ENGINE = 10


def summary(answer: Answer, page_events: int | None, *, title: str, options: str) -> list[Block]:
    """The outcome, what was looked at, verdicts, incidents, engines, rules without input, what to do next.

    `options` is what a command needs besides its argument in order to look into the same answer.
    """
    blocks: list[Block] = [
        Prose(verdict_in_words(answer), heading=True),
        Prose(f"{title}: {looked_at(answer, page_events)}"),
        _verdicts(answer),
    ]
    incidents = incident_rows(answer)
    of_requests = incidents.filter(pl.col("request").is_not_null())
    if len(of_requests):
        more = "" if len(of_requests) <= SHOWN else f": the first {SHOWN} of {len(of_requests):,}"
        blocks.append(incident_table(of_requests.head(SHOWN), f"Incidents{more}"))
    blocks += [*_engines(answer), *_undecided(answer)]
    if len(incidents):
        which = incidents["incident"][0]
        blocks.append(Prose(f"\nThe story of one: kvwitness explain {which}{options}", verbatim=True))
    return blocks


def _verdicts(answer: Answer) -> Table:
    """Every verdict with its number of requests, `unproven` with what is missing."""
    rows = []
    for verdict, count in verdict_counts(answer).items():
        meaning = MEANING[verdict]
        if verdict == "unproven" and count:
            missing = [f"{what} ({n:,})" for what, n in missing_counts(answer)]
            meaning = f"{meaning}; not on record: {listing(missing, 4)}"
        rows.append([count, verdict, meaning])
    return Table(["requests", "verdict", ""], rows)


def incident_table(incidents: pl.DataFrame, title: str = "", *, standing: Sequence[str] | None = None) -> Table:
    """Rows of `overview.incident_rows` in the width of a terminal; with `standing`, what people did with each."""
    rows = [
        [
            row["incident"],
            row["verdict"],
            request_name(row["request"], row["incarnation"]) if row["request"] else row["engine"],
            row["tenant"],
            first_few(row["other_tenants"]),
            _rules(row["rules"]),
            row["pages"] or None,
            second(row["first_ns"]),
        ]
        for row in incidents.iter_rows(named=True)
    ]
    columns = ["incident", "verdict", "request", "tenant", "content of", "rules", "pages", "when"]
    if standing is not None:
        columns.append("standing")
        rows = [[*row, said] for row, said in zip(rows, standing, strict=True)]
    return Table(columns, rows, title, whole=("incident", "verdict"), upright=True)


def _rules(rules: list[str]) -> str:
    """The first, which carries the verdict, and how many more."""
    return rules[0] if len(rules) == 1 else f"{rules[0]} +{len(rules) - 1}"


def _engines(answer: Answer) -> list[Block]:
    found = answer.findings.filter(pl.col("request").is_null())
    if found.is_empty():
        return []
    rows = [
        [row["verdict"], row["rule"], row["engine"] or row["tenant"], row["why"]]
        for row in found.head(_SHOWN_ENGINE).iter_rows(named=True)
    ]
    more = "" if len(found) <= _SHOWN_ENGINE else f": the first {_SHOWN_ENGINE} of {len(found):,}"
    columns, title = ["verdict", "rule", "about", "what"], f"About engines and tenants{more}"
    return [Table(columns, rows, title, ("verdict", "rule"))]


def _undecided(answer: Answer) -> list[Block]:
    if answer.undecided.is_empty():
        return []
    title = "Rules that could not decide, for want of events that are not on record"
    rows = list(answer.undecided.select("rule", "missing").iter_rows())
    return [Table(["rule", "not on record"], rows, title, ("rule",))]
