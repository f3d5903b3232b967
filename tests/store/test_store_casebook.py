"""What people say about incidents: kept for good, by any number of writers, and readable in SQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvwitness.audit.store import Deed, Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "s")


def test_entries_come_back_as_written_and_in_order(store: Store) -> None:
    store.casebook.add("inc-1", Deed.ACKNOWLEDGE, by=" ada ", verdict="leak", findings=3)
    store.casebook.add("inc-1", Deed.ASSIGN, by="ada", assignee="bob")
    store.casebook.add("inc-2", "close", by="bob", text="fixed in 1.2")
    rows = Store.open(store.path).casebook.entries().to_dicts()
    assert [
        (r["incident"], r["deed"], r["by"], r["text"], r["assignee"], r["verdict"], r["findings"]) for r in rows
    ] == [
        ("inc-1", "acknowledge", "ada", "", None, "leak", 3),
        ("inc-1", "assign", "ada", "", "bob", None, None),
        ("inc-2", "close", "bob", "fixed in 1.2", None, None, None),
    ]
    assert [r["incident"] for r in store.casebook.entries("inc-2").to_dicts()] == ["inc-2"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"deed": "note", "by": "", "text": "x"}, "needs a name"),
        ({"deed": "note", "by": "ada"}, "needs a text"),
        ({"deed": "close", "by": "ada", "text": "  "}, "needs a reason"),
        ({"deed": "assign", "by": "ada"}, "Nobody was named"),
        ({"deed": "note", "by": "ada", "text": "x" * 5000}, "5,000 characters"),
    ],
)
def test_an_entry_that_says_too_little_is_refused(store: Store, entry: dict[str, str], told: str) -> None:
    with pytest.raises(StoreError, match=told):
        store.casebook.add("inc-1", entry.pop("deed"), **entry)  # type: ignore[arg-type]
    assert store.casebook.entries().is_empty()


def test_many_writers_lose_nothing(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.casebook.add(f"inc-{n}", Deed.NOTE, by="ada", text=str(n)), range(80)))
    assert sorted(store.casebook.entries()["text"].to_list()) == sorted(str(n) for n in range(80))


def test_sql_sees_entries_as_they_come(store: Store) -> None:
    with store.connect() as con:
        assert con.sql("FROM incident_notes").fetchall() == []
        store.casebook.add("inc-1", Deed.NOTE, by="ada", text="seen")
        assert con.sql(
            'SELECT incident, deed, "by", text, at_ts = make_timestamp_ns(at_ns) FROM incident_notes'
        ).fetchall() == [("inc-1", "note", "ada", "seen", True)]


def test_a_damaged_entry_is_named(store: Store) -> None:
    store.casebook.add("inc-1", Deed.NOTE, by="ada", text="seen")
    (path,) = [p for p in (store.path / "casebook").iterdir() if "empty" not in p.name]
    path.write_bytes(b"{")
    with pytest.raises(StoreError, match=path.name):
        store.casebook.entries()


def test_entries_that_name_a_tenant_are_found_and_renamed(store: Store) -> None:
    store.casebook.add("inc-1", Deed.NOTE, by="ada", text="Acme called; acme-eu and acmeville did not")
    store.casebook.add("inc-2", Deed.CLOSE, by="ada", text="told ACME", verdict="leak", findings=3)
    store.casebook.add("inc-3", Deed.ASSIGN, by="ada", assignee="acme")
    store.casebook.add("inc-4", Deed.NOTE, by="ada", text="acme-eu")
    assert store.casebook.naming({"acme"})["incident"].to_list() == ["inc-1", "inc-2", "inc-3"]
    before = store.casebook.entries()
    assert store.casebook.rename({"acme"}, "[removed]") == 3
    after = store.casebook.entries()
    assert after["text"].to_list()[:2] == ["[removed] called; acme-eu and acmeville did not", "told [removed]"]
    assert after["assignee"][2] == "[removed]"
    same = ["incident", "deed", "by", "verdict", "findings", "at_ns"]
    assert after.select(same).equals(before.select(same))
    assert store.casebook.naming({"acme"}).is_empty()
    assert store.casebook.rename({"acme"}, "x") == 0


def test_adding_changes_the_revision(store: Store) -> None:
    before = store.casebook.revision
    store.casebook.add("inc-1", Deed.NOTE, by="ada", text="seen")
    assert store.casebook.revision != before


def test_a_store_without_a_casebook_gets_one(store: Store) -> None:
    for path in (store.path / "casebook").iterdir():
        path.unlink()
    (store.path / "casebook").rmdir()
    assert store.casebook.entries().is_empty()
    store.casebook.add("inc-1", Deed.NOTE, by="ada", text="seen")
    assert len(store.casebook.entries()) == 1
