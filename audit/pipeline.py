"""From events to a judgement: relations, replay, rules, incidents, and a verdict for every request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from kvwitness.audit import incidents, relations
from kvwitness.audit.acts import acts_of
from kvwitness.audit.provenance.actors import Actors
from kvwitness.audit.provenance.choice import compiled_for
from kvwitness.audit.provenance.encode import COLUMNS, Encoder, Lists
from kvwitness.audit.provenance.facts import named
from kvwitness.audit.provenance.open_reads import ended_later
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.provenance.pools import pool_use, pools_of, sources_of
from kvwitness.audit.provenance.replay import Replay
from kvwitness.audit.rules import RULES
from kvwitness.audit.rules.model import FINDING_SCHEMA, Context, Rule

_ORDER = ["time_ns", "request", "incarnation", "engine", "pool", "why"]
"""Of the findings of one rule: the same record gives them in the same order, whatever ran at the same time."""

_PLACE = {"ingest": pl.String, "ingest_row": pl.Int64}
"""What says where an event arrived in a store."""

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction that is done."""


def _silent(what: str, done: float) -> None:
    return None


@dataclass(frozen=True)
class Judgement:
    """The answer of an audit."""

    findings: pl.DataFrame
    """`FINDING_SCHEMA`, plus `seqs` (list of struct source, seq) and, parallel to it, `places` (list of struct ingest,
    ingest_row; both null for a trace that is judged without a store)."""
    incidents: pl.DataFrame
    requests: pl.DataFrame
    """request, incarnation, tenant, verdict, missing."""
    undecided: pl.DataFrame
    """rule, missing: rules whose input never arrived in this record."""
    page_events: int
    events: int


def judge(
    events: pl.DataFrame,
    *,
    overrides: Mapping[str, Mapping[str, float | int | str]] | None = None,
    rejected: pl.DataFrame | None = None,
    rules: Iterable[Rule] | None = None,
    progress: Progress = _silent,
) -> Judgement:
    """Judge a trace that is held in memory.

    `events` has the columns of `kvwitness.audit.trace`; `rejected` (see `kvwitness.audit.unread`) are lines
    that were refused at the door. `overrides` are rule parameters from configuration.
    """
    progress("ordering events", 0.0)
    frame = ordered(events)
    context, page_events = context_of(frame, overrides=overrides or {}, rejected=rejected, progress=progress)
    return conclude(context, page_events, len(frame), rules=rules, progress=progress)


def context_of(
    frame: pl.DataFrame,
    *,
    overrides: Mapping[str, Mapping[str, float | int | str]],
    rejected: pl.DataFrame | None = None,
    progress: Progress = _silent,
) -> tuple[Context, int]:
    """Everything that rules look at, from events in replay order; and how many pages they touched."""
    lazy = frame.lazy()
    ground = Ground.of(lazy, lazy, pool_use(frame), overrides, rejected)
    lists = Lists.of_frame(frame)
    replay = ground.replay(int(lists.length.sum()))
    progress("replaying page histories", 0.0)
    replay.feed(frame.select(COLUMNS), lists)
    replay.orphans(ground.horizon_ns, len(frame) - 1)
    return ground.context(replay.take_facts()), replay.page_events


@dataclass(frozen=True)
class Ground:
    """What is derived from the events before any page is replayed."""

    events: pl.LazyFrame
    page_events: pl.LazyFrame
    requests: pl.DataFrame
    gaps: pl.DataFrame
    horizon_ns: int
    encoder: Encoder
    overrides: Mapping[str, Mapping[str, float | int | str]]
    acts: pl.LazyFrame

    @classmethod
    def of(
        cls,
        events: pl.LazyFrame,
        page_events: pl.LazyFrame,
        use: pl.DataFrame,
        overrides: Mapping[str, Mapping[str, float | int | str]],
        rejected: pl.DataFrame | None = None,
        acts: pl.LazyFrame | None = None,
    ) -> Ground:
        """Relations, pools and numbers for a trace in replay order; `use` is `pool_use` of all of it, as `acts` are."""
        acts = acts_of(events).collect().lazy() if acts is None else acts
        requests = relations.requests(events, acts)
        gaps = relations.gaps(events, rejected)
        lost = gaps.filter(pl.col("reason") != "midlife")
        losses = pl.concat([lost["before_ev"], lost["after_ev"]]).drop_nulls()
        actors = Actors(requests, holder_numbers(acts))
        sources = sources_of(acts)
        landings = events.filter((pl.col("event") == "page.write") & (pl.col("op") == "transfer"))
        writers = {sources.index(source) for source in sources_of(landings)}
        encoder = Encoder(
            actors,
            pools_of(use, events),
            sources,
            losses=frozenset(losses.to_list()),
            read_on=frozenset(ended_later(events, page_events)),
            transfer_writers=writers,
        )
        horizon = acts.select(pl.col("last_ns").max()).collect().item() or 0
        return cls(events, page_events, requests, gaps, horizon, encoder, overrides, acts)

    def replay(self, page_events: int) -> Replay:
        """A replay that has seen nothing yet, in the form that suits so many page events."""
        return Replay(self.encoder, compiled=compiled_for(page_events))

    def context(self, facts: pl.DataFrame) -> Context:
        """What rules look at, given the facts of the replay in its own numbers."""
        told = named(facts, self.encoder.actors, self.encoder.pools)
        known = (self.requests, self.gaps, told, self.horizon_ns, self.overrides)
        return Context(self.events, self.page_events, *known, counted=self.acts)


