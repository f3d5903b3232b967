"""KV events: both encodings, gaps, replay; published as vLLM and SGLang do, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from kvwitness.collectors.endpoints.kv_events import KvEvents
from kvwitness.collectors.endpoints.kv_messages import MalformedError, decoded
from kvwitness.collectors.otlp.records import Event

KEY = b"k" * 32
END = (-1).to_bytes(8, "big", signed=True)

MAP = {
    "type": "BlockStored", "block_hashes": [11, 2**63], "parent_block_hash": None, "token_ids": [1, 2, 3, 4],
    "block_size": 2, "medium": "GPU", "extra_keys": [["pepper"], None],
}  # fmt: skip
ARRAY = ["BlockStored", [11, 2**63], None, [1, 2, 3, 4], 2, None, "GPU", None, [["pepper"], None]]
SGLANG = ["BlockStoredWithMetadata", [11, 2**63], None, [1, 2, 3, 4], 2, None, "GPU", {"cache_salt": "pepper"}]


def payload(*events: Any, time: float = 1787832000.5, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([time, list(events), rank])


@pytest.mark.parametrize("event", [MAP, ARRAY, SGLANG])
def test_both_encodings_say_the_same_and_no_content(event: Any) -> None:
    batch = decoded(payload(event), KEY)
    [stored] = batch.events
    assert (batch.time_ns, batch.token_ids, stored.kind, len(stored.keys)) == (1787832000500000000, 4, "stored", 2)
    assert stored.fields["tier"] == "GPU"
    assert stored == decoded(payload(MAP), KEY).events[0]
    assert stored.keys != decoded(payload(MAP), b"o" * 32).events[0].keys
    assert "pepper" not in str(stored)


def test_removed_cleared_and_unknown() -> None:
    batch = decoded(
        payload({"type": "BlockRemoved", "block_hashes": [b"\1" * 32]}, ["AllBlocksCleared"], ["New", 1]), KEY
    )
    assert [event.kind for event in batch.events] == ["removed", "cleared"]
    assert batch.unknown == 1


@pytest.mark.parametrize(
    "broken", [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode([1, [{"type": "BlockStored"}], 0])]
)
def test_what_is_no_message_is_told(broken: bytes) -> None:
    with pytest.raises(MalformedError):
        decoded(broken, KEY)


async def following(
    publish: Callable[[zmq.asyncio.Socket], Awaitable[None]], replayable: dict[int, bytes] | None, until: int
) -> tuple[list[Event], KvEvents]:
    """What a follower makes of what `publish` sends, up to the first event of message `until`."""
    context = zmq.asyncio.Context()
    publisher, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    endpoint = f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}"
    replay = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

    async def answer() -> None:
        while replayable is not None:
            who, empty, first = await router.recv_multipart()
            for number, body in sorted(replayable.items()):
                if number >= int.from_bytes(first, "big"):
                    await router.send_multipart([who, empty, number.to_bytes(8, "big"), body])
            await router.send_multipart([who, empty, END, b""])

    events: list[Event] = []
    arrived = asyncio.Event()

    def add(event: Event) -> None:
        events.append(event)
        if event[2].get("kv_seq") == until:
            arrived.set()

    follower = KvEvents("e", endpoint, replay if replayable is not None else None, KEY)
    tasks = [asyncio.create_task(follower.run(add)), asyncio.create_task(answer())]
    try:
        assert (await publisher.recv())[:1] == b"\1"  # it listens
        await publish(publisher)
        await asyncio.wait_for(arrived.wait(), 60)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        publisher.close(linger=0)
        router.close(linger=0)
        context.term()
    return events, follower


def send(*numbers: int) -> Callable[[zmq.asyncio.Socket], Awaitable[None]]:
    async def publish(socket: zmq.asyncio.Socket) -> None:
        for number in numbers:
            await socket.send_multipart([b"", number.to_bytes(8, "big"), payload(MAP)])

    return publish


def told(events: list[Event]) -> list[Any]:
    """Numbers of messages, and (first, last) of gaps."""
    gaps = ("kv_from_seq", "kv_to_seq")
    return [e[2]["kv_seq"] if e[0] != "telemetry.gap" else tuple(e[2].get(name) for name in gaps) for e in events]


def test_what_is_missing_is_a_gap() -> None:
    events, follower = asyncio.run(following(send(4, 5, 9), None, 9))
    assert told(events) == [4, 5, (6, 8), 9]
    assert (follower.lost, follower.token_ids) == (3, 12)


def test_what_is_missing_is_replayed_as_far_as_it_can_be() -> None:
    kept = {number: payload(MAP) for number in (1, 2, 3, 7, 8, 9)}
    events, _ = asyncio.run(following(send(4, 5, 9), kept, 9))
    assert told(events) == [(0, 0), 1, 2, 3, 4, 5, (6, 6), 7, 8, 9]


def test_publisher_that_began_again() -> None:
    events, _ = asyncio.run(following(send(4, 5, 0, 1), None, 1))
    assert told(events) == [4, 5, (None, None), 0, 1]
