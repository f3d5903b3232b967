"""How things stand with the whole fleet, in one word and a few sentences."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kvwitness.audit.overall import coverage
from kvwitness.audit.overall.overview import verdict_counts, verdict_in_words
from kvwitness.audit.overall.standing import unsettled
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer
from kvwitness.audit.wording import duration, several


@dataclass(frozen=True)
class Fleet:
    """The state of the fleet as far as the record goes."""

    state: str
    """`empty` (no events), `unjudged` (no audit yet), the strongest verdict of an incident that nobody has taken up
    (`leak`, `integrity`, `exposure`), `unproven` where evidence is missing, `settled` where all incidents are taken up,
    or `clean`."""
    told: str
    """Sentences that can be read aloud."""


@dataclass(frozen=True)
class Lag:
    """How far the record and its audit are behind."""

    rows: int
    """Events in the store."""
    unjudged: int
    """Of those, how many came in after the newest audit."""
    audited_ns: int | None
    """When the newest audit began; None: never."""
    newest_ns: int | None
    """Time of the newest event, by its source's clock."""


def fleet(answer: Answer, incidents: pl.DataFrame, events: int) -> Fleet:
    """The state: of an answer, its incidents with their standing, and the number of events in the store."""
    if not events:
        return Fleet("empty", "There are no events in this store yet, so nothing can be said about any request.")
    if not answer.judged:
        return Fleet("unjudged", f"{several(events, 'event')} are on record, and none has been judged yet.")
    urgent, counts = unsettled(incidents), verdict_counts(answer)
    told = verdict_in_words(answer)
    if len(urgent):
        strongest = next(v for v in ("leak", "integrity", "exposure") if v in urgent["verdict"])
        return Fleet(strongest, f"{told} {several(len(urgent), 'incident')} not taken up by anybody.")
    if counts["unproven"]:
        return Fleet("unproven", told)
    if any(counts[v] for v in ("leak", "integrity", "exposure")) or len(incidents):
        return Fleet("settled", f"{told} Every incident has been taken up.")
    return Fleet("clean", f"{told} {_watched(answer)}")


def _watched(answer: Answer) -> str:
    if answer.undecided.is_empty():
        return "Every rule had its input."
    return f"{several(len(answer.undecided), 'rule')} had no input and decided nothing."


def lag(store: Store, answer: Answer) -> Lag:
    """How far behind, from the descriptions of the segments alone: no event is read."""
    segments = store.segments()
    rows = sum(segment.rows for segment in segments)
    newest = max((s.max_time_ns for s in segments if s.max_time_ns is not None), default=None)
    audited_ns = int(answer.run["started_ns"]) if answer.run else None
    judged = int(answer.run["events"]) if answer.run else 0
    # What retention took away since was judged, mostly: it must not stand for as many that came in.
    judged -= sum(one["rows"] for one in store.removals() if audited_ns is not None and one["at_ns"] > audited_ns)
    return Lag(rows, max(0, rows - max(0, judged)), audited_ns, newest)


def lag_in_words(behind: Lag, now_ns: int) -> str:
    """The lag in a sentence or two."""
    if behind.audited_ns is None:
        return f"{several(behind.rows, 'event')} on record, never audited."
    told = f"The newest audit began {duration(max(0, now_ns - behind.audited_ns))} ago"
    if behind.unjudged:
        return f"{told}; {several(behind.unjudged, 'event')} came in since and are not judged yet."
    return f"{told} and has seen every event on record."


def near_limit(index: pl.DataFrame, near_share: float = 0.9) -> pl.DataFrame:
    """Of `request_index`, the answered requests of users near or beyond the limit on their path.

    Added: share (of the limit) and band, which is `over the limit` or `near the limit`.
    """
    share = pl.col("prompt_tokens") / pl.col("limit_tokens")
    rows = index.filter((pl.col("outcome") == "answered") & (pl.col("traffic") == "user")).with_columns(share=share)
    band = pl.when(pl.col("share") > 1).then(pl.lit("over the limit")).otherwise(pl.lit("near the limit"))
    return rows.filter(pl.col("share") >= near_share).with_columns(band=band)


def bucket_ns(first_ns: int, last_ns: int, most: int = 120) -> int:
    """A length of time that reads well as a step on an axis, with at most `most` steps from the first to the last."""
    steps = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400)
    wanted = max(1, last_ns - first_ns) / most
    return next((step for step in steps if step * 1_000_000_000 >= wanted), steps[-1]) * 1_000_000_000


def over_time(rows: pl.DataFrame, column: str, step_ns: int) -> pl.DataFrame:
    """time_ns, `column`, requests: how many rows (with `received_ns`) of each kind in each step of time."""
    step = (pl.col("received_ns") // step_ns * step_ns).alias("time_ns")
    dated = rows.filter(pl.col("received_ns").is_not_null())
    return dated.group_by(step, column).agg(requests=pl.len().cast(pl.Int64)).sort("time_ns", column)


def all_covered(answer: Answer, pools: pl.DataFrame) -> bool:
    """Whether everything is watched: no pool in part, no rule without its input, nothing unproven."""
    whole = (pools["state"] == coverage.PROVEN).all() if len(pools) else False
    return bool(whole and answer.undecided.is_empty() and not verdict_counts(answer)["unproven"])
