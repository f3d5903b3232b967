"""Logs of engines, gateways and clients: what is taken from each, what is told, and that content stays out."""

from __future__ import annotations

import csv
import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.store import Store

SECRET = "the quick brown fox"
DAY = "2026-08-27T12:00:0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


class Bringing:
    """Imports a text as a file, and tells what came."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._store, self._capsys = store, capsys
        self.said = ""

    def __call__(self, text: str | bytes | Path, *options: str, name: str = "log") -> dict[str, Any]:
        file = text if isinstance(text, Path) else self._store.parent / name
        if not isinstance(text, Path):
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        status = run(["import", str(file), "--store", str(self._store), *options])
        captured = self._capsys.readouterr()
        self.said = captured.err
        assert status == 0, captured.err
        report: dict[str, Any] = json.loads(captured.out.splitlines()[-1])
        assert (
            report["lines"]
            == sum(report[name] for name in ("events", "bad_total", "blank", "other")) - report["more_events"]
        )
        everything = captured.out + captured.err + "".join(map(str, self.events()))
        assert SECRET not in everything
        return report

    def events(self) -> list[dict[str, Any]]:
        frame = Store.open(self._store).events().sort("time_ns", "ingest_row").collect()
        rows = []
        for row in frame.drop("ingest", "ingest_row", "line").iter_rows(named=True):
            extra = json.loads(row.pop("extra") or "{}")
            rows.append({k: v for k, v in row.items() if v is not None} | extra)
        return rows


@pytest.fixture
def bring(store: Path, capsys: pytest.CaptureFixture[str]) -> Bringing:
    return Bringing(store, capsys)


def lines(*documents: dict[str, Any]) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def openai(number: int, **changes: Any) -> dict[str, Any]:
    """A line of a client's log: what it sent, and what an OpenAI-style endpoint answered."""
    return {
        "timestamp": f"{DAY}{number}Z",
        "latency_ms": 500,
        "request": {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": SECRET}]},
        "response": {
            "id": f"chatcmpl-{number}",
            "model": "m-2026",
            "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": SECRET}}],
            "usage": {
                "prompt_tokens": 120,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 64},
            },
        },
        "status_code": 200,
        **changes,
    }


def test_client_log_of_an_openai_style_endpoint(bring: Bringing) -> None:
    report = bring(lines(openai(1, counted_prompt_tokens=9000)), "--tenant", "t-me")
    received, finished = bring.events()
    assert received == {
        "time_ns": 1787832001000000000,
        "event": "request.received",
        "source": "client/log",
        "request": "chatcmpl-1",
        "tenant": "t-me",
        "tenant_source": "given at import",
        "prompt_tokens": 9000,
        "prompt_tokens_source": "counted:log",
        "max_new_tokens": 64,
        "model": "m",
    }
    assert finished["time_ns"] == received["time_ns"] + 500_000_000
    told = {name: finished[name] for name in ("status", "finish_reason", "prompt_tokens", "cached_tokens")}
    assert told == {"status": 200, "finish_reason": "stop", "prompt_tokens": 120, "cached_tokens": 64}
    assert finished["completion_tokens"] == 5
    assert report["dropped_content"]["request.messages"] == 1


def test_batch_output_and_litellm(bring: Bringing) -> None:
    usage = {"input_tokens": 10, "output_tokens": 2}
    batch = {
        "id": "batch_req_1",
        "custom_id": "mine-1",
        "response": {
            "status_code": 200,
            "request_id": "q",
            "body": {"id": "resp-1", "created": 1787832000, "model": "m", "usage": usage},
        },
        "error": None,
    }
    bring(lines(batch), name="batch.jsonl")
    litellm = {
        "id": "chatcmpl-9",
        "call_type": "acompletion",
        "status": "failure",
        "startTime": 1787832000.25,
        "endTime": 1787832001.5,
        "model": "m",
        "prompt_tokens": 7,
        "completion_tokens": 0,
        "metadata": {"user_api_key_team_id": "team-1", "user_api_key_user_id": "u"},
        "messages": SECRET,
    }
    bring(lines(litellm), name="litellm.jsonl")
    assert [(e["request"], e["event"]) for e in bring.events()] == [
        ("resp-1", "request.received"), ("resp-1", "request.finished"),
        ("chatcmpl-9", "request.received"), ("chatcmpl-9", "request.finished"),
    ]  # fmt: skip
    assert (bring.events()[2]["tenant"], bring.events()[3]["status"]) == ("team-1", 500)
    assert bring.events()[3]["time_ns"] - bring.events()[2]["time_ns"] == 1_250_000_000


