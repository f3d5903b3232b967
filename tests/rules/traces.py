"""Small traces written in Python, and the event-level judgement of one rule on them."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import polars as pl

from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.relations import gaps, requests
from kvwitness.audit.rules import get
from kvwitness.audit.rules.model import FINDING_SCHEMA, Context
from kvwitness.audit.trace import load_trace

FACTS: dict[str, pl.DataType] = {
    "fact": pl.String(),
    "ev": pl.Int64(),
    "since": pl.Int64(),
    "request": pl.String(),
    "incarnation": pl.Int32(),
    "tenant": pl.String(),
    "pool": pl.String(),
    "pages": pl.List(pl.UInt32()),
}


class Trace:
    """Events in the order of their times; `seq` counts up per source unless it is given."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._seq: Counter[str] = Counter()

    def add(self, t: float, source: str, event: str, **fields: object) -> Trace:
        self._seq[source] = cast(int, fields.pop("seq", self._seq[source] + 1))
        head = {"t": t, "seq": self._seq[source], "source": source, "event": event}
        self._lines.append(json.dumps(head | fields))
        return self

    def received(self, t: float, request: str, tenant: str, **fields: object) -> Trace:
        return self.add(t, "gateway", "request.received", request=request, tenant=tenant, **fields)

    def finished(self, t: float, request: str, status: int, **fields: object) -> Trace:
        return self.add(t, "gateway", "request.finished", request=request, status=status, **fields)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def events_of(trace: Trace | str | Path) -> pl.DataFrame:
    """The events of a trace in replay order; fails if a line of it was not understood."""
    text = trace.text() if isinstance(trace, Trace) else trace
    table, told = load_trace(text if isinstance(text, Path) else io.BytesIO(text.encode()))
    assert told.bad_total == 0, told.bad
    return ordered(cast(pl.DataFrame, pl.from_arrow(table)))


def context_of(
    trace: Trace | str | Path,
    facts: list[dict[str, Any]] | None = None,
    overrides: dict[str, dict[str, float | int | str]] | None = None,
) -> Context:
    """What a rule is given for a trace; `facts` stand in for the replay."""
    events = events_of(trace)
    lazy = events.lazy()
    return Context(
        events=lazy,
        page_events=lazy,
        requests=requests(lazy),
        gaps=gaps(lazy),
        facts=pl.DataFrame(facts or [], schema=FACTS),
        horizon_ns=cast(int, events["ref_ns"].max()),
        overrides=overrides or {},
    )


def judge(rule_id: str, context: Context | Trace) -> list[dict[str, Any]]:
    """The findings of one rule."""
    given = context if isinstance(context, Context) else context_of(context)
    rule = get(rule_id)
    found = rule.query(given, rule.settings(given))
    assert found.schema == FINDING_SCHEMA
    return found.to_dicts()


def verdicts(rule_id: str, context: Context | Trace) -> list[tuple[str | None, str]]:
    """(request, verdict) of the findings of one rule, in order."""
    return [(found["request"], found["verdict"]) for found in judge(rule_id, context)]
