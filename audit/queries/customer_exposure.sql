-- question: What does the record say about one customer in one window, as the customer would ask it?
-- param tenant_id VARCHAR: the customer's tenant id
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row for each thing a customer asks, also where the count is 0: its requests by verdict, requests of others
--   that could read its content, sharing that policy allows, and losses of telemetry in the window.
-- cannot say: That nothing happened where requests are unproven or telemetry is missing: those rows say so. What the
--   content was.
WITH own AS (
  SELECT DISTINCT e.request, coalesce(e.incarnation, 0) AS incarnation FROM events AS e
  WHERE e.tenant = getvariable('tenant_id') AND e.request IS NOT NULL
    AND e.time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND e.time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), judged AS (
  SELECT o.request, o.incarnation, v.verdict, i.incident FROM own AS o
  LEFT JOIN request_verdicts AS v ON v.request = o.request AND v.incarnation = o.incarnation
  LEFT JOIN incidents AS i ON i.request = o.request AND i.incarnation = o.incarnation
  WHERE v.tenant IS NULL OR v.tenant = getvariable('tenant_id')
), leaked AS (
  SELECT f.request, i.incident, f.time_ns FROM findings AS f
  LEFT JOIN incidents AS i ON i.request = f.request AND i.incarnation = f.incarnation
  WHERE f.verdict = 'leak' AND list_contains(f.other_tenants, getvariable('tenant_id'))
    AND f.time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND f.time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), shared AS (
  SELECT request FROM read_causes
  WHERE soundness = 'shared' AND other_tenant = getvariable('tenant_id') AND tenant IS DISTINCT FROM other_tenant
    AND last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), asked(number, topic, verdict) AS (
  VALUES (2, 'requests of yours that read content of others', 'leak'),
    (3, 'requests of yours with wrong or undefined content', 'integrity'),
    (4, 'requests of yours with a broken promise or side channel, no content shown', 'exposure'),
    (5, 'requests of yours for which evidence is missing: not proved clean', 'unproven'),
    (6, 'requests of yours that read pages of others as the policy allows', 'shared'),
    (7, 'requests of yours whose every read on record was their own', 'clean')
), answers AS (
  SELECT 1 AS number, 'requests of others that could read your content' AS topic, count(DISTINCT request) AS count,
    list_sort(list(DISTINCT request) FILTER (request IS NOT NULL)) AS requests,
    list_sort(list(DISTINCT incident) FILTER (incident IS NOT NULL)) AS incidents
  FROM leaked
  UNION ALL
  SELECT a.number, a.topic, count(j.request),
    CASE WHEN a.verdict <> 'clean' THEN list_sort(list(DISTINCT j.request) FILTER (j.request IS NOT NULL)) END,
    list_sort(list(DISTINCT j.incident) FILTER (j.incident IS NOT NULL))
  FROM asked AS a LEFT JOIN judged AS j ON j.verdict = a.verdict
  GROUP BY a.number, a.topic, a.verdict
  UNION ALL
  SELECT 8, 'requests of yours that no audit has judged yet', count(*), list_sort(list(request)), []
  FROM judged WHERE verdict IS NULL
  UNION ALL
  SELECT 9, 'requests of others that read your content as the policy allows', count(DISTINCT request),
    list_sort(list(DISTINCT request)), [] FROM shared
  UNION ALL
  SELECT 10, 'losses of telemetry in the window, anywhere', count(*), [], [] FROM gaps
  WHERE (after_ns IS NULL OR after_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP))
    AND (before_ns IS NULL OR before_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP))
)
SELECT topic, count, coalesce(requests, []) AS requests, coalesce(incidents, []) AS incidents FROM answers
ORDER BY number
