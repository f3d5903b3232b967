"""The state of the alerts for Prometheus, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.status import Status

Sample = tuple[Mapping[str, str], float]


def exposition(status: Status) -> str:
    """Every figure with its help and type."""
    return "".join(_family(*family) for family in (*_families(status), *_heartbeats(status)))


def _families(status: Status) -> Iterable[tuple[str, str, str, Sequence[Sample]]]:
    firing = status.alerts.filter(pl.col("state") == "firing")
    counts = firing.group_by("severity", "verdict", "silenced").len().sort("severity", "verdict", "silenced")
    yield (
        "kvwitness_alerts_firing",
        "gauge",
        "Alerts that fire.",
        [
            ({"severity": severity, "verdict": verdict, "silenced": str(silenced).lower()}, count)
            for severity, verdict, silenced, count in counts.iter_rows()
        ]
        or [({}, 0)],
    )
    looked = [({"rule": rule}, at / SECOND_NS) for rule, at in status.rules.select("rule", "done_ns").iter_rows()]
    yield "kvwitness_rule_checked_timestamp_seconds", "gauge", "When a rule was looked at last.", looked
    newest = max((at for _, at in looked), default=0.0)
    yield "kvwitness_check_timestamp_seconds", "gauge", "When a check judged the store last.", [({}, newest)]
    sinks = list(status.sinks.iter_rows(named=True))
    yield (
        "kvwitness_sink_waiting_messages",
        "gauge",
        "Messages that wait for a sink.",
        [({"sink": row["sink"]}, row["waiting"]) for row in sinks],
    )
    yield (
        "kvwitness_sink_failures",
        "gauge",
        "Failures of a sink in a row.",
        [({"sink": row["sink"]}, row["failures"]) for row in sinks],
    )
    yield (
        "kvwitness_sink_delivered_timestamp_seconds",
        "gauge",
        "When a sink took a message last.",
        [({"sink": row["sink"]}, row["ok_ns"] / SECOND_NS) for row in sinks if row["ok_ns"]],
    )


def _heartbeats(status: Status) -> Iterable[tuple[str, str, str, Sequence[Sample]]]:
    beats = list(status.heartbeats.iter_rows(named=True))
    yield (
        "kvwitness_heartbeat_failures",
        "gauge",
        "Heartbeats in a row that did not arrive.",
        [({"target": row["target"]}, row["failures"]) for row in beats],
    )
    yield (
        "kvwitness_heartbeat_timestamp_seconds",
        "gauge",
        "When a heartbeat arrived last.",
        [({"target": row["target"]}, row["ok_ns"] / SECOND_NS) for row in beats if row["ok_ns"]],
    )


def _family(name: str, kind: str, about: str, samples: Sequence[Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value:.15g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
