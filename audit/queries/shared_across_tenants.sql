-- question: Which tenants read pages of others because the sharing policy allows it?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- means: One row per reading request, writing request and pool, with the policy that the pool had announced. Such reads
--   are no leak by policy; whether the policy is what the tenants were promised is for people to say.
-- cannot say: Sharing that an engine does not record as such shows as foreign reads (foreign_decodes). Whether a hit can
--   be told by its timing: see rules prefix-probing and salt-crossing.
SELECT c.request, c.incarnation, c.tenant, c.other_request, c.other_tenant, c.pool, p.sharing,
  len(c.pages) AS page_count, c.reads, c.first_ns AS time_ns, c.first_ts AS ts, c.last_ns AS until_ns,
  c.last_ts AS until_ts, c.first_source AS source, c.first_seq AS seq
FROM read_causes AS c ASOF LEFT JOIN pools AS p ON p.pool = c.pool AND p.time_ns <= c.first_ns
WHERE c.soundness = 'shared' AND c.other_tenant IS DISTINCT FROM c.tenant
  AND c.last_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
  AND c.first_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
ORDER BY c.first_ns, c.request, c.incarnation, c.pool, c.op, c.other_request
