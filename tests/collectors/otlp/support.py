"""A real receiver in a process of its own, and real exporters that send to it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from kvwitness.audit.store import Store

_PORTS = re.compile(rb"OTLP/HTTP on \S+:(\d+) and OTLP/gRPC on \S+:(\d+)")


@dataclass
class Receiver:
    """One that is running."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    scheme: str = "http"

    @property
    def http(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.grpc_port}"

    def post(
        self, body: bytes, signal: str = "traces", kind: str = "application/json", **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()} | {"Content-Type": kind}
        request = urllib.request.Request(f"{self.http}/v1/{signal}", body, named, method="POST")
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.http + path) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def stop(self) -> dict[str, Any]:
        """End it in order; what it says came."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err.decode()
        summary: dict[str, Any] = orjson.loads(out.splitlines()[-1])
        return summary

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def started(
    store: Path, *options: str, http_port: int = 0, grpc_port: int = 0, env: dict[str, str] | None = None
) -> Receiver:
    """A receiver whose doors are open."""
    command = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()", "collect", "--store", str(store)]
    command += ["--http-port", str(http_port), "--grpc-port", str(grpc_port), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if found := _PORTS.search(line):
            return Receiver(process, int(found[1]), int(found[2]), "https" if "--tls-cert" in options else "http")
    process.wait()
    raise AssertionError(said.decode())


@contextmanager
def receiver(store: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Receiver]:
    """A receiver that ends in order with the block, and in any case."""
    running = started(store, *options, env=env)
    try:
        yield running
        if running.process.poll() is None:
            running.stop()
    finally:
        if running.process.poll() is None:
            running.kill()


def provider(exporter: SpanExporter, service: str = "app", **resource: str) -> TracerProvider:
    """An SDK that sends by a batch processor, as applications do."""
    made = TracerProvider(resource=Resource({"service.name": service, **resource}), shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made


PACKAGES = ("sdk-trace-node", "exporter-trace-otlp-http", "exporter-trace-otlp-proto", "exporter-trace-otlp-grpc")


def installed(folder: Path) -> None:
    """OpenTelemetry's JavaScript SDK and exporters, for scripts in a folder."""
    (folder / "package.json").write_text('{"name": "send", "version": "1.0.0", "private": true}')
    wanted = [f"@opentelemetry/{name}" for name in PACKAGES]
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", *wanted], cwd=folder, check=True, capture_output=True)


CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "self",
    "gen_ai.request.model": "m",
    "tenant.id": "t-ash",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 7,
    "gen_ai.response.finish_reasons": ["stop"],
}
"""Attributes of an ordinary call."""


def span(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A span as OTLP JSON; `attributes` are added to those of an ordinary call, None takes one away."""
    attributes = CALL | changes.pop("attributes", {})
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": str(1_788_221_380_000_000_000 + number),
        "endTimeUnixNano": str(1_788_221_381_000_000_000 + number),
        "attributes": [{"key": k, "value": value_of(v)} for k, v in attributes.items() if v is not None],
        "status": {},
        **changes,
    }


def value_of(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [value_of(v) for v in value]}}
        case dict():
            return {"kvlistValue": {"values": [{"key": k, "value": value_of(v)} for k, v in value.items()]}}
    return {"stringValue": value}


def traces(*spans: dict[str, Any], service: str = "app", scope: str = "", **resource: Any) -> bytes:
    """An export request as OTLP JSON."""
    attributes = {"service.name": service, **resource}
    told = [{"key": k, "value": value_of(v)} for k, v in attributes.items()]
    scoped = [{"scope": {"name": scope}, "spans": list(spans)}]
    return orjson.dumps({"resourceSpans": [{"resource": {"attributes": told}, "scopeSpans": scoped}]})


def events(store: Path) -> list[dict[str, Any]]:
    """All events of a store in the order of arrival, with what was kept beside the vocabulary."""
    frame = Store.open(store).events().sort("ingest", "ingest_row").collect()
    rows = []
    for row in frame.drop("ingest", "ingest_row").iter_rows(named=True):
        kept = {k: v for k, v in row.items() if v is not None and k != "extra"}
        rows.append(kept | (orjson.loads(row["extra"]) if row["extra"] else {}))
    return rows


def requests_received(store: Path) -> pl.DataFrame:
    frame = Store.open(store).events(["event", "request"]).filter(pl.col("event") == "request.received")
    return frame.collect()


def certificate(
    directory: Path, name: str, issuer: tuple[Any, Any] | None = None
) -> tuple[Path, Path, tuple[Any, Any]]:
    """A certificate and its key as PEM files, signed by itself or by another."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signing = issuer or (subject, key)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    pem, private = directory / f"{name}.pem", directory / f"{name}.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, private, (subject, key)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


ROTEL = "rotel==0.0.1a15"


@contextmanager
def rotel(folder: Path, to: str, *options: str) -> Iterator[str]:
    """The address of Rotel, a collector in Rust: it takes OTLP, makes batches of its own, and sends them on packed.

    It sends on what it has when the block ends.
    """
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "rotel"), ROTEL]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip("there is no Rotel for this Python and platform")
    [agent] = folder.glob("rotel/**/rotel-agent")
    port = free_port()
    command = [str(agent), "start", "--otlp-grpc-endpoint", "127.0.0.1:0", "--otlp-http-endpoint", f"127.0.0.1:{port}"]
    command += ["--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", to, *options]
    with listening(command, port, folder / "rotel.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def proxy(folder: Path, to_port: int) -> Iterator[str]:
    """The address of an nginx in front of a server, for which it answers 502 when that breaks off.

    It stays on the line meanwhile: a sender that does not know what a closed connection means is never told of one.
    """
    port, settings = free_port(), folder / "nginx.conf"
    settings.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{}}\n"
        "http { access_log off; client_max_body_size 0; client_body_buffer_size 16m;\n"
        "keepalive_timeout 1h; keepalive_requests 1000000;\n"
        f"client_body_temp_path {folder}/body; proxy_temp_path {folder}/answers; fastcgi_temp_path {folder}/fast;\n"
        f"uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{to_port}; }} }} }}\n"
    )
    with listening(["nginx", "-c", str(settings)], port, folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def listening(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A program that listens on a port, ended in order with the block."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)
