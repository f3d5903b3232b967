-- question: Which prompts came near an enforced limit, and how did they end?
-- param near_share DOUBLE = 0.9: share of the limit from which a prompt counts as near it
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per request of at least that share of the limit that counts for it: the smallest in force among the
--   engines that served or refused it, or among all where none did. share above 1: beyond the limit. outcome: answered
--   (with success), else refused, aborted, failed (answered with an error) or none on record.
-- cannot say: Anything of prompts whose true length nobody recorded. The limit is the one announced when the request was
--   received; engines may enforce another.
WITH candidates AS (
  SELECT DISTINCT request FROM events
  WHERE event = 'request.received'
    AND prompt_tokens >= coalesce(getvariable('near_share'), 0.9)::DOUBLE * (SELECT min(input_limit_tokens) FROM limits)
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), asked AS (
  SELECT * FROM requests_of((SELECT list(request) FROM candidates)) WHERE received_ns IS NOT NULL
), met AS (
  SELECT DISTINCT request, coalesce(incarnation, 0) AS incarnation,
    unnest([split_part(source, '/', 1), split_part(coalesce(pool, source), '/', 1)]) AS engine
  FROM events
  WHERE event IN ('page.alloc', 'transfer.begin', 'request.rejected')
    AND request IN (SELECT request FROM asked)
), chosen AS (
  SELECT a.request, a.incarnation,
    arg_min(l.engine, l.input_limit_tokens + CASE WHEN m.engine IS NULL THEN 1::BIGINT << 50 ELSE 0 END) AS engine,
    arg_min(l.input_limit_tokens,
      l.input_limit_tokens + CASE WHEN m.engine IS NULL THEN 1::BIGINT << 50 ELSE 0 END) AS input_limit_tokens,
    coalesce(bool_or(m.engine IS NOT NULL), false) AS met
  FROM asked AS a
  JOIN limits AS l ON l.input_limit_tokens IS NOT NULL AND l.time_ns <= a.received_ns
    AND (l.until_ns IS NULL OR a.received_ns < l.until_ns)
  LEFT JOIN met AS m ON m.request = a.request AND m.incarnation = a.incarnation AND m.engine = l.engine
  GROUP BY a.request, a.incarnation
)
SELECT a.request, a.incarnation, a.tenant, a.traffic, a.prompt_tokens, c.engine, c.input_limit_tokens,
  round(a.prompt_tokens / c.input_limit_tokens, 4) AS share,
  CASE WHEN a.ok THEN 'answered' WHEN a.rejected_ns IS NOT NULL THEN 'refused' WHEN a.aborted_ns IS NOT NULL
    THEN 'aborted' WHEN a.finished_ns IS NOT NULL THEN 'failed' ELSE 'none on record' END AS outcome,
  a.rejected_ns IS NOT NULL AS refused, a.status, a.finish_reason, a.completion_tokens, c.met AS engine_met,
  a.received_ns AS time_ns, a.received_ts AS ts
FROM asked AS a JOIN chosen AS c ON c.request = a.request AND c.incarnation = a.incarnation
WHERE a.prompt_tokens >= coalesce(getvariable('near_share'), 0.9)::DOUBLE * c.input_limit_tokens
ORDER BY a.received_ns, a.request, a.incarnation
