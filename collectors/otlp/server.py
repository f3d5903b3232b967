"""The receiver as a whole: doors, intake, what it asks engines for, and an orderly end."""

from __future__ import annotations

import asyncio
import resource
import signal
import ssl
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
from aiohttp import web

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store
from kvwitness.collectors.otlp import grpc as over_grpc
from kvwitness.collectors.otlp.connections import ConnectionLimits, Connections
from kvwitness.collectors.otlp.genai import Reading
from kvwitness.collectors.otlp.http import Doors
from kvwitness.collectors.otlp.intake import Intake, Limits
from kvwitness.collectors.otlp.records import Event
from kvwitness.collectors.otlp.senders import Senders
from kvwitness.collectors.otlp.stats import Stats

_DRAIN_S = 30.0
"""How long requests that are under way may take to end."""
_OWN_FILES = 200
"""Files that are open besides connections: segments of the store, the database, sockets to engines."""
_LINE = 16_384
_TLS_FILES = "Give both --tls-cert and --tls-key, as PEM files."


@dataclass(frozen=True)
class Tls:
    """Certificates, as PEM files."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Who signs client certificates; with it, a connection without one is refused."""

    def context(self) -> ssl.SSLContext:
        """For HTTP. Raises KvwitnessError for a file that cannot be used."""
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise KvwitnessError(f"the certificates cannot be used: {error}", _TLS_FILES) from None
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC."""
        ca = self.client_ca.read_bytes() if self.client_ca is not None else None
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


class Errand(Protocol):
    """Something that runs beside the doors and brings events of its own, such as asking engines for their limits."""

    async def run(self, add: Callable[[Event], None]) -> None:
        """Go on until cancelled."""


@dataclass(frozen=True)
class Settings:
    """Where to listen, and under which terms."""

    host: str = "127.0.0.1"
    http_port: int | None = 4318
    """0: any free one; None: no HTTP."""
    grpc_port: int | None = 4317
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    reading: Reading = field(default_factory=Reading)
    senders: Senders = field(default_factory=Senders)
    tls: Tls | None = None


@dataclass(frozen=True)
class Listening:
    """Where the receiver listens."""

    http: int | None
    grpc: int | None


async def serve(
    store: Store,
    settings: Settings,
    *,
    errands: Iterable[Errand] = (),
    ready: Callable[[Listening, Intake], None] = lambda listening, intake: None,
    say: Callable[[str], None] = lambda text: None,
) -> Intake:
    """Receive until SIGTERM or SIGINT, then end in order: take no more, finish what has begun, let go of the store.

    `ready` is called once all doors are open. Raises KvwitnessError where one cannot be opened.
    """
    _room_for(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    intake = Intake(store, settings.reading, settings.limits, say=say)
    intake.start()
    try:
        async with AsyncExitStack() as stack:
            stats = Stats(intake)
            listening = Listening(
                await _open_http(stack, intake, settings, stats), await _open_grpc(stack, intake, settings, stats)
            )
            tasks = [asyncio.create_task(_run(errand, intake, say)) for errand in errands]
            ready(listening, intake)
            await stopping.wait()
            await _cancelled(tasks)
    finally:
        await asyncio.to_thread(intake.stop)
    return intake


def _room_for(settings: Settings) -> None:
    """See to it that all connections there may be leave files for the store."""
    doors = [settings.http_port, settings.grpc_port]
    needed = settings.connections.most * sum(port is not None for port in doors) + _OWN_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (allowed, most) and most < needed:
        raise KvwitnessError(
            f"{settings.connections.most} connections at each door need {needed} open files; "
            f"this process may have {most}.",
            "Raise the limit (ulimit -n, LimitNOFILE=), or lower --max-connections.",
        )
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """End tasks. One that takes the first asking for a time-out of its own is asked again."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)


async def _run(errand: Errand, intake: Intake, say: Callable[[str], None]) -> None:
    """An errand that fails must not stop the doors, nor end unnoticed."""
    try:
        await errand.run(intake.add)
    except Exception as error:
        say(f"{errand} has ended: {type(error).__name__}: {error}")


async def _open_http(stack: AsyncExitStack, intake: Intake, settings: Settings, stats: Stats) -> int | None:
    if settings.http_port is None:
        return None
    connections = Connections(settings.connections)
    stats.watch(connections)
    doors = Doors(intake, settings.limits, settings.senders, stats, connections)
    runner = web.AppRunner(
        doors.application(),
        access_log=None,
        auto_decompress=False,
        max_line_size=_LINE,
        max_field_size=_LINE,
        shutdown_timeout=_DRAIN_S,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    tls = settings.tls.context() if settings.tls is not None else None
    assert runner.server is not None
    try:
        port = await connections.listen(settings.host, settings.http_port, runner.server, tls)
    except OSError as error:
        raise _unopened("HTTP", settings.host, settings.http_port, error) from None
    stack.push_async_callback(connections.stop)  # before those that are open are ended in order
    return port


async def _open_grpc(stack: AsyncExitStack, intake: Intake, settings: Settings, stats: Stats) -> int | None:
    if settings.grpc_port is None:
        return None
    server = over_grpc.server(intake, settings.limits, settings.connections, settings.senders, stats)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    port: int
    try:
        if settings.tls is not None:
            port = server.add_secure_port(address, settings.tls.credentials())
        else:
            port = server.add_insecure_port(address)
    except (RuntimeError, OSError) as error:
        raise _unopened("gRPC", settings.host, settings.grpc_port, error) from None
    await server.start()
    stack.push_async_callback(server.stop, _DRAIN_S)
    return port


def _unopened(what: str, host: str, port: int, error: Exception) -> KvwitnessError:
    return KvwitnessError(
        f"{what} cannot listen on {host} port {port}: {error}", "Choose another port; 0 takes any that is free."
    )
