"""The three signals of OTLP, and from a request's body to its message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from kvwitness.collectors.otlp import plain_json
from kvwitness.collectors.otlp.refusal import Refusal

PROTOBUF, JSON = "application/x-protobuf", "application/json"
ENCODINGS = (PROTOBUF, JSON)


@dataclass(frozen=True)
class Signal:
    """One kind of telemetry: where it is sent, and the messages that go and come."""

    name: str
    path: str
    """Path of its HTTP endpoint."""
    method: str
    """Full name of its gRPC method."""
    request: Callable[[], Any]
    response: Callable[[], Any]
    rejected: str
    """Field of the partial success that counts what was refused."""


SIGNALS = (
    Signal(
        "traces",
        "/v1/traces",
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        traces.ExportTraceServiceRequest,
        traces.ExportTraceServiceResponse,
        "rejected_spans",
    ),
    Signal(
        "logs",
        "/v1/logs",
        "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        logs.ExportLogsServiceRequest,
        logs.ExportLogsServiceResponse,
        "rejected_log_records",
    ),
    Signal(
        "metrics",
        "/v1/metrics",
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        "rejected_data_points",
    ),
)
TRACES, LOGS, METRICS = SIGNALS


def decoded(signal: Signal, encoding: str, body: bytes) -> Any:
    """The export request that a body holds. Raises `Refusal` (400) where it holds none."""
    message: Message = signal.request()
    if encoding == JSON:
        plain_json.fill(message, body)
        return message
    try:
        message.ParseFromString(body)
    except (DecodeError, ValueError) as error:
        raise Refusal.bad(f"the body is not {message.DESCRIPTOR.name} in protobuf: {_first_line(error)}") from None
    return message


def answer(signal: Signal, rejected: int, reason: str) -> Any:
    """The response to an export of which `rejected` records were refused; `reason` alone is a warning."""
    response = signal.response()
    if rejected or reason:
        setattr(response.partial_success, signal.rejected, rejected)
        response.partial_success.error_message = reason
    return response


def encoded(message: Message, encoding: str) -> bytes:
    """A response in the encoding in which the request came."""
    return plain_json.dump(message) if encoding == JSON else message.SerializeToString()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
