-- question: Whose content could one request have read, page by page?
-- param request_id VARCHAR: the request
-- means: One row per page that the request read and that did not hold its own content: what was there instead, who had
--   written it, and whether findings prove that this tenant's content was readable. shared is admitted by policy.
-- cannot say: What the content was, and whether the model's answer shows any of it. No row is no proof where the
--   request's verdict is unproven, or for reads that came in after the newest audit.
WITH proof AS (
  SELECT DISTINCT request, incarnation, unnest(other_tenants) AS tenant FROM findings WHERE verdict = 'leak'
), met AS (
  SELECT *, unnest(pages) AS page, unnest(gens) AS generation FROM read_causes
  WHERE request = getvariable('request_id') AND soundness <> 'uncovered'
)
SELECT m.incarnation, m.pool, m.page, m.generation, m.soundness, m.op,
  CASE WHEN m.other_tenant <> m.tenant THEN 'another tenant' WHEN m.other_tenant IS NOT NULL THEN 'the same tenant'
    WHEN m.soundness = 'unknown' THEN 'from before the record' WHEN m.other_request IS NOT NULL THEN 'of no known tenant'
    ELSE 'nobody on record' END AS content,
  m.other_request, m.other_tenant, p.tenant IS NOT NULL AS proved, m.reads, m.first_ns AS time_ns, m.first_ts AS ts,
  m.last_ts, m.first_source AS source, m.first_seq AS seq, m.written_ts, m.written_source, m.written_seq
FROM met AS m LEFT JOIN proof AS p
  ON p.request = m.request AND p.incarnation = m.incarnation AND p.tenant = m.other_tenant AND m.other_tenant <> m.tenant
ORDER BY m.incarnation, m.pool, m.page, m.soundness, m.op, m.other_request
