-- question: What happened to one request, at the gateway, prefill, decode and in between?
-- param request_id VARCHAR: the request
-- means: One row per event that names the request, or a transfer that was made for it, in the order of the sources'
--   clocks; within a source in the order of its numbers.
-- cannot say: The order of events of two sources whose clocks are apart; kvwitness request orders them as the audit
--   does, by ids as well. What was lost stands in gaps.
WITH own AS (
  SELECT * FROM events WHERE request = getvariable('request_id')
), moved AS (
  SELECT * FROM events
  WHERE request IS NULL AND event >= 'transfer.' AND event < 'transfer/'
    AND transfer IN (SELECT transfer FROM own WHERE transfer IS NOT NULL)
), placed AS (
  SELECT *, max(time_ns) OVER (PARTITION BY source ORDER BY seq NULLS FIRST, time_ns) AS at_ns
  FROM (SELECT * FROM own UNION ALL SELECT * FROM moved)
), roles AS (
  SELECT engine, arg_max(role, time_ns) AS role FROM limits GROUP BY engine
)
SELECT p.time_ns, p.ts, coalesce(p.source, '') AS source, r.role, p.seq, p.event, p.op, p.phase,
  coalesce(p.incarnation, 0) AS incarnation, coalesce(p.pool, p.dst_pool) AS pool,
  len(coalesce(p.pages, p.dst_pages)) AS page_count, list_min(coalesce(p.pages, p.dst_pages)) AS first_page,
  list_max(coalesce(p.pages, p.dst_pages)) AS last_page, p.tok_first, p.tok_end, p.transfer, p.tokens,
  p.prompt_tokens, p.completion_tokens, p.status, p.finish_reason, p.reason, p.answered_by
FROM placed AS p LEFT JOIN roles AS r ON r.engine = split_part(p.source, '/', 1)
ORDER BY p.at_ns, p.source, p.seq
