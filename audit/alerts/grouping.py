"""Which signals make one alert: the labels that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvwitness.audit.alerts.config import Config
from kvwitness.audit.alerts.model import OPERATION, UNKNOWN, Signal, alert_id
from kvwitness.audit.alerts.operations import OPERATIONS
from kvwitness.audit.alerts.policy import Weighed
from kvwitness.audit.rules import RULES
from kvwitness.audit.wording import several

Labels = dict[str, str]

_OF_REQUESTS = {
    "leak": ("request leaked", "requests leaked"),
    "integrity": ("request with wrong or undefined content", "requests with wrong or undefined content"),
    "exposure": ("request exposed", "requests exposed"),
    "unproven": ("request unproven", "requests unproven"),
}


def labels_of(one: Weighed, config: Config) -> Labels:
    """The labels of the alert that a signal belongs to.

    Incidents of requests are put together by what `group_by` names. What is about an engine, a tenant or kvwitness
    itself is put together by rule, so that a hundred tenants whose usage changes on one day are one alert.
    """
    signal = one.signal
    labels = {"verdict": signal.verdict}
    if signal.verdict == OPERATION:
        labels |= {"rule": signal.rule, "about": signal.id}
    elif signal.request is None:
        labels["rule"] = signal.rule
    else:
        labels |= {name: _label(signal, name) for name in config.group_by}
    if one.accepted:
        labels["accepted"] = one.accepted.id
    return labels


def _label(signal: Signal, name: str) -> str:
    value = {
        "verdict": signal.verdict,
        "rule": signal.rule,
        "engine": signal.engine,
        "tenant": signal.tenant,
        "incident": signal.id,
    }[name]
    return value or UNKNOWN


def stormed(fresh: Sequence[Labels], config: Config) -> Mapping[str, Labels]:
    """Alert id -> other labels, for alerts that would open with too many others of their verdict at once."""
    distinct = {alert_id(labels): labels for labels in fresh}
    per_verdict = Counter(labels["verdict"] for labels in distinct.values() if labels["verdict"] != OPERATION)
    return {
        ident: {"verdict": labels["verdict"], "storm": "many"}
        | ({"accepted": labels["accepted"]} if "accepted" in labels else {})
        for ident, labels in distinct.items()
        if per_verdict[labels["verdict"]] > config.storm
    }


def title_of(labels: Mapping[str, str], incidents: int, engines: Sequence[str]) -> str:
    """What an alert is called."""
    rule = labels.get("rule", "")
    if labels["verdict"] == OPERATION:
        return f"kvwitness: {OPERATIONS[rule].title}"
    if "rule" in labels and "engine" not in labels and set(labels) <= {"verdict", "rule", "accepted"}:
        title = RULES[rule].title if rule in RULES else rule
        named = f" ({', '.join(engines[:3])}{', ...' if len(engines) > 3 else ''})" if engines else ""
        return f"{title}{named}"
    one, more = _OF_REQUESTS.get(labels["verdict"], ("incident", "incidents"))
    told = several(incidents, one, more)
    where = [labels[name] for name in ("engine", "tenant", "rule", "incident") if name in labels]
    return f"{told}: {', '.join(where)}" if where else told
