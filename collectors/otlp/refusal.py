"""Why an export was not taken, in the terms of both transports of OTLP."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

# https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED = 3, 4, 5, 7
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 8, 12, 13, 14, 16


@dataclass
class Refusal(Exception):
    """An export that is refused as a whole.

    A sender repeats it only where `retry_s` is set: what is wrong with the data does not get better.
    """

    http: int
    """Status over HTTP."""
    code: int
    """`google.rpc.Code` over gRPC, and in the body over HTTP."""
    message: str
    """For the sender's operator; quotes nothing of the data."""
    retry_s: float | None = None
    """After how many seconds it is worth another try."""
    kind: str = "other"
    """A word for it, under which refusals are counted."""

    @classmethod
    def bad(cls, message: str) -> Refusal:
        """The data cannot be read, and would not be the next time."""
        return cls(400, INVALID_ARGUMENT, message, kind="bad_data")

    @classmethod
    def too_large(cls, message: str) -> Refusal:
        """The data is larger than this receiver takes, as it came or unpacked."""
        return cls(413, RESOURCE_EXHAUSTED, message, kind="too_large")

    @classmethod
    def late(cls, message: str) -> Refusal:
        """The sender is too slow."""
        return cls(408, DEADLINE_EXCEEDED, message, kind="slow")

    @classmethod
    def busy(cls, message: str, retry_s: float = 1.0) -> Refusal:
        """More comes than is written; the sender is to wait."""
        return cls(429, UNAVAILABLE, message, retry_s, "busy")

    @classmethod
    def unavailable(cls, message: str, retry_s: float = 1.0) -> Refusal:
        """Nothing can be taken now: the store cannot be written, or the receiver is about to end."""
        return cls(503, UNAVAILABLE, message, retry_s, "unavailable")

    def status(self) -> status_pb2.Status:
        """As `google.rpc.Status`, with what the sender's library looks for in its details."""
        status = status_pb2.Status(code=self.code, message=self.message)
        if self.retry_s is not None:
            delay = Duration()
            delay.FromNanoseconds(int(self.retry_s * 1e9))
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        elif self.code == INVALID_ARGUMENT:
            violation = error_details_pb2.BadRequest.FieldViolation(description=self.message)
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        return status
