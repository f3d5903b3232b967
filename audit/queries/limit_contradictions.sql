-- question: Which limits were in force, and where did they contradict one another?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per announcement in force in the window. contradictions names what does not fit: a promise beyond what
--   the engine's own pool holds, a figure that changed, or another engine of the model that enforces or advertises
--   something else at that time. An empty list: none.
-- cannot say: Which engines answer together; engines of one model are compared, whether or not a request met both. A
--   limit that an engine enforces and does not announce.
WITH sizes AS (
  SELECT engine, min(tokens) AS tokens FROM (
    SELECT engine, split_part(pool, '/', 2) AS rank, max(pages_total * page_tokens) AS tokens
    FROM pools WHERE coalesce(kind, 'kv') = 'kv' AND until_ns IS NULL GROUP BY ALL
  ) GROUP BY engine
), told AS (
  SELECT l.*, coalesce(l.pool_tokens, s.tokens) AS holds,
    lag(advertised_tokens) OVER turns AS old_advertised, lag(input_limit_tokens) OVER turns AS old_limit,
    lag(pool_tokens) OVER turns AS old_pool
  FROM limits AS l LEFT JOIN sizes AS s ON s.engine = l.engine
  WINDOW turns AS (PARTITION BY l.engine ORDER BY l.time_ns, l.source, l.seq)
), others AS (
  SELECT a.engine, a.time_ns, a.seq,
    list(DISTINCT format('enforces {}, {} enforces {}', a.input_limit_tokens, b.engine, b.input_limit_tokens))
      FILTER (a.input_limit_tokens <> b.input_limit_tokens) AS enforced,
    list(DISTINCT format('advertises {}, {} advertises {}', a.advertised_tokens, b.engine, b.advertised_tokens))
      FILTER (a.advertised_tokens <> b.advertised_tokens) AS advertised
  FROM told AS a JOIN told AS b ON b.engine <> a.engine AND coalesce(a.model = b.model, true)
    AND a.role IS DISTINCT FROM b.role
    AND (b.until_ns IS NULL OR a.time_ns < b.until_ns) AND (a.until_ns IS NULL OR b.time_ns < a.until_ns)
  GROUP BY ALL
)
SELECT t.engine, t.role, t.version, t.model, t.advertised_tokens, t.input_limit_tokens, t.pool_tokens,
  t.holds AS capacity_tokens, t.time_ns, t.ts, t.until_ns, t.until_ts, t.source, t.seq,
  list_sort(list_concat(
    CASE WHEN coalesce(t.advertised_tokens, t.input_limit_tokens) > t.holds
      THEN [format('promises {}, its pool holds {}', coalesce(t.advertised_tokens, t.input_limit_tokens), t.holds)]
      ELSE []::VARCHAR[] END,
    CASE WHEN t.advertised_tokens <> t.old_advertised
      THEN [format('advertised {} before, {} now', t.old_advertised, t.advertised_tokens)] ELSE []::VARCHAR[] END,
    CASE WHEN t.input_limit_tokens <> t.old_limit
      THEN [format('enforced {} before, {} now', t.old_limit, t.input_limit_tokens)] ELSE []::VARCHAR[] END,
    CASE WHEN t.pool_tokens <> t.old_pool
      THEN [format('held {} before, {} now', t.old_pool, t.pool_tokens)] ELSE []::VARCHAR[] END,
    coalesce(o.enforced, []), coalesce(o.advertised, [])
  )) AS contradictions
FROM told AS t LEFT JOIN others AS o ON o.engine = t.engine AND o.time_ns = t.time_ns AND o.seq IS NOT DISTINCT FROM t.seq
WHERE (t.until_ns IS NULL OR t.until_ns > epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP))
  AND t.time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY t.engine, t.time_ns, t.source, t.seq
