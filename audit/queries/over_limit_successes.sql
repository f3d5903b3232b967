-- question: Which prompts were longer than an engine's enforced limit, and were answered with success all the same?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per request and engine that served it although the true prompt was longer than the limit that this
--   engine enforced when it first served it, with the announcement the limit comes from. What was answered was not
--   computed from that prompt. The window is that of the reception. Where no page event shows who served (served_ts is
--   null), it is one row per request that no way through the engines on record could have taken, with the engine whose
--   limit is the widest: a unified one, or the narrower of a prefill and a decode engine. An engine whose pages are on
--   record by then would have been seen, and is no way.
-- cannot say: Anything of prompts whose true length nobody recorded, of engines that announced no limit before they
--   served, or whether another tokenizer counts differently. Times are compared as the sources' clocks recorded them.
WITH engines AS (
  SELECT engine FROM limits UNION SELECT engine FROM pools
), smallest AS (
  SELECT min(input_limit_tokens) AS tokens FROM limits
), suspects AS (
  SELECT DISTINCT request FROM events
  WHERE event = 'request.received' AND prompt_tokens > (SELECT tokens FROM smallest)
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), asked AS (
  SELECT * FROM requests_of((SELECT list(request) FROM suspects))
  WHERE ok AND prompt_tokens > (SELECT tokens FROM smallest)
), acts AS (
  SELECT request, coalesce(incarnation, 0) AS incarnation, time_ns,
    CASE WHEN split_part(source, '/', 1) IN (SELECT engine FROM engines) OR pool IS NULL
      THEN split_part(source, '/', 1) ELSE split_part(pool, '/', 1) END AS engine
  FROM events
  WHERE event IN ('page.alloc', 'page.write', 'transfer.begin', 'page.read')
    AND request IN (SELECT request FROM asked)
), services AS (
  SELECT request, incarnation, engine, min(time_ns) AS served_ns FROM acts GROUP BY ALL
), roles AS (
  SELECT engine, arg_max(role, time_ns) AS role FROM limits GROUP BY engine
), seen AS (
  SELECT source, pool, min(time_ns) AS since_ns FROM events
  WHERE event IN ('page.alloc', 'page.write', 'transfer.begin', 'page.read') GROUP BY source, pool
), watched AS (
  SELECT CASE WHEN split_part(source, '/', 1) IN (SELECT engine FROM engines) OR pool IS NULL
      THEN split_part(source, '/', 1) ELSE split_part(pool, '/', 1) END AS engine, min(since_ns) AS since_ns
  FROM seen GROUP BY ALL
), blind AS (
  SELECT a.request, a.incarnation, a.model, a.received_ns, a.prompt_tokens, a.answered_by, r.engine AS answerer, r.role
  FROM asked AS a LEFT JOIN roles AS r ON r.engine = split_part(a.answered_by, '/', 1)
  WHERE a.request NOT IN (SELECT request FROM services) AND a.received_ns IS NOT NULL
), able AS (
  SELECT b.request, b.incarnation, b.received_ns, b.prompt_tokens, l.engine, l.input_limit_tokens,
    CASE WHEN l.role IN ('prefill', 'decode') THEN l.role ELSE 'unified' END AS side
  FROM blind AS b JOIN limits AS l ON l.time_ns <= b.received_ns
    AND (l.until_ns IS NULL OR b.received_ns < l.until_ns) AND coalesce(l.model = b.model, true)
    AND l.input_limit_tokens IS NOT NULL AND coalesce(l.role, '') <> 'gateway'
    AND (b.answerer IS NULL OR l.engine = b.answerer OR (b.role = 'prefill' AND l.role = 'decode')
      OR (b.role = 'decode' AND l.role = 'prefill'))
  LEFT JOIN watched AS w ON w.engine = l.engine
  WHERE l.engine = b.answerer OR coalesce(b.received_ns < w.since_ns, true)
), sides AS (
  SELECT request, incarnation, received_ns, prompt_tokens, side, max(input_limit_tokens) AS tokens,
    arg_max(engine, input_limit_tokens) AS engine
  FROM able GROUP BY ALL
), ways AS (
  SELECT request, incarnation, received_ns, prompt_tokens, min(tokens) AS tokens, arg_min(engine, tokens) AS engine
  FROM sides GROUP BY request, incarnation, received_ns, prompt_tokens, side = 'unified'
), widest AS (
  SELECT request, incarnation, received_ns, prompt_tokens, max(tokens) AS tokens, arg_max(engine, tokens) AS engine
  FROM ways GROUP BY ALL
), judged AS (
  SELECT s.request, s.incarnation, s.engine, s.served_ns, s.served_ns AS at_ns FROM services AS s
  UNION ALL
  SELECT request, incarnation, engine, NULL, received_ns FROM widest WHERE prompt_tokens > tokens
)
SELECT a.request, a.incarnation, a.tenant, a.prompt_tokens, s.engine, l.input_limit_tokens,
  a.prompt_tokens - l.input_limit_tokens AS tokens_over,
  l.source AS limit_source, l.seq AS limit_seq, l.ts AS limit_ts,
  a.received_ns AS time_ns, a.received_ts AS ts, make_timestamp_ns(s.served_ns) AS served_ts,
  a.status, a.finish_reason, a.answered_by, a.answered_prompt_tokens
FROM asked AS a
JOIN judged AS s ON s.request = a.request AND s.incarnation = a.incarnation
JOIN limits AS l ON l.engine = s.engine AND l.time_ns <= s.at_ns
  AND (l.until_ns IS NULL OR s.at_ns < l.until_ns)
WHERE a.prompt_tokens > l.input_limit_tokens
ORDER BY a.received_ns, a.request, a.incarnation, s.engine
