-- question: What touched one page in a window, and whose was it?
-- param pool_name VARCHAR: the pool, such as dec-1/0/full
-- param page_id BIGINT: the page's number in the pool
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per event that names the page, also as the target of a copy or an end of a transfer, in the order of
--   the sources' clocks, with the page's generation: how often it had been allocated.
-- cannot say: The order of events of two sources whose clocks are apart; the audit orders them by ids as well
--   (kvwitness page). Generations are counted from the beginning of the record where no source gives them.
WITH hits AS MATERIALIZED (
  SELECT time_ns, ts, source, seq, event, op, phase, request, coalesce(incarnation, 0) AS incarnation, tenant, holder,
    reason, transfer, gen, tok_first, tok_end, pool, pages, to_pool, to_pages, src_pool, src_pages, dst_pool, dst_pages
  FROM events
  WHERE (pool = getvariable('pool_name') AND list_contains(pages, getvariable('page_id')::UINTEGER))
    OR (coalesce(to_pool, pool) = getvariable('pool_name')
      AND list_contains(to_pages, getvariable('page_id')::UINTEGER))
    OR (src_pool = getvariable('pool_name') AND list_contains(src_pages, getvariable('page_id')::UINTEGER))
    OR (dst_pool = getvariable('pool_name') AND list_contains(dst_pages, getvariable('page_id')::UINTEGER))
), touched AS (
  SELECT *, 'page' AS role FROM hits
  WHERE pool = getvariable('pool_name') AND list_contains(pages, getvariable('page_id')::UINTEGER)
  UNION ALL SELECT *, 'target' FROM hits
  WHERE coalesce(to_pool, pool) = getvariable('pool_name')
    AND list_contains(to_pages, getvariable('page_id')::UINTEGER)
  UNION ALL SELECT *, 'source' FROM hits
  WHERE src_pool = getvariable('pool_name') AND list_contains(src_pages, getvariable('page_id')::UINTEGER)
  UNION ALL SELECT *, 'destination' FROM hits
  WHERE dst_pool = getvariable('pool_name') AND list_contains(dst_pages, getvariable('page_id')::UINTEGER)
), placed AS (
  SELECT *, max(time_ns) OVER (PARTITION BY source ORDER BY seq NULLS FIRST, time_ns) AS at_ns FROM touched
), counted AS (
  SELECT *, count(*) FILTER (
      (event = 'page.alloc' AND role = 'page') OR (event = 'page.move' AND role = 'target')
    ) OVER (ORDER BY at_ns, source, seq ROWS UNBOUNDED PRECEDING) AS counted
  FROM placed
), named AS (
  SELECT request, incarnation, tenant
  FROM requests_of((SELECT list(DISTINCT request) FROM hits WHERE request IS NOT NULL))
)
SELECT coalesce(CASE WHEN role = 'page' THEN gen END, counted)::BIGINT AS generation, time_ns, ts, source, seq, event,
  op, phase, role, c.request, c.incarnation, coalesce(c.tenant, n.tenant) AS tenant, holder, reason, transfer,
  tok_first, tok_end
FROM counted AS c LEFT JOIN named AS n ON n.request = c.request AND n.incarnation = c.incarnation
WHERE time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY at_ns, source, seq, role
