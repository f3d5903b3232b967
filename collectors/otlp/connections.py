"""HTTP connections: how many there may be, and how long each may take to say what it wants.

A connection waits (for its TLS handshake, for the head of a request, between two requests), or is busy with a request.
One that waits too long is ended. Where all places are taken, the one that has waited longest makes room, so that those
who never finish a head cannot keep out those who do; where all are busy, a new one is refused. How long a request may
take once its head is there is for the application to say (`http.BODY_S`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from http import HTTPStatus

import orjson

from kvwitness.collectors.otlp.refusal import Refusal

TOO_MANY, MADE_ROOM, SLOW_HEAD, TLS, IDLE = "too_many", "made_room", "slow_head", "tls", "idle"
ENDINGS = (TOO_MANY, MADE_ROOM, SLOW_HEAD, TLS, IDLE)
"""Why the receiver ended a connection of its own accord, as its metrics call it; `tls`: a handshake that failed or was
not finished in time."""
_BACKLOG = 128
_FULL_S = 1.0
"""Pause after the system had no file for one more connection."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections each door has, and how long they may wait."""

    most: int = 500
    """Connections at a time: so many over HTTP, and so many over gRPC."""
    header_s: float = 10.0
    """Seconds in which a TLS handshake has to be done, and the head of a request has to be there."""
    idle_s: float = 300.0
    """Seconds that may pass between two requests."""


class _State(Enum):
    HANDSHAKE = auto()
    HEAD = auto()
    """The head of a request is owed: the first of a connection, or one that has begun to come."""
    BUSY = auto()
    IDLE = auto()


