"""Opening a store for a command, with the key for pseudonyms from the environment."""

from __future__ import annotations

from pathlib import Path

from kvwitness.audit.store import Pseudonyms, Store
from kvwitness.audit.wording import moment


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


def age(store: Store, started_ns: int, events: int) -> str | None:
    """What a reader should know when events came or went since the newest audit; None where its answer is of today.

    `started_ns` and `events` are what that audit says of itself.
    """
    now = sum(segment.rows for segment in store.segments())
    if now == events:
        return None
    return (
        f"The newest audit, of {moment(started_ns)}, saw {events:,} events; the store holds "
        f"{now:,} now. `kvwitness audit` judges them."
    )
