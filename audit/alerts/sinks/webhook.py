"""A generic webhook: the notice as JSON, with an idempotency key, a time, and a signature over both and the body."""

from __future__ import annotations

import hashlib
import hmac
import time

import orjson

from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._wording import document
from kvwitness.audit.alerts.sinks.model import SinkKind


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """`v1=` and the hex HMAC-SHA256 of `timestamp`, a full stop and the body.

    A receiver computes it anew, compares in constant time, and refuses a timestamp that is older than some minutes,
    and a key that it has seen.
    """
    return "v1=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Webhook:
    """Posts each notice to one address."""

    def __init__(self, poster: Poster, secret: bytes | None) -> None:
        self._poster, self._secret = poster, secret

    def deliver(self, notice: Notice) -> None:
        """Post one notice."""
        self._post(document(notice), notice.key)

    def beat(self, now_ns: int, every_ns: int) -> None:
        """Post a sign of life; it has no alert, and says when the next one comes."""
        self._post(
            {"schema": "kvwitness.heartbeat/1", "at_ns": now_ns, "next_ns": now_ns + every_ns}, f"heartbeat/{now_ns}"
        )

    def _post(self, payload: object, key: str) -> None:
        body, timestamp = orjson.dumps(payload), str(int(time.time()))
        headers = {"Idempotency-Key": key, "Kvwitness-Timestamp": timestamp}
        if self._secret is not None:
            headers["Kvwitness-Signature"] = signature(self._secret, timestamp, body)
        self._poster.post(body, headers=headers)


def make(section: Section) -> Webhook:
    """Keys: `url`, `secret` (optional, at least 16 characters), `headers`, `ca_file`."""
    secret = section.secret("secret", None)
    if secret is not None and len(secret) < 16:
        raise section.error("secret", "is shorter than 16 characters")
    return Webhook(Poster.of(section), secret.encode() if secret else None)


SINK = SinkKind("webhook", "JSON to an address of your own, signed", make)
