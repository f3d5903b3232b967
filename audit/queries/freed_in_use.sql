-- question: Which pages were released while somebody was still using them?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per finding that a page was released inside a running step, that a read was complete only after the
--   release, or that a write landed after the page had changed hands.
-- cannot say: Whether the device had really finished: events say what the host knew. Uses that leave no event.
SELECT rule, verdict, request, incarnation, tenant, pool, len(pages) AS page_count, list_min(pages) AS first_page,
  list_max(pages) AS last_page, other_requests, other_tenants, time_ns, ts, why, missing, seqs
FROM findings
WHERE rule IN ('freed-in-step', 'late-read', 'late-write')
  AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY time_ns, rule, request, incarnation, pool
