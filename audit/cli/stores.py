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


def tenant_name(tenant: str) -> str:
    """The name under which an open store keeps a tenant: its pseudonym, where there is a key for pseudonyms.

    A store that keeps tenants as recorded does not open while there is one.
    """
    key = Pseudonyms.from_environment()
    return tenant if key is None or key.made(tenant) else key.of(tenant)
