"""Malformed and hostile requests: each is refused as the specification says, and what is sound before, between and
after them is kept.

    KVWITNESS_HOSTILE=20000 pytest -m slow tests/collectors/otlp/test_hostile.py
"""

from __future__ import annotations

import gzip
import http.client
import os
import random
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import zstandard
from google.rpc import status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvwitness.collectors.otlp import plain_json
from tests.collectors.otlp.support import Receiver, receiver, requests_received, span, traces

REQUESTS = int(os.environ.get("KVWITNESS_HOSTILE", "1500"))
LIMIT = 1 << 20
GROWTH = 160 << 20
"""Bytes by which the receiver may grow meanwhile: its queue, one unpacked body, and what Python keeps of both."""

Made = tuple[bytes, dict[str, str], set[int]]
"""A body, its headers, and the statuses that are right for it."""
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def sound(number: int) -> bytes:
    message = ExportTraceServiceRequest()
    plain_json.fill(message, traces(span(number)))
    return message.SerializeToString()


def mutated(chance: random.Random) -> Made:
    """A sound request with some of its bytes changed, cut out or doubled; what is left may be sound as well."""
    body = bytearray(sound(chance.randrange(1, 1 << 60)))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[at] = chance.randrange(256)
            case 1:
                del body[at : at + chance.randint(1, 9)]
            case 2:
                body[at:at] = chance.randbytes(chance.randint(1, 9))
            case _:
                body[at:at] = body[at : at + 20]
        body = body or bytearray(b"\0")
    return bytes(body), PROTOBUF, {200, 400}


def mutated_json(chance: random.Random) -> Made:
    body = bytearray(traces(span(chance.randrange(1, 1 << 60))))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(body))
        body[at : at + 1] = chance.choice([b"", b"{", b"]", b'"', b"\xff", b"0", b"null", b"\\u0000", b","])
    return bytes(body), JSON, {200, 400}


def wrong_types(chance: random.Random) -> Made:
    field = chance.choice(["traceId", "startTimeUnixNano", "kind", "name", "attributes", "status", "events", "links"])
    value = chance.choice([True, -1, 1.5, "zz", [1], [[]], {"a": 1}, "9" * 40, 2**70, "\ud7ff"])
    one = span(chance.randrange(1, 1 << 60)) | {field: value}
    try:
        body = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]})
    except TypeError:
        body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":1180591620717411303424}]}]}]}'
    return body, JSON, {200, 400}


def deep(chance: random.Random) -> Made:
    levels = chance.choice([70, 900, 5000])
    if chance.random() < 0.5:
        body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"a","value":'
        body += b'{"arrayValue":{"values":[' * levels + b"]}}" * levels + b"}]}]}]}]}"
        return body, JSON, {400}
    value = b""
    for _ in range(levels):
        value = b"\x2a" + varint(len(inner := b"\x0a" + varint(len(value)) + value)) + inner
    attribute = b"\x0a\x01a\x12" + varint(len(value)) + value
    one = b"\x4a" + varint(len(attribute)) + attribute
    for tag in (b"\x12", b"\x12", b"\x0a"):
        one = tag + varint(len(one)) + one
    return one, PROTOBUF, {400}


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def bomb(chance: random.Random) -> Made:
    match chance.randrange(3):
        case 0:
            return gzip.compress(bytes(64 << 20), 9), PROTOBUF | {"Content-Encoding": "gzip"}, {413}
        case 1:
            return zlib.compress(bytes(64 << 20), 9), PROTOBUF | {"Content-Encoding": "deflate"}, {413}
    return zstandard.compress(bytes(512 << 20), 19), PROTOBUF | {"Content-Encoding": "zstd"}, {413}


def damaged(chance: random.Random) -> Made:
    packing, body = chance.choice([("gzip", gzip.compress(sound(7))), ("zstd", zstandard.compress(sound(7)))])
    if chance.random() < 0.5:
        return body[: chance.randrange(1, len(body))], PROTOBUF | {"Content-Encoding": packing}, {400}
    return chance.randbytes(50), PROTOBUF | {"Content-Encoding": packing}, {400}


