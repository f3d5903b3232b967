"""The simplified foreign or unwritten read as one DuckDB statement: ASOF joins to states and shares."""

from __future__ import annotations

import duckdb
import polars as pl

SQL = """
WITH states AS (
    SELECT ev, slot, CASE act WHEN 0 THEN -1 ELSE tenant END AS state
    FROM events WHERE act IN (0, 1)
), suspects AS (
    SELECT r.ev, r.slot, r.request, s.state
    FROM (SELECT ev, slot, request, tenant FROM events WHERE act = 2) AS r
    ASOF LEFT JOIN states AS s ON r.slot = s.slot AND r.ev > s.ev
    WHERE s.state IS NULL OR s.state < 0 OR s.state <> r.tenant
), admitted AS (
    SELECT f.ev, f.slot
    FROM (SELECT * FROM suspects WHERE state <> -1) AS f
    ASOF JOIN (SELECT ev, slot, request FROM events WHERE act = 3) AS h
        ON f.slot = h.slot AND f.request = h.request AND f.ev > h.ev
    ASOF LEFT JOIN (SELECT ev, slot FROM events WHERE act = 0) AS a ON f.slot = a.slot AND f.ev > a.ev
    WHERE h.ev > coalesce(a.ev, -1)
)
SELECT DISTINCT ev, slot FROM suspects ANTI JOIN admitted USING (ev, slot) ORDER BY ev, slot
"""


def flagged(events: pl.DataFrame, *, threads: int | None = None) -> pl.DataFrame:
    """(ev, slot) of the reads that the rule of `exploded` flags, sorted; `events` in its form."""
    with duckdb.connect() as connection:
        if threads:
            connection.execute(f"SET threads = {threads}")
        connection.register("events", events.to_arrow())
        return pl.from_arrow(connection.sql(SQL).to_arrow_table())
