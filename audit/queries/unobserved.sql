-- question: What was not observed in a window, and which answers does that weaken?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per loss of telemetry, per rule that had no input at all, per request that could not be judged, and per
--   source with events that no audit has seen. requests lists whose answers it weakens. No row: nothing on record is
--   missing, and everything has been judged.
-- cannot say: What a source never recorded and never numbered. Rules without input hold for the whole record, whatever
--   the window. Events not judged yet weaken every answer about their requests; they are only counted.
WITH unproven AS (
  SELECT request, incarnation, missing, time_ns, unnest(seqs, recursive := true) FROM findings
  WHERE verdict = 'unproven' AND request IS NOT NULL
), losses AS (
  SELECT g.*, list_sort(list(DISTINCT u.request) FILTER (u.request IS NOT NULL)) AS requests
  FROM gaps AS g LEFT JOIN unproven AS u ON u.source = g.source AND u.seq IN (g.before_seq, g.after_seq)
  GROUP BY ALL
)
SELECT 'loss' AS kind, source, NULL::VARCHAR AS rule, reason AS missing, from_seq, to_seq, dropped AS events,
  before_ns AS time_ns, before_ts AS ts, after_ns AS until_ns, after_ts AS until_ts, coalesce(requests, []) AS requests
FROM losses
WHERE (after_ns IS NULL OR after_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP))
  AND (before_ns IS NULL OR before_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP))
UNION ALL
SELECT 'rule without input', NULL, rule, missing, NULL, NULL, NULL, NULL, NULL, NULL, NULL, [] FROM undecided
UNION ALL
SELECT DISTINCT 'unproven request', NULL, f.rule, f.missing, NULL, NULL, NULL, f.time_ns, f.ts, NULL, NULL, [f.request]
FROM findings AS f
WHERE f.verdict = 'unproven' AND f.request IS NOT NULL
  AND f.time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND f.time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
UNION ALL
SELECT 'unproven request', NULL, NULL, v.missing, NULL, NULL, NULL, NULL, NULL, NULL, NULL, [v.request]
FROM request_verdicts AS v
WHERE v.verdict = 'unproven'
  AND NOT EXISTS (FROM findings AS f WHERE f.request = v.request AND f.incarnation = v.incarnation)
UNION ALL
SELECT 'not judged yet', source, NULL, 'an audit since then', NULL, NULL, unjudged, first_ns, first_ts, last_ns, last_ts, []
FROM coverage
WHERE unjudged > 0
  AND last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY kind, source, time_ns, from_seq, rule, requests
