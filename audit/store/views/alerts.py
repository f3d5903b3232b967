"""Views of the alerts: what fires, what was sent, and how that goes, as of the newest check.

Alerts are remembered in a file that DuckDB cannot read, so whoever changes them keeps a copy in `published/` for these
views (`kvwitness.audit.alerts.published`). A copy could be left behind by a process that died between a change and its
copy. It therefore says beforehand, in `state.json`, that a change is on its way: a view that finds such a note to be
older than `LONGEST_CHANGE_NS` fails and says so. It never answers from a copy that may be out of date.
"""

from __future__ import annotations

from pathlib import Path

from kvwitness.audit.store import sql
from kvwitness.audit.store.views.model import ResultView

STATE = "state.json"
STATE_COLUMNS = {"revision": "BIGINT", "begun": "BOOLEAN", "changing_ns": "BIGINT", "checked_ns": "BIGINT"}
LONGEST_CHANGE_NS = 10_000_000_000
"""A change takes milliseconds; whoever announced one so long ago has died. [ns]"""
CHECKED = "checked_ns"
"""Column that every view of alerts gets from the state."""

_TEXTS = "VARCHAR[]"
_NS = "[ns since the Unix epoch]"
_CHECKED = ("BIGINT", f"When a check judged the store last: what came in since is not in this row. {_NS}")
_NEVER = "No check of this store is on record, so that nothing can be said of its alerts: run `kvwitness check`."
_INTERRUPTED = (
    "A change of the alerts was interrupted, so that this copy of them may be out of date: run `kvwitness alerts "
    "publish` (the next check does so by itself), then ask again."
)

ALERTS = ResultView(
    "alerts",
    "One row per episode of an alert: what fires, and what is over (kept for 90 days). As of the newest check.",
    {
        "alert": ("VARCHAR", "Id of the alert; the same as long as it is about the same."),
        "episode": ("BIGINT", "Counts how often it began."),
        "incident": ("VARCHAR", "Incident that it is about; null: none or several, see alert_incidents."),
        "rule": ("VARCHAR", "Rule that raised it; null: several."),
        "verdict": ("VARCHAR", "Verdict of its incidents, or `operation`: it is about kvwitness itself."),
        "severity": ("VARCHAR", "`critical`, `high`, `medium`, `low` or `info`."),
        "tenant": ("VARCHAR", "Tenant that was affected, where alerts are put together by tenant."),
        "engine": ("VARCHAR", "Engine that it is about; null: none or several."),
        "title": ("VARCHAR", "What it is called."),
        "state": ("VARCHAR", "`firing` or `resolved`."),
        "incidents": (
            "BIGINT",
            "How many incidents belong to it now (1 for an operation); 0: they are gone, or in a later episode.",
        ),
        "silenced": ("BOOLEAN", "Whether nobody is told of it, because of silences."),
        "accepted": ("VARCHAR", "Risk acceptance that covers it."),
        "time_ns": ("BIGINT", f"When it was raised. {_NS}"),
        "active_ns": ("BIGINT", f"When something about it was new last. {_NS}"),
        "until_ns": ("BIGINT", f"When it was resolved; null while it fires. {_NS}"),
        "ended_by": ("VARCHAR", "`calm`, `gone`, `closed` (all its incidents were), or who resolved it by hand."),
        "messages": ("BIGINT", "Messages that were made of it; each goes to several sinks."),
        "sinks": (_TEXTS, "Sinks that heard of it, or will."),
        CHECKED: _CHECKED,
    },
    {"ts": "time_ns", "active_ts": "active_ns", "until_ts": "until_ns", "checked_ts": CHECKED},
)

ALERT_INCIDENTS = ResultView(
    "alert_incidents",
    "One row per incident that belongs to an alert now; join it to alerts by alert and episode, to incidents by "
    "incident.",
    {
        "alert": ("VARCHAR", "Id of the alert."),
        "episode": ("BIGINT", "Episode of the alert."),
        "incident": ("VARCHAR", "Id of the incident."),
        "severity": ("VARCHAR", "What the incident alone is worth."),
        "rules": (_TEXTS, "Rules of its findings, those of the strongest verdict first."),
        CHECKED: _CHECKED,
    },
    {"checked_ts": CHECKED},
)

ALERT_DELIVERIES = ResultView(
    "alert_deliveries",
    "One row per message and sink: the newest 1,000, and of the older ones all that wait.",
    {
        "key": ("VARCHAR", "Idempotency key of the message: alert, episode, number."),
        "sink": ("VARCHAR", "Where it goes."),
        "alert": ("VARCHAR", "Id of the alert."),
        "state": ("VARCHAR", "`waiting`, `delivered` or `refused`."),
        "attempts": ("BIGINT", "How often it was sent."),
        "error": ("VARCHAR", "Why it was refused."),
        "queued_ns": ("BIGINT", f"When it was decided on. {_NS}"),
        "not_before_ns": ("BIGINT", f"When it may go: later than queued_ns in quiet hours. {_NS}"),
        "done_ns": ("BIGINT", f"When it was delivered or refused. {_NS}"),
        CHECKED: _CHECKED,
    },
    {"queued_ts": "queued_ns", "not_before_ts": "not_before_ns", "done_ts": "done_ns", "checked_ts": CHECKED},
)

