"""`kvwitness store`: what each command prints, and the status that a script can rely on."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.store import Store

CASES = Path(__file__).parents[1] / "cases"
FILES = sorted(CASES.glob("k0[123]*.jsonl"))
EVENTS = sum(len(file.read_text().splitlines()) for file in FILES)


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A store of several imports."""
    path = tmp_path / "store"
    assert run(["import", *map(str, FILES), "--store", str(path), "--quiet"]) == 0
    capsys.readouterr()
    return path


def answered(
    store: Path, command: str, *options: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, objects printed, what was said."""
    status = run(["store", command, "--store", str(store), "--format", "jsonl", *options])
    captured = capsys.readouterr()
    return status, [json.loads(line) for line in captured.out.splitlines()], captured.err


def damage(store: Path, *, footer: bool = False) -> Path:
    """Flip one byte of what a segment holds, early in it, for half of a small one is its footer; or of that."""
    segment = next(iter(sorted(store.rglob("ev-*.parquet"))))
    data = bytearray(segment.read_bytes())
    data[-6 if footer else len(data) // 4] ^= 1
    segment.write_bytes(data)
    return segment


@pytest.mark.parametrize("wanted", ["tell", "redact", "pseudonymise"])
def test_notes_that_name_a_removed_tenant(store: Path, capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    casebook = Store.open(store).casebook
    casebook.add("inc-1", "note", by="ada", text="t-ash was told")
    casebook.add("inc-2", "note", by="ada", text="nobody was told")
    options = ("--tenant", "t-ash", "--yes", "--notes", wanted)
    status, (told,), err = answered(store, "retain", *options, capsys=capsys)
    assert (status, told["notes_naming_it"], told["notes_changed"]) == (0, 1, 0 if wanted == "tell" else 1)
    assert "a note on inc-1 by ada" in err
    text = casebook.entries()["text"].to_list()
    assert text[1] == "nobody was told"
    if wanted == "pseudonymise":
        assert text[0].removesuffix(" was told") not in ("t-ash", "[removed]", text[0])
    else:
        assert text[0] == {"tell": "t-ash was told", "redact": "[removed] was told"}[wanted]


def test_info(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [info], said = answered(store, "info", capsys=capsys)
    assert (status, info["rows"], len(info["imports"]), said) == (0, EVENTS, len(FILES), "")


def test_compact_keeps_every_event(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [done], _ = answered(store, "compact", capsys=capsys)
    assert (status, done["merged"], done["rows"], done["damaged"]) == (0, len(FILES), EVENTS, [])
    assert Store.open(store).info()["rows"] == EVENTS


def test_verify_of_a_sound_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(store, "verify", capsys=capsys) == (0, [], "0 errors, 0 notes\n")


def test_verify_of_a_damaged_store_and_quarantine(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = damage(store)
    status, problems, said = answered(store, "verify", capsys=capsys)
    assert (status, [p["kind"] for p in problems if p["severity"] == "error"]) == (1, ["damaged"])
    assert segment.name in problems[0]["name"]
    assert said.startswith("1 errors")
    status, _, said = answered(store, "verify", "--quarantine", capsys=capsys)
    assert status == 0
    assert segment.name in said
    assert 0 < Store.open(store).info()["rows"] < EVENTS


@pytest.mark.parametrize("footer", [False, True])
def test_compact_names_damaged_segments(store: Path, footer: bool, capsys: pytest.CaptureFixture[str]) -> None:
    segment = damage(store, footer=footer)
    status, [done], said = answered(store, "compact", capsys=capsys)
    assert (status, len(done["damaged"]), done["merged"]) == (1, 1, len(FILES) - 1)
    assert segment.name in said


def test_moved_store_is_published_anew(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(store, elsewhere)
    assert Store.open(elsewhere).info()["moved"]
    assert run(["store", "publish", "--store", str(elsewhere)]) == 0
    assert not Store.open(elsewhere).info()["moved"]


def test_migrate_of_a_current_store_does_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, [done], _ = answered(store, "migrate", capsys=capsys)
    assert (status, done["segments"], done["from_version"]) == (0, 0, done["to_version"])


def test_retain_by_tenant(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenants = Store.open(store).events(["tenant"]).collect()["tenant"]
    tenant = tenants.drop_nulls()[0]
    status, [done], _ = answered(store, "retain", "--tenant", tenant, "--yes", capsys=capsys)
    assert status == 0
    assert done["rows"] > 0
    left = Store.open(store).events(["tenant"]).collect()["tenant"]
    assert (tenant in left, len(left)) == (False, EVENTS - done["rows"])


def test_retain_by_age(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The cases are dated 2026: none of them is as old as that.
    status, [done], _ = answered(store, "retain", "--older-than", "5000d", "--yes", capsys=capsys)
    assert (status, done["rule"], done["rows"]) == (0, "age", 0)


@pytest.mark.parametrize("options", [["--older-than", "soon"], [], ["--tenant", "t", "--older-than", "1d"]])
def test_retain_refuses_what_is_not_clear(options: list[str], store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(store, "retain", "--yes", *options, capsys=capsys)[0] == 2
    assert Store.open(store).info()["rows"] == EVENTS


def test_retain_removes_nothing_without_a_yes(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        status, objects, said = answered(store, "retain", "--older-than", "1s", capsys=capsys)
        assert (status, objects) == (2, [])
        assert said.endswith("nothing was done\n")
        assert Store.open(store).info()["rows"] == EVENTS
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    assert answered(store, "retain", "--older-than", "1s", capsys=capsys)[0] == 0


@pytest.mark.parametrize("command", ["info", "compact", "verify", "publish"])
def test_no_store_is_an_error_with_advice(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", command, "--store", str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no store" in captured.err
    assert not (tmp_path / "none").exists()