def large(chance: random.Random) -> Made:
    huge = span(chance.randrange(1, 1 << 60), attributes={"x": "a" * (LIMIT // 2), "tenant.id": "t" * 100_000})
    if chance.random() < 0.5:
        return traces(huge), JSON, {200}
    return traces(huge, huge, huge), JSON, {413}


def strange(chance: random.Random) -> Made:
    return chance.choice(
        [
            (b"x", {"Content-Type": "text/plain"}, {415}),
            (b"x", PROTOBUF | {"Content-Encoding": "br"}, {415}),
            (b"", PROTOBUF, {200}),
            (b"{}", JSON, {200}),
            (b"null", JSON, {400}),
            (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}', JSON, {200}),
            (b'\xff\xfe{"a":1}', JSON, {400}),
            (traces(span(9) | {"name": "x"}).replace(b'"x"', b'"\xff"'), JSON, {400}),
            (traces(span(0)), JSON, {200}),
            (traces(span(8, startTimeUnixNano=str(2**64 - 1))), JSON, {200}),
            (traces(span(8, startTimeUnixNano="0", endTimeUnixNano="0")), JSON, {200}),
        ]
    )


KINDS: list[tuple[Callable[[random.Random], Made], int]] = [
    (mutated, 40), (mutated_json, 25), (wrong_types, 15), (deep, 5), (bomb, 2), (damaged, 5), (large, 3), (strange, 10)
]  # fmt: skip


def memory(pid: int) -> int:
    """Most bytes that a process ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def send(connection: http.client.HTTPConnection, made: Made) -> tuple[int, bytes]:
    body, headers, _ = made
    try:
        connection.request("POST", "/v1/traces", body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (ConnectionError, http.client.HTTPException):  # it closes a connection of which it will not read the rest
        connection.close()
        connection.request("POST", "/v1/traces", body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def slow_senders(running: Receiver, count: int) -> list[socket.socket]:
    """Connections whose bodies never come."""
    out = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", running.http_port))
        head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        one.sendall(head)
        out.append(one)
    return out


@pytest.mark.slow
def test_hostile_requests(tmp_path: Path) -> None:
    chance = random.Random(155)
    kinds = [kind for kind, weight in KINDS for _ in range(weight)]
    sent, wrong = set(), []
    with receiver(tmp_path / "store", "--max-body", str(LIMIT), "--max-held", "8MiB", "--commit-every", "0") as running:
        waiting = slow_senders(running, 50)
        connection = http.client.HTTPConnection("127.0.0.1", running.http_port)
        before = memory(running.process.pid)
        for number in range(REQUESTS):
            if number % 50 == 0:
                own = f"sound-{number}"
                body = traces(span((1 << 62) + number, attributes={"gen_ai.request.id": own}))
                assert send(connection, (body, JSON, {200})) == (200, b"{}")
                sent.add(own)
            kind = chance.choice(kinds)
            made = kind(chance)
            status, answer = send(connection, made)
            if status not in made[2]:
                wrong.append((kind.__name__, status, answer[:80]))
            elif status != 200 and made[1] == PROTOBUF:
                assert status_pb2.Status.FromString(answer).message
            elif status != 200 and made[1] == JSON:
                assert orjson.loads(answer)["message"]
        grown = memory(running.process.pid) - before
        connection.close()
        for one in waiting:
            one.close()
    assert wrong == []
    assert grown < GROWTH
    kept = requests_received(tmp_path / "store")["request"].to_list()
    assert {request for request in kept if request.startswith("sound-")} == sent
    assert len(kept) == len(set(kept))


@pytest.mark.slow
def test_memory_is_bounded_however_fast_senders_are(tmp_path: Path) -> None:
    """Far more comes at once than may wait; senders that are told to wait do so until all of it is in."""
    bodies = [traces(*(span(1000 * n + k) for k in range(1, 501))) for n in range(1, 41)]
    held = 8 * len(bodies[0])
    told: list[int] = []
    with receiver(tmp_path / "store", "--max-body", "1MiB", "--max-held", str(held)) as running:
        assert running.post(bodies[0])[0] == 200
        before = memory(running.process.pid)

        def deliver(body: bytes) -> None:
            while (status := running.post(body)[0]) != 200:
                told.append(status)

        threads = [threading.Thread(target=deliver, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = memory(running.process.pid) - before
    assert set(told) == {429}
    assert grown < GROWTH
    assert len(requests_received(tmp_path / "store")) == 500 * len(bodies)


def test_garbage_that_is_not_http(tmp_path: Path) -> None:
    with receiver(tmp_path / "store") as running:
        for garbage in (
            b"\0" * 100,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/traces HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", running.http_port)) as one:
                one.sendall(garbage)
                one.sendall(struct.pack("<I", 0))
                one.shutdown(socket.SHUT_WR)
                while one.recv(4096):
                    pass
        assert running.post(traces(span()))[0] == 200
    assert len(requests_received(tmp_path / "store")) == 1
