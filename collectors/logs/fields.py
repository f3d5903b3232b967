"""What the fields of logs are called in the field, and what each is taken for; a mapping file overrides it.

Names are paths: `response.body.usage.prompt_tokens`; a number picks from a list. Of several names for one thing the
first that is there counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.names import sense
from kvwitness.audit.trace.report import ImportReport, bump
from kvwitness.collectors.logs.calls import Call, Given
from kvwitness.collectors.logs.moments import moment

_ANSWERS = ("response.body.", "response.", "output.", "body.", "")
"""Where the answer of an OpenAI-style endpoint is kept: batch output, client logs, or the answer itself."""


def _answer(*names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in _ANSWERS)


ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "start": (
            "startTime", "start_time", "request_start", "received_at", "request.timestamp", "timestamp", "@timestamp",
            "time", "ts", "created_at", "datetime", "date",
            *_answer("created_at", "created"),
        ),
        "end": (
            "endTime", "end_time", "request_end", "completed_at", "finished_at", "completionTime",
            "time_iso8601", "time_local", "msec",  # nginx dates a line by its end
        ),
        "duration_s": ("duration_s", "latency_s", "request_time", "response_time_s", "elapsed_s", "e2e_latency"),
        "duration_ms": ("duration_ms", "latency_ms", "duration", "response_time", "elapsed_ms", "total_time_ms"),
        "request": (
            "response.body.id", "response.id", "response_id", "output.id", "request_id", "requestId", "x_request_id",
            "litellm_call_id", "rid", "id", "custom_id", "upstream_request_id",
            "x-request-id", "http_x_request_id",
        ),
        "tenant": (
            "tenant", "tenant_id", "metadata.tenant", "metadata.tenant_id", "metadata.user_api_key_team_id", "team_id",
            "x_tenant_id", "organization_id", "organization", "org_id", "customer", "account", "api_key_alias",
            "metadata.user_api_key_alias", "metadata.user_api_key_user_id", "end_user", "user",
            "http_x_tenant_id", "x-tenant-id", "remote_user",
        ),
        "model": ("model", "request.model", "request.body.model", "model_group", "model_name", *_answer("model")),
        "provider": ("provider", "custom_llm_provider", "llm_provider", "request.provider"),
        "received_tokens": (
            "counted_prompt_tokens", "client_prompt_tokens", "local_prompt_tokens", "request.prompt_tokens",
            "request_prompt_tokens", "prompt_token_count", "true_prompt_tokens",
        ),
        "prompt_tokens": (
            *_answer("usage.prompt_tokens", "usage.input_tokens"), "prompt_tokens", "input_tokens", "n_context_tokens",
            "prompt_token_usage",
        ),
        "cached_tokens": (
            *_answer(
                "usage.prompt_tokens_details.cached_tokens", "usage.input_tokens_details.cached_tokens",
                "usage.cache_read_input_tokens",
            ),
            "metadata.usage_object.prompt_tokens_details.cached_tokens",  # LiteLLM
            "cached_tokens", "cache_read_input_tokens",
        ),
        "completion_tokens": (
            *_answer("usage.completion_tokens", "usage.output_tokens"), "completion_tokens", "output_tokens",
            "n_generated_tokens",
        ),
        "max_new_tokens": (
            "max_tokens", "max_completion_tokens", "request.max_tokens", "request.max_completion_tokens",
            "request.body.max_tokens", "model_parameters.max_tokens",
        ),
        "status": (
            "response.status_code", "status_code", "response_code", "http_status", "statusCode", "response.status",
            "status",
        ),
        "error_code": ("error_information.error_code", "error_code", "error.code", "error.status_code"),
        "finish_reason": (*_answer("choices.0.finish_reason", "stop_reason"), "finish_reason"),
        "salt": ("cache_salt", "request.cache_salt", "request.body.cache_salt"),
        "adapter": ("adapter", "lora_name", "lora"),
        "traffic": ("traffic",),
        "answered_by": ("answered_by", "engine", "upstream"),
        "source": ("source",),
        "path": ("path", "uri", "request_uri", "url", "x-envoy-origin-path", "x-envoy-original-path", "request_path"),
        "method": ("method", "request_method", "http_method"),
    }
)  # fmt: skip
"""What is meant -> the names it goes by, best first."""

MODEL_PATHS = ("/completions", "/messages", "/responses", "/generate", "/inference", ":generatecontent")
"""Ends of the paths, in lower case, under which models are asked."""
_INTEGERS = frozenset({"received_tokens", "prompt_tokens", "cached_tokens", "completion_tokens", "max_new_tokens"})
_FAILED = 400
_SUCCESS = frozenset({"success", "succeeded", "ok", "completed", "complete"})
_FAILURE = frozenset({"failure", "failed", "error"})


def look(document: Mapping[str, Any], path: str) -> Any:
    """The value at a path; None where there is none."""
    if path in document:
        return document[path]
    value: Any = document
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def said(document: Mapping[str, Any], what: str, given: Given) -> Any:
    """What a document says of something; None where nothing."""
    if what in given.columns:
        value = look(document, given.columns[what])
        return None if value == "" else value
    for path in ALIASES.get(what, ()):
        value = look(document, path)
        if value is not None and value not in ("", "-") and not isinstance(value, Mapping | list):
            return value
    return None


def call_of(document: Mapping[str, Any], own_id: str, given: Given, report: ImportReport, number: int) -> Call:
    """The request that a document tells of. Raises `Rejected` for a value that cannot be what it is to be."""
    found = {what: said(document, what, given) for what in ALIASES}
    for what in _INTEGERS:
        found[what] = _whole(what, found[what])
    start, end = (_time(found[what], what, report, number) for what in ("start", "end"))
    if start is not None and end is None and "request_time" in document and "start" not in given.columns:
        start, end = None, start  # nginx, whose own names these are, dates a line by its end
    if start is not None and end is None:
        end = start + _duration(found)
    if start is None and end is not None:
        start = end - _duration(found)
    status, finish = _status(found["status"]), found["finish_reason"]
    if status is None or status >= _FAILED:  # a word such as `failure` says less than the code beside it
        status = _status(found["error_code"]) or status
    if status is not None and status >= _FAILED and found["prompt_tokens"] == 0:
        found["prompt_tokens"] = None  # LiteLLM writes so where there was no answer that could state a length
    count_content(document, report)
    return Call(
        request=str(found["request"] or own_id),
        start=start,
        end=end,
        tenant=_text(found["tenant"]),
        tenant_source="log",
        model=_text(found["model"]),
        status=status,
        finish_reason=_text(finish),
        salt=_text(found["salt"]),
        adapter=_text(found["adapter"]),
        traffic=_text(found["traffic"]),
        provider=_text(found["provider"]),
        answered_by=_text(found["answered_by"]),
        **{what: found[what] for what in _INTEGERS},
    )


def count_content(document: Mapping[str, Any], report: ImportReport, path: str = "", depth: int = 0) -> None:
    """Count the fields that hold what users sent and models said; none of them is kept."""
    for name, value in document.items():
        if isinstance(value, Mapping) and depth < 3:
            count_content(value, report, f"{path}{name}.", depth + 1)
        elif isinstance(value, str | list) and value and len(str(name)) <= 64:
            judged = sense(str(name))
            if judged.content and not (judged.measure or judged.fingerprint or judged.category):
                bump(report.dropped_content, f"{path}{name}")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(what: str, value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float | Decimal) and value >= 0 and value % 1 == 0:
        return int(value)
    if isinstance(value, str):
        digits = value.strip().replace(",", "").replace("_", "")
        if digits.isascii() and digits.isdigit() and len(digits) < 16:
            return int(digits)
    elif isinstance(value, int) and value >= 0:
        return value
    raise Rejected(f"{what}: not a number of tokens")


def _duration(found: Mapping[str, Any]) -> int:
    for what, unit in (("duration_s", 1e9), ("duration_ms", 1e6)):
        try:
            if found[what] is not None:
                return max(0, int(float(found[what]) * unit))
        except (ValueError, OverflowError):
            raise Rejected(f"{what}: not a number") from None
    return 0


def _time(value: Any, what: str, report: ImportReport, number: int) -> int | None:
    if value is None:
        return None
    found = moment(value)
    if found is None:
        raise Rejected(f"{what}: not a time")
    if found.zone_assumed:
        report.note_once(number, "times without a zone are taken for UTC")
    return found.ns


def _status(value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    word = str(value).strip().lower()
    if word.isascii() and word.isdigit() and 100 <= int(word[:4]) <= 599:
        return int(word)
    if word in _SUCCESS:
        return 200
    return 500 if word in _FAILURE else None
