"""What a rule is, what it is given and what it must return.

A rule is one file beside this one that exports `RULE`. Its query takes a `Context` and returns a frame in
`FINDING_SCHEMA`; it neither groups nor compares with other rules (that is `kvwitness.audit.incidents`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import polars as pl

from kvwitness.audit.acts import acts_of


class Verdict(StrEnum):
    """What a finding, an incident or a request was judged to be; strongest first."""

    LEAK = "leak"
    """Another tenant's content was readable by this request."""
    INTEGRITY = "integrity"
    """Wrong or undefined content; no other tenant's content is shown."""
    EXPOSURE = "exposure"
    """A side channel or a broken contract; no content is shown."""
    UNPROVEN = "unproven"
    """Evidence is missing; the finding names it. Not the same as clean."""
    SHARED = "shared"
    """Allowed sharing, kept for the record."""
    CLEAN = "clean"


STRENGTH: Mapping[str, int] = {v: n for n, v in enumerate(reversed(list(Verdict)))}
"""Verdict -> rank; the larger, the stronger."""

FINDING_SCHEMA = pl.Schema(
    {
        "rule": pl.String(),
        "verdict": pl.String(),
        "request": pl.String(),  # null: the finding belongs to an engine or a tenant
        "incarnation": pl.Int32(),
        "tenant": pl.String(),
        "engine": pl.String(),
        "other_requests": pl.List(pl.String()),
        "other_tenants": pl.List(pl.String()),  # whose content was readable; kept only where the verdict is `leak`
        "pool": pl.String(),
        "pages": pl.List(pl.UInt32()),
        "gens": pl.List(pl.Int64()),  # parallel to pages, or empty
        "evs": pl.List(pl.Int64()),  # `ev` of the events that prove it, in replay order
        "time_ns": pl.Int64(),  # reference time of the first of them
        "why": pl.String(),  # one sentence of facts, never a presumed cause
        "missing": pl.String(),  # unproven only: the telemetry that would decide
    }
)


LISTED_APART = ("page.alloc", "page.free", "page.write", "page.read", "step.begin", "step.end")
"""Kinds of event whose `pages` a large audit keeps apart from everything else."""


_OFTEN = ("source", "seq", "line", "op", "request", "time_ns", "ref_ns", "unc_ns")
"""Columns by which events are told and compared."""
_BESIDE_A_LOSS = ("before_ev", "after_ev")


@dataclass(frozen=True)
class Param:
    """A threshold that configuration may override."""

    name: str
    default: float | int | str
    meaning: str
    unit: str = ""