def holder_numbers(acts: pl.LazyFrame) -> int:
    """How many numbers to set aside for holders: a few kinds for every tenant, with room to grow."""
    tenants = int(acts.select(pl.col("tenant").n_unique()).collect().item())
    return max(256, 1 << (8 * tenants).bit_length())


def conclude(
    context: Context,
    page_events: int,
    events: int,
    *,
    rules: Iterable[Rule] | None = None,
    progress: Progress = _silent,
) -> Judgement:
    """Run the rules and group what they found."""
    chosen = list(RULES.values() if rules is None else rules)
    found = [pl.DataFrame(schema=FINDING_SCHEMA)]
    for number, rule in enumerate(chosen):
        progress(f"rule {rule.id}", number / len(chosen))
        found.append(rule.query(context, rule.settings(context)).sort(_ORDER, nulls_last=True, maintain_order=True))
    findings = _with_seqs(context, _named_only_where_shown(pl.concat(found)))
    progress("grouping incidents", 1.0)
    return Judgement(
        findings=findings,
        incidents=incidents.group(findings, context),
        requests=incidents.request_verdicts(findings, context, page_events),
        undecided=_undecided(context, chosen),
        page_events=page_events,
        events=events,
    )


def _named_only_where_shown(findings: pl.DataFrame) -> pl.DataFrame:
    """A request's finding names other tenants only where it shows that their content was readable.

    Whoever else was involved stands in `other_requests`; a list of tenants to notify must not grow by them.
    """
    shown = pl.col("request").is_null() | pl.col("verdict").is_in(["leak", "shared"])
    return findings.with_columns(
        other_tenants=pl.when(shown).then("other_tenants").otherwise(pl.lit([], pl.List(pl.String)))
    )


def _with_seqs(context: Context, findings: pl.DataFrame) -> pl.DataFrame:
    """Add source and seq of the proving events, and where the events came from a store the places at which they arrived
    there: those are unique even where two records use the same numbers."""
    index = findings.with_row_index("_row")
    evs = index.select("_row", ev="evs").explode("ev").drop_nulls()
    wanted = evs.select("ev").unique()
    stored = set(_PLACE) <= set(context.events.collect_schema())
    columns = ["ev", "source", "seq", *(_PLACE if stored else ())]
    known = context.events.select(columns).join(wanted.lazy(), on="ev", how="semi").collect()
    if not stored:
        known = known.with_columns(pl.lit(None, kind).alias(name) for name, kind in _PLACE.items())
    seqs = (
        evs.join(known, on="ev", maintain_order="left")
        .group_by("_row", maintain_order=True)
        .agg(seqs=pl.struct("source", "seq"), places=pl.struct(*_PLACE))
    )
    return index.join(seqs, on="_row", how="left", maintain_order="left").drop("_row")


def _undecided(context: Context, rules: Iterable[Rule]) -> pl.DataFrame:
    """Rules that need a kind of event of which the record has none."""
    kinds = set(context.acts.select("event").unique().collect()["event"].to_list())
    rows = [(rule.id, ", ".join(k for k in rule.needs if k not in kinds)) for rule in rules]
    missing = [(rule, kinds) for rule, kinds in rows if kinds]
    return pl.DataFrame(missing, schema={"rule": pl.String, "missing": pl.String}, orient="row")
