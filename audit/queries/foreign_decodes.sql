-- question: Which decodes read pages that another tenant had written last, or that nothing had been written to?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per request, pool, fault and other side: how many pages, what had been written there and by whom. What
--   was left there entered the answer. verdict is that of the request: where it is leak, findings prove it.
-- cannot say: What the content was. Where verdict is unproven, events are missing or clocks are too far apart. Reads
--   that came in after the newest audit are not judged yet (coverage says how many events).
SELECT c.request, c.incarnation, c.tenant, v.verdict, c.pool, c.soundness,
  CASE WHEN c.other_tenant IS NOT NULL THEN 'another tenant' ELSE 'never written' END AS content,
  c.other_request, c.other_tenant, len(c.pages) AS page_count, list_min(c.pages) AS first_page,
  list_max(c.pages) AS last_page, c.positions, c.reads, c.first_ns AS time_ns, c.first_ts AS ts,
  c.first_source AS source, c.first_seq AS seq, c.written_ts, c.written_source, c.written_seq
FROM read_causes AS c
LEFT JOIN request_verdicts AS v ON v.request = c.request AND v.incarnation = c.incarnation
WHERE coalesce(c.op, 'decode') = 'decode' AND c.soundness IN ('foreign', 'unwritten', 'not_ready')
  AND (c.other_tenant <> c.tenant OR (c.other_request IS NULL AND c.soundness <> 'foreign'))
  AND c.last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND c.first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY c.first_ns, c.request, c.incarnation, c.pool, c.soundness, c.other_request
