"""The hash of a salt as a person gets it is the one under which a collector knows the salt."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run
from tests.collectors.otlp.support import events, receiver, span, traces


def test_tenant_by_the_hash_of_its_salt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, salts = tmp_path / "key", tmp_path / "salts.toml"
    key.write_text("k" * 32)
    monkeypatch.setenv("KVWITNESS_TENANT_KEY_FILE", str(key))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"pepper\n\nsalt\xff\n")))
    assert run(["salt-hash", "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert "pepper" not in out
    pepper, salt = json.loads(out)
    assert (pepper["line"], salt["line"]) == (1, 3)
    salts.write_text(f'[salts]\n{pepper["salt_hmac"]} = "t-elm"\n')
    with receiver(tmp_path / "store", "--salt-map", str(salts)) as running:
        of = {"tenant.id": None, "cache_salt": "pepper"}
        assert running.post(traces(span(attributes=of)))[0] == 200
    received = events(tmp_path / "store")[0]
    assert received["tenant_source"] == "salt"


def test_hash_under_a_key_that_nobody_else_has_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("KVWITNESS_TENANT_KEY", "KVWITNESS_TENANT_KEY_FILE", "KVWITNESS_RING_DIR"):
        monkeypatch.delenv(name, raising=False)
    salts = tmp_path / "salts.toml"
    salts.write_text('[salts]\n0123456789abcdef = "t-elm"\n')
    for command in (["salt-hash"], ["collect", "--salt-map", str(salts), "--store", str(tmp_path / "store")]):
        assert run(command) == 2
        assert "KVWITNESS_TENANT_KEY_FILE" in capsys.readouterr().err
