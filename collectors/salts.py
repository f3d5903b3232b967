"""The key under which cache salts are hashed, so that equal salts are known to be equal and no salt is kept."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store.pseudonyms import KEY_VARIABLE
from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE

RING_KEY = "identity.key"
"""Name of the tracer's own key, beside its rings."""


def salt_key() -> bytes:
    """The key of the tenants' pseudonyms, else that of the tracer's rings on this machine, else one of this run.

    Raises KvwitnessError where a file that is named cannot be read.
    """
    return _kept_key() or secrets.token_bytes(32)


def lasting_salt_key() -> bytes:
    """The same, but never one of this run, under which hashes mean nothing to any other.

    Raises KvwitnessError where there is none.
    """
    key = _kept_key()
    if not key:
        raise KvwitnessError(
            "No key is set under which the hash of a salt would be the same in another process.",
            f"Set {KEY_VARIABLE}_FILE, or {DIRECTORY_VARIABLE} where a tracer keeps its rings.",
        )
    return key


def _kept_key() -> bytes | None:
    try:
        if file := os.environ.get(f"{KEY_VARIABLE}_FILE"):
            return Path(file).expanduser().read_bytes().strip()
        if value := os.environ.get(KEY_VARIABLE):
            return value.encode()
        directory = os.environ.get(DIRECTORY_VARIABLE)
        if directory and (path := Path(directory) / RING_KEY).exists():
            return path.read_bytes()
    except OSError as error:
        raise KvwitnessError(f"the key for pseudonyms cannot be read: {error}") from None
    return None
