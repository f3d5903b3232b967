-- question: Which tenants have to be notified, and what is the evidence for each?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per tenant whose content findings prove to have been readable by somebody else: by whom, in which
--   requests and incidents, how many pages, when, and the events that prove it (source:seq).
-- cannot say: What the content was, or whether an answer shows it. Reads that policy allows, and what is unproven, are
--   not in it: see readers_of_tenant for one tenant, unobserved for what is missing.
WITH leaks AS (
  SELECT rule, request, incarnation, tenant AS reader, time_ns, seqs, unnest(other_tenants) AS tenant FROM findings
  WHERE verdict = 'leak'
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
), proof AS (
  SELECT tenant, list(source || ':' || seq ORDER BY source, seq) AS evidence FROM (
    SELECT DISTINCT tenant, source, seq FROM (SELECT tenant, unnest(seqs, recursive := true) FROM leaks)
  ) WHERE seq IS NOT NULL GROUP BY tenant
), touched AS (
  SELECT tenant, count(*) AS page_count FROM (
    SELECT DISTINCT c.other_tenant AS tenant, c.pool, unnest(c.pages) AS page
    FROM read_causes AS c
    WHERE c.soundness <> 'shared' AND EXISTS (
      FROM leaks AS l WHERE l.request = c.request AND l.incarnation = c.incarnation AND l.tenant = c.other_tenant)
  ) GROUP BY tenant
), named AS (
  SELECT l.*, i.incident FROM leaks AS l
  LEFT JOIN incidents AS i ON i.request = l.request AND i.incarnation = l.incarnation
)
SELECT n.tenant, count(DISTINCT (n.request, n.incarnation)) FILTER (n.request IS NOT NULL) AS request_count,
  list_sort(list(DISTINCT n.reader) FILTER (n.reader IS NOT NULL)) AS readers,
  list_sort(list(DISTINCT n.request) FILTER (n.request IS NOT NULL)) AS requests,
  list_sort(list(DISTINCT n.incident) FILTER (n.incident IS NOT NULL)) AS incidents,
  list_sort(list(DISTINCT n.rule)) AS rules, coalesce(any_value(t.page_count), 0) AS page_count,
  min(n.time_ns) AS time_ns, make_timestamp_ns(min(n.time_ns)) AS ts,
  max(n.time_ns) AS until_ns, make_timestamp_ns(max(n.time_ns)) AS until_ts,
  coalesce(any_value(p.evidence), []) AS evidence
FROM named AS n
LEFT JOIN proof AS p ON p.tenant = n.tenant
LEFT JOIN touched AS t ON t.tenant = n.tenant
GROUP BY n.tenant
ORDER BY n.tenant
