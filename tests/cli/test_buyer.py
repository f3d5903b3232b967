"""The buyer's view, from a client's own log and a bill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.cli.app import run


def call(number: int, sent: int, stated: int | None, status: int = 200, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": stated, "completion_tokens": more.pop("output", 5)} if stated is not None else {}
    cached = more.pop("cached", 0)
    if usage and cached:
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "timestamp": f"2026-08-27T12:00:{number:02}Z",
        "status_code": status,
        "counted_prompt_tokens": sent,
        "request": {"model": more.pop("model", "m")},
        "response": {"id": f"c{number}", "usage": usage},
    }


CALLS = [
    call(1, 50, 50),
    call(2, 101, 1),  # beyond the limit, and answered for one token
    call(3, 101, None, 400),
    call(4, 100, 100),
    call(5, 60, 60, output=0),
    call(6, 70, 70),  # billed otherwise
    call(7, 30, 30, model="other", cached=16) | {"provider": "elsewhere"},
]
BILL = [
    {"timestamp": "2026-08-31T00:00:00Z", "id": f"c{n}", "prompt_tokens": p} | more
    for n, p, more in ((1, 50, {"status": 200}), (6, 700, {}), (99, 5, {}))  # bills rarely state a status
]


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for name, documents in (("client", CALLS), ("bill", BILL)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in documents))
        assert (
            run(["import", str(file), "--store", str(tmp_path / "store"), "--source", f"{name}/x", "--tenant", "t-me"])
            == 0
        )
    capsys.readouterr()
    return tmp_path / "store"


def asked(store: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = run(["audit", "--as-buyer", "--store", str(store), "--format", "json", *options])
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, out


def test_checklist(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, view = asked(store, capsys, "--over", "100")
    assert status == 1
    told = [(one["answer"], one["because"]) for one in view["checklist"]]
    assert told == [
        ("yes", "2 requests, by our count, else by the usage"),
        ("yes", "1 success, by their status"),
        ("yes", "1 answer, our count beside the usage"),
        ("yes", "1 request, the bill beside the usage"),
        (
            "yes",
            "1 of 3 records without a request of ours; billed 755 prompt and 0 output tokens, all answers of our "
            "record state 311 and 25",
        ),
        ("yes", "1 success, by the usage that was answered"),
        ("yes", "1 answer, by the usage"),
        ("yes", "0 requests of 7 without a status"),
    ]
    assert {one["request"]: len(one["reasons"]) for one in view["ask_the_provider"]} == {
        "c2": 2,
        "c5": 1,
        "c6": 1,
        "c7": 1,
    }
    assert [one["answer"] for one in view["vendor_review"]] == ["no", "no", "cannot be known", "cannot be known"]
    assert view["cannot_be_known"]


def test_of_one_model_in_a_window(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, view = asked(store, capsys, "--over", "100", "--model", "m", "--until", "2026-08-27 12:00:02")
    assert (status, view["counts"]["requests"], view["ask_the_provider"]) == (0, 1, [])


def test_on_a_screen(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--as-buyer", "--store", str(store), "--over", "100", "--format", "table"]) == 1
    shown = capsys.readouterr().out
    assert "4 requests to ask the provider about" in shown
    assert "- c2, received 2026-08-27 12:00:02: 100 tokens are the limit, it had 101" in shown


def test_without_a_limit_a_length_has_to_be_given(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--as-buyer", "--store", str(store)]) == 2
    assert "--over" in capsys.readouterr().err


def test_a_bill_that_comes_later_is_no_answer_and_meets_the_window(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, view = asked(store, capsys, "--over", "100", "--until", "2026-08-28")
    assert [one["request"] for one in view["ask_the_provider"]] == ["c2", "c5", "c6", "c7"]
    assert view["counts"]["unknown"] == 0
    assert run(["sql", "SELECT status, answered_prompt_tokens FROM requests WHERE request = 'c6'", "--store",
                str(store), "--format", "json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out) == [{"status": 200, "answered_prompt_tokens": 70}]


def test_a_bill_by_the_day_is_compared_by_its_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls, bill = tmp_path / "calls.jsonl", tmp_path / "bill.csv"
    calls.write_text("".join(json.dumps(one) + "\n" for one in CALLS))
    bill.write_text("date,prompt_tokens,completion_tokens\n2026-08-27,311,25\n2026-08-28,40,0\n")
    path = tmp_path / "store"
    assert run(["import", str(calls), "--store", str(path), "--source", "client/x"]) == 0
    assert run(["import", str(bill), "--store", str(path), "--source", "bill/x"]) == 0
    capsys.readouterr()
    _, view = asked(path, capsys, "--over", "100")
    by_request, by_sum = view["checklist"][3:5]
    assert by_request["because"] == "none of the bill's 2 records names a request of ours by its id"
    assert (by_request["answer"], by_sum["answer"]) == ("cannot be known", "yes")
    assert "billed 351 prompt and 25 output tokens, all answers of our record state 311 and 25" in by_sum["because"]


def test_ends_of_the_window(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, view = asked(store, capsys, "--over", "100", "--until", "2026-08-27T14:00:02+02:00")
    assert view["counts"]["requests"] == 1
    for command in (["audit", "--as-buyer", "--over", "1"], ["spans", "http://127.0.0.1:9"]):
        assert run([*command, "--since", "yesterday", "--store", str(store)]) == 2
        assert "--since 'yesterday' is no time" in capsys.readouterr().err


def test_what_the_bill_says_stands_in_the_question(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, view = asked(store, capsys, "--over", "100")
    [billed] = [one for one in view["ask_the_provider"] if one["request"] == "c6"]
    assert billed["reasons"] == ["the bill states 700 prompt tokens, the answer 70"]


def test_at_a_provider(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, view = asked(store, capsys, "--over", "10", "--provider", "elsewhere")
    assert view["counts"]["requests"] == 1
    assert view["checklist"][0]["because"].startswith("1 request")
    assert [one["request"] for one in view["ask_the_provider"]] == ["c7"]
    assert run(["audit", "--as-buyer", "--over", "10", "--provider", "elsewhere", "--store", str(store), "--format",
                "table"]) == 1  # fmt: skip
    assert "our own record of 1 request at elsewhere" in capsys.readouterr().out


def test_what_was_sent_before_the_window_may_be_in_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, path = tmp_path / "calls.jsonl", tmp_path / "store"
    calls.write_text("".join(json.dumps(one) + "\n" for one in (call(1, 20, 20), call(2, 20, 20, cached=16))))
    assert run(["import", str(calls), "--store", str(path)]) == 0
    capsys.readouterr()
    _, view = asked(path, capsys, "--over", "100", "--since", "2026-08-27T12:00:02Z")
    assert (view["counts"]["requests"], view["ask_the_provider"]) == (1, [])
