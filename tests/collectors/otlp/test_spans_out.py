"""Requests that leave a store as spans, and come into another one: all, once, with their verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.store import Store
from tests.collectors.otlp.support import events, receiver

CASE = Path(__file__).parents[2] / "cases" / "k01-oversize-stub-handoff.jsonl"


def test_requests_arrive_at_a_backend_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert run(["import", str(CASE), "--store", str(store), "--quiet"]) == 0
    assert run(["audit", "--store", str(store), "--quiet"]) == 1
    capsys.readouterr()
    with receiver(tmp_path / "backend") as backend:
        for _ in range(2):  # sending again sends the same spans
            assert run(["spans", backend.http, "--store", str(store), "--format", "json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert run(["spans", f"{backend.http}/nowhere", "--store", str(store)]) == 2
    received = {e["request"]: e for e in events(tmp_path / "backend") if e["event"] == "request.received"}
    finished = {e["request"]: e for e in events(tmp_path / "backend") if e["event"] == "request.finished"}
    assert told == [{"spans": len(received), "rejected": 0, "reason": ""}] * 2
    assert (received["r1003"]["prompt_tokens"], finished["r1003"]["prompt_tokens"]) == (284937, 1)
    assert (received["r1003"]["tenant"], finished["r1003"]["status"]) == ("t-ash", 200)
    original = {e["request"]: e for e in events(store) if e["event"] == "request.received"}
    assert {r: e["time_ns"] for r, e in received.items()} == {r: e["time_ns"] for r, e in original.items()}
    assert Store.open(store).result("request_verdicts").height == len(received)


def test_what_is_no_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.create(tmp_path / "store")
    assert run(["spans", "localhost:4318", "--store", str(tmp_path / "store")]) == 2
    assert "not the URL" in capsys.readouterr().err
