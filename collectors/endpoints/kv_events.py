"""Follows an engine's KV events over ZMQ: which blocks its prefix cache took in and gave up, as an independent witness.

They name blocks by hashes, not pages by number, and not the requests that read them. So they become events of kinds of
their own, `cache.stored`, `cache.removed`, `cache.cleared`, which are kept beside the vocabulary and decide nothing
about pages. What is lost on the way shows in the sequence numbers; the replay socket is asked for it, and what does
not come back is put on record as `telemetry.gap`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from kvwitness.collectors.endpoints.kv_messages import CacheBatch, MalformedError, decoded
from kvwitness.collectors.otlp.records import Event

REPLAY_S = 2.0
"""How long the replay socket may take for each message."""
_END = (-1).to_bytes(8, "big", signed=True)
_MAX_MESSAGE = 64 << 20
_PER_EVENT = 1024
"""Blocks that one event lists; more become several."""


@dataclass
class KvEvents:
    """The KV events of one engine."""

    engine: str
    endpoint: str
    replay: str | None = None
    key: bytes = b""
    say: Callable[[str], None] = lambda text: None

    def __str__(self) -> str:
        return f"following the KV events of {self.engine} at {self.endpoint}"

    def __post_init__(self) -> None:
        self._last: int | None = None
        self.token_ids = 0
        """Dropped at the door."""
        self.lost = 0
        """Messages that never came."""

    async def run(self, add: Callable[[Event], None]) -> None:
        """Follow until cancelled; `add` takes the events."""
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self.endpoint)
            while True:
                frames = await socket.recv_multipart()
                async for event in self._message(context, frames):
                    add(event)
        finally:
            socket.close(linger=0)
            context.term()

    async def _message(self, context: zmq.asyncio.Context, frames: list[bytes]) -> AsyncIterator[Event]:
        if len(frames) < 2 or len(frames[-2]) != 8:
            yield self._gap(None, None, "a message without a sequence number")
            return
        number = int.from_bytes(frames[-2], "big")
        if self._last is not None and number <= self._last:
            self._last = None  # the engine began again
            yield self._gap(None, None, "the publisher began again")
        if self._last is not None and number > self._last + 1:
            async for event in self._missed(context, self._last + 1, number - 1):
                yield event
        elif self._last is None and number and self.replay is not None:
            async for event in self._missed(context, 0, number - 1):  # what was before this began to listen
                yield event
        for event in self._events(number, frames[-1]):
            yield event

    async def _missed(self, context: zmq.asyncio.Context, first: int, last: int) -> AsyncIterator[Event]:
        """Messages `first` to `last`, from the replay socket as far as it has them; gaps for the others."""
        expected = first
        if self.replay is not None:
            for number, payload in await self._replayed(context, first, last):
                if number > expected:
                    yield self._gap(expected, number - 1, "not replayed")
                for event in self._events(number, payload):
                    yield event
                expected = number + 1
        if expected <= last:
            yield self._gap(expected, last, "not received")

    async def _replayed(self, context: zmq.asyncio.Context, first: int, last: int) -> list[tuple[int, bytes]]:
        socket = context.socket(zmq.DEALER)
        out: list[tuple[int, bytes]] = []
        try:
            assert self.replay is not None
            socket.connect(self.replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY_S):
                    frames = await socket.recv_multipart()
                if len(frames) < 2 or frames[-2] == _END or len(frames[-2]) != 8:
                    break
                number = int.from_bytes(frames[-2], "big")
                if number > last:
                    break
                if number >= first and (not out or number > out[-1][0]):
                    out.append((number, frames[-1]))
        except TimeoutError:
            self.say(f"{self.engine}: {self.replay} does not replay")
        finally:
            socket.close(linger=0)
        return out

    def _events(self, number: int, payload: bytes) -> list[Event]:
        self._last = number
        try:
            batch = decoded(payload, self.key)
        except MalformedError as error:
            return [self._gap(number, number, f"malformed: {error}")]
        self.token_ids += batch.token_ids
        return self._of(batch, number)

    def _of(self, batch: CacheBatch, number: int) -> list[Event]:
        out: list[Event] = []
        for change in batch.events:
            for start in range(0, len(change.keys) or 1, _PER_EVENT):
                keys = change.keys[start : start + _PER_EVENT]
                fields: dict[str, Any] = {"source": self._source(batch.rank), "engine": self.engine}
                fields |= change.fields | ({"block_keys": keys} if keys else {}) | {"kv_seq": number}
                out.append((f"cache.{change.kind}", batch.time_ns, fields))
        return out

    def _source(self, rank: int) -> str:
        return f"kv-events/{self.engine}/{rank}"

    def _gap(self, first: int | None, last: int | None, reason: str) -> Event:
        fields: dict[str, Any] = {"source": self._source(0), "reason": f"KV events: {reason}"}
        if first is not None and last is not None:
            self.lost += last - first + 1
            fields |= {"dropped": last - first + 1, "kv_from_seq": first, "kv_to_seq": last}
        self.say(f"{self.engine}: KV events were lost ({reason})")
        return ("telemetry.gap", time.time_ns(), fields)
