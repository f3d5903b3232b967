"""What a customer can know from nothing but its own side: client logs or spans, and the bill where there is one.

Every answer says what it rests on. What no client can see is said too: which pages were read, and whose content was in
them, only the provider's own record can tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb

from kvwitness.audit.asking import connect, run
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.queries import find
from kvwitness.audit.store import Store
from kvwitness.audit.windows import as_utc
from kvwitness.audit.wording import several

UNKNOWABLE = (
    "which cache pages an answer was computed from, and whose content they held",
    "whether content of ours was readable to others",
    "which engine served a request, which limit that engine enforces, and whether it cut the prompt",
    "whether the provider keeps prefix caches of customers apart",
)
"""What no record of a client can show."""

_WINDOW = """
  received_ns >= epoch_ns(coalesce($since, '1678-01-01')::TIMESTAMP)
  AND received_ns < epoch_ns(coalesce($until, '2262-01-01')::TIMESTAMP)
  AND ($model IS NULL OR model = $model) AND traffic = 'user'
  AND ($provider IS NULL OR request IN (
    SELECT request FROM events WHERE event = 'request.received' AND contains(extra, $provider)))"""

_COUNTS = f"""
SELECT count(*) AS requests, count(*) FILTER (ok) AS answered, count(*) FILTER (status BETWEEN 400 AND 499) AS refused,
  count(*) FILTER (status >= 500) AS failed, count(*) FILTER (status IS NULL) AS unknown,
  count(*) FILTER (prompt_tokens IS NULL) AS unmeasured, max(prompt_tokens) FILTER (ok) AS longest_answered,
  count(DISTINCT model) AS models, min(received_ts) AS first, max(received_ts) AS last
FROM requests WHERE {_WINDOW}"""

_OTHER_LENGTH = "Do answers state another prompt length than we sent?"
_OTHER_BILL = "Does the bill state other counts than the answers?"
_BILLED_BEYOND = "Is anything billed that is not on our record?"

_BILLED = """
WITH bills AS (
  SELECT request, prompt_tokens, completion_tokens FROM events
  WHERE source LIKE 'bill%' AND event = 'request.finished'
), ours AS (
  SELECT request, answered_prompt_tokens, completion_tokens FROM requests WHERE received_ns IS NOT NULL
)
SELECT count(*) AS records, count(*) FILTER (request IN (SELECT request FROM ours)) AS joined,
  coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
  coalesce(sum(completion_tokens), 0) AS completion_tokens,
  (SELECT coalesce(sum(answered_prompt_tokens), 0) FROM ours) AS answered_prompt_tokens,
  (SELECT coalesce(sum(completion_tokens), 0) FROM ours) AS answered_completion_tokens
FROM bills"""
"""All that is billed, and all that was answered: a bill is dated in its own way, so no window cuts either."""

_EMPTY = f"""
SELECT request, model, received_ts AS ts, prompt_tokens, status, finish_reason, answered_prompt_tokens,
  completion_tokens, cached_tokens
FROM requests WHERE ok AND completion_tokens = 0 AND {_WINDOW} ORDER BY received_ns, request"""

_CACHED = f"""
SELECT request, model, received_ts AS ts, prompt_tokens, status, finish_reason, answered_prompt_tokens,
  completion_tokens, cached_tokens
FROM (
  SELECT *, row_number() OVER (PARTITION BY model ORDER BY received_ns, request) AS nth
  FROM requests WHERE received_ns IS NOT NULL)
WHERE nth = 1 AND ok AND cached_tokens > 0 AND {_WINDOW}
ORDER BY received_ns, request"""
"""The first request for a model, of which nothing of ours can have been in a cache before."""


_COUNTED = f"""
SELECT count(DISTINCT request) AS counted FROM events
WHERE event = 'request.received' AND extra LIKE '%"prompt_tokens_source":"counted:%'
  AND request IN (SELECT request FROM requests WHERE {_WINDOW})"""
"""Prompts whose length somebody else than the provider counted; of others the answer's own usage is all there is."""


@dataclass(frozen=True)
class Question:
    """One question of the checklist."""

    question: str
    answer: str
    """`yes`, `no` or `cannot be known`."""
    because: str
    """What it rests on."""

    def to_dict(self) -> dict[str, str]:
        """As plain JSON values."""
        return {"question": self.question, "answer": self.answer, "because": self.because}


@dataclass(frozen=True)
class Bill:
    """What bills on record say beside what was answered, over all requests."""

    records: int
    joined: int
    """Records that name a request of ours by its id."""
    prompt_tokens: int
    completion_tokens: int
    answered_prompt_tokens: int
    answered_completion_tokens: int


