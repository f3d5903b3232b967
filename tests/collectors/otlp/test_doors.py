"""The receiver as its senders meet it: statuses, compression, who may send, pressure, and an orderly end."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import signal
import socket
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
import zstandard
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from kvwitness.audit.cli.app import run
from kvwitness.collectors.otlp import plain_json
from tests.collectors.otlp.support import (
    Receiver,
    certificate,
    events,
    receiver,
    requests_received,
    span,
    started,
    traces,
)

PROTOBUF = "application/x-protobuf"


def message(*spans: dict[str, Any]) -> trace_service_pb2.ExportTraceServiceRequest:
    out = trace_service_pb2.ExportTraceServiceRequest()
    plain_json.fill(out, traces(*spans))
    return out


def exported(
    running: Receiver, spans: trace_service_pb2.ExportTraceServiceRequest, token: str = "", **options: Any
) -> trace_service_pb2.ExportTraceServiceResponse:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(f"127.0.0.1:{running.grpc_port}") as channel:
        stub = trace_service_pb2_grpc.TraceServiceStub(channel)
        return stub.Export(spans, metadata=metadata, wait_for_ready=True, timeout=60, **options)


def test_answers_over_http_and_grpc(tmp_path: Path) -> None:
    with receiver(tmp_path / "store") as running:
        body = message(span(1)).SerializeToString()
        assert running.post(body, kind=PROTOBUF)[::2] == (200, b"")
        assert running.post(traces(span(2)))[::2] == (200, b"{}")
        assert running.post(gzip.compress(traces(span(3))), Content_Encoding="gzip")[0] == 200
        assert running.post(zstandard.compress(traces(span(4))), Content_Encoding="zstd")[0] == 200
        assert not exported(running, message(span(5))).HasField("partial_success")
        assert not exported(running, message(span(6)), compression=grpc.Compression.Gzip).HasField("partial_success")
        bad = span(7, traceId="00" * 16)
        partial = exported(running, message(bad, span(8))).partial_success
        assert (partial.rejected_spans, partial.error_message) == (1, "1: trace_id or span_id is not valid")
        answer = orjson.loads(running.post(traces(bad))[2])
        assert answer["partialSuccess"] == {"rejectedSpans": "1", "errorMessage": partial.error_message}
        for signal_name in ("logs", "metrics"):
            assert running.post(b"{}", signal_name)[0] == 200
        status, headers, refused = running.post(b"\xff\xff", kind=PROTOBUF)
        told = status_pb2.Status.FromString(refused)
        assert (status, headers["Content-Type"], told.code) == (400, PROTOBUF, 3)
        assert told.details[0].Is(error_details_pb2.BadRequest.DESCRIPTOR)
        assert running.post(b"{}", "spans")[0] == 404
        assert running.get("/v1/traces")[0] == 405
        assert running.get("/healthz") == (200, "ok\n")
        metrics = running.get("/metrics")[1]
    families = text_string_to_metric_families(metrics)
    samples = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    assert samples["kvwitness_collect_records_total", "kept"] == 7
    assert len(requests_received(tmp_path / "store")) == 7


def test_chunked_bodies_and_the_limit(tmp_path: Path) -> None:
    with receiver(tmp_path / "store", "--max-body", "64KiB") as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.http_port)

        def chunked(body: bytes) -> int:
            pieces = (body[n : n + 1000] for n in range(0, len(body), 1000))
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/traces", pieces, headers, encode_chunked=True)
            response = connection.getresponse()
            response.read()
            return response.status

        assert chunked(traces(span(1, attributes={"x": "y" * 10_000}))) == 200
        large = traces(span(2, attributes={"x": "y" * 70_000}))
        assert running.post(large)[0] == 413
        assert running.post(gzip.compress(large), Content_Encoding="gzip")[0] == 413
        with pytest.raises((ConnectionError, AssertionError)):  # refused before all of it is there
            assert chunked(large * 20) == 200
        with pytest.raises(grpc.RpcError) as refused:
            exported(running, message(span(2, attributes={"x": "y" * 70_000})))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        connection.close()
    assert len(requests_received(tmp_path / "store")) == 1


def test_who_may_send(tmp_path: Path) -> None:
    senders = tmp_path / "senders.toml"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    senders.write_text(
        f'[[sender]]\nname = "all"\ntoken_sha256 = "{digests["one"]}"\n'
        f'[[sender]]\nname = "ash"\ntoken_sha256 = "{digests["two"]}"\ntenants = ["t-ash"]\n'
    )
    other = {"tenant.id": "t-oak"}
    with receiver(tmp_path / "store", "--senders", str(senders)) as running:
        assert running.post(traces(span(1)))[0] == 401
        assert running.post(traces(span(1)), Authorization="Bearer three")[0] == 401
        assert running.post(traces(span(1, attributes=other)), Authorization="Bearer one")[::2] == (200, b"{}")
        rejected = running.post(traces(span(2, attributes=other), span(3)), Authorization="Bearer two")[2]
        assert orjson.loads(rejected)["partialSuccess"]["rejectedSpans"] == "1"
        with pytest.raises(grpc.RpcError) as refused:
            exported(running, message(span(4)), "three")
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        exported(running, message(span(5)), "two")
    assert sorted(e["tenant"] for e in events(tmp_path / "store")[::2]) == ["t-ash", "t-ash", "t-oak"]


def test_beyond_this_machine_somebody_has_to_say_who_may_send(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["collect", "--store", str(tmp_path / "store"), "--host", "0.0.0.0"]) == 2
    assert "--senders" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "extra"), [("aiohttp", "otlp"), ("zmq", "cluster")])
def test_missing_part_is_named(
    module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("kvwitness.collectors.otlp", "kvwitness.collectors.en"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert run(["collect", "--store", str(tmp_path / "store"), "--kv-events", "e=tcp://127.0.0.1:9"]) == 2
    assert f"kvwitness[{extra}]" in capsys.readouterr().err


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    ca, _, authority = certificate(tmp_path, "ca")
    own, own_key, _ = certificate(tmp_path, "receiver", authority)
    client, client_key, _ = certificate(tmp_path, "acme", authority)
    senders = tmp_path / "senders.toml"
    senders.write_text('[[sender]]\nname = "acme"\ncertificate = "acme"\ntenant = "t-acme"\n')
    options = ["--tls-cert", str(own), "--tls-key", str(own_key), "--client-ca", str(ca), "--senders", str(senders)]
    with receiver(tmp_path / "store", *options) as running:
        context = ssl.create_default_context(cafile=str(ca))

        def post() -> int:
            request = urllib.request.Request(
                f"https://localhost:{running.http_port}/v1/traces",
                traces(span(1)),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, context=context) as response:
                status: int = response.status
                return status

        with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|broken pipe|closed"):
            post()
        context.load_cert_chain(client, client_key)
        assert post() == 200
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), client_key.read_bytes(), client.read_bytes())
        with grpc.secure_channel(f"localhost:{running.grpc_port}", credentials) as channel:
            trace_service_pb2_grpc.TraceServiceStub(channel).Export(message(span(2)), wait_for_ready=True, timeout=60)
    assert {e["tenant"] for e in events(tmp_path / "store")} == {"t-acme"}


def head(size: int) -> bytes:
    """What comes before a body."""
    start = "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{start}Content-Length: {size}\r\n\r\n".encode()


def half_sent(running: Receiver, size: int) -> socket.socket:
    """A request of which half has come, and is held."""
    one = socket.create_connection(("127.0.0.1", running.http_port))
    one.sendall(head(size) + b" " * (size // 2))
    return one


def test_pressure_is_told_and_nothing_is_lost_by_it(tmp_path: Path) -> None:
    with receiver(tmp_path / "store", "--max-body", "100KiB", "--max-held", "100KiB") as running:
        waiting = half_sent(running, 100_000)
        body = traces(span(1, attributes={"x": "y" * 60_000}))
        while "kvwitness_collect_held_bytes 0.0" in running.get("/metrics")[1]:
            pass
        while (answer := running.post(body))[0] == 200:  # until all of that half has been read
            pass
        status, headers, told = answer
        assert (status, headers["Retry-After"]) == (429, "1")
        assert orjson.loads(told)["details"][0]["retryDelay"] == "1s"
        with pytest.raises(grpc.RpcError) as refused:
            exported(running, message(span(1, attributes={"x": "y" * 60_000})))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
        assert status_pb2.Status.FromString(details).details[0].Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        waiting.close()
        while running.post(body)[0] == 429:
            pass
    assert len(requests_received(tmp_path / "store")) == 1


def test_store_that_cannot_be_written_is_told_and_recovers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    running = started(store)
    try:
        assert running.post(traces(span(1)))[0] == 200
        (store / "flushed").rename(store / "away")
        assert running.post(traces(span(2)))[0] == 503
        assert running.get("/readyz")[0] == 503
        (store / "away").rename(store / "flushed")
        while (status := running.post(traces(span(2)))[0]) == 503:
            pass
        assert status == 200
        assert running.get("/readyz")[0] == 200
        running.stop()
    finally:
        running.process.kill()
    kept = requests_received(store)["request"].to_list()
    assert len(kept) == len(set(kept)) == 2


def test_sigterm_finishes_what_has_begun(tmp_path: Path) -> None:
    running = started(tmp_path / "store")
    try:
        body = traces(*(span(n) for n in range(1, 200)))
        with socket.create_connection(("127.0.0.1", running.http_port)) as one:
            one.sendall(head(len(body)) + body[:-10])
            while "kvwitness_collect_held_bytes 0.0" in running.get("/metrics")[1]:
                pass
            running.process.send_signal(signal.SIGTERM)
            one.sendall(body[-10:])
            answer = one.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
        out, _ = running.process.communicate(timeout=60)
        assert orjson.loads(out)["kept"] == 199
    finally:
        running.process.kill()
    assert len(requests_received(tmp_path / "store")) == 199
