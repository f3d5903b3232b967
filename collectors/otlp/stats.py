"""The receiver's own metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvwitness.collectors.otlp.connections import ENDINGS, Connections
from kvwitness.collectors.otlp.intake import Intake

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Stats:
    """Counts requests, and asks the intake for the rest when somebody wants to know."""

    def __init__(self, intake: Intake) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "kvwitness_collect_requests",
            "Export requests by how they ended.",
            ["signal", "transport", "outcome"],
            registry=self._registry,
        )
        self._registry.register(_OfIntake(intake))

    def watch(self, connections: Connections) -> None:
        """Tell of those as well."""
        self._registry.register(_OfConnections(connections))

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class _OfIntake(Collector):
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def collect(self) -> Iterator[Metric]:
        intake, total = self._intake, self._intake.total
        records = CounterMetricFamily(
            "kvwitness_collect_records", "Spans, log records, data points by what became of them.", labels=["outcome"]
        )
        for outcome, count in (
            ("kept", total.accepted),
            ("doubled", total.doubled),
            ("ignored", total.ignored),
            ("rejected", sum(total.rejected.values())),
        ):
            records.add_metric([outcome], count)
        yield records
        content = sum(total.content.values()) + sum(intake.report.dropped_content.values())
        yield CounterMetricFamily("kvwitness_collect_content_dropped", "Values that were content.", value=content)
        unreadable = sum(total.unreadable.values())
        yield CounterMetricFamily("kvwitness_collect_values_unreadable", "Values of a wrong type.", value=unreadable)
        yield CounterMetricFamily("kvwitness_collect_events", "Events written to the store.", value=intake.rows)
        yield CounterMetricFamily("kvwitness_collect_flushes", "Segments written to the store.", value=intake.flushes)
        yield GaugeMetricFamily("kvwitness_collect_held_bytes", "Bodies that wait for their answer.", value=intake.held)
        ready = 0 if intake.trouble else 1
        yield GaugeMetricFamily("kvwitness_collect_ready", "1: records are taken.", value=ready)


class _OfConnections(Collector):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        open_now = self._connections.open
        yield GaugeMetricFamily("kvwitness_collect_http_connections", "Open connections over HTTP.", value=open_now)
        ended = CounterMetricFamily(
            "kvwitness_collect_http_connections_ended",
            "Connections over HTTP that were refused or ended here, by reason.",
            labels=["reason"],
        )
        for reason in ENDINGS:
            ended.add_metric([reason], self._connections.ended[reason])
        yield ended
