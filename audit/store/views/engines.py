"""Views of what engines promise, of their pools, and of how much of them is on record."""

from __future__ import annotations

from kvwitness.audit.store.views.model import SITE, SITE_COMMENT, TS_COMMENT, View

_UNTIL = {
    "until_ns": "When the next announcement replaced it; null: still in force. [ns since the Unix epoch]",
    "until_ts": "until_ns as a timestamp (UTC).",
}
_KEPT = ["role", "model", "version", "advertised_tokens", "input_limit_tokens", "pool_tokens"]
_POLICY = ["page_tokens", "pages_total", "kind", "scrub", "sharing"]


def _forward(columns: list[str]) -> str:
    """Figures that an announcement leaves out are those of the one before."""
    return ",\n  ".join(f"last_value({name} IGNORE NULLS) OVER earlier AS {name}" for name in columns)


LIMITS = View(
    "limits",
    "One row per announcement of an engine's limits, with the time in which it was in force: those in force at a time "
    "t are the rows with time_ns <= t and (until_ns IS NULL OR t < until_ns). Figures that an announcement leaves out "
    "are carried on.",
    f"""\
SELECT split_part(engine, '/', 1) AS engine, time_ns, ts,
  lead(time_ns) OVER announced AS until_ns, make_timestamp_ns(lead(time_ns) OVER announced) AS until_ts,
  {_forward(_KEPT)},
  source, seq
FROM events WHERE event = 'engine.limits'
WINDOW announced AS (PARTITION BY split_part(engine, '/', 1) ORDER BY time_ns, source, seq),
  earlier AS (announced ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)""",
    {
        "engine": "",
        "time_ns": "When it was announced. [ns since the Unix epoch]",
        "ts": TS_COMMENT,
        **_UNTIL,
        "role": "",
        "model": "",
        "version": "",
        "advertised_tokens": "",
        "input_limit_tokens": "",
        "pool_tokens": "",
        "source": "",
        "seq": "",
    },
)

POOLS = View(
    "pools",
    "One row per announcement of a pool of pages and its policy, with the time in which it was in force.",
    f"""\
SELECT pool, split_part(pool, '/', 1) AS engine, time_ns, ts,
  lead(time_ns) OVER announced AS until_ns, make_timestamp_ns(lead(time_ns) OVER announced) AS until_ts,
  {_forward(_POLICY)},
  source, seq
FROM events WHERE event = 'engine.pool'
WINDOW announced AS (PARTITION BY pool ORDER BY time_ns, source, seq),
  earlier AS (announced ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)""",
    {
        "pool": "",
        "engine": "Engine that the pool belongs to: its name up to the first slash.",
        "time_ns": "When it was announced. [ns since the Unix epoch]",
        "ts": TS_COMMENT,
        **_UNTIL,
        "page_tokens": "",
        "pages_total": "",
        "kind": "",
        "scrub": "",
        "sharing": "",
        "source": "",
        "seq": "",
    },
)

COVERAGE = View(
    "coverage",
    "One row per source: how much of it is on record, and how much of that no audit has seen yet. What is lost in "
    "detail stands in gaps.",
    f"""\
WITH counted AS (
  SELECT e.source, count(*) AS events, min(e.time_ns) AS first_ns, max(e.time_ns) AS last_ns,
    min(e.seq) AS min_seq, max(e.seq) AS max_seq, count(e.seq) AS numbered,
    count(*) FILTER (m.last_row IS NULL OR e.ingest_row > m.last_row) AS unjudged
  FROM events AS e LEFT JOIN audit_marks AS m ON m.ingest = e.ingest
  GROUP BY e.source
)
SELECT coalesce(source, '') AS source, {SITE} AS site, sum(events)::BIGINT AS events,
  min(first_ns) AS first_ns, make_timestamp_ns(min(first_ns)) AS first_ts,
  max(last_ns) AS last_ns, make_timestamp_ns(max(last_ns)) AS last_ts,
  min(min_seq) AS min_seq, max(max_seq) AS max_seq,
  greatest(max(max_seq) - least(min(min_seq), 1) + 1 - sum(numbered)::BIGINT, 0) AS missing,
  sum(unjudged)::BIGINT AS unjudged
FROM counted
GROUP BY coalesce(source, '')""",
    {
        "source": "Who observed; empty for events that name nobody.",
        "site": SITE_COMMENT,
        "events": "Events on record.",
        "first_ns": "Earliest event, by the source's clock. [ns since the Unix epoch]",
        "first_ts": "first_ns as a timestamp (UTC).",
        "last_ns": "Latest event, by the source's clock. [ns since the Unix epoch]",
        "last_ts": "last_ns as a timestamp (UTC).",
        "min_seq": "Lowest number; above 1, the source had a life before the record.",
        "max_seq": "Highest number.",
        "missing": "Numbers from 1 to max_seq that are not on record, rejected lines included.",
        "unjudged": "Events that came in after the newest audit (all, where there was none).",
    },
)

VIEWS = (LIMITS, POOLS, COVERAGE)