ALERT_SINKS = ResultView(
    "alert_sinks",
    "One row per sink that was ever sent to: whether it can be reached.",
    {
        "sink": ("VARCHAR", "Name of the sink."),
        "failures": ("BIGINT", "Failures in a row; 0: all is well."),
        "failing_since_ns": ("BIGINT", f"Since when nothing reaches it; null: it is reached. {_NS}"),
        "retry_ns": ("BIGINT", f"When it is tried again. {_NS}"),
        "ok_ns": ("BIGINT", f"When it took a message last. {_NS}"),
        "error": ("VARCHAR", "What it said last, where that was no success."),
        CHECKED: _CHECKED,
    },
    {"failing_since_ts": "failing_since_ns", "retry_ts": "retry_ns", "ok_ts": "ok_ns", "checked_ts": CHECKED},
)

ALERT_HEARTBEATS = ResultView(
    "alert_heartbeats",
    "One row per target of the heartbeat: whether the sign of life arrives there.",
    {
        "target": ("VARCHAR", "Name of the sink, or `file`."),
        "ok_ns": ("BIGINT", f"When one arrived last; null: never. {_NS}"),
        "failures": ("BIGINT", "Failures in a row; 0: all is well."),
        "failing_since_ns": ("BIGINT", f"Since when none arrives; null: they do. {_NS}"),
        "error": ("VARCHAR", "What was said last, where that was no success."),
        CHECKED: _CHECKED,
    },
    {"ok_ts": "ok_ns", "failing_since_ts": "failing_since_ns", "checked_ts": CHECKED},
)

ALERT_CHECKS = ResultView(
    "alert_checks",
    "One row per rule: when a check looked at it last, and how far the record had come then.",
    {
        "rule": ("VARCHAR", "The rule: see rules.md."),
        "looked_ns": ("BIGINT", f"When a check looked at it last. {_NS}"),
        "mark_ns": ("BIGINT", f"Time of the newest event on record then. {_NS}"),
        CHECKED: _CHECKED,
    },
    {"looked_ts": "looked_ns", "mark_ts": "mark_ns", "checked_ts": CHECKED},
)

OF_ALERTS = (ALERTS, ALERT_INCIDENTS, ALERT_DELIVERIES, ALERT_SINKS, ALERT_HEARTBEATS, ALERT_CHECKS)


def file_of(view: ResultView) -> str:
    """Name of the copy that a view reads, inside the directory of copies."""
    return f"{view.name}.json"


def query(view: ResultView, directory: Path) -> str:
    """SQL of a view over the copies in `directory`."""
    state = (
        f"SELECT {CHECKED}, CASE WHEN NOT coalesce(begun, false) THEN error({sql.text(_NEVER)}) "
        f"WHEN epoch_ns(now()) - changing_ns > {LONGEST_CHANGE_NS} THEN error({sql.text(_INTERRUPTED)}) END AS said "
        f"FROM {_lines(directory / STATE, STATE_COLUMNS)}"
    )
    kept = {name: kind for name, (kind, _) in view.columns.items() if name != CHECKED}
    names = ", ".join(sql.name(name) for name in view.columns)
    # Every row comes out beside a state that was looked at, and where there is no row the second branch looks at it.
    # Its columns are of the error itself, lest a condition on them spare the look.
    failing = ", ".join(f"CAST(said AS {kind}) AS {sql.name(name)}" for name, (kind, _) in view.columns.items())
    stamps = ", ".join(f"make_timestamp_ns({sql.name(of)}) AS {sql.name(name)}" for name, of in view.times.items())
    return (
        f"WITH state AS ({state}) SELECT *, {stamps} FROM ("
        f"SELECT {names} FROM {_lines(directory / file_of(view), kept)}, state WHERE said IS NULL "
        f"UNION ALL SELECT {failing} FROM state WHERE said IS NOT NULL)"
    )


def elsewhere(view: ResultView) -> str:
    """SQL of a view in a file that alerts are not part of: reading it fails, and says so."""
    said = sql.text("Alerts are not part of an export; ask the store that it was made from.")
    failing = ", ".join(f"CAST(said AS {kind}) AS {sql.name(name)}" for name, (kind, _) in view.columns.items())
    stamps = ", ".join(f"make_timestamp_ns({sql.name(of)}) AS {sql.name(name)}" for name, of in view.times.items())
    source = f"(SELECT CAST(error({said}) AS VARCHAR) AS said)"
    return f"SELECT *, {stamps} FROM (SELECT {failing} FROM {source} WHERE said IS NOT NULL)"


def _lines(path: Path, columns: dict[str, str]) -> str:
    spec = ", ".join(f"{sql.name(name)}: {sql.text(kind)}" for name, kind in columns.items())
    return f"read_json({sql.text(str(path))}, format = 'newline_delimited', columns = {{{spec}}})"