def test_sglang_request_log(bring: Bringing) -> None:
    received = {
        "timestamp": f"{DAY}1Z",
        "event": "request.received",
        "rid": "r1",
        "obj": {
            "text": SECRET,
            "input_ids": [5, 6, 7],
            "sampling_params": {"max_new_tokens": 9},
            "cache_salt": "pepper",
        },
    }
    meta = {
        "id": "r1",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "finish_reason": {"type": "stop"},
    }
    finished = {
        "timestamp": f"{DAY}2Z",
        "event": "request.finished",
        "rid": "r1",
        "obj": {},
        "out": {"meta_info": meta, "text": SECRET},
    }
    abort = finished | {"rid": "r2", "out": {"meta_info": {"finish_reason": {"type": "abort", "status_code": 400}}}}
    text = f"[2026-08-27 12:00:01] {json.dumps(received)}\n[2026-08-27 12:00:02] {json.dumps(finished)}\n"
    text += f"[2026-08-27 12:00:02] {json.dumps(abort)}\n[2026-08-27 12:00:02] Decode batch. #running-req: 1\n"
    text += (
        "[2026-08-27 12:00:03 TP0] Input length (700 tokens) exceeds the maximum allowed length (100 tokens). "
        "Use a shorter input or enable --allow-auto-truncate., self.rid='r2'\n"
    )
    report = bring(text, "--source", "pf-1/0")
    assert report["other"] == 1
    first, second, third, fourth, fifth = bring.events()
    assert (first["prompt_tokens"], first["max_new_tokens"], len(first["salt_hmac"])) == (3, 9, 16)
    assert (second["answered_by"], second["status"], second["cached_tokens"]) == ("pf-1", 200, 1)
    assert (third["status"], third["finish_reason"]) == (400, "abort")
    assert (fourth["event"], fourth["prompt_tokens"]) == ("request.received", 700)
    assert (fifth["event"], fifth["limit_tokens"], fifth["request"]) == ("request.rejected", 100, "r2")
    assert "pepper" not in str(bring.events())


def text_form(word: str, obj: str, out: str = "", at: int = 1) -> str:
    """A line of SGLang's request log as text."""
    return f"[2026-08-27 12:00:0{at} TP0] {word}: obj=GenerateReqInput({obj}){out}\n"


