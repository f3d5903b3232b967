-- question: For which requests do gateway, engine and bill disagree on token counts?
-- param since TIMESTAMP = 1678-01-01: begin of the window, UTC
-- param until TIMESTAMP = 2262-01-01: end of the window, UTC, not included
-- cost: scan
-- means: One row per request whose counts differ: the prompt as received, as an engine's successful answer states it, as
--   the client was told, and as billed; and the output likewise. differs names the counts. The usage that the client was
--   told is what bills are made from; billed_* are filled where a source named bill... (such as billing) recorded an
--   answer, with or without a status. The window is that of the events.
-- cannot say: Which count is right. Small differences may come from two tokenizers or templates.
WITH counts AS (
  SELECT request, coalesce(incarnation, 0) AS incarnation, min(time_ns) AS time_ns,
    min(prompt_tokens) FILTER (event = 'request.received') AS received_least,
    max(prompt_tokens) FILTER (event = 'request.received') AS received_most,
    min(prompt_tokens) FILTER (event = 'request.finished' AND answered_by IS NOT NULL) AS engine_least,
    max(prompt_tokens) FILTER (event = 'request.finished' AND answered_by IS NOT NULL) AS engine_most,
    max(prompt_tokens) FILTER (
      event = 'request.finished' AND answered_by IS NULL AND source NOT LIKE 'bill%') AS told_prompt,
    max(prompt_tokens) FILTER (event = 'request.finished' AND source LIKE 'bill%') AS billed_prompt,
    max(completion_tokens) FILTER (event = 'request.finished' AND answered_by IS NOT NULL) AS engine_completion,
    max(completion_tokens) FILTER (
      event = 'request.finished' AND answered_by IS NULL AND source NOT LIKE 'bill%') AS told_completion,
    max(completion_tokens) FILTER (event = 'request.finished' AND source LIKE 'bill%') AS billed_completion
  FROM events
  WHERE event >= 'request.' AND event < 'request/' AND request IS NOT NULL
    AND (event = 'request.received' OR (event = 'request.finished' AND (status BETWEEN 200 AND 299 OR (status IS NULL AND source LIKE 'bill%'))))
    AND time_ns >= epoch_ns(coalesce(getvariable('since'), '1678-01-01')::TIMESTAMP)
    AND time_ns < epoch_ns(coalesce(getvariable('until'), '2262-01-01')::TIMESTAMP)
  GROUP BY ALL
), differing AS (
  SELECT *,
    greatest(received_most, engine_most, told_prompt, billed_prompt)
      <> least(received_least, engine_least, told_prompt, billed_prompt) AS prompt_differs,
    greatest(engine_completion, told_completion, billed_completion)
      <> least(engine_completion, told_completion, billed_completion) AS completion_differs
  FROM counts
), kept AS (
  SELECT * FROM differing WHERE prompt_differs OR completion_differs
), named AS (
  SELECT request, incarnation, tenant FROM requests_of((SELECT list(DISTINCT request) FROM kept))
)
SELECT k.request, k.incarnation, n.tenant, k.received_most AS received_prompt_tokens,
  CASE WHEN k.engine_most <> k.received_most THEN k.engine_most ELSE k.engine_least END AS engine_prompt_tokens,
  k.told_prompt AS answered_prompt_tokens, k.billed_prompt AS billed_prompt_tokens,
  k.engine_completion AS engine_completion_tokens, k.told_completion AS answered_completion_tokens,
  k.billed_completion AS billed_completion_tokens,
  list_concat(CASE WHEN k.prompt_differs THEN ['prompt'] ELSE []::VARCHAR[] END,
    CASE WHEN k.completion_differs THEN ['completion'] ELSE []::VARCHAR[] END) AS differs,
  k.time_ns, make_timestamp_ns(k.time_ns) AS ts
FROM kept AS k LEFT JOIN named AS n ON n.request = k.request AND n.incarnation = k.incarnation
ORDER BY k.time_ns, k.request, k.incarnation
