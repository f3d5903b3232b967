"""An export stands alone: the window, what held before, all views and queries; no tenant's name when asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import kvwitness.audit
from kvwitness.audit.cli.app import run
from kvwitness.audit.exporting import NAME, export
from kvwitness.audit.queries import queries
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Pseudonyms, Store, views

CASE = Path(__file__).parent / "cases" / "real-sglang-0519-placeholder.jsonl"
TENANTS = ("t-ash", "t-birch", "t-cedar")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("exporting") / "store"
    assert run(["import", str(CASE), "--store", str(path), "--quiet"]) == 0
    opened = Store.open(path)
    audit_store(opened)
    return opened


def ask(path: Path, statement: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as con:
        return con.execute(statement).fetchall()


def test_the_whole_record_answers_like_the_store(store: Store, tmp_path: Path) -> None:
    path, events = export(store, tmp_path / "out")
    assert (path, events) == (tmp_path / "out" / NAME, 1970)
    for name in ("over_limit_successes", "tenants_to_notify", "unobserved", "short_transfers"):
        frame = kvwitness.audit.query(name, store=store)
        assert len(ask(path, f"FROM {name}()")) == len(frame)
    for view in (*views.DERIVED, *views.RESULTS):
        with store.connect() as con:
            count = con.execute(f"SELECT count(*) FROM {view.name}").fetchall()
        assert ask(path, f"SELECT count(*) FROM {view.name}") == count, view.name
    undocumented = "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
    assert ask(path, undocumented) == []


def test_a_window_keeps_what_held_and_what_proves(store: Store, tmp_path: Path) -> None:
    path, events = export(store, tmp_path, since="2026-11-30 17:48:00")
    assert 0 < events < 1970
    assert ask(path, "SELECT request FROM over_limit_successes()") == [("r1020",)]
    assert len(ask(path, "FROM limits")) == 2
    assert ask(path, "SELECT DISTINCT request FROM findings WHERE verdict = 'leak'") == [("r1020",)]
    proof = (
        "SELECT count(*) FROM (SELECT unnest(seqs, recursive := true) FROM findings) AS p "
        "WHERE NOT EXISTS (FROM events AS e WHERE e.source = p.source AND e.seq = p.seq)"
    )
    assert ask(path, proof) == [(0,)]


def test_no_name_of_a_tenant_is_in_a_pseudonymised_export(store: Store, tmp_path: Path) -> None:
    key = Pseudonyms(b"k" * 32)
    path, _ = export(store, tmp_path, pseudonyms=key)
    data = path.read_bytes()
    assert [name for name in TENANTS if name.encode() in data] == []
    told = ask(path, "SELECT tenant FROM tenants_to_notify() ORDER BY 1")
    assert told == sorted((key.of(name),) for name in TENANTS)
    assert ask(path, "SELECT value FROM manifest WHERE key = 'tenants'") == [("pseudonyms of the export",)]
    assert "t-" not in " ".join(str(why) for (why,) in ask(path, "SELECT why FROM findings WHERE why LIKE '%t-ash%'"))


def test_nor_is_it_where_a_source_put_it_into_a_text_or_a_field_of_its_own(tmp_path: Path) -> None:
    lines = []
    for line in (CASE.parent / "k01-oversize-stub-handoff.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "request.rejected":
            event["reason"] = "the limit of t-ash (Zürich) was met"
        if event.get("tenant") == "t-birch":
            event |= {"customer": "t-birch", "holder": "t-birch"}
        lines.append(json.dumps(event))
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    assert run(["import", str(tmp_path / "trace.jsonl"), "--store", str(tmp_path / "s"), "--quiet"]) == 0
    store, key = Store.open(tmp_path / "s"), Pseudonyms(b"k" * 32)
    audit_store(store)
    path, events = export(store, tmp_path, pseudonyms=key)
    assert [name for name in TENANTS if name.encode() in path.read_bytes()] == []
    told = ask(path, "SELECT reason FROM events WHERE event = 'request.rejected'")
    assert told == [(f"the limit of {key.of('t-ash')} (Zürich) was met",)]
    plain, _ = export(store, tmp_path / "plain")
    types = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'events'"
    assert (events, ask(path, types)) == (43, ask(plain, types))
    assert ask(plain, "SELECT DISTINCT extra->>'customer' FROM events WHERE extra IS NOT NULL") == [("t-birch",)]


@pytest.mark.parametrize("until", ["infinity", "9999-12-31"])
def test_a_window_without_an_end(store: Store, tmp_path: Path, until: str) -> None:
    assert export(store, tmp_path, since="-infinity", until=until)[1] == 1970


def test_random_pseudonyms_cannot_be_linked(store: Store, tmp_path: Path) -> None:
    paths = [export(store, tmp_path / name, pseudonyms=Pseudonyms.random())[0] for name in "ab"]
    tenants = [set(ask(path, "SELECT DISTINCT tenant FROM events WHERE tenant IS NOT NULL")) for path in paths]
    assert len(tenants[0]) == len(tenants[1]) > 3
    assert not tenants[0] & tenants[1]


def test_an_unaudited_store_says_so_in_its_export(tmp_path: Path) -> None:
    assert run(["import", str(CASE), "--store", str(tmp_path / "s"), "--quiet"]) == 0
    path, _ = export(Store.open(tmp_path / "s"), tmp_path)
    assert len(ask(path, "FROM over_limit_successes()")) == 2
    with pytest.raises(duckdb.Error, match="kvwitness audit"):
        ask(path, "FROM tenants_to_notify()")


def test_nothing_is_overwritten_and_nothing_half_done_stays(store: Store, tmp_path: Path) -> None:
    digest: Callable[[Path], str] = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()  # noqa: E731
    path, _ = export(store, tmp_path)
    before = digest(path)
    with pytest.raises(kvwitness.audit.errors.KvwitnessError, match="exists already"):
        export(store, tmp_path)
    assert digest(path) == before
    with pytest.raises(kvwitness.audit.errors.KvwitnessError, match="is no time"):
        export(store, tmp_path / "other", since="noon")
    assert list((tmp_path / "other").iterdir()) == []


def test_the_command_writes_it(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sql", "--store", str(store.path), "--export", str(tmp_path), "--pseudonymise"]) == 0
    assert "1,970 events" in capsys.readouterr().err
    names = {
        name for (name,) in ask(tmp_path / NAME, "SELECT function_name FROM duckdb_functions() WHERE NOT internal")
    }
    assert names >= set(queries())
