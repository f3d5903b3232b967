"""The middleware that tells the engine whose a request is."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines.asgi import TenantMiddleware
from kvwitness.gpu_tracer.engines.identity import ATTESTED, Identity

Headers = dict[str, str]


@pytest.fixture(autouse=True)
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWITNESS_TENANT_KEY", "a key for these tests")
    monkeypatch.setenv("KVWITNESS_TENANT_HEADER", "X-Tenant")


def through(body: Any, headers: Headers, *, parts: int = 1, method: str = "POST") -> tuple[bytes, Headers]:
    """What the application behind the middleware receives: body and headers."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    cuts = [raw[n * len(raw) // parts : (n + 1) * len(raw) // parts] for n in range(parts)]
    waiting = [{"type": "http.request", "body": cut, "more_body": n < parts - 1} for n, cut in enumerate(cuts)]
    got: dict[str, Any] = {}

    async def receive() -> Any:
        return waiting.pop(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        taken, more = b"", True
        while more:
            message = await receive()
            taken, more = taken + message["body"], message.get("more_body", False)
        got["body"], got["headers"] = taken, {k.decode(): v.decode() for k, v in scope["headers"]}

    async def send(message: Any) -> None:
        pass

    sent = {"content-type": "application/json", "content-length": str(len(raw)), **headers}
    scope = {"type": "http", "method": method, "headers": [(k.encode(), v.encode()) for k, v in sent.items()]}
    asyncio.run(TenantMiddleware(app)(scope, receive, send))
    return got["body"], got["headers"]


def tenant_in(body: bytes) -> str | None:
    """What the engine's side takes the tenant to be."""
    return Identity.from_environment().attested(json.loads(body).get("vllm_xargs", {}).get(ATTESTED))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_header_reaches_the_engine_with_a_proof(parts: int) -> None:
    body, headers = through({"prompt": "x", "vllm_xargs": {"other": 1}}, {"x-tenant": "t-ash"}, parts=parts)
    assert tenant_in(body) == "t-ash"
    assert json.loads(body)["vllm_xargs"]["other"] == 1
    assert json.loads(body)["prompt"] == "x"
    assert headers["content-length"] == str(len(body))


def test_what_a_client_claims_is_taken_out() -> None:
    proof = Identity.from_environment().attest("t-ash")
    assert tenant_in(through({"vllm_xargs": {ATTESTED: proof}}, {})[0]) is None
    assert tenant_in(through({"vllm_xargs": {ATTESTED: proof}}, {"x-tenant": "t-birch"})[0]) == "t-birch"


def test_a_proof_needs_the_key() -> None:
    ours = Identity.from_environment()
    assert ours.attested(Identity(b"another key").attest("t-ash")) is None
    assert ours.attested(ours.attest("t-ash").replace("ash", "birch")) is None
    assert ours.attested(None) is None


def test_api_keys_stand_for_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# key  tenant\n{hashlib.sha256(b'sk-1').hexdigest()} t-cedar\n")
    monkeypatch.setenv("KVWITNESS_TENANT_KEYS", str(keys))
    assert tenant_in(through({}, {"authorization": "Bearer sk-1"})[0]) == "t-cedar"
    assert tenant_in(through({}, {"authorization": "Bearer sk-2"})[0]) is None


def test_tenants_can_be_salted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWITNESS_SALT_TENANTS", "1")
    salts = [
        json.loads(through({"cache_salt": "mine"}, {"x-tenant": tenant})[0])["cache_salt"]
        for tenant in ("t-ash", "t-ash", "t-birch")
    ]
    assert salts[0] == salts[1] != salts[2]
    assert "t-ash" not in salts[0]


@pytest.mark.parametrize(
    ("body", "headers", "method"),
    [
        (b"not json", {"x-tenant": "t-ash"}, "POST"),
        (b"[1]", {"x-tenant": "t-ash"}, "POST"),
        (b'{"a": 1}', {}, "POST"),
        (b'{"a": 1}', {"x-tenant": "t-ash", "content-type": "text/plain"}, "POST"),
        (b'{"a": 1}', {"x-tenant": "t-ash"}, "PUT"),
    ],
)
def test_anything_else_passes_unchanged(body: bytes, headers: Headers, method: str) -> None:
    assert through(body, headers, method=method)[0] == body
