"""OTLP over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from kvwitness.collectors.otlp import messages
from kvwitness.collectors.otlp.connections import ConnectionLimits
from kvwitness.collectors.otlp.http import submitted
from kvwitness.collectors.otlp.intake import Intake, Limits
from kvwitness.collectors.otlp.messages import PROTOBUF, SIGNALS, Signal
from kvwitness.collectors.otlp.records import Origin
from kvwitness.collectors.otlp.refusal import Refusal
from kvwitness.collectors.otlp.senders import Senders
from kvwitness.collectors.otlp.stats import Stats

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"
_STREAMS = 32
"""Requests that one connection may have under way: gRPC holds each whole before anybody can refuse it."""
_AGE_S = 1800.0
"""A connection is told to go after so many seconds, whatever it does; libraries then make another by themselves."""
_GRACE_S = 60.0
"""What is under way on it then may take so long. A message that comes in drops thus ends some time."""


def server(
    intake: Intake, limits: Limits, connections: ConnectionLimits, senders: Senders, stats: Stats
) -> grpc.aio.Server:
    """A server with the three services, not bound to a port yet.

    What it does about connections the library does by itself, and counts nowhere.
    """
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections.most),
        ("grpc.server_handshake_timeout_ms", round(connections.header_s * 1000)),
        ("grpc.max_connection_idle_ms", round(connections.idle_s * 1000)),
        ("grpc.max_connection_age_ms", round(_AGE_S * 1000)),
        ("grpc.max_connection_age_grace_ms", round(_GRACE_S * 1000)),
    ]
    made = grpc.aio.server(options=options)
    made.add_generic_rpc_handlers(_Services(intake, senders, stats).handlers())
    return made


class _Services:
    def __init__(self, intake: Intake, senders: Senders, stats: Stats) -> None:
        self._intake, self._senders, self._stats = intake, senders, stats

    def handlers(self) -> list[Any]:
        """One service for each signal."""
        return [self._service(signal) for signal in SIGNALS]

    def _service(self, signal: Signal) -> Any:
        service, method = signal.method.removeprefix("/").split("/")
        return grpc.method_handlers_generic_handler(service, {method: self._handler(signal)})

    def _handler(self, signal: Signal) -> Any:
        async def export(body: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                answer = await self._export(signal, body, context)
            except Refusal as refusal:
                self._stats.requests.labels(signal.name, "grpc", refusal.kind).inc()
                await _abort(refusal, context)
            self._stats.requests.labels(signal.name, "grpc", "ok").inc()
            return answer

        unpacked: Callable[[bytes], bytes] = bytes
        return grpc.unary_unary_rpc_method_handler(export, unpacked, unpacked)

    async def _export(self, signal: Signal, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        names = [name.decode("utf-8", "replace") for name in context.auth_context().get("x509_common_name", ())]
        origin = Origin(self._senders.identify(headers.get("authorization"), names), headers)
        self._intake.hold(len(body))
        account = await submitted(self._intake, signal, body, "identity", PROTOBUF, origin)
        answer: bytes = messages.answer(signal, sum(account.rejected.values()), account.reasons()).SerializeToString()
        return answer


async def _abort(refusal: Refusal, context: grpc.aio.ServicerContext) -> None:
    """End a call with the refusal's code, and its `google.rpc.Status` where libraries look for it."""
    context.set_trailing_metadata(((_DETAILS, refusal.status().SerializeToString()),))
    await context.abort(_CODES[refusal.code], refusal.message)