@dataclass
class BuyersView:
    """The checklist, and the requests to ask the provider about."""

    over: int
    model: str | None
    provider: str | None
    counts: dict[str, Any]
    checklist: list[Question] = field(default_factory=list)
    vendor: list[Question] = field(default_factory=list)
    """Questions of a vendor review, as far as what was observed answers them."""
    ask: list[dict[str, Any]] = field(default_factory=list)
    """Requests to ask the provider about, each with its reasons."""

    @property
    def suspicious(self) -> bool:
        """Whether there is anything to ask about."""
        return bool(self.ask)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "over_tokens": self.over,
            "model": self.model,
            "provider": self.provider,
            "counts": self.counts,
            "checklist": [one.to_dict() for one in self.checklist],
            "vendor_review": [one.to_dict() for one in self.vendor],
            "cannot_be_known": list(UNKNOWABLE),
            "ask_the_provider": self.ask,
        }

    def letter(self) -> str:
        """The questions to the provider, ready to send."""
        if not self.ask:
            return ""
        of_model = (f" to {self.model}" if self.model else "") + (f" at {self.provider}" if self.provider else "")
        lines = [
            f"In our own record of {several(self.counts['requests'], 'request')}{of_model} from {self.counts['first']} "
            f"to {self.counts['last']} (UTC) the following stand out. Please tell us for each of them:",
            "",
            "1. Which engine served it, and which input limit did that engine enforce at the time?",
            "2. Was any part of it refused, cut or replaced by a placeholder before it was answered?",
            "3. From which cache pages was it answered, and had another customer's request written them?",
            "4. Was any content of it readable to a request of another customer?",
            "",
        ]
        for one in self.ask:
            lines.append(f"- {one['request']}, received {one['ts']}: {'; '.join(one['reasons'])}")
        return "\n".join(lines)


def buyers_view(
    store: Store,
    *,
    over: int | None = None,
    model: str | None = None,
    provider: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> BuyersView:
    """Answer the checklist for requests in a window to a model at a provider, about prompts of more than `over` tokens.

    Without `over`, it is the smallest limit that any engine announced. Raises KvwitnessError where there is none, and
    for a time that is none.
    """
    with connect(store) as connection, store.reading():
        limit = over if over is not None else _announced(connection)
        since, until = as_utc("since", since), as_utc("until", until)
        window = {"since": since, "until": until, "model": model, "provider": _said_provider(provider)}
        counts = _rows(connection, _COUNTS, window)[0] | _rows(connection, _COUNTED, window)[0]
        view = BuyersView(
            limit, model, provider, {k: str(v) if k in ("first", "last") else v for k, v in counts.items()}
        )
        given = {k: v for k, v in {"since": since, "until": until}.items() if v is not None}
        of_model = {"of_model": model} if model else {}
        long = run(connection, find("long_prompts"), {"over": limit, **given, **of_model})[0].to_dicts()
        ours = {row["request"] for row in _rows(connection, f"SELECT request FROM requests WHERE {_WINDOW}", window)}
        # Without a window: bills are dated when they are written, often long after the request.
        differing = run(connection, find("count_disagreements"), {})[0].to_dicts()
        long, differing = ([row for row in rows if row["request"] in ours] for rows in (long, differing))
        bill = Bill(**_rows(connection, _BILLED, {})[0])
        empty, cached = _rows(connection, _EMPTY, window), _rows(connection, _CACHED, window)
    _answer(view, long, differing, bill, empty, cached)
    return view


def _said_provider(provider: str | None) -> str | None:
    """How a reception names it among what is kept beside the vocabulary."""
    return None if provider is None else f'"provider":{json.dumps(provider, ensure_ascii=False)}'


def _announced(connection: duckdb.DuckDBPyConnection) -> int:
    found = connection.execute("SELECT min(input_limit_tokens) FROM limits").fetchone()
    if found is None or found[0] is None:
        raise KvwitnessError(
            "No engine announced a limit, as is usual on a customer's side.",
            "Say which length matters, with --over TOKENS: the limit that the provider states.",
        )
    return int(found[0])


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, window: Mapping[str, Any]) -> list[dict[str, Any]]:
    used = {name: value for name, value in window.items() if f"${name}" in sql}
    found = connection.execute(sql, used)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _answer(
    view: BuyersView,
    long: list[dict[str, Any]],
    differing: list[dict[str, Any]],
    bill: Bill,
    empty: list[dict[str, Any]],
    cached: list[dict[str, Any]],
) -> None:
    counts, over = view.counts, view.over
    answered = [row for row in long if row["ok"]]
    refused = [row for row in long if not row["ok"] and row["status"] is not None and 400 <= row["status"] < 500]
    prompts = [row for row in differing if "prompt" in row["differs"]]
    told = [row for row in prompts if row["answered_prompt_tokens"] not in (None, row["received_prompt_tokens"])]
    charged = [row for row in differing if _charged_otherwise(row)]
    limit = f"{over:,} tokens"
    view.checklist = [
        _found(f"Did we send prompts of more than {limit}?", long, "request", "by our count, else by the usage"),
        _found("Were any of those answered with success?", answered, "success", "by their status"),
        _found(_OTHER_LENGTH, told, "answer", "our count beside the usage")
        if counts["counted"]
        else Question(_OTHER_LENGTH, "cannot be known", "we counted no prompt ourselves"),
        _found(_OTHER_BILL, charged, "request", "the bill beside the usage")
        if bill.joined
        else Question(_OTHER_BILL, "cannot be known", _unjoined(bill)),
        _beyond(bill),
        _found("Were there successes without any output?", empty, "success", "by the usage that was answered"),
        _found(
            "Was a prompt said to be cached before we had sent anything to the model?", cached, "answer", "by the usage"
        ),
        Question(
            "Is every request's end on record?",
            "no" if counts["unknown"] else "yes",
            f"{several(counts['unknown'], 'request')} of {counts['requests']:,} without a status",
        ),
    ]
    view.vendor = _vendor(view, long, answered, refused, told, cached)
    _ask(view, answered, f"{over:,} tokens are the limit, it had {{prompt_tokens:,}} and was answered with {{status}}")
    _ask(view, told, "we sent {received_prompt_tokens:,} prompt tokens, the answer states {answered_prompt_tokens:,}")
    for what in ("prompt", "completion"):
        rows = [row for row in charged if _charged_otherwise(row, what)]
        _ask(
            view,
            rows,
            f"the bill states {{billed_{what}_tokens:,}} {what} tokens, the answer {{answered_{what}_tokens:,}}",
        )
    _ask(view, empty, "it was answered with success and without output")
    _ask(view, cached, "{cached_tokens:,} of its tokens were said to be cached, and we had sent nothing before")
    view.ask.sort(key=lambda one: (one["ts"], one["request"]))


