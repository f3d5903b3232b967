"""For programs that trace with OpenTelemetry and have no collector: an exporter that writes to the store itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from kvwitness.audit.store import Store
from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.collectors.otlp.genai import Reading
from kvwitness.collectors.otlp.intake import Intake, Job, Limits
from kvwitness.collectors.otlp.messages import PROTOBUF, TRACES
from kvwitness.collectors.otlp.records import Account, Origin
from kvwitness.collectors.otlp.refusal import Refusal
from kvwitness.collectors.salts import salt_key


class StoreSpanExporter(SpanExporter):
    """Takes what `kvwitness collect` would take of the same spans, without a server between.

    `export` returns when the records are on the disk. What is refused (the store cannot be written, too much waits) is
    a failure, and lost, as span processors do not repeat an export; `account` has what became of the rest.
    """

    def __init__(self, store: str | Path, *, reading: Reading | None = None, limits: Limits | None = None) -> None:
        opened = Store.create(store, exist_ok=True, pseudonyms=Pseudonyms.from_environment())
        self._intake = Intake(opened, reading or Reading(salt_key=salt_key()), limits or Limits())
        self._intake.start()
        self._ended = False

    @property
    def account(self) -> Account:
        """What became of all spans so far."""
        return self._intake.total

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans to the store."""
        body = encode_spans(spans).SerializeToString()
        done = threading.Event()
        outcome: list[Account | Refusal] = []

        def answer(told: Account | Refusal) -> None:
            outcome.append(told)
            done.set()

        try:
            self._intake.hold(len(body))
        except Refusal:
            return SpanExportResult.FAILURE
        try:
            self._intake.submit(Job(TRACES, body, "identity", PROTOBUF, Origin(), answer))
        except Refusal:
            self._intake.release(len(body))
            return SpanExportResult.FAILURE
        done.wait()
        return SpanExportResult.SUCCESS if isinstance(outcome[0], Account) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Finish what has begun, and let go of the store."""
        if not self._ended:
            self._ended = True
            self._intake.stop()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here: `export` returns when all is written."""
        return True
