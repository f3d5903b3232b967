"""OTLP over HTTP, and the pages by which the receiver is watched."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from kvwitness.collectors.otlp import messages
from kvwitness.collectors.otlp.body import check_encoding
from kvwitness.collectors.otlp.connections import Connections
from kvwitness.collectors.otlp.intake import Intake, Job, Limits
from kvwitness.collectors.otlp.messages import JSON, PROTOBUF, SIGNALS, Signal
from kvwitness.collectors.otlp.records import Account, Origin
from kvwitness.collectors.otlp.refusal import INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, Refusal
from kvwitness.collectors.otlp.senders import Senders
from kvwitness.collectors.otlp.stats import CONTENT_TYPE, Stats

BODY_S = 30.0
"""A body that has not come whole after so many seconds is given up."""


class Doors:
    """The HTTP application."""

    def __init__(
        self,
        intake: Intake,
        limits: Limits,
        senders: Senders,
        stats: Stats,
        connections: Connections,
        body_s: float = BODY_S,
    ) -> None:
        self._intake, self._limits, self._senders, self._stats, self._body_s = intake, limits, senders, stats, body_s
        self._connections = connections

    def application(self) -> web.Application:
        """All routes; what is none of them is answered like an export that cannot be."""
        app = web.Application(middlewares=[self._watched, self._unrouted])
        for signal in SIGNALS:
            app.router.add_post(signal.path, self._export_of(signal))
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _watched(self, request: web.Request, handler: Any) -> web.StreamResponse:
        transport = request.transport
        self._connections.busy(transport)
        try:
            response: web.StreamResponse = await handler(request)
        finally:
            self._connections.idle(transport)
        return response

    @web.middleware
    async def _unrouted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPNotFound:
            return _refused(Refusal(404, NOT_FOUND, "no such path; OTLP is taken at /v1/traces, /v1/logs, /v1/metrics"))
        except web.HTTPMethodNotAllowed as error:
            refused = _refused(Refusal(405, UNIMPLEMENTED, "OTLP is sent with POST"))
            refused.headers["Allow"] = error.headers.get("Allow", "POST")
            return refused
        return response

    def _export_of(self, signal: Signal) -> Any:
        async def export(request: web.Request) -> web.Response:
            encoding = request.content_type if request.content_type in messages.ENCODINGS else PROTOBUF
            try:
                response = await self._export(signal, request)
                outcome = "ok"
            except Refusal as refusal:
                response = _refused(refusal, encoding)
                outcome = refusal.kind
                if not request.content.at_eof():  # the rest of the body is not waited for
                    response.force_close()
            self._stats.requests.labels(signal.name, "http", outcome).inc()
            return response

        return export

    async def _export(self, signal: Signal, request: web.Request) -> web.Response:
        origin = Origin(
            self._senders.identify(request.headers.get("Authorization"), _common_names(request)),
            {name.lower(): value for name, value in request.headers.items()},
        )
        encoding = request.content_type
        if encoding not in messages.ENCODINGS:
            raise Refusal(415, INVALID_ARGUMENT, f"Content-Type is neither {PROTOBUF} nor {JSON}", kind="bad_encoding")
        packing = request.headers.get("Content-Encoding", "identity").strip().lower()
        check_encoding(packing)
        body = await self._body(request)
        account = await submitted(self._intake, signal, body, packing, encoding, origin)
        answer = messages.answer(signal, sum(account.rejected.values()), account.reasons())
        return web.Response(body=messages.encoded(answer, encoding), content_type=encoding)

    async def _body(self, request: web.Request) -> bytes:
        """The body as it came, its memory set aside as it comes. It is given back here if it does not come whole."""
        limit, parts, size = self._limits.body_bytes, [], 0
        if (request.content_length or 0) > limit:
            raise Refusal.too_large(f"the body is longer than {limit} bytes")
        try:
            async with asyncio.timeout(self._body_s):
                async for chunk in request.content.iter_any():
                    if size + len(chunk) > limit:
                        raise Refusal.too_large(f"the body is longer than {limit} bytes")
                    self._intake.hold(len(chunk))
                    size += len(chunk)
                    parts.append(chunk)
        except TimeoutError:
            self._intake.release(size)
            raise Refusal.late("the body did not come in time") from None
        except BaseException:
            self._intake.release(size)
            raise
        return b"".join(parts)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        trouble = self._intake.trouble
        return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._stats.text(), headers={"Content-Type": CONTENT_TYPE})


async def submitted(
    intake: Intake, signal: Signal, body: bytes, packing: str, encoding: str, origin: Origin
) -> Account:
    """Hand a body over whose memory is set aside, and wait until its records are on the disk.

    Raises `Refusal` where they were not taken.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Account | Refusal] = loop.create_future()

    def settle(outcome: Account | Refusal) -> None:
        if not done.done():  # the client may have gone
            done.set_result(outcome)

    def answer(outcome: Account | Refusal) -> None:
        loop.call_soon_threadsafe(settle, outcome)

    try:
        intake.submit(Job(signal, body, packing, encoding, origin, answer))
    except Refusal:
        intake.release(len(body))
        raise
    outcome = await done
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def _refused(refusal: Refusal, encoding: str = JSON) -> web.Response:
    """Every answer but a success is a `google.rpc.Status`, in the encoding of the request."""
    status = refusal.status()
    headers = {}
    if refusal.retry_s is not None:
        headers["Retry-After"] = str(max(1, round(refusal.retry_s)))
    if refusal.http == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if encoding == PROTOBUF:
        return web.Response(
            body=status.SerializeToString(), status=refusal.http, content_type=PROTOBUF, headers=headers
        )
    document: dict[str, Any] = {"code": status.code, "message": status.message}
    if refusal.retry_s is not None:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        document["details"] = [{"@type": kind, "retryDelay": f"{refusal.retry_s:g}s"}]
    return web.Response(body=orjson.dumps(document), status=refusal.http, content_type=JSON, headers=headers)


def _common_names(request: web.Request) -> Iterable[str]:
    """Of the verified certificate of the client, if it showed one."""
    transport = request.transport
    secured = transport.get_extra_info("ssl_object") if transport is not None else None
    if not isinstance(secured, ssl.SSLObject):
        return ()
    subject: Any = (secured.getpeercert() or {}).get("subject", ())
    return [value for part in subject for name, value in part if name == "commonName"]