@dataclass(frozen=True)
class Example:
    """A small trace in the JSON Lines form.

    In a positive example the rule must fire with `verdict` for `request` (None: an engine or tenant finding); in
    a negative one it must not fire at all.
    """

    title: str
    trace: str
    request: str | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class Context:
    """Everything that a rule may look at. Frames are in replay order; `ev` names an event across all of them."""

    events: pl.LazyFrame
    """Event columns of `kvwitness.audit.trace`, plus `ev` (int64, replay order), `ref_ns` (int64, reference time =
    time - clock offset), `unc_ns` (int64, clock uncertainty, null when the source never stated one), `site`
    (string, the engine that the source belongs to: `source` up to the first "/")."""
    page_events: pl.LazyFrame
    """The same events, with the page lists of `LISTED_APART` too: those are many, and few rules want them. In `events`
    they may be null."""
    requests: pl.DataFrame
    """One row per (request, incarnation); see `kvwitness.audit.relations.requests`."""
    gaps: pl.DataFrame
    """Known loss: source, before_ev, after_ev (null at an end), from_seq, to_seq, dropped, reason
    (`hole`, `declared`, `midlife`)."""
    facts: pl.DataFrame
    """What the replay saw that is anything but plainly sound; see `kvwitness.audit.provenance.facts`."""
    horizon_ns: int
    """Reference time of the last event: "until now" for bounds such as an orphan's age."""
    overrides: Mapping[str, Mapping[str, float | int | str]] = field(default_factory=dict)
    """Rule id -> parameter -> value, from configuration."""
    counted: pl.LazyFrame | None = field(default=None, repr=False)
    """`acts`, where they have been counted already."""
    memo: dict[str, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)
    """Frames that several rules derive from the events, by name; see `once`."""

    @property
    def acts(self) -> pl.LazyFrame:
        """The events counted by kind, source, pool, tenant and request (see `kvwitness.audit.acts`): of a long record
        much quicker to ask than `events`. A key may come more than once."""
        if self.counted is not None:
            return self.counted
        return self.once("acts", lambda: acts_of(self.events).collect()).lazy()

    def at(self, evs: pl.Series, *columns: str) -> pl.DataFrame:
        """`ev` and some columns of the events of these numbers, in replay order.

        Those that facts and losses name are looked up once, for all who ask.
        """
        wanted = evs.drop_nulls().unique().alias("ev").to_frame()
        if not set(columns) <= set(_OFTEN):
            return self._looked_up(wanted, columns)
        known = self.once("at", lambda: self._looked_up(self._named(), _OFTEN))
        found = known.join(wanted, on="ev", how="semi", maintain_order="left").select("ev", *columns)
        other = wanted.join(self._named(), on="ev", how="anti")
        return found if other.is_empty() else pl.concat([found, self._looked_up(other, columns)]).sort("ev")

    def _named(self) -> pl.DataFrame:
        """The numbers of the events that facts and losses name."""
        evs = [self.facts[name] for name in ("ev", "ev2", "since")] + [self.gaps[name] for name in _BESIDE_A_LOSS]
        return self.once("named", lambda: pl.concat(ev.alias("ev") for ev in evs).drop_nulls().unique().to_frame())

    def _looked_up(self, wanted: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        rows = self.events.select("ev", *columns).join(wanted.lazy(), on="ev", how="semi", maintain_order="left")
        return rows.collect()

    def once(self, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The frame of that name, made when it is first asked for."""
        if name not in self.memo:
            self.memo[name] = make()
        return self.memo[name]


Query = Callable[["Context", Mapping[str, float | int | str]], pl.DataFrame]


@dataclass(frozen=True)
class Rule:
    """One rule: what it means, when it fires, and the query that decides."""

    id: str
    title: str
    verdicts: tuple[Verdict, ...]
    """Verdicts that it can give, strongest first (besides `unproven`)."""
    severity: str
    """`critical`, `high`, `medium`, `low` or `info`: the default urgency of an alert."""
    meaning: str
    needs: tuple[str, ...]
    """Event kinds without which the rule cannot decide; when one never arrived, its answer is `unproven`."""
    false_positives: str
    references: tuple[str, ...]
    atlas: tuple[str, ...]
    cwe: tuple[str, ...]
    query: Query
    positive: Example
    negative: Example
    params: tuple[Param, ...] = ()
    anomaly: bool = False
    lasting: bool = False
    """Its findings about engines and tenants are conditions that hold until the audit does not find them any more, not
    events that are over: an alert stays open for as long."""

    def settings(self, context: Context) -> dict[str, float | int | str]:
        """The parameters in force: defaults, overridden by configuration."""
        return {p.name: p.default for p in self.params} | dict(context.overrides.get(self.id, {}))


def findings(rows: pl.DataFrame | pl.LazyFrame, rule: str) -> pl.DataFrame:
    """Bring a frame with some of the columns of `FINDING_SCHEMA` to the full schema, under one rule id."""
    frame = rows.collect() if isinstance(rows, pl.LazyFrame) else rows
    exprs = []
    for name, dtype in FINDING_SCHEMA.items():
        if name == "rule":
            exprs.append(pl.lit(rule, pl.String).alias(name))
        elif name in frame.columns:
            column = pl.col(name).cast(dtype)
            exprs.append(column.fill_null([]) if isinstance(dtype, pl.List) else column)
        elif isinstance(dtype, pl.List):
            exprs.append(pl.lit([], dtype).alias(name))
        else:
            exprs.append(pl.lit(None, dtype).alias(name))
    return frame.select(exprs)


def no_findings() -> pl.DataFrame:
    """An empty frame in `FINDING_SCHEMA`."""
    return pl.DataFrame(schema=FINDING_SCHEMA)
