"""What spans and logs of all kinds of senders say about requests, and what never gets in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store
from kvwitness.audit.trace.pseudonym import keyed_hash
from kvwitness.collectors.otlp.genai import Reading
from kvwitness.collectors.otlp.intake import Intake, Job, Limits
from kvwitness.collectors.otlp.messages import JSON, LOGS, METRICS, TRACES, Signal
from kvwitness.collectors.otlp.metrics import Facts
from kvwitness.collectors.otlp.records import Account, Origin
from kvwitness.collectors.otlp.refusal import Refusal
from kvwitness.collectors.otlp.senders import Sender
from kvwitness.collectors.otlp.tenants import TenantFrom
from tests.collectors.otlp.support import events, span, traces, value_of

KEY = b"k" * 32
SECRET = "the quick brown fox"


def taken(
    store: Path, body: bytes, signal: Signal = TRACES, origin: Origin | None = None, reading: Reading | None = None
) -> Account:
    """What an intake makes of one export request; its events are in the store."""
    intake = Intake(Store.create(store, exist_ok=True), reading or Reading(salt_key=KEY), Limits(commit_s=0))
    outcome: list[Account | Refusal] = []
    intake.start()
    intake.hold(len(body))
    intake.submit(Job(signal, body, "identity", JSON, origin or Origin(), outcome.append))
    intake.stop()
    [account] = outcome
    assert isinstance(account, Account), account
    return account


def pair(store: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    received, finished = events(store)
    return received, finished


SENDERS: dict[str, dict[str, Any]] = {
    "current conventions": {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r1",
        "gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.request.max_tokens": 16, "gen_ai.response.finish_reasons": ["stop"],
    },
    "older conventions": {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r1",
        "gen_ai.usage.prompt_tokens": 120, "gen_ai.usage.completion_tokens": 7, "gen_ai.request.max_tokens": 16,
        "gen_ai.usage.cache_read_input_tokens": 64, "gen_ai.response.finish_reason": "stop",
    },
    "OpenInference": {
        "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 120, "llm.response.id": "r1",
        "llm.token_count.completion": 7, "llm.token_count.prompt_details.cache_read": 64, "llm.max_tokens": 16,
        "llm.finish_reason": "stop", "input.value": SECRET, "llm.input_messages.0.message.content": SECRET,
    },
    "OpenLLMetry": {
        "llm.request.type": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r1", "llm.max_tokens": 16,
        "llm.usage.prompt_tokens": 120, "llm.usage.completion_tokens": 7, "llm.usage.cache_read_input_tokens": 64,
        "gen_ai.completion.0.finish_reason": "stop", "gen_ai.prompt.0.content": SECRET,
    },
    "SGLang": {
        "rid": "r1", "gen_ai.response.model": "m", "gen_ai.usage.prompt_tokens": 120,
        "gen_ai.usage.completion_tokens": 7, "gen_ai.usage.cached_tokens": 64, "gen_ai.request.max_tokens": 16,
        "gen_ai.response.finish_reasons": '{"type": "stop"}', "bootstrap_room": "1f",
    },
}  # fmt: skip


@pytest.mark.parametrize("sender", SENDERS)
def test_one_table_for_all_senders(sender: str, tmp_path: Path) -> None:
    only = dict.fromkeys(("gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model"))
    only |= dict.fromkeys(("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"))
    account = taken(tmp_path / "store", traces(span(attributes=only | SENDERS[sender])))
    received, finished = pair(tmp_path / "store")
    said = {name: received.get(name) for name in ("request", "tenant", "prompt_tokens", "max_new_tokens", "model")}
    assert said == {"request": "r1", "tenant": "t-ash", "prompt_tokens": 120, "max_new_tokens": 16, "model": "m"}
    ended = {name: finished.get(name) for name in ("status", "prompt_tokens", "cached_tokens", "completion_tokens")}
    assert ended == {"status": 200, "prompt_tokens": 120, "cached_tokens": 64, "completion_tokens": 7}
    assert "stop" in finished["finish_reason"]
    assert SECRET not in str(events(tmp_path / "store"))
    assert sum(account.content.values()) == sum(value == SECRET for value in SENDERS[sender].values())


def test_span_of_vllm_is_the_engines_own_word(tmp_path: Path) -> None:
    attributes = {"gen_ai.request.id": "cmpl-1", "gen_ai.usage.prompt_tokens": 9, "gen_ai.operation.name": None}
    body = traces(span(name="llm_request", kind=2, attributes=attributes), service="dec-1", scope="vllm.tracing.otel")
    taken(tmp_path / "store", body)
    received, finished = pair(tmp_path / "store")
    assert (received["source"], finished["answered_by"]) == ("dec-1/0", "dec-1")


def test_engine_that_refuses_says_so(tmp_path: Path) -> None:
    attributes = {"gen_ai.request.id": "r1", "http.response.status_code": 400}
    taken(tmp_path / "store", traces(span(kind=2, attributes=attributes), service="pf-1", scope="sglang"))
    _received, rejected = pair(tmp_path / "store")
    assert (rejected["event"], rejected["status"]) == ("request.rejected", 400)


@pytest.mark.parametrize(
    ("attributes", "status", "expected", "by"),
    [
        ({"http.response.status_code": 503, "error.type": "500"}, {"code": 2}, 503, "http.response.status_code"),
        ({"http.status_code": 201}, {}, 201, "http.status_code"),
        ({"error.type": "429"}, {"code": 2}, 429, "error.type"),
        ({"error.type": "Timeout"}, {}, None, "error.type"),
        ({}, {"code": 2}, None, "span:error"),
        ({}, {"code": 1}, 200, "span:ok"),
        ({}, {}, 200, "span:ok"),
    ],
)
def test_status_and_what_it_was_known_by(
    attributes: dict[str, Any], status: dict[str, Any], expected: int | None, by: str, tmp_path: Path
) -> None:
    taken(tmp_path / "store", traces(span(attributes=attributes, status=status)))
    _, finished = pair(tmp_path / "store")
    assert (finished.get("status"), finished["status_source"]) == (expected, by)


@pytest.mark.parametrize("operation", ["invoke_agent", "execute_tool", "embeddings"])
def test_spans_around_calls_are_not_counted_again(operation: str, tmp_path: Path) -> None:
    account = taken(tmp_path / "store", traces(span(attributes={"gen_ai.operation.name": operation})))
    assert (account.accepted, account.ignored) == (0, 1)


def test_true_length_and_what_the_answer_says(tmp_path: Path) -> None:
    taken(
        tmp_path / "store",
        traces(span(kind=2, attributes={"kvwitness.prompt_tokens": 700, "gen_ai.usage.input_tokens": 1})),
    )
    received, finished = pair(tmp_path / "store")
    assert (received["prompt_tokens"], received["prompt_tokens_source"]) == (700, "counted:kvwitness.prompt_tokens")
    assert (finished["prompt_tokens"], received["source"]) == (1, "gateway/app")


def test_salts_become_hashes_under_the_key_of_the_tracer(tmp_path: Path) -> None:
    taken(tmp_path / "store", traces(span(attributes={"cache_salt": "pepper"})))
    received, _ = pair(tmp_path / "store")
    assert received["salt_hmac"] == keyed_hash(KEY, "salt", "pepper")
    assert "pepper" not in str(events(tmp_path / "store"))


@pytest.mark.parametrize(
    ("places", "attributes", "expected"),
    [
        (["attribute:a", "resource:b"], {"a": "t1"}, ("t1", "attribute:a")),
        (["resource:b", "attribute:a"], {"a": "t1"}, ("t2", "resource:b")),
        (["baggage:who"], {"baggage": "x=1, who=t%203;p=q"}, ("t 3", "baggage:who")),
        (["baggage:who"], {"baggage.who": "t4"}, ("t4", "baggage:who")),
        (["header:X-Scope-OrgID"], {}, ("t5", "header:x-scope-orgid")),
        (["salt"], {"cache_salt": "pepper"}, ("t6", "salt")),
        (["attribute:a"], {}, (None, None)),
    ],
)
def test_where_a_tenant_is_found(
    places: list[str], attributes: dict[str, Any], expected: tuple[str | None, str | None], tmp_path: Path
) -> None:
    reading = Reading(TenantFrom.of(places, {keyed_hash(KEY, "salt", "pepper"): "t6"}), KEY)
    taken(
        tmp_path / "store",
        traces(span(attributes=attributes), b="t2"),
        origin=Origin(headers={"x-scope-orgid": "t5"}),
        reading=reading,
    )
    received, _ = pair(tmp_path / "store")
    assert (received.get("tenant"), received.get("tenant_source")) == expected


@pytest.mark.parametrize("place", ["header:Authorization", "nowhere:x", "attribute", "salt:x"])
def test_places_where_no_tenant_is_looked_for(place: str) -> None:
    with pytest.raises(KvwitnessError):
        TenantFrom.of([place])


def test_sender_writes_for_its_own_tenants_alone(tmp_path: Path) -> None:
    scoped = Origin(Sender("eu", "x", tenants=("eu-*",)))
    body = traces(*(span(n, attributes={"tenant.id": who}) for n, who in enumerate(("eu-1", "us-1", None), start=1)))
    account = taken(tmp_path / "store", body, origin=scoped)
    assert (account.accepted, dict(account.rejected)) == (
        1,
        {"its tenant is not one that this sender may write for": 2},
    )
    fixed = Origin(Sender("acme", "x", tenant="t-acme"))
    taken(tmp_path / "other", traces(span(attributes={"tenant.id": "us-1"})), origin=fixed)
    assert [(e["tenant"], e["tenant_source"]) for e in events(tmp_path / "other")] == [("t-acme", "sender:acme")] * 2


def test_records_that_come_again_are_kept_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert taken(store, traces(span(1), span(2))).accepted == 2
    again = taken(store, traces(span(2), span(3)))  # another process, as after a crash
    assert (again.accepted, again.doubled) == (1, 1)
    assert len(events(store)) == 6


def test_records_are_known_again_after_many_flushes_and_a_compaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    intake = Intake(Store.create(store), Reading(salt_key=KEY), Limits(commit_s=0))
    intake.start()
    for n in range(1, 31):
        done, body = threading.Event(), traces(span(n))
        intake.hold(len(body))
        intake.submit(Job(TRACES, body, "identity", JSON, Origin(), lambda _, done=done: done.set()))
        assert done.wait(60)
    intake.stop()
    assert intake.flushes == 30
    Store.open(store).compact(grace_s=0)
    taken(store, traces(span(31)))
    again = taken(store, traces(*(span(n) for n in range(1, 33))))
    assert (again.accepted, again.doubled) == (1, 31)


def test_span_that_cannot_be_kept_leaves_nothing_of_it(tmp_path: Path) -> None:
    bad = [
        span(1, endTimeUnixNano=str(2**64 - 1)),
        span(2, traceId="00" * 16),
        span(3, startTimeUnixNano=0, endTimeUnixNano=0),
    ]
    account = taken(tmp_path / "store", traces(*bad, span(4)))
    assert (account.accepted, sum(account.rejected.values())) == (1, 3)
    assert len(events(tmp_path / "store")) == 2


def log(name: str, **attributes: Any) -> bytes:
    told = [{"key": k, "value": value_of(v)} for k, v in attributes.items()]
    record = {"timeUnixNano": "1788221380000000000", "eventName": name, "attributes": told}
    record["body"] = {"stringValue": SECRET}
    return orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})


def test_log_records_in_our_vocabulary_are_events(tmp_path: Path) -> None:
    body = log("kvwitness.page.alloc", pool="e/0/kv", pages=[[1, 3], 7], request="r1", source="e/0", seq=4)
    account = taken(tmp_path / "store", body, LOGS)
    [event] = events(tmp_path / "store")
    assert (event["event"], event["pages"], event["seq"], event["source"]) == ("page.alloc", [1, 2, 3, 7], 4, "e/0")
    assert account.content == {"body": 1}
    assert SECRET not in str(event)
    assert taken(tmp_path / "store", body, LOGS).doubled == 1
    broken = taken(tmp_path / "store", log("page.alloc", pool="e/0/kv"), LOGS)
    assert dict(broken.rejected) == {"pages: missing": 1}


def test_log_records_of_anything_else_are_left(tmp_path: Path) -> None:
    assert taken(tmp_path / "store", log("gen_ai.user.message", content=SECRET), LOGS).ignored == 1


def test_metrics_of_engines_become_limits_when_they_change(tmp_path: Path) -> None:
    def metric(blocks: int) -> dict[str, Any]:
        labels = {"block_size": "16", "num_gpu_blocks": str(blocks), "engine": "0"}
        told = [{"key": k, "value": value_of(v)} for k, v in labels.items()]
        point = {"timeUnixNano": str(1_788_221_380_000_000_000 + blocks), "asDouble": 1.0, "attributes": told}
        return {"name": "vllm:cache_config_info", "gauge": {"dataPoints": [point]}}

    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "e"}}]}
    metrics = [metric(100), metric(100), metric(50), {"name": "x", "sum": {"dataPoints": [{"asInt": 1}]}}]
    body = orjson.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]})
    account = taken(tmp_path / "store", body, METRICS)
    limits = [e["pool_tokens"] for e in events(tmp_path / "store") if e["event"] == "engine.limits"]
    assert (limits, account.ignored, account.doubled) == ([99 * 16, 49 * 16], 1, 1)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", -1.0, 1e300])
def test_metric_whose_value_is_no_size_says_nothing(value: str | float, tmp_path: Path) -> None:
    point = {"timeUnixNano": "1788221380000000000", "asDouble": value}
    metrics = [{"name": f"sglang:{name}", "gauge": {"dataPoints": [point]}} for name in ("page_size", "num_pages")]
    body = orjson.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]})
    account = taken(tmp_path / "store", body, METRICS)
    assert account.ignored + sum(account.rejected.values()) == (2 if value != 1e300 else 1)
    assert events(tmp_path / "store") == []


def test_content_in_events_of_a_span_is_counted(tmp_path: Path) -> None:
    def event(name: str, attribute: str) -> dict[str, Any]:
        return {"name": name, "attributes": [{"key": attribute, "value": value_of(SECRET)}]}

    told = [event("exception", "exception.message"), event("gen_ai.content.prompt", "gen_ai.prompt")]
    account = taken(tmp_path / "store", traces(span(events=told)))
    assert account.content == {"exception.message": 1, "gen_ai.content.prompt": 1}
    assert SECRET not in str(events(tmp_path / "store"))


def test_fault_of_ours_in_one_request_is_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Facts, "records", broken)
    intake = Intake(Store.create(tmp_path / "store"), Reading(), Limits(commit_s=1))
    outcome: dict[str, Account | Refusal] = {}
    flushed = threading.Event()
    intake.start()
    for name, signal, body in (
        ("first", TRACES, traces(span(1))),
        ("b", METRICS, b"{}"),
        ("c", TRACES, traces(span())),
    ):

        def answer(told: Account | Refusal, name: str = name) -> None:
            outcome[name] = told
            flushed.set()

        intake.hold(len(body))
        intake.submit(Job(signal, body, "identity", JSON, Origin(), answer))
        assert flushed.wait(60)  # after the first flush the next two share one
    intake.stop()
    assert isinstance(outcome["b"], Refusal)
    assert outcome["b"].http == 500
    assert isinstance(outcome["c"], Account)