class _Connection(asyncio.Protocol):
    """Stands between a transport and the protocol that speaks HTTP, and knows what is waited for."""

    def __init__(self, of: Connections) -> None:
        self._of, self._inner = of, of.speaker()
        self.transport: asyncio.Transport | None = None
        self.admission: asyncio.Task[None] | None = None
        self.state, self.since = _State.HANDSHAKE, of.now()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.turn(_State.HEAD)
        self._of.made(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.state is _State.IDLE:
            self.turn(_State.HEAD)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._of.gone(self)
        self._inner.connection_lost(exc)

    def turn(self, state: _State) -> None:
        """It waits for something else from now on, or for nothing."""
        self.state, self.since = state, self._of.now()

    def end(self, last_words: bytes = b"") -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.write(last_words)  # as far as the other side has left room for it
            self.transport.abort()
        elif self.admission is not None:
            self.admission.cancel()


class Connections:
    """The places for connections, those who hold one, and the sockets at which more of them arrive."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._speaker: Callable[[], asyncio.Protocol] | None = None
        self._tls: ssl.SSLContext | None = None
        self._open: set[_Connection] = set()
        self._by_transport: dict[asyncio.BaseTransport, _Connection] = {}
        self._listening: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.ended: Counter[str] = Counter()
        """Connections that were ended here, by one of `ENDINGS`."""

    @property
    def open(self) -> int:
        """How many there are now."""
        return len(self._open)

    async def listen(
        self, host: str, port: int, speaker: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> int:
        """Take connections, each to a `speaker` of its own, until `stop`; returns the port. Raises OSError."""
        self._speaker, self._tls = speaker, tls
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listener = socket.create_server(address, family=family, backlog=_BACKLOG)
                listener.setblocking(False)
                self._listening.append(listener)
        except OSError:
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._accept(listener)) for listener in self._listening]
        self._tasks.append(asyncio.create_task(self._watch()))
        bound: int = self._listening[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Take no more. Those that are open are left to who speaks on them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listening:
            listener.close()
        for one in [one for one in self._open if one.state is _State.HANDSHAKE]:
            one.end()

    def busy(self, transport: asyncio.BaseTransport | None) -> None:
        """A request has begun on a connection: its head is there."""
        if (one := self._by_transport.get(transport)) is not None:  # type: ignore[arg-type]
            one.turn(_State.BUSY)

    def idle(self, transport: asyncio.BaseTransport | None) -> None:
        """It has been answered, as far as it is for the application to do."""
        if (one := self._by_transport.get(transport)) is not None:  # type: ignore[arg-type]
            one.turn(_State.IDLE)

    # -- for the connections ----------------------------------------------------------------------------

    def now(self) -> float:
        """Time by which is measured how long something waits, in seconds."""
        return asyncio.get_running_loop().time()

    def speaker(self) -> asyncio.Protocol:
        """What is to speak on a new connection."""
        assert self._speaker is not None
        return self._speaker()

    def made(self, one: _Connection) -> None:
        """It has a transport now."""
        assert one.transport is not None
        self._by_transport[one.transport] = one

    def gone(self, one: _Connection) -> None:
        """Its place is free."""
        self._open.discard(one)
        if one.transport is not None:
            self._by_transport.pop(one.transport, None)

    # -- tasks ------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:  # no file is left for it, or it has gone already
                await asyncio.sleep(_FULL_S)
                continue
            if len(self._open) >= self._limits.most and not self._make_room():
                self._refuse(sock)
                continue
            one = _Connection(self)
            self._open.add(one)
            one.admission = asyncio.create_task(self._admit(one, sock))
            one.admission.add_done_callback(partial(self._admitted, one, sock))

    async def _admit(self, one: _Connection, sock: socket.socket) -> None:
        patience = self._limits.header_s if self._tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: one, sock, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except OSError:  # of which ssl.SSLError is one, and what comes of a handshake that takes too long
            self.ended[TLS] += 1

    def _admitted(self, one: _Connection, sock: socket.socket, admission: asyncio.Task[None]) -> None:
        if one.transport is None:  # nor will it have one; an admission that never began has left the socket open
            self.gone(one)
            sock.close()

    def _make_room(self) -> bool:
        """End whoever has waited longest; false where nobody waits."""
        waiting = [one for one in self._open if one.state is not _State.BUSY]
        if not waiting:
            return False
        self._end(min(waiting, key=lambda one: one.since), MADE_ROOM)
        return True

    def _end(self, one: _Connection, reason: str) -> None:
        self.ended[reason] += 1
        self.gone(one)
        one.end(_answer(Refusal.late("the head of the request did not come in time")) if reason == SLOW_HEAD else b"")

    def _refuse(self, sock: socket.socket) -> None:
        """Say that there is no place, as far as that can be said without waiting."""
        self.ended[TOO_MANY] += 1
        with sock, suppress(OSError):
            sock.setblocking(False)
            if self._tls is None:
                sock.send(_answer(Refusal.unavailable(f"{len(self._open)} connections are busy already")))

    async def _watch(self) -> None:
        """Look again and again for those that have waited too long."""
        patience = {
            _State.HEAD: (self._limits.header_s, SLOW_HEAD),
            _State.IDLE: (self._limits.idle_s, IDLE),
        }
        late: dict[_Connection, float] = {}
        while True:
            await asyncio.sleep(min(1.0, self._limits.header_s / 4, self._limits.idle_s / 4))
            now, before, late = self.now(), late, {}
            for one in list(self._open):
                seconds, reason = patience.get(one.state, (float("inf"), ""))
                if now - one.since <= seconds:
                    continue
                if before.get(one) == one.since:
                    self._end(one, reason)
                else:  # we may be those who are late, and what it sent may be about to be read
                    late[one] = one.since


def _answer(refusal: Refusal) -> bytes:
    """A response of HTTP for a connection on which no application speaks (any more)."""
    body = orjson.dumps({"code": refusal.code, "message": refusal.message})
    status = HTTPStatus(refusal.http)
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n"
    head += f"Retry-After: {max(1, round(refusal.retry_s))}\r\n" if refusal.retry_s is not None else ""
    return head.encode() + b"\r\n" + body
