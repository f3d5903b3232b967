"""The pages of an incident in SQL over events alone, where one query can tell them; tried before it is printed.

The replay follows sharing, copies, transfers and clocks, which no single query does. But most reads of what the reader
had not written can be told from allocations, writes and shares by themselves. Whether that holds for an incident is
not guessed: the query is run on its events, and is printed only if it finds the very pages that the findings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from kvwitness.audit.store.sql import text, texts
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.story import READING

MOST_PAGES = 5_000_000
"""With more pages in the events to look at, the query is not tried, for nobody waits a minute for an explanation."""

COLUMNS = [
    "event", "time_ns", "pool", "pages", "page_tokens", "tok_first", "tok_end", "phase", "request", "incarnation",
    "tenant",
]  # fmt: skip
"""What the query looks at."""
TOUCHING = ("page.alloc", "page.share", "page.read", "page.write")

Pages = dict[str, set[int]]
"""Pool -> pages."""


def pages_of(incident: Mapping[str, Any]) -> Pages:
    """The pages of an incident: those of the findings that carry its verdict."""
    return {one["pool"]: set(one["pages"]) for one in incident["pools"] or () if one["pages"]}


def derived(dossier: Dossier) -> str | None:
    """The query, if it finds exactly the pages of the incident; None where it does not, or where none is known."""
    incident = dossier.incident
    if incident is None or dossier.request is None or not set(incident["rules"]) & READING:
        return None
    wanted = pages_of(incident)
    if incident["verdict"] not in ("leak", "integrity") or not wanted:
        return None
    needed = _needed(list(wanted))
    touched = dossier.look(needed, [pl.col("pages").list.len().cast(pl.Int64).sum()]).item()
    if (touched or 0) > MOST_PAGES:
        return None
    query = _query(dossier, sorted(wanted), incident["verdict"])
    return query if _found(query, dossier.look(needed, [pl.col(COLUMNS)])) == wanted else None


def _needed(pools: list[str]) -> pl.Expr:
    """The events that the query looks at, and those that say whose a request was."""
    touching = pl.col("pool").is_in(pools) & pl.col("event").is_in([*TOUCHING, "engine.pool"])
    return touching | (pl.col("tenant").is_not_null() & pl.col("request").is_not_null())


def _found(query: str, events: pl.DataFrame) -> Pages:
    """What the query finds; nothing where it cannot be run, for want of memory say."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.register("events", events.to_arrow())
        try:
            rows = connection.execute(query).fetchall()
        except duckdb.Error:
            return {}
    found: Pages = {}
    for pool, *_, which in rows:
        found.setdefault(pool, set()).update(which)
    return found


def _query(dossier: Dossier, pools: list[str], verdict: str) -> str:
    assert dossier.request is not None
    me, tenant = dossier.request["request"], dossier.request["tenant"]
    mine = f"request = {text(me)} AND life = {int(dossier.request['incarnation'] or 0)}"
    other = "FALSE" if tenant is None else f"coalesce(tenant <> {text(tenant)}, FALSE)"
    return f"""\
WITH size AS (
  SELECT pool, last(page_tokens ORDER BY time_ns) AS size FROM events WHERE event = 'engine.pool' GROUP BY pool
), touched AS (  -- each page of each event, with its rows [low, high)
  SELECT *, greatest(0, coalesce(tok_first - start, 0)) AS low, least(size, coalesce(tok_end - start, size)) AS high
  FROM (
    SELECT *, (tok_first // size + place) * size AS start FROM (
      SELECT event, pool, time_ns, request, coalesce(incarnation, 0) AS life, coalesce(phase, 'end') AS phase,
             tok_first, tok_end, unnest(pages) AS page, unnest(range(len(pages))) AS place
      FROM events
      WHERE pool IN ({texts(pools)}) AND event IN ({texts(TOUCHING)})
    ) JOIN size USING (pool)
  )
), reads AS (  -- the first and the last of each extent, and when the page was given out or shared before
  SELECT pool, page, low, high, read_ns,
         max(t.time_ns) FILTER (WHERE t.event = 'page.alloc') AS given,
         max(t.time_ns) FILTER (WHERE t.event = 'page.share' AND {mine}) AS shared
  FROM (
    SELECT pool, page, low, high, unnest([min(time_ns), max(time_ns)]) AS read_ns FROM touched
    WHERE event = 'page.read' AND {mine} GROUP BY pool, page, low, high
  ) AS r LEFT JOIN (SELECT * EXCLUDE (low, high) FROM touched) AS t USING (pool, page)
  WHERE t.time_ns <= read_ns GROUP BY pool, page, low, high, read_ns
), last_writes AS (  -- to each row that was read
  SELECT pool, page, row, read_ns, max(time_ns) AS written, max_by(request, (time_ns, {mine})) AS writer,
         max_by({mine}, (time_ns, {mine})) AS own
  FROM (
    SELECT r.pool, r.page, r.read_ns, w.time_ns, w.request, w.life,
           unnest(range(greatest(r.low, w.low), least(r.high, w.high))) AS row
    FROM reads AS r JOIN touched AS w ON r.pool = w.pool AND r.page = w.page AND w.time_ns <= r.read_ns
    WHERE w.event = 'page.write' AND w.phase = 'end'
  ) GROUP BY pool, page, row, read_ns
), judged AS (
  SELECT r.pool, r.page, writer,
         coalesce(written >= coalesce(given, 0) AND (own OR shared >= coalesce(given, 0)), FALSE) AS sound
  FROM (SELECT *, unnest(range(low, high)) AS row FROM reads) AS r
  LEFT JOIN last_writes USING (pool, page, row, read_ns)
), unsound AS (
  SELECT pool, page, writer, (SELECT max(tenant) FROM events WHERE request = writer) AS tenant
  FROM (SELECT DISTINCT pool, page, writer FROM judged WHERE NOT sound)
)
SELECT pool, writer, tenant, count(*) AS pages, min(page) AS first_page, max(page) AS last_page,
       list(page ORDER BY page) AS which
FROM unsound WHERE {other if verdict == "leak" else f"NOT {other}"}
GROUP BY pool, writer, tenant ORDER BY pool, first_page"""
