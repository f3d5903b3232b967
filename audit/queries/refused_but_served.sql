-- question: Which requests were refused or aborted, and served all the same?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per request that some party refused or aborted while an engine went on, with who refused, why, and what
--   was done afterwards. integrity: a success was answered; exposure: pages and work for nobody; unproven: the clocks
--   do not order refusal and service. The window is that of the refusal.
-- cannot say: Whether the client saw the refusal as well. A gateway that retries under the same id looks alike.
WITH found AS (
  SELECT * FROM findings
  WHERE rule = 'served-after-refusal'
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), proof AS (
  SELECT request, incarnation, unnest(places, recursive := true) FROM found
), turned AS (
  SELECT request, source, ingest, ingest_row, time_ns, reason, status, 'refused' AS outcome FROM events
  WHERE event = 'request.rejected' AND request IN (SELECT request FROM found)
  UNION ALL
  SELECT request, source, ingest, ingest_row, time_ns, reason, status, 'aborted' AS outcome FROM events
  WHERE event = 'request.aborted' AND request IN (SELECT request FROM found)
), refusals AS (
  SELECT p.request, p.incarnation, arg_min(r.source, r.time_ns) AS refused_by, arg_min(r.reason, r.time_ns) AS reason,
    arg_min(r.status, r.time_ns) AS refusal_status, arg_min(r.outcome, r.time_ns) AS refusal
  FROM proof AS p JOIN turned AS r
    ON r.request = p.request AND r.ingest = p.ingest AND r.ingest_row = p.ingest_row
  GROUP BY p.request, p.incarnation
), asked AS (
  SELECT * FROM requests_of((SELECT list(DISTINCT request) FROM found))
)
SELECT f.request, f.incarnation, f.tenant, f.verdict, r.refusal, r.refused_by, r.refusal_status, r.reason, f.why,
  a.prompt_tokens, a.status, a.finish_reason, a.completion_tokens, f.time_ns, f.ts, a.finished_ts
FROM found AS f
LEFT JOIN refusals AS r ON r.request = f.request AND r.incarnation = f.incarnation
LEFT JOIN asked AS a ON a.request = f.request AND a.incarnation = f.incarnation
ORDER BY f.time_ns, f.request, f.incarnation
