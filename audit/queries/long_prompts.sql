-- question: Which prompts were longer than so many tokens, and what came back?
-- param over BIGINT: number of tokens beyond which a prompt counts
-- param of_model VARCHAR = : name of the model; empty: any
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per request whose prompt, as the most trusted party that took it in counted it, is longer; with what the
--   answer says of it. No limit of an engine is needed, so that it can be asked of a client's own log.
-- cannot say: Anything of prompts whose length nobody recorded, or whether an engine enforces such a limit.
WITH long AS (
  SELECT DISTINCT request FROM events
  WHERE event = 'request.received' AND prompt_tokens > getvariable('over')::BIGINT
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
)
SELECT request, incarnation, tenant, model, prompt_tokens, received_ns AS time_ns, received_ts AS ts, received_source,
  status, ok, finish_reason, answered_prompt_tokens, cached_tokens, completion_tokens
FROM requests_of((SELECT list(request) FROM long))
WHERE prompt_tokens > getvariable('over')::BIGINT
  AND coalesce(getvariable('of_model'), '') IN ('', model)
ORDER BY received_ns, request, incarnation
