-- question: When did each fault occur first and last, by engine and version?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per rule, verdict, engine and the version that the engine had announced then: how often, and the first
--   and last time. A fault that begins or ends with a version points at a change in it.
--   A finding of a request counts from when that was received, since its proof may be older (a limit, say).
-- cannot say: A cause. version is null where the engine announced none before. Findings without a pool are put down to
--   the engine of their first proving event that has one, so a fault between two engines may stand at either.
WITH engines AS (
  SELECT engine FROM limits UNION SELECT engine FROM pools
), proofs AS (
  SELECT rule, verdict, request, incarnation, engine, pool, time_ns, unnest(seqs) AS event FROM findings
  WHERE verdict IN ('leak', 'integrity', 'exposure')
), asked AS (
  SELECT request, incarnation, received_ns FROM requests_of((SELECT list(DISTINCT request) FROM proofs))
), found AS (
  SELECT rule, verdict, request, incarnation, time_ns, coalesce(engine, split_part(pool, '/', 1),
    min(split_part(event.source, '/', 1)) FILTER (split_part(event.source, '/', 1) IN (SELECT engine FROM engines)),
    min(split_part(event.source, '/', 1))) AS engine
  FROM proofs GROUP BY rule, verdict, request, incarnation, time_ns, engine, pool
), dated AS (
  SELECT f.* REPLACE (greatest(f.time_ns, a.received_ns) AS time_ns)
  FROM found AS f LEFT JOIN asked AS a ON a.request = f.request AND a.incarnation = f.incarnation
)
SELECT f.rule, f.verdict, f.engine, l.version, count(*) AS findings,
  count(DISTINCT (f.request, f.incarnation)) FILTER (f.request IS NOT NULL) AS request_count,
  min(f.time_ns) AS time_ns, make_timestamp_ns(min(f.time_ns)) AS ts,
  max(f.time_ns) AS until_ns, make_timestamp_ns(max(f.time_ns)) AS until_ts
FROM dated AS f ASOF LEFT JOIN limits AS l ON l.engine = f.engine AND l.time_ns <= f.time_ns
WHERE f.time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND f.time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
GROUP BY f.rule, f.verdict, f.engine, l.version
ORDER BY f.rule, f.verdict, f.engine, l.version
