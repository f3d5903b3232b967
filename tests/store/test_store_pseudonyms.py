"""Pseudonyms: the same in all stores of one key; the key and the names are nowhere in the store."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pyarrow as pa
import pytest

from kvwitness.audit.store import Pseudonyms, Store, StoreError
from tests.store.support import events, sha

KEY = b"correct-horse-battery-staple"


def tenants(store: Store) -> list[str | None]:
    return sorted(store.events(["tenant"]).collect()["tenant"].unique().to_list(), key=str)


def test_two_stores_of_one_key_agree_and_hold_neither_key_nor_names(tmp_path: Path) -> None:
    stores = [Store.create(tmp_path / n, pseudonyms=Pseudonyms(KEY)) for n in ("a", "b")]
    table = events(
        8,
        tenant="alice-the-tenant",
        request="r",
        ns=['{"adapter":"x","tenant":"alice-the-tenant"}', None] * 4,
        extra=['{"at":[{"tenant":"alice-the-tenant"}]}'] * 8,
    )
    with stores[0].writer("w") as writer:
        writer.append(table)
        writer.append(events(2, 8, tenant=None, request="r"))
    stores[1].import_batches(iter([table]), sha256=sha("f"))
    name = "t-" + hmac.new(KEY, b"tenant\0alice-the-tenant", hashlib.sha256).hexdigest()[:24]
    assert Pseudonyms(KEY).of("alice-the-tenant") == name
    assert tenants(stores[0]) == [None, name]
    assert tenants(stores[1]) == [name]
    row = stores[1].events(["ns", "extra"]).sort("ns", nulls_last=True).first().collect().row(0)
    assert row == (f'{{"adapter":"x","tenant":"{name}"}}', f'{{"at":[{{"tenant":"{name}"}}]}}')
    for store in stores:
        for path in store.path.rglob("*"):
            assert not path.is_file() or KEY not in path.read_bytes(), path
            assert not path.is_file() or b"alice" not in path.read_bytes(), path
    assert KEY.decode() not in repr(Pseudonyms(KEY))


def test_another_key_gives_other_names(tmp_path: Path) -> None:
    assert Pseudonyms(KEY).of("alice") != Pseudonyms(KEY + b"!").of("alice")
    Store.create(tmp_path / "a", pseudonyms=Pseudonyms(KEY))
    with pytest.raises(StoreError, match="under another key"):
        Store.open(tmp_path / "a", pseudonyms=Pseudonyms(KEY + b"!"))


def test_a_store_of_pseudonyms_takes_no_names(tmp_path: Path) -> None:
    Store.create(tmp_path / "a", pseudonyms=Pseudonyms(KEY))
    keyless = Store.open(tmp_path / "a")
    assert keyless.events().collect().height == 0  # reading needs no key
    for write in (lambda: keyless.writer("w"), lambda: keyless.begin_import("f")):
        with pytest.raises(StoreError, match="no key was given"):
            write()
    assert keyless.info()["tenants"] == "pseudonyms"


def test_a_store_of_names_takes_no_key(store: Store) -> None:
    with pytest.raises(StoreError, match="keeps tenants as recorded"):
        Store.open(store.path, pseudonyms=Pseudonyms(KEY))


def test_retention_takes_the_name_or_the_pseudonym(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "a", pseudonyms=Pseudonyms(KEY))
    with store.writer("w") as writer:
        for tenant in ("alice", "bob"):
            writer.append(events(4, tenant=tenant))
    assert store.retain(tenant="alice").rows == 4
    assert Store.open(store.path).retain(tenant=Pseudonyms(KEY).of("bob")).rows == 4


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("KVWITNESS_TENANT_KEY", "KVWITNESS_TENANT_KEY_FILE"):
        monkeypatch.delenv(variable, raising=False)
    assert Pseudonyms.from_environment() is None
    monkeypatch.setenv("KVWITNESS_TENANT_KEY", KEY.decode())
    from_variable = Pseudonyms.from_environment()
    (tmp_path / "key").write_bytes(KEY + b"\n")
    monkeypatch.setenv("KVWITNESS_TENANT_KEY_FILE", str(tmp_path / "key"))
    from_file = Pseudonyms.from_environment()
    assert from_variable is not None
    assert from_file is not None
    assert from_variable.check == from_file.check == Pseudonyms(KEY).check
    with pytest.raises(StoreError, match="No such file"):
        Pseudonyms.from_file(tmp_path / "none")
    monkeypatch.delenv("KVWITNESS_TENANT_KEY_FILE")
    monkeypatch.setenv("KVWITNESS_TENANT_KEY", "short")
    with pytest.raises(StoreError, match="at least 16"):
        Pseudonyms.from_environment()


def test_only_the_tenant_changes(tmp_path: Path) -> None:
    table = events(5, tenant="alice", request="r")
    store = Store.create(tmp_path / "a", pseudonyms=Pseudonyms(KEY))
    with store.writer("w") as writer:
        writer.append(table)
    kept = store.events().sort("seq").collect().to_arrow()
    for name in set(table.column_names) - {"tenant"}:
        assert kept.column(name).to_pylist() == table.column(name).to_pylist()
    assert isinstance(kept, pa.Table)
