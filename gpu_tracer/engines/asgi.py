"""An ASGI middleware that tells the engine whose a request is: headers do not reach the engine by themselves.

    vllm serve ... --middleware kvwitness.gpu_tracer.engines.asgi.TenantMiddleware

It takes the tenant from a header that a gateway sets, or looks up the caller's API key, and puts it into the request's
body with a proof that the engine's side can check, as an extra argument that vLLM hands through (`vllm_xargs`). What a
client puts there itself is taken out. With KVWITNESS_SALT_TENANTS=1 a request also gets a `cache_salt` of its tenant,
in place of the client's own, so that no two tenants share pages of the prefix cache.

    KVWITNESS_TENANT_HEADER   header with the tenant's name, such as x-tenant-id; only behind a gateway that sets it
    KVWITNESS_TENANT_KEYS     file with one `sha256-of-the-key tenant` per line, for `Authorization: Bearer KEY`

Whatever goes wrong here, the request goes to the engine as it came, without a tenant.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from kvwitness.gpu_tracer.engines.identity import ATTESTED, Identity

HEADER_VARIABLE = "KVWITNESS_TENANT_HEADER"
KEYS_VARIABLE = "KVWITNESS_TENANT_KEYS"
SALT_VARIABLE = "KVWITNESS_SALT_TENANTS"
MOST_BYTES = 64 << 20
"""Bodies beyond this are passed on unread."""
_BEARER = b"bearer "

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("kvwitness.gpu_tracer")


class TenantMiddleware:
    """Stands before an ASGI application and marks the JSON bodies of its POST requests."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._header = os.environ.get(HEADER_VARIABLE, "").lower().encode() or None
        self._salting = os.environ.get(SALT_VARIABLE) == "1"
        self._identity: Identity | None = None
        self._tenants: dict[str, str] = {}
        try:
            self._identity = Identity.from_environment()
            if file := os.environ.get(KEYS_VARIABLE):
                self._tenants = read_keys(Path(file))
        except (OSError, ValueError) as error:
            _log.warning("tenants are not told to the engine: %s", error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, marked where it can be."""
        if scope["type"] != "http" or scope.get("method") != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        messages, body = await _read(receive)
        marked = self._marked(scope, body) if body is not None else None
        if marked is not None:
            messages = [{"type": "http.request", "body": marked, "more_body": False}]
            length = [(b"content-length", str(len(marked)).encode())]
            headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
            scope = {**scope, "headers": headers + length}

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replay, send)

    def _marked(self, scope: Scope, body: bytes) -> bytes | None:
        """The body with the tenant in it; None where it stays as it is."""
        try:
            document = json.loads(body)
            if not isinstance(document, dict):
                return None
            extra = document.get("vllm_xargs")
            extra = dict(extra) if isinstance(extra, dict) else {}
            forged = extra.pop(ATTESTED, None) is not None
            tenant = self._tenant(scope)
            if tenant is None or self._identity is None:
                return json.dumps({**document, "vllm_xargs": extra}).encode() if forged else None
            document["vllm_xargs"] = {**extra, ATTESTED: self._identity.attest(tenant)}
            if self._salting:
                document["cache_salt"] = self._identity.hashed("tenant salt", tenant)
            return json.dumps(document).encode()
        except Exception as error:
            _log.warning("a request went to the engine without its tenant: %s", type(error).__name__)
            return None

    def _tenant(self, scope: Scope) -> str | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._header is not None and (named := headers.get(self._header)):
            return str(named.decode("latin-1"))
        authorization: bytes = headers.get(b"authorization", b"")
        if self._tenants and authorization.lower().startswith(_BEARER):
            return self._tenants.get(hashlib.sha256(authorization[len(_BEARER) :].strip()).hexdigest())
        return None


def read_keys(path: Path) -> dict[str, str]:
    """SHA-256 of an API key (hex) -> tenant. Raises OSError, and ValueError for a line that is not such a pair."""
    out = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, tenant = line.strip().partition(" ")
        if len(digest) != 64 or not tenant.strip():
            raise ValueError(f"{path}, line {number}: not `sha256-of-the-key tenant`")
        out[digest.lower()] = tenant.strip()
    return out


def _is_json(scope: Scope) -> bool:
    return any(name.lower() == b"content-type" and b"json" in value.lower() for name, value in scope["headers"])


async def _read(receive: Receive) -> tuple[list[Message], bytes | None]:
    """The messages of a request's body, and the body; None for it where it does not end or is too long."""
    messages, parts, size = [], [], 0
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return messages, None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return messages, None
        if not message.get("more_body"):
            return messages, b"".join(parts)
