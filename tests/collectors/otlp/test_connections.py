"""Connections that take a place and send nothing, or next to nothing: none of them keeps out those who do send."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from kvwitness.audit.cli.app import run
from tests.collectors.otlp.support import Receiver, certificate, receiver, requests_received, span, traces

PATIENCE_S = 60
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins: the fixed words, and an empty frame of settings."""


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(sockets: ExitStack, port: int, said: bytes = b"") -> socket.socket:
    one = sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
    one.sendall(said)
    return one


def all_of(one: socket.socket) -> bytes:
    """What comes until the other side ends the connection, however it does."""
    told = b""
    try:
        while piece := one.recv(65_536):
            told += piece
    except ConnectionError:
        pass
    return told


def counted(running: Receiver) -> dict[str, float]:
    families = text_string_to_metric_families(running.get("/metrics")[1])
    samples = [one for family in families for one in family.samples if "http_connections" in one.name]
    return {one.labels.get("reason", "open"): one.value for one in samples}


def test_whoever_sends_nothing_makes_room(tmp_path: Path, sockets: ExitStack) -> None:
    with receiver(tmp_path / "store", "--max-connections", "5", "--header-time", "3600") as running:
        silent = [connected(sockets, running.http_port) for _ in range(5)]
        silent += [connected(sockets, running.http_port, HEAD) for _ in range(10)]
        assert running.post(traces(span(1)))[0] == 200
        assert all_of(silent[0]) == b""  # who has waited longest goes first
        assert counted(running)["made_room"] >= 11
        assert counted(running)["open"] <= 5
        assert counted(running)["too_many"] == 0
    assert len(requests_received(tmp_path / "store")) == 1


def test_where_all_are_busy_one_more_is_told_so(tmp_path: Path, sockets: ExitStack) -> None:
    with receiver(tmp_path / "store", "--max-connections", "3") as running:
        body = traces(span(1))
        begun = HEAD + f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
        busy = [connected(sockets, running.http_port, begun) for _ in range(3)]
        for one in busy:
            assert one.recv(4096).startswith(b"HTTP/1.1 100")
            one.sendall(body[:10])
        told = all_of(connected(sockets, running.http_port))
        assert told.startswith(b"HTTP/1.1 503 ")
        head, _, said = told.partition(b"\r\n\r\n")
        assert b"\r\nRetry-After: 1\r\n" in head + b"\r\n"
        assert said == b'{"code":14,"message":"3 connections are busy already"}'
        for one in busy:  # and those that are busy can go on
            one.sendall(body[10:])
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        assert counted(running)["too_many"] == 1
        assert running.post(traces(span(2)))[0] == 200
    assert len(requests_received(tmp_path / "store")) == 2


def test_heads_have_to_be_there_in_time(tmp_path: Path, sockets: ExitStack) -> None:
    with receiver(tmp_path / "store", "--header-time", "2") as running:
        nothing = connected(sockets, running.http_port)
        drops = connected(sockets, running.http_port, b"GET / HTTP/1.1\r\nX: ")
        drops.settimeout(0.05)
        told, until = b"", time.monotonic() + PATIENCE_S
        while not told:  # a byte now and then does not win it time
            assert time.monotonic() < until
            try:
                drops.sendall(b"x")
                told = drops.recv(4096)
            except TimeoutError:
                pass
        assert told.startswith(b"HTTP/1.1 408 ")
        assert told.endswith(b'{"code":4,"message":"the head of the request did not come in time"}')
        all_of(nothing)
        later = connected(sockets, running.http_port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert later.recv(4096).startswith(b"HTTP/1.1 200")
        later.sendall(b"GET /hea")  # the second head on a connection is owed like the first
        assert b"HTTP/1.1 408 " in all_of(later)
        assert counted(running)["slow_head"] >= 3


def test_between_two_requests_there_may_be_more_time_but_not_any(tmp_path: Path, sockets: ExitStack) -> None:
    with receiver(tmp_path / "store", "--header-time", "1", "--idle-time", "3") as running:
        ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        began = time.monotonic()
        one = connected(sockets, running.http_port, ask)
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
        assert all_of(one) == b""
        assert time.monotonic() - began > 3
        assert counted(running)["idle"] >= 1


def test_handshakes_have_to_be_done_in_time(tmp_path: Path, sockets: ExitStack) -> None:
    pem, key, _ = certificate(tmp_path, "own")
    options = ["--tls-cert", str(pem), "--tls-key", str(key), "--header-time", "0.5", "--max-connections", "3"]
    with receiver(tmp_path / "store", *options) as running:
        silent = [connected(sockets, running.http_port) for _ in range(3)]
        for one in silent:
            assert all_of(one) == b""
        garbage = connected(sockets, running.http_port, b"no handshake\n")
        all_of(garbage)
        crowd = [connected(sockets, running.http_port) for _ in range(9)]  # amid handshakes they hold places, too
        assert all_of(crowd[0]) == b""


def exported(port: int, number: int) -> None:
    request = trace_service_pb2.ExportTraceServiceRequest()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = trace_service_pb2_grpc.TraceServiceStub(channel)
        stub.Export(request, wait_for_ready=True, timeout=PATIENCE_S)


def test_grpc_has_so_many_connections_and_no_time_for_silence(tmp_path: Path, sockets: ExitStack) -> None:
    options = ["--max-connections", "4", "--header-time", "0.5", "--idle-time", "1"]
    with receiver(tmp_path / "store", *options) as running:
        silent = [connected(sockets, running.grpc_port) for _ in range(3)]
        for one in silent:
            all_of(one)  # ended without the beginning of HTTP/2
        idle = connected(sockets, running.grpc_port, PREFACE)
        assert all_of(idle)  # its settings, and a word of farewell
        exported(running.grpc_port, 1)
    with receiver(tmp_path / "store", "--max-connections", "4") as running:
        held = [connected(sockets, running.grpc_port, PREFACE) for _ in range(4)]
        for one in held:
            assert one.recv(4096)
        assert all_of(connected(sockets, running.grpc_port, PREFACE)) == b""
        for one in held:
            one.close()
        exported(running.grpc_port, 2)


def test_more_connections_than_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collect", "--store", str(tmp_path / "store"), "--max-connections", "1000000000"]) == 2
    assert "ulimit -n" in capsys.readouterr().err