def _charged_otherwise(row: Mapping[str, Any], *counts: str) -> bool:
    for what in counts or ("prompt", "completion"):
        billed, answered = row[f"billed_{what}_tokens"], row[f"answered_{what}_tokens"]
        if billed is not None and answered is not None and billed != answered:
            return True
    return False


def _unjoined(bill: Bill) -> str:
    if not bill.records:
        return "no bill is on record"
    return f"none of the bill's {several(bill.records, 'record')} names a request of ours by its id"


def _beyond(bill: Bill) -> Question:
    """Of bills that list requests: those that we do not know; of bills by day or model: their sum beside ours."""
    if not bill.records:
        return Question(_BILLED_BEYOND, "cannot be known", "no bill is on record")
    strange = bill.records - bill.joined
    more = bill.prompt_tokens > bill.answered_prompt_tokens or bill.completion_tokens > bill.answered_completion_tokens
    return Question(
        _BILLED_BEYOND,
        "yes" if more or (strange and bill.joined) else "no",
        f"{strange:,} of {several(bill.records, 'record')} without a request of ours; billed {bill.prompt_tokens:,} "
        f"prompt and {bill.completion_tokens:,} output tokens, all answers of our record state "
        f"{bill.answered_prompt_tokens:,} and {bill.answered_completion_tokens:,}",
    )


def _found(question: str, rows: list[dict[str, Any]], what: str, by: str) -> Question:
    plural = {"success": "successes"}.get(what)
    number = f"{len(rows):,} {plural}" if plural and len(rows) != 1 else several(len(rows), what)
    return Question(question, "yes" if rows else "no", f"{number}, {by}")


def _vendor(
    view: BuyersView,
    long: Iterable[dict[str, Any]],
    answered: list[dict[str, Any]],
    refused: list[dict[str, Any]],
    told: list[dict[str, Any]],
    cached: list[dict[str, Any]],
) -> list[Question]:
    sent = len(list(long))
    enforced = Question("Does the provider refuse prompts beyond its limit?", "cannot be known", "we sent none")
    if sent:
        seen = f"of {sent:,} sent, {len(refused):,} were refused and {len(answered):,} answered with success"
        enforced = Question(enforced.question, "no" if answered else "yes", seen)
    counted = view.counts["counted"]
    cut = [row for row in told if row["answered_prompt_tokens"] < row["received_prompt_tokens"]]
    return [
        enforced,
        Question(
            "Are prompts processed whole, or is a cut told?",
            "no" if cut else "cannot be known",
            f"{len(cut):,} answers state fewer prompt tokens than we sent; we counted {counted:,} prompts",
        ),
        Question(
            "Is the prefix cache of customers kept apart?",
            "cannot be known",
            f"{len(cached):,} answers claim cached tokens before we had sent anything",
        ),
        Question(
            "Can the provider show from which cache pages an answer was computed?",
            "cannot be known",
            "ask for it: no record of a client shows it",
        ),
    ]


def _ask(view: BuyersView, rows: Iterable[Mapping[str, Any]], reason: str) -> None:
    """Put requests on the list, each once, with all of its reasons."""
    known = {one["request"]: one for one in view.ask}
    for row in rows:
        values = {k: " and ".join(v) if isinstance(v, list) else v for k, v in row.items()}
        entry = known.get(row["request"])
        if entry is None:
            entry = {"request": row["request"], "ts": str(row["ts"]), "model": row.get("model"), "reasons": []}
            known[row["request"]] = entry
            view.ask.append(entry)
        entry["reasons"].append(reason.format(**values))
