"""What a trace must not contain does not come in, wherever it hides; what merely measures it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwitness.audit.trace.names import sense
from kvwitness.audit.trace.privacy import Scrubber

Load = Callable[..., Any]
Make = Callable[..., dict[str, Any]]
SECRET = "the patient has a fever"

NAMES = [
    "prompt",
    "Prompt",
    "PROMPTTEXT",
    "promptText",
    "prompt_text",
    "prompt-text",
    "gen_ai.prompt",
    "gen_ai.prompt.0.content",
    "gen_ai.input.messages",
    "messages",
    "text",
    "input",
    "inputText",
    "input_ids",
    "output",
    "output_text",
    "completion",
    "completions",
    "choices",
    "content",
    "system_instruction",
    "reasoning_content",
    "tool_call.arguments",
    "token_ids",
    "tokenIds",
    "tokens",
    "prompt_tokens",
    "logprobs",
    "top_logprobs",
    "embedding",
    "embeddings",
    "hidden_states",
    "cache_salt",
    "cacheSalt",
    "salt",
    "api_key",
    "apiKey",
    "X-API-Key",
    "Authorization",
    "authorisation",
    "authorization_header",
    "auth_token",
    "access_token",
    "bearer",
    "Cookie",
    "Set-Cookie",
    "client_secret",
    "password",
    "credentials",
    "\uff50\uff52\uff4f\uff4d\uff50\uff54",
    "pro\u200bmpt",
    "image_url",
    "audio",
    "request_body",
]


def scrub(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    dropped: dict[str, int] = {}
    return Scrubber(dropped).scrub(fields), dropped


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", [SECRET, [SECRET], {"a": SECRET}, [15496, 995], "c2VjcmV0"], ids=["s", "l", "o", "ids", "b64"]
)
def test_content_goes_by_its_name(load: Load, alloc: Make, name: str, value: Any) -> None:
    places = [
        {name: value},
        {"meta": {"deep": [{name: value}]}},
        {"ns": {"adapter": "a", name: value}},
        {"note": json.dumps({"kept": 1, name: value})},
        {"attributes": [{"key": name, "value": value}, {"key": name, "value": {"stringValue": value}}]},
        {"headers": [[name, value]]},
    ]
    for place in places:
        if name == "prompt_tokens" and name in place:
            continue
        events, report = load(alloc(event="x.y", **place))
        assert report.bad == []
        assert report.dropped_content, place
        text = json.dumps(events)
        for secret in (SECRET, "15496", "c2VjcmV0"):
            assert secret not in text, place


KEPT = {
    "prompt_length": 12,
    "num_prompts": 3,
    "max_prompt_len": 4096,
    "output_throughput": 17.5,
    "promptTokens": 12,
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}},
    "prompt_hash": "9f86d081884c7d65",
    "prompt_sha256": "9f86d081884c7d65",
    "cache_salt_hmac": "9f86d081",
    "salt_hmac": "9f86d081",
    "response_type": "chat",
    "message_count": 4,
    "has_image": True,
    "text_bytes": 70000,
    "context_length": 32768,
    "tokenizer": "llama",
    "layer": 3,
    "branch": 1,
    "virtual": [[40, 47]],
    "block_ids": list(range(30)),
    "expert_ids": list(range(30)),
    "accept_length": 2.5,
    "short": "a short remark",
    "when": "2026-09-09T12:30:00Z",
    "url": "http://10.0.0.1:8000/health",
    "json": '{"layer":3}',
    "not_json": "{curly",
    "empty": "",
    "nothing": None,
    "nested": {"a": [{"b": {"c": 1}}]},
    "pages_of": {"pages": [[1, 4], 9], "tokens": 64, "key": "k:1"},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_only_measures_or_names_is_kept(name: str) -> None:
    assert scrub({name: KEPT[name]}) == ({name: KEPT[name]}, {})


def test_the_vocabulary_survives(load: Load) -> None:
    event = {
        "t": 1,
        "event": "request.received",
        "request": "r",
        "tenant": "t",
        "prompt_tokens": 5,
        "max_new_tokens": 6,
        "salt_hmac": "h:1",
    }
    finished = {
        "t": 1,
        "event": "request.finished",
        "request": "r",
        "completion_tokens": 7,
        "cached_tokens": 1,
    }
    published = {
        "t": 1,
        "event": "page.publish",
        "pool": "p",
        "pages": [1],
        "ns": {"salt_hmac": "h:1", "adapter": "a", "media": "m:1", "epoch": 3, "model": "llama"},
    }
    events, report = load(event, finished, published)
    assert report.dropped_content == {}
    assert [events[0][n] for n in ("prompt_tokens", "max_new_tokens", "salt_hmac")] == [5, 6, "h:1"]
    assert json.loads(events[2]["ns"]) == published["ns"]


def test_drops_are_counted_under_their_dotted_name(load: Load, alloc: Make) -> None:
    _, report = load(
        alloc(prompt=SECRET, ns={"cache_salt": "s"}),
        alloc(prompt=SECRET, meta={"messages": [], "list": [{"text": SECRET}]}),
    )
    assert report.dropped_content == {
        "prompt": 2,
        "ns.cache_salt": 1,
        "meta.messages": 1,
        "meta.list[].text": 1,
    }


def test_token_ids_under_a_name_that_hints_at_them(load: Load, alloc: Make) -> None:
    ids = [15496, 995, 11, 703, 389, 345, 30, 314]
    events, report = load(alloc(ids=ids, vocab=[ids], sequence=ids, word_ids=str(ids), others=ids))
    assert json.loads(events[0]["extra"]) == {"others": ids}
    assert report.dropped_content == {"ids": 1, "vocab": 1, "sequence": 1, "word_ids": 1}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 257,
        "Bearer abcdef123456",
        "sk-abcdefghijklmnop1234",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        "AKIAIOSFODNN7EXAMPLE",
        "prompt: tell me",
        "{'prompt': 'tell me'",
        '{"prompt":"tell me',
        "GET /?api_key=abc",
        '"{\\"prompt\\":\\"tell me\\"}"',
        '[{"role":"user","parts":["tell me"]}]',
        "[" * 500,
    ],
)
def test_strings_that_give_themselves_away_are_dropped(value: str) -> None:
    kept, dropped = scrub({"note": value, "fine": "fine"})
    assert "tell me" not in str(kept)
    assert kept.get("note") in (None, "[]", '"{}"')
    assert sum(dropped.values()) >= 1 or value == "[" * 500


def test_json_in_json_in_a_string_is_opened() -> None:
    inner = json.dumps({"a": json.dumps({"salt": "x", "b": 1})})
    kept, dropped = scrub({"note": inner})
    assert kept == {"note": '{"a":"{\\"b\\":1}"}'}
    assert dropped == {"note.a.salt": 1}


def test_names_that_are_sentences_are_dropped_unquoted() -> None:
    kept, dropped = scrub({"what do I have doctor": 1, "x" * 65: 2, "a\nb": 3, "m": {"tell me now please": 4}})
    assert kept == {"m": {}}
    assert dropped == {"(no name)": 3, "m.(no name)": 1}


def test_nesting_past_the_limit_is_dropped_and_counted(load: Load, alloc: Make) -> None:
    deep: Any = SECRET
    for _ in range(60):
        deep = {"a": [deep]}
    events, report = load(alloc(note=deep))
    assert SECRET not in events[0]["extra"]
    assert sum(report.dropped_content.values()) == 1


def test_the_vocabularys_own_strings_are_held_to_account(load: Load, alloc: Make) -> None:
    key, long = "sk-abcdefghijklmnop1234", "r" * 1025
    events, report = load(
        alloc(event="page.free", reason=SECRET * 20, path='{"prompt":"' + SECRET + '","at":1}'),
        alloc(tenant=key),
        alloc(tenant=key),
        alloc(tenant=key + "5", request=long),
        alloc(request='{"prompt":"' + SECRET),
    )
    assert "reason" not in events[0]
    assert events[0]["path"] == '{"at":1}'
    tenants = [e["tenant"] for e in events]
    assert tenants[1] == tenants[2] != tenants[3]
    assert all(t.startswith("redacted:") for t in tenants[1:4])
    assert events[3]["request"].startswith("redacted:")
    assert events[4]["request"].startswith("redacted:")
    assert not any(secret in str(events) for secret in (key, long, SECRET))
    assert report.dropped_content["path.prompt"] == 1
    assert report.dropped_content["reason"] == 1
    assert report.bad == []


def test_no_reason_and_no_name_in_the_report_quotes_a_value(load: Load, alloc: Make) -> None:
    _, report = load(
        alloc(event="request.received", prompt_tokens=SECRET),
        alloc(event="request.received", prompt_tokens=[15496, 995]),
        '{"prompt":"' + SECRET,
        {SECRET: 1, "t": 1, "event": "x"},
        alloc(pool={SECRET: 1}),
    )
    assert report.bad_total == 4
    assert SECRET not in str(report)
    assert "15496" not in str(report)


TEXT = st.text('ab{}[]":=,\\ 1\u00e9\u4e2d\x00', max_size=20)
KEYS = st.sampled_from(["a", "prompt", "note", "ids", "tokens", "key", "value", "role", ""]) | TEXT
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
JSON_VALUES = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(KEYS, x, max_size=4), max_leaves=20
)


@given(st.dictionaries(KEYS, JSON_VALUES | JSON_VALUES.map(json.dumps), max_size=4))
def test_scrubbing_twice_is_scrubbing_once(fields: dict[str, Any]) -> None:
    once, _ = scrub(fields)
    assert scrub(once) == (once, {})


@given(st.text(" _-./:|\t\u200b", max_size=4), st.booleans())
def test_case_and_separators_of_a_name_make_no_difference(separator: str, upper: bool) -> None:
    for name in ("prompt", "apikey", "authorization", "messages"):
        spread = separator.join(name)
        judged = sense(spread.upper() if upper else spread)
        assert judged.secret or judged.content
