"""The pseudonym of a tenant: one formula, wherever it is applied. Standard library only."""

from __future__ import annotations

import hashlib
import hmac

PREFIX = "t-"
DIGITS = 24
MIN_KEY_BYTES = 16


def pseudonym(key: bytes, tenant: str) -> str:
    """`t-` and 24 hex digits of HMAC-SHA256(key, name): equal names stay equal, and the key alone links them."""
    digest = hmac.new(key, b"tenant\0" + tenant.encode(), hashlib.sha256).hexdigest()
    return PREFIX + digest[:DIGITS]
