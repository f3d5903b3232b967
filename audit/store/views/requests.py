"""Views of requests, of what was answered, and of what was transferred for them."""

from __future__ import annotations

from kvwitness.audit.store.views.model import LIFE, LIFE_COMMENT, SITE, SITE_COMMENT, TS_COMMENT, Macro, View

_ANSWER = ["status", "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "answered_by", "time_ns"]

_RECEIVED = (
    "tenant", "model", "adapter", "salt_hmac", "traffic", "prompt_tokens", "max_new_tokens", "time_ns", "source",
)  # fmt: skip
_LONG_NS = 3_000_000_000_000_000_000
"""Beyond every time that is meant (the year 2065). Ranks are numbers of one word, since an engine compares those many
times faster than rows."""
_AMONG = "request IN (SELECT unnest(ids))"
"""For a list of ids, which a macro takes as `ids`."""
_AT = f"greatest(0, least(time_ns, {_LONG_NS - 1}))"


def gathered(where: str = "TRUE") -> str:
    """SQL of requests over the events for which `where` holds."""
    received = ",\n    ".join(
        f"arg_min({name}, received_rank) FILTER (event = 'request.received') AS received_{name}" for name in _RECEIVED
    )
    answered = ",\n    ".join(
        f"arg_max_null({name}, answer_rank) FILTER (event = 'request.finished') AS answer_{name}" for name in _ANSWER
    )
    return f"""\
WITH gateways AS (
  SELECT DISTINCT split_part(engine, '/', 1) AS site FROM events WHERE event = 'engine.limits' AND role = 'gateway'
), said AS (
  SELECT *, {LIFE} AS life,
    {_AT} + {_LONG_NS} * (CASE WHEN {SITE} LIKE 'gateway%' OR {SITE} IN (SELECT site FROM gateways) THEN 0
      WHEN {SITE} LIKE 'client%' THEN 2 ELSE 1 END) AS received_rank,
    {_AT} + {_LONG_NS} * (CASE WHEN {SITE} LIKE 'bill%' THEN -1 WHEN answered_by IS NULL THEN 1 ELSE 0 END)
      AS answer_rank
  FROM events
  WHERE event >= 'request.' AND event < 'request/'
    AND event IN ('request.received', 'request.rejected', 'request.aborted', 'request.finished')
    AND request IS NOT NULL AND ({where})
), gathered AS (
  SELECT request, life AS incarnation,
    {received},
    arg_min(tenant, time_ns) AS any_tenant,
    coalesce(min(tenant) <> max(tenant), false) AS tenants_clash,
    min(time_ns) FILTER (event = 'request.rejected') AS rejected_ns,
    arg_min(source, time_ns) FILTER (event = 'request.rejected') AS rejected_source,
    min(time_ns) FILTER (event = 'request.aborted') AS aborted_ns,
    arg_min(source, time_ns) FILTER (event = 'request.aborted') AS aborted_source,
    {answered},
    coalesce(bool_or(status BETWEEN 200 AND 299) FILTER (event = 'request.finished'), false) AS ok
  FROM said GROUP BY request, life
)
SELECT request, incarnation, coalesce(received_tenant, any_tenant) AS tenant, tenants_clash,
  coalesce(received_traffic, 'user') AS traffic, received_model AS model, received_adapter AS adapter,
  received_salt_hmac AS salt_hmac, received_prompt_tokens AS prompt_tokens,
  received_max_new_tokens AS max_new_tokens,
  received_time_ns AS received_ns, make_timestamp_ns(received_time_ns) AS received_ts, received_source,
  rejected_ns, make_timestamp_ns(rejected_ns) AS rejected_ts, rejected_source,
  aborted_ns, make_timestamp_ns(aborted_ns) AS aborted_ts, aborted_source,
  answer_time_ns AS finished_ns, make_timestamp_ns(answer_time_ns) AS finished_ts,
  answer_status AS status, answer_finish_reason AS finish_reason, answer_answered_by AS answered_by,
  answer_prompt_tokens AS answered_prompt_tokens, answer_cached_tokens AS cached_tokens,
  answer_completion_tokens AS completion_tokens, ok
FROM gathered"""


REQUESTS = View(
    "requests",
    "One row per request and life that a reception, refusal, abort or answer names. Requests that only page events "
    "name stand in request_verdicts. For a few requests use requests_of(ids), which is quicker.",
    gathered(),
    {
        "request": "",
        "incarnation": LIFE_COMMENT,
        "tenant": "Tenant by the most trusted reception (gateway, then engine, then client), else the first named.",
        "tenants_clash": "Whether these events name more than one tenant.",
        "traffic": "",
        "model": "",
        "adapter": "",
        "salt_hmac": "",
        "prompt_tokens": "True prompt length, by the most trusted reception. [tokens]",
        "max_new_tokens": "",
        "received_ns": "When the most trusted reception saw it. [ns since the Unix epoch]",
        "received_ts": "received_ns as a timestamp (UTC).",
        "received_source": "Who that was.",
        "rejected_ns": "First refusal by anybody. [ns since the Unix epoch]",
        "rejected_ts": "rejected_ns as a timestamp (UTC).",
        "rejected_source": "Who refused first.",
        "aborted_ns": "First abort by anybody. [ns since the Unix epoch]",
        "aborted_ts": "aborted_ns as a timestamp (UTC).",
        "aborted_source": "Who aborted first.",
        "finished_ns": "Final answer: the one that no engine signed, else the last one; a bill's record counts "
        "only where there is no other. [ns since the Unix epoch]",
        "finished_ts": "finished_ns as a timestamp (UTC).",
        "status": "",
        "finish_reason": "",
        "answered_by": "Engine that signed the final answer; null: it is what the client received.",
        "answered_prompt_tokens": "Prompt length that the final answer states. [tokens]",
        "cached_tokens": "",
        "completion_tokens": "",
        "ok": "Whether any answer was a 2xx.",
    },
)

RESPONSES = View(
    "responses",
    "One row per answer, refusal or abort that anybody recorded for a request.",
    f"""\
SELECT request, {LIFE} AS incarnation, time_ns, ts, source, seq, {SITE} AS site,
  CASE event WHEN 'request.finished' THEN 'answered' WHEN 'request.rejected' THEN 'refused' ELSE 'aborted' END
    AS outcome,
  status, finish_reason, reason, "by", answered_by, prompt_tokens, cached_tokens, completion_tokens
FROM events WHERE event IN ('request.finished', 'request.rejected', 'request.aborted')""",
    {
        "request": "",
        "incarnation": LIFE_COMMENT,
        "time_ns": "",
        "ts": TS_COMMENT,
        "source": "",
        "seq": "",
        "site": SITE_COMMENT,
        "outcome": "`answered`, `refused` or `aborted`.",
        "status": "",
        "finish_reason": "",
        "reason": "",
        "by": "",
        "answered_by": "",
        "prompt_tokens": "Prompt length that the answer states. [tokens]",
        "cached_tokens": "",
        "completion_tokens": "",
    },
)


def moved(where: str = "TRUE") -> str:
    """SQL of transfers for the requests of which `where` holds, in the events that begin or offer them."""
    return f"""\
WITH owners AS (
  SELECT DISTINCT transfer, request, {LIFE} AS life FROM events
  WHERE event >= 'transfer.' AND event < 'transfer/' AND event IN ('transfer.begin', 'transfer.offer') AND ({where})
), said AS (
  SELECT *, {LIFE} AS life FROM events
  WHERE event >= 'transfer.' AND event < 'transfer/' AND transfer IN (SELECT transfer FROM owners)
)
SELECT o.transfer, o.request, o.life AS incarnation, max(s.tenant) AS tenant,
  max(s.src_pool) AS src_pool, max(s.dst_pool) AS dst_pool,
  sum(len(s.src_pages)) FILTER (s.event = 'transfer.begin')::BIGINT AS src_page_count,
  max(len(s.dst_pages)) FILTER (s.event = 'transfer.begin') AS dst_page_count,
  max(len(s.dst_announced)) AS announced_page_count,
  max(s.tokens) FILTER (s.event IN ('transfer.begin', 'transfer.offer')) AS tokens,
  max(s.tokens) FILTER (s.event = 'transfer.done') AS done_tokens,
  count(*) FILTER (s.event = 'transfer.begin') AS begins,
  count(*) FILTER (s.event = 'transfer.done') AS dones,
  count(*) FILTER (s.event = 'transfer.failed') AS failures,
  count(*) FILTER (s.event = 'transfer.drained') AS drains,
  coalesce(min(s.time_ns) FILTER (s.event = 'transfer.begin'), min(s.time_ns)) AS time_ns,
  make_timestamp_ns(coalesce(min(s.time_ns) FILTER (s.event = 'transfer.begin'), min(s.time_ns))) AS ts,
  min(s.time_ns) FILTER (s.event = 'transfer.done') AS done_ns,
  make_timestamp_ns(min(s.time_ns) FILTER (s.event = 'transfer.done')) AS done_ts,
  min(s.time_ns) FILTER (s.event = 'transfer.failed') AS failed_ns,
  make_timestamp_ns(min(s.time_ns) FILTER (s.event = 'transfer.failed')) AS failed_ts
FROM owners AS o JOIN said AS s
  ON s.transfer = o.transfer AND (s.request IS NULL OR (s.request = o.request AND s.life = o.life))
GROUP BY o.transfer, o.request, o.life"""


TRANSFERS = View(
    "transfers",
    "One row per transfer and request that it was begun or offered for; its chunks and the ends that parties were told "
    "are put together. An end that names no request counts for every request of its transfer id. For those of a few "
    "requests use transfers_of(ids), which is quicker.",
    moved(),
    {
        "transfer": "",
        "request": "",
        "incarnation": LIFE_COMMENT,
        "tenant": "Tenant that its events name; null where none does (see requests).",
        "src_pool": "",
        "dst_pool": "",
        "src_page_count": "Pages that its begins read, over all chunks. [pages]",
        "dst_page_count": "Pages that a begin writes, at most; present ones included. [pages]",
        "announced_page_count": "Pages that the consumer made ready, where that was recorded. [pages]",
        "tokens": "Positions from 0 that its begins (or its offer) cover. [tokens]",
        "done_tokens": "Positions that the farthest report of completion claims. [tokens]",
        "begins": "How many begins (chunks) were recorded.",
        "dones": "How many reports of completion.",
        "failures": "How many reports of failure.",
        "drains": "How many writers said that nothing is in flight.",
        "time_ns": "First begin, else the offer. [ns since the Unix epoch]",
        "ts": TS_COMMENT,
        "done_ns": "First report of completion. [ns since the Unix epoch]",
        "done_ts": "done_ns as a timestamp (UTC).",
        "failed_ns": "First report of failure. [ns since the Unix epoch]",
        "failed_ts": "failed_ns as a timestamp (UTC).",
    },
)

REQUESTS_OF = Macro(
    "requests_of",
    "The rows of requests for a list of request ids, without putting all others together.",
    ("ids",),
    gathered(_AMONG),
)
TRANSFERS_OF = Macro(
    "transfers_of",
    "The rows of transfers for a list of request ids, without putting all others together.",
    ("ids",),
    moved(_AMONG),
)

VIEWS = (REQUESTS, RESPONSES, TRANSFERS)