def test_sglang_request_log_as_text(bring: Bringing) -> None:
    forged = f"{SECRET}', rid='other', bootstrap_room=5), out={{'meta_info': {{'prompt_tokens': 1}}}} \n it's \\"
    asked = (
        f"rid='r1', http_worker_ipc=None, text={forged!r}, input_ids=[5, 6, 7], image_data=[], "
        f"sampling_params={{'max_new_tokens': 9, 'stop': [')', \"'\"]}}, lora_path='ad-1', cache_salt='pepper', "
        f"custom=<Thing at 0x7f>, bootstrap_room={2**63 - 1}"
    )
    meta = (
        "{'id': 'r1', 'finish_reason': {'type': 'stop', 'matched': 2}, 'prompt_tokens': 3, 'cached_tokens': 1, "
        "'completion_tokens': 2, 'e2e_latency': 1.25}"
    )
    told = f", out={{'text': {forged[:9]!r} ... {forged[-20:]!r}, 'output_ids': [7, 8] ... [9], 'meta_info': {meta}}}"
    abort = ", out={'meta_info': {'finish_reason': {'type': 'abort', 'status_code': 400}}}"
    long = "rid='r2', text=None, input_ids=[1, 2] ... [3, 4], sampling_params={'temperature': 0}"
    report = bring(
        text_form("Receive", asked)
        + text_form("Finish", asked, told, 2)
        + text_form("Receive", long, at=3)
        + text_form("Finish", long, abort, 4)
        + text_form("Receive", "rid='r3', text='it stops", at=5)
        + text_form("Receive", "rid=None, text=None", at=5)
        + text_form("Receive", "rid='r4', text=[)]", at=5)
        + "[2026-08-27 12:00:06] Receive nothing: obj= of interest\n"
    )
    first, second, third, fourth = bring.events()
    assert (first["event"], first["request"], first["prompt_tokens"]) == ("request.received", "r1", 3)
    assert (first["max_new_tokens"], first["adapter"], first["room"]) == (9, "ad-1", 2**63 - 1)
    assert len(first["salt_hmac"]) == 16
    counts = {name: second[name] for name in ("status", "prompt_tokens", "cached_tokens", "completion_tokens")}
    assert counts == {"status": 200, "prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2}
    assert "prompt_tokens" not in third  # the list was cut
    assert (fourth["request"], fourth["status"], fourth["finish_reason"]) == ("r2", 400, "abort")
    assert [one["reason"] for one in report["bad"]] == [
        "its brackets and quotes do not close",
        "rid: not a string",
        "its brackets and quotes do not close",
    ]
    assert report["other"] == 1
    assert report["dropped_content"]["obj.text"] == 2
    assert "pepper" not in str(bring.events())


def test_a_batch_of_sglangs_is_its_requests(bring: Bringing) -> None:
    batch = "rid=['a', 'b'], input_ids=[[1, 2], [3, 4, 5]], sampling_params=[{'max_new_tokens': 4}, {}], extra_key=None"
    bring(text_form("Receive", batch))
    told = [(e["request"], e["prompt_tokens"], e.get("max_new_tokens")) for e in bring.events()]
    assert told == [("a", 2, 4), ("b", 3, None)]


def test_token_ids_that_were_cut_are_no_length(bring: Bringing) -> None:
    cut = {"timestamp": f"{DAY}1Z", "event": "request.received", "rid": "r1", "obj": {"input_ids": [5, "...", 7]}}
    bring(f"[2026-08-27 12:00:01] {json.dumps(cut)}\n")
    assert "prompt_tokens" not in bring.events()[0]


CANARY = (
    "kv_canary violation: launch_tag=TAIL_K_FULL fail_reason=verify_chain_hash+verify_position slot_idx=1237 "
    "position=40 stored_token=31337 expected_token=-1 stored_chain_hash=0x00000000deadbeef "
    "expected_aux=0x0000000000c0ffee"
)
"""The line of SGLang 0.5.16 to 0.5.23; more follow it, which say the same to people."""
CANARY_REST = (
    "KV cache canary violation detected (kernel_kind=TAIL_K_FULL, slot_idx=1237, position=40)\n"
    "canary_kind:       per_forward_tail_k_full\n"
    "  fail_reasons: verify_chain_hash verify_position\n"
    "  stored:   token_id=31337   position=40 prev_hash=0x00000000deadbeef\n"
    "  expected: prev_hash=0x0000000000c0ffee\n"
    "  total_violations=1 ring_overflow=False step_when_pumped=812\n"
)


def test_what_sglangs_canary_found(bring: Bringing) -> None:
    text = "[2026-08-27 12:00:01] server_args={'model_path': 'm'}\n"
    text += f"[2026-08-27 12:00:02 DP0 TP1] {CANARY}\n{CANARY_REST}"
    report = bring(text, "--source", "decode-1/0")
    [finding] = bring.events()
    assert finding == {
        "time_ns": 1787832002000000000,
        "event": "shadow.finding",
        "source": "decode-1/0",
        "reason": "SGLang's KV canary: verify_chain_hash+verify_position",
        "tok_first": 40,
        "tok_end": 41,
        "rank": 1,
        "path": "kv_canary",
        "launch": "TAIL_K_FULL",
        "slot_index": 1237,
    }
    assert (report["events"], report["other"]) == (1, 7)
    assert report["dropped_content"] == {
        "stored_token": 1, "expected_token": 1, "stored_chain_hash": 1, "expected_aux": 1,
    }  # fmt: skip
    assert not [word for word in ("31337", "deadbeef", "c0ffee") if word in str(bring.events())]


def test_what_sglangs_canary_raised(bring: Bringing) -> None:
    """In a traceback, whose lines have no time; several in one exception."""
    text = "[2026-08-27 12:00:03.250 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    text += f'  File "scheduler.py", line 1, in run\nRuntimeError: {CANARY}\n{CANARY_REST}'
    text += f"{CANARY.replace('slot_idx=1237', 'slot_idx=9')}\n"
    text += "  total_violations=900 ring_overflow=True step_when_pumped=812\n"
    bring(text)
    assert [(e["time_ns"] % 10**10, e["slot_index"]) for e in bring.events()] == [
        (3_250_000_000, 1237), (3_250_000_000, 9),
    ]  # fmt: skip
    assert "found more than it lists" in bring.said


def test_what_sglangs_checksum_found(bring: Bringing) -> None:
    mismatch = "KV checksum mismatch req=r7 bootstrap_room=4242 expected=0x1a2b got=0x1a2c"
    text = f"[2026-08-27 12:00:01 TP0] {mismatch}\n"
    text += "[2026-08-27 12:00:01 TP1] KV checksum mismatch on a peer rank req=r7 bootstrap_room=4242\n"
    text += "[2026-08-27 12:00:02 TP1] KV checksum mismatch req=r8 bootstrap_room=None expected=0x1 got=0x2\n"
    text += (
        "[2026-08-27 12:00:03 TP1] KV checksum skipped: prefill layout signature 0x5 differs from this decode's 0x6\n"
    )
    report = bring(text)
    first, peer, last = bring.events()
    assert (first["event"], first["request"], first["transfer"], first["rank"]) == ("shadow.finding", "r7", "4242", 0)
    assert (first["sent_digest"], first["received_digest"]) == ("0x1a2b", "0x1a2c")
    assert first["reason"] == "SGLang's checksum: what arrived is not what prefill sent"
    assert (peer["request"], peer["rank"], "sent_digest" in peer) == ("r7", 1, False)
    assert peer["reason"].endswith("(on another rank)")
    assert (last["request"], "transfer" in last) == ("r8", False)
    assert {e["path"] for e in bring.events()} == {"kv_checksum"}
    assert "compares no checksums" in bring.said
    assert report["other"] == 1


def test_a_finding_without_any_time_is_a_loss(bring: Bringing) -> None:
    report = bring(f"{CANARY}\n[2026-08-27 12:00:01] {CANARY}\n")
    assert [bad["reason"] for bad in report["bad"]] == ["what a check found, without a time"]
    assert report["events"] == 1


def said_while_starting(size: int) -> str:
    """What stands in a server's log before its first request: a container's, a loader's and its libraries' words."""
    out = ["=" * 40, "entrypoint: 8 devices, driver 575.51", "[notice] A new release of pip is available", ""]
    out += [
        "/usr/lib/python3/torch/utils/_pytree.py:12: UserWarning: deprecated\n  warn(message)",
        "INFO 08-27 11:58:02 [__init__.py:216] Automatically detected platform cuda.",  # a part of vLLM that it loads
    ]
    step = 0
    while sum(map(len, out)) < size:
        step += 1
        bar = "#" * (step % 20)
        out.append(
            f"Loading safetensors checkpoint shards: {step % 100:3d}% |{bar:<20}| {step}/900 [00:{step % 60:02d}]\r"
        )
        out.append(f"[2026-08-27 11:58:{step % 60:02d} TP{step % 8}] Load weight end. avail mem={60 - step % 9}.12 GB")
    return "\n".join(out) + "\n"


STARTS = '[2026-08-27 11:58:01] server_args={"model_path": "m", "host": "0.0.0.0", "port": 30000}\n'
ASKED = {"timestamp": f"{DAY}1Z", "event": "request.received", "rid": "r1", "obj": {"input_ids": [5, 6, 7]}}
REQUEST = f"[2026-08-27 12:00:01] {json.dumps(ASKED)}\n"


@pytest.mark.parametrize(
    "text",
    [
        STARTS + said_while_starting(300_000) + REQUEST,
        said_while_starting(10_000) + STARTS + said_while_starting(3_000_000) + REQUEST,
        said_while_starting(40_000) + REQUEST,
        said_while_starting(3_000_000) + REQUEST,
        said_while_starting(1_000) + REQUEST,
    ],
    ids=["starts-first", "starts-later", "no-start", "far", "near"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_sglang_log_of_a_whole_server(text: str, packed: bool, bring: Bringing) -> None:
    report = bring(gzip.compress(text.encode()) if packed else text)
    assert [(e["source"], e["request"], e["prompt_tokens"]) for e in bring.events()] == [("sglang/0", "r1", 3)]
    assert report["bad_total"] == 0


def test_vllm_log_of_a_whole_server(bring: Bringing) -> None:
    noise = said_while_starting(40_000).replace("INFO", "NOTE")
    bring(noise + "INFO 08-27 12:00:01 [request_logger.py:58] Received request cmpl-a-0: params: None.\n")
    assert [(e["source"], e["request"]) for e in bring.events()] == [("vllm/0", "cmpl-a-0")]


ROOM = 9_007_199_254_740_993_001
"""As a router draws it: of 63 bits."""


def hand_over(rid: str, room: int, end: dict[str, Any] | None, at: int = 0) -> str:
    """A server's lines on a request: how it came and, unless None, how it ended."""
    obj = {"bootstrap_host": "10.0.0.7", "bootstrap_room": room}
    day = f"2026-08-27T12:{at:02d}:0"
    out = [{"timestamp": f"{day}1Z", "event": "request.received", "rid": rid, "obj": obj}]
    if end is not None:
        out.append(
            {"timestamp": f"{day}2Z", "event": "request.finished", "rid": rid, "obj": obj, "out": {"meta_info": end}}
        )
    return "".join(f"[2026-08-27 12:{at:02d}:01] {json.dumps(one)}\n" for one in out)


REFUSED = (
    "[2026-08-27 12:00:01] Input length (700 tokens) exceeds the maximum allowed length (100 tokens). Use a shorter "
    "input or enable --allow-auto-truncate., self.rid='p1'\n"
)
SERVED = {"prompt_tokens": 700, "completion_tokens": 5, "finish_reason": {"type": "stop"}}
STUB = {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": {"type": "length"}}


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_two_sides_of_a_hand_over_are_one_request_by_their_room(
    first: str, bring: Bringing, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    came, ended = hand_over("p1", ROOM, STUB).splitlines(keepends=True)
    logs = {
        "prefill": came + REFUSED + ended + hand_over("p2", 7, SERVED),
        "decode": hand_over("d1", ROOM, SERVED) + hand_over("d2", 7, SERVED, at=30),  # that room is another's by then
    }
    second = next(name for name in logs if name != first)
    for name in (first, second):
        bring(logs[name], "--source", f"{name}-1/0", name=name)
    assert "by the same room" in bring.said
    events = bring.events()
    kept = "p1" if first == "prefill" else "d1"
    assert {e["request"] for e in events} == {kept, "p2", "d2"}
    about = [e for e in events if e["request"] == kept]
    assert {e["source"] for e in about} == {"prefill-1/0", "decode-1/0"}
    assert {e.get("own_request") for e in about if e["event"] == "request.received" and "room" in e} >= {
        "d1" if first == "prefill" else "p1"
    }
    assert [e["limit_tokens"] for e in about if e["event"] == "request.rejected"] == [100]
    assert run(["audit", "--store", str(store), "--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {f["request"] for f in findings if f["rule"] == "served-after-refusal"} == {kept}


def test_what_others_say_of_a_request_under_its_own_id_is_not_torn_from_it(bring: Bringing) -> None:
    bring(hand_over("p1", ROOM, STUB), "--source", "prefill-1/0", name="prefill")
    bring(lines(openai(1) | {"response": {"id": "d1", "usage": {"prompt_tokens": 700}}}), name="client.jsonl")
    bring(hand_over("d1", ROOM, SERVED), "--source", "decode-1/0", name="decode")
    assert "under two ids" in bring.said
    assert {e["request"] for e in bring.events()} == {"p1", "d1"}


def test_vllm_request_log(bring: Bringing) -> None:
    text = (
        "INFO 08-27 12:00:00 [__init__.py:1] vllm starts\n"
        f"INFO 08-27 12:00:01 [request_logger.py:58] Received request cmpl-a-0: prompt: '{SECRET}', params: "
        "SamplingParams(n=1, max_tokens=16), prompt_token_ids: [1, 2, 3, 4], lora_request: None.\n"
        f"INFO 08-27 12:00:02 [request_logger.py:90] Generated response cmpl-a-0: output: '{SECRET}', "
        "output_token_ids: None, finish_reason: length\n"
    )
    report = bring(text)
    received, finished = bring.events()
    assert (received["prompt_tokens"], received["max_new_tokens"], received["source"]) == (4, 16, "vllm/0")
    assert (finished["finish_reason"], finished["status"], finished["answered_by"]) == ("length", 200, "vllm")
    assert report["dropped_content"] == {"prompt": 1, "prompt_token_ids": 1, "output": 1}


def test_access_logs(bring: Bringing) -> None:
    nginx = (
        '10.0.0.1 - team-a [27/Aug/2026:12:00:01 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" "py" '
        "rt=0.250 request_id=abcdef0123456789\n"
        '10.0.0.1 - - [27/Aug/2026:12:00:02 +0000] "GET /health HTTP/1.1" 200 2 "-" "curl"\n'
    )
    report = bring(nginx)
    assert (report["read_as"], report["other"]) == ("access", 1)
    envoy = (
        '[2026-08-27T12:00:03.500Z] "POST /v1/completions HTTP/1.1" 400 - 10 20 30 29 "10.0.0.9" "py" '
        '"11111111-2222" "model.example" "10.0.0.2:8000"\n'
    )
    bring(envoy, name="envoy")
    told = [(e["request"], e["event"], e.get("status"), e.get("tenant")) for e in bring.events()]
    assert told == [
        ("abcdef0123456789", "request.received", None, "team-a"),
        ("abcdef0123456789", "request.finished", 200, "team-a"),
        ("11111111-2222", "request.received", None, None),
        ("11111111-2222", "request.finished", 400, None),
    ]
    times = [e["time_ns"] for e in bring.events()]
    assert times[1] - times[0] == 250_000_000
    assert times[3] - times[2] == 30_000_000


def test_access_logs_begin_with_whatever_reached_the_port(bring: Bringing) -> None:
    nginx = (
        r'10.0.0.9 - - [25/Oct/2026:02:59:57 +0200] "\x16\x03\x01" 400 157 "-" "-"' + "\n"
        '10.0.0.9 - - [25/Oct/2026:02:59:58 +0200] "" 400 0 "-" "-"\n'
        '10.0.0.1 - - [25/Oct/2026:02:59:59 +0200] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" "py"\n'
        '10.0.0.1 - - [25/Oct/2026:02:00:01 +0100] "POST /v1/chat/completions HTTP/1.1" 499 0 "-" "py"\n'
    )
    report = bring(nginx)  # the clock on the wall went back by an hour, and time did not
    assert (report["other"], report["bad_total"], report["notes"]) == (2, 0, [])
    envoy = (
        '[2026-10-25T01:00:05.123Z] "- - -" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"\n'
        '[2026-10-25T01:00:06.123Z] "POST /v1/completions HTTP/1.1" 200 - 10 20 30 29 "-" "py" "e-1" "m" "u"\n'
    )
    assert bring(envoy, name="envoy")["other"] == 1
    assert [e["status"] for e in bring.events() if e["event"] == "request.finished"] == [200, 499, 200]


def test_access_logs_in_json(bring: Bringing) -> None:
    when = "25/Oct/2026:02:00:05 +0100"
    bring(
        lines(
            {"time_local": when, "request": "POST /v1/completions HTTP/1.1", "status": "200", "request_time": "2.5",
             "request_id": "n-1"},
            {"time": "2026-10-25T02:00:06+01:00", "request_method": "POST", "uri": "/v1/completions", "status": "400",
             "request_time": "1.5", "request_id": "n-2"},
            {"time_local": when, "request": "GET /health HTTP/1.1", "status": "200", "request_id": "n-3"},
            {"time_local": when, "request_method": "OPTIONS", "uri": "/v1/completions", "status": "204"},
        )
    )  # fmt: skip
    envoy = {"start_time": "2026-10-25T01:00:07.000Z", "method": "POST", "response_code": 503, "duration": 30}
    bring(
        lines(
            envoy | {"x-envoy-origin-path": "/v1/completions", "x-request-id": "e-1"},
            envoy | {"x-envoy-origin-path": "/health", "x-request-id": "e-2"},
        ),
        name="envoy",
    )
    told = {e["request"]: (e["time_ns"] // 1_000_000 - 1_792_890_000_000, e["status"]) for e in bring.events()
            if e["event"] == "request.finished"}  # fmt: skip
    assert told == {"n-1": (5_000, 200), "n-2": (6_000, 400), "e-1": (7_030, 503)}
    begun = {e["request"]: e["time_ns"] // 1_000_000 - 1_792_890_000_000 for e in bring.events()
             if e["event"] == "request.received"}  # fmt: skip
    assert begun == {"n-1": 2_500, "n-2": 4_500, "e-1": 7_000}


def test_what_litellm_says_of_a_failure_and_of_its_cache(bring: Bringing) -> None:
    call = {"startTime": 1792890000.5, "endTime": 1792890003.5, "model": "m", "messages": SECRET, "response": {}}
    usage = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 64}}}
    bring(
        lines(
            call | {"id": "a", "status": "success", "prompt_tokens": 100, "completion_tokens": 5, "metadata": usage},
            call | {"id": "b", "status": "failure", "prompt_tokens": 0, "error_information": {"error_code": "400"}},
        )
    )
    ends = {e["request"]: e for e in bring.events() if e["event"] == "request.finished"}
    assert (ends["a"]["status"], ends["a"]["cached_tokens"]) == (200, 64)
    assert (ends["b"]["status"], ends["b"].get("prompt_tokens")) == (400, None)


def test_vllms_lines_over_new_year_and_its_details(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "vllm.log"
    file.write_text(
        "(APIServer pid=1) INFO 12-31 23:59:58 [logger.py:41] Received request a: params: SamplingParams(n=1).\n"
        f"(APIServer pid=1) DEBUG 01-01 00:00:04 [logger.py:35] Request b details: prompt: '{SECRET}', "
        "prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.\n"
        "(APIServer pid=1) INFO 01-01 00:00:04 [logger.py:41] Received request b: params: SamplingParams(n=1).\n"
    )
    os.utime(file, (1_767_312_000, 1_767_312_000))  # 2 January 2026
    assert bring(file)["dropped_content"] == {"prompt": 1, "prompt_token_ids": 1}
    first, second = bring.events()
    assert second["time_ns"] - first["time_ns"] == 6_000_000_000
    assert (first.get("prompt_tokens"), second["prompt_tokens"]) == (None, 3)


ROWS = [
    {"start_time": f"{DAY}1Z", "request_id": "a", "prompt_tokens": 100, "status": 200, "prompt": SECRET},
    {"start_time": f"{DAY}2Z", "request_id": "b", "prompt_tokens": 900, "status": 400, "prompt": SECRET},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, list(rows[0]), delimiter=";" if path.suffix == ".ssv" else ",")
            out.writeheader()
            out.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["calls.csv", "calls.ssv", "calls.parquet"])
def test_tables_with_usual_names(name: str, bring: Bringing, tmp_path: Path) -> None:
    bring(written(tmp_path / name, ROWS))
    told = [(e["request"], e.get("prompt_tokens"), e.get("status")) for e in bring.events()]
    assert told == [("a", 100, None), ("a", 100, 200), ("b", 900, None), ("b", 900, 400)]


@pytest.mark.parametrize("name", ["calls.csv", "calls.parquet", "calls.jsonl"])
def test_mapping_file_names_the_columns(name: str, bring: Bringing, tmp_path: Path) -> None:
    mapping = tmp_path / "map.toml"
    columns = {"start": "Sent", "request": "Which", "prompt_tokens": "In", "status": "HTTP"}
    told = "".join(f"{what} = {column!r}\n" for what, column in columns.items())
    mapping.write_text(f"source = 'bill/provider'\ntenant = 't-me'\n[columns]\n{told}".replace("'", '"'))
    rows = [{"Sent": f"{DAY}1Z", "Which": "a", "In": 100, "HTTP": 200, "status": "not this one"}]
    file = tmp_path / name
    if name.endswith("jsonl"):
        file.write_text(lines(*rows))
    else:
        written(file, rows)
    bring(file, "--mapping", str(mapping))
    [event] = bring.events()  # a bill saw no prompt
    assert (event["event"], event["source"], event["request"]) == ("request.finished", "bill/provider", "a")
    assert (event["tenant"], event["prompt_tokens"], event["status"]) == ("t-me", 100, 200)


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (
            '$time_iso8601 $host ${remote_addr}: "$request" $status $upstream_response_time $request_time '
            "[$http_x_org] $request_id",
            '2026-10-25T02:00:05+01:00 api.example 10.0.0.1: "{} HTTP/1.1" 200 0.1, 2.4 2.500 [t-x] n-1',
        ),
        (
            "[%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%] %REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% "
            "%RESPONSE_CODE% %DURATION% %REQ(HTTP_X_ORG):16% %REQ(X-REQUEST-ID)%",
            "[2026-10-25T01:00:02.500Z] {} 200 2500 t-x n-1",
        ),
    ],
)
def test_access_log_of_a_form_of_its_own(form: str, line: str, bring: Bringing, tmp_path: Path) -> None:
    mapping = tmp_path / "map.toml"
    mapping.write_text(f"form = '{form}'\n[columns]\ntenant = 'http_x_org'\n")
    text = "".join(line.format(asked) + "\n" for asked in ("POST /v1/completions", "GET /health")) + "something\n"
    report = bring(text, "--mapping", str(mapping))
    assert report["other"] == 1
    assert [(bad["line"], bad["reason"]) for bad in report["bad"]] == [
        (3, "not of the form that the mapping file states")
    ]
    told = [(e["request"], e["tenant"], e["time_ns"] // 1_000_000 - 1_792_890_000_000) for e in bring.events()]
    assert told == [("n-1", "t-x", 2_500), ("n-1", "t-x", 5_000)]


def test_mapping_file_that_is_none(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mapping, file = tmp_path / "map.toml", tmp_path / "x.csv"
    file.write_text("a,b\n1,2\n")
    for text, told in (
        ("[columns]\nnonsense = 'a'", "'nonsense'"),
        ("x = 1", "unknown key 'x'"),
        ("[[[", "cannot be"),
        ("form = 'status'", "no variable"),
        ("form = '$a$b'", "nothing stands between $a and $b"),
    ):
        mapping.write_text(text)
        assert run(["import", str(file), "--store", str(store), "--mapping", str(mapping)]) == 2
        assert told in capsys.readouterr().err


def test_log_that_has_grown_is_taken_on_from_where_it_was(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    whole = lines(*(openai(n) for n in range(6)))
    cut = whole.index("\n", len(whole) // 2) - 40  # in the middle of a line
    file.write_text(whole[:cut])
    assert bring(file)["bad_total"] == 1
    file.write_text(whole)
    report = bring(file)
    assert report["bad_total"] == 0
    assert "imported before" in bring.said
    assert [e["request"] for e in bring.events() if e["event"] == "request.received"] == [
        f"chatcmpl-{n}" for n in range(6)
    ]
    assert bring(file)["duplicate"]


def test_table_that_has_grown(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "calls.csv"
    head = "timestamp,request_id,prompt_tokens,status,prompt\n"
    rows = [f'{DAY}{n}Z,r{n},10,200,"{SECRET}\n\n{DAY}{n}Z,false,1,200,\n{SECRET}"\n' for n in range(4)]
    whole = head + "".join(rows)
    file.write_text(whole[: whole.index("false,1", whole.index("r2,"))])  # within a prompt
    report = bring(file)
    assert [(bad["line"], bad["reason"]) for bad in report["bad"]] == [
        (10, "not CSV: a quote of this line is not closed in the rest of the file")
    ]
    file.write_text(whole)
    assert bring(file)["bad_total"] == 0
    assert [e["request"] for e in bring.events() if e["event"] == "request.received"] == ["r0", "r1", "r2", "r3"]


def test_a_line_that_is_lost_in_a_quoted_field_lets_no_prompt_out(bring: Bringing) -> None:
    faked = f"{DAY}1Z,faked,10,200,x"
    said = (
        "timestamp,request_id,prompt_tokens,status,prompt\n"
        f'{DAY}1Z,a,10,200,"\xff\n{faked}\n"\n'
        f'{DAY}2Z,b,10,200,"{faked}\n\xff"\n'
        f"{DAY}3Z,c,10,200,{'long ' * 100_000}\n"
    )
    report = bring(said.encode("latin-1"))
    assert [e["request"] for e in bring.events() if e["event"] == "request.received"] == ["c"]
    assert [bad["line"] for bad in report["bad"]] == [2, 4, 6]


def test_line_that_is_being_written_waits_for_its_end(bring: Bringing, tmp_path: Path) -> None:
    line = '10.0.0.1 - - [27/Aug/2026:12:00:0{} +0000] "POST /v1/completions HTTP/1.1" 200 5 "-" "py" rt=0.2 req={}\n'
    file = tmp_path / "access.log"
    whole = "".join(line.format(n, f"{n}" * 16) for n in range(3))
    file.write_text(whole[:-40])
    assert [bad["line"] for bad in bring(file)["bad"]] == [3]
    file.write_text(whole)
    assert bring(file)["added"] == 2
    assert [e["request"] for e in bring.events()] == [f"{n}" * 16 for n in range(3) for _ in range(2)]
    table = f"start_time,request_id,status,prompt_tokens\n{DAY}1Z,a,200,10"
    assert [note["line"] for note in bring(table, name="table")["notes"]] == [2]


def test_log_that_was_packed_when_it_was_rotated_is_known(bring: Bringing, tmp_path: Path) -> None:
    file, packed = tmp_path / "calls.jsonl", tmp_path / "calls.jsonl.2.gz"
    whole = lines(*(openai(n) for n in range(4)))
    file.write_text(lines(*(openai(n) for n in range(2))))
    bring(file)
    packed.write_bytes(gzip.compress(whole.encode()))
    assert bring(packed)["added"] == 4
    assert [e["request"] for e in bring.events() if e["event"] == "request.received"] == [
        f"chatcmpl-{n}" for n in range(4)
    ]


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.csv"])
def test_utf_16_is_named(name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    file.write_text(lines(openai(1)) if name.endswith("jsonl") else "timestamp,status\n1,200\n", encoding="utf-16")
    assert run(["import", str(file), "--store", str(store)]) == 2
    assert "line 1: UTF-16; convert the file to UTF-8 first" in capsys.readouterr().err


def test_types_of_parquet(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "calls.parquet"
    times = [1_792_890_000_000_000_001, 1_792_889_000_000_000_001]
    pq.write_table(
        pa.table(
            {
                "timestamp": pa.array(times, pa.timestamp("ns", "Europe/Berlin")),
                "request_id": ["a", "b"],
                "prompt_tokens": pa.array([Decimal(100), Decimal(200)], pa.decimal128(38, 0)),
                "status": [200, 400],
            }
        ),
        file,
    )
    report = bring(file)
    assert [note["note"][:19] for note in report["notes"]] == ["the clock went back"]
    told = [(e["request"], e["prompt_tokens"]) for e in bring.events() if e["event"] == "request.received"]
    assert told == [("b", 200), ("a", 100)]


def test_trouble_is_told_by_line(bring: Bringing) -> None:
    good = [lines(openai(n)).encode() for n in range(4)]
    back = lines(openai(5, timestamp="2026-08-26T12:00:00Z")).encode()
    naive = lines(openai(6, timestamp="2026-08-26T12:00:01")).encode()
    wrong = lines(openai(7, counted_prompt_tokens="many")).encode()
    text = good[0] + good[1][:50] + b"\n" + b"\0" * 20 + b"\n" + b'{"a": "\xff"}\n' + wrong + good[2] + back + naive
    report = bring(text)
    assert {bad["line"]: bad["reason"] for bad in report["bad"]} == {
        2: "not JSON",
        3: "NUL bytes alone: the file was truncated while it was written",
        4: "not valid UTF-8",
        5: "received_tokens: not a number of tokens",
    }
    assert {note["line"]: note["note"].split(":")[0].split(" by")[0] for note in report["notes"]} == {
        7: "the clock went back",
        8: "times without a zone are taken for UTC",
    }
    assert "line 7: the clock went back" in bring.said
