-- question: Which requests of others could have read one tenant's content?
-- param tenant_id VARCHAR: the tenant whose content it is
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per request of another tenant that read pages which still held this tenant's content, or of which
--   another finding proves it. proved: a finding of verdict leak names the tenant. With soundness shared alone, the
--   sharing policy allowed it.
-- cannot say: What was in the content. Without proved, the order of events or a loss of telemetry leaves it open.
WITH met AS (
  SELECT request, incarnation, any_value(tenant) AS tenant, list_sort(list(DISTINCT soundness)) AS soundness,
    sum(len(pages))::BIGINT AS page_count, min(first_ns) AS first_ns, max(last_ns) AS last_ns
  FROM read_causes
  WHERE other_tenant = getvariable('tenant_id') AND tenant IS DISTINCT FROM getvariable('tenant_id')
  GROUP BY request, incarnation
), found AS (
  SELECT request, incarnation, any_value(tenant) AS tenant, list_sort(list(DISTINCT rule)) AS rules,
    min(time_ns) AS first_ns, max(time_ns) AS last_ns
  FROM findings
  WHERE verdict = 'leak' AND list_contains(other_tenants, getvariable('tenant_id')) AND request IS NOT NULL
  GROUP BY request, incarnation
), readers AS (
  SELECT coalesce(f.request, m.request) AS request, coalesce(f.incarnation, m.incarnation) AS incarnation,
    coalesce(f.tenant, m.tenant) AS tenant, f.request IS NOT NULL AS proved,
    coalesce(f.rules, []) AS rules, coalesce(m.soundness, []) AS soundness, coalesce(m.page_count, 0) AS page_count,
    least(f.first_ns, m.first_ns) AS first_ns, greatest(f.last_ns, m.last_ns) AS last_ns
  FROM met AS m FULL JOIN found AS f ON f.request = m.request AND f.incarnation = m.incarnation
)
SELECT r.request, r.incarnation, r.tenant, r.proved, v.verdict, i.incident, r.rules, r.soundness, r.page_count,
  r.first_ns AS time_ns, make_timestamp_ns(r.first_ns) AS ts, r.last_ns AS until_ns,
  make_timestamp_ns(r.last_ns) AS until_ts
FROM readers AS r
LEFT JOIN request_verdicts AS v ON v.request = r.request AND v.incarnation = r.incarnation
LEFT JOIN incidents AS i ON i.request = r.request AND i.incarnation = r.incarnation
WHERE r.last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND r.first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY r.proved DESC, r.first_ns, r.request, r.incarnation
