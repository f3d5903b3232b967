-- question: Which transfers covered less than what was read from their pages afterwards?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per request and transfer into a pool from which the request then decoded positions that had not been
--   transferred, shared or written: what its begins covered, what the farthest report of completion claimed, how far
--   landings are on record, and how far the reads went.
-- cannot say: Landings that the engine does not record look like none. Whether other content was read instead says
--   foreign_decodes.
WITH short AS (
  SELECT request, incarnation, tenant, pool, list_sort(list(DISTINCT soundness)) AS soundness,
    max(positions) AS positions, min(first_ns) AS first_ns
  FROM read_causes
  WHERE soundness IN ('uncovered', 'unwritten', 'not_ready') AND coalesce(op, 'decode') = 'decode'
    AND last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
  GROUP BY request, incarnation, tenant, pool
), extents AS (
  SELECT request, coalesce(incarnation, 0) AS incarnation, pool,
    max(tok_end) FILTER (event = 'page.write' AND op = 'transfer' AND coalesce(phase, 'end') = 'end') AS landed_tokens,
    max(tok_end) FILTER (event = 'page.read' AND coalesce(op, 'decode') = 'decode') AS read_tokens
  FROM events
  WHERE event IN ('page.read', 'page.write') AND request IN (SELECT request FROM short)
  GROUP BY ALL
)
SELECT s.request, s.incarnation, s.tenant, v.verdict, t.transfer, t.src_pool, t.dst_pool, t.tokens, t.done_tokens,
  coalesce(x.landed_tokens, 0) AS landed_tokens, x.read_tokens, s.positions AS positions_missing, s.soundness,
  t.announced_page_count, t.dst_page_count, t.failures, t.time_ns, t.ts, t.done_ts,
  make_timestamp_ns(s.first_ns) AS read_ts
FROM short AS s
JOIN transfers_of((SELECT list(DISTINCT request) FROM short)) AS t
  ON t.request = s.request AND t.incarnation = s.incarnation AND t.dst_pool = s.pool
LEFT JOIN extents AS x ON x.request = s.request AND x.incarnation = s.incarnation AND x.pool = s.pool
LEFT JOIN request_verdicts AS v ON v.request = s.request AND v.incarnation = s.incarnation
ORDER BY s.first_ns, s.request, s.incarnation, t.transfer
