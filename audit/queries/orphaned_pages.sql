-- question: Which pages are held for requests that are over, and which transfers never ended?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per finding: pages that were still a request's own long after it had been answered, aborted or refused
--   (page_count says how many), or a transfer of which no end is on record. The window is that of the first proof.
-- cannot say: Whether an engine keeps them on purpose, for a follow-up turn, without saying so; releases that were not
--   recorded.
SELECT request, incarnation, tenant, verdict, pool, len(pages) AS page_count, list_min(pages) AS first_page,
  list_max(pages) AS last_page, pages, gens, time_ns, ts, why, missing, seqs
FROM findings
WHERE rule = 'orphaned-pages'
  AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY time_ns, request, incarnation, pool
