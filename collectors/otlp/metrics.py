"""Metrics of engines, as a collector in front forwards them: limits and pools, kept when they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvwitness.collectors.endpoints.facts import Changes, EngineFacts, Sample, from_metrics
from kvwitness.collectors.otlp import values
from kvwitness.collectors.otlp.genai import Reader
from kvwitness.collectors.otlp.records import Account, Origin, Record

_POINTS = ("gauge", "sum")
_MAX_ENGINES = 10_000


class Facts:
    """What metrics said so far, by engine."""

    def __init__(self) -> None:
        self._engines: dict[str, EngineFacts] = {}
        self._changes = Changes()

    def records(self, message: Any, reader: Reader, origin: Origin, account: Account) -> Iterator[Record]:
        """The records of an export request of metrics; what gives none is put down in `account`."""
        for group in message.resource_metrics:
            service = reader.service(group.resource, "")
            for scoped in group.scope_metrics:
                for metric in scoped.metrics:
                    yield from self._metric(metric, service.name, origin, account)

    def _metric(self, metric: Any, engine: str, origin: Origin, account: Account) -> Iterator[Record]:
        kind = metric.WhichOneof("data")
        if kind not in _POINTS:
            account.ignored += len(getattr(metric, kind).data_points) if kind else 1
            return
        for point in getattr(metric, kind).data_points:
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            labels = {item.key: values.text(item.value) or "" for item in point.attributes}
            known = self._engines.get(engine, EngineFacts())
            if not from_metrics([Sample(metric.name, labels, value)], known):
                account.ignored += 1
                continue
            if not origin.sender.may_write(None):
                account.rejected["this sender may only write for tenants, not about engines"] += 1
                continue
            if not point.time_unix_nano:
                account.rejected["the data point has no time"] += 1
                continue
            if len(self._engines) < _MAX_ENGINES:
                self._engines[engine] = known
            yield from self._said(engine, known, point.time_unix_nano, account)

    def _said(self, engine: str, known: EngineFacts, time: int, account: Account) -> Iterator[Record]:
        events = [
            (kind, time, fields)
            for kind, fields in known.events(engine, f"metrics/{engine}")
            if self._changes.new(kind, fields)
        ]
        if events:
            yield Record(f"{engine}\0{time}\0{[kind for kind, *_ in events]}".encode(), tuple(events))
        else:
            account.doubled += 1
