"""Opening a store for a command, with the key for pseudonyms from the environment."""

from __future__ import annotations

from pathlib import Path

from kvwitness.audit.store import Pseudonyms, Store


def open_store(path: Path) -> Store:
    """The store at `path`; raises a `StoreError` that says what to do when there is none."""
    return Store.open(path, pseudonyms=Pseudonyms.from_environment())


def open_or_create_store(path: Path) -> Store:
    """The store at `path`, made when there is none.

    With KVWITNESS_TENANT_KEY (or KVWITNESS_TENANT_KEY_FILE) set, a new store keeps tenants as pseudonyms
    only.
    """
    return Store.create(path, exist_ok=True, pseudonyms=Pseudonyms.from_environment())


def tenant_name(path: Path, tenant: str) -> str:
    """The name under which the store at `path` keeps a tenant: its pseudonym, in a store of pseudonyms."""
    key = Pseudonyms.from_environment()
    if key is None or key.made(tenant) or open_store(path).info()["tenants"] != "pseudonyms":
        return tenant
    return key.of(tenant)
