"""Health: what comes in, what was lost, when it was judged, what was delivered, and how large the store is."""

from __future__ import annotations

import time

import polars as pl
import streamlit as st

from kvwitness.audit.alerts.status import status
from kvwitness.audit.overall.fleet import lag_in_words
from kvwitness.audit.overall.upkeep import imports, losses, runs, sizes
from kvwitness.audit.wording import several
from kvwitness.dashboards import desk, look


def page() -> None:
    """The page."""
    st.title("Health", anchor=False)
    look.section("Ingest and audit", "", _lag)
    look.section("Sources", "", _sources)
    look.section("Losses of telemetry", "What was not recorded weakens every answer about that time.", _losses)
    look.section("Rules", "", _rules)
    look.section("Audits", "", _runs)
    look.section("Alerts", "", _alerts)
    look.section("Imported files", "", _imports)
    look.section("Store", "", _store)


@st.fragment(run_every=5)
def _lag() -> None:
    with look.told():
        behind = desk.behind()
        rows, judged = st.columns(2)
        rows.metric("Events", f"{behind.rows:,}", border=True)
        judged.metric("Not judged yet", f"{behind.unjudged:,}", border=True)
        told = f"{lag_in_words(behind, time.time_ns())} Newest event: {look.when(behind.newest_ns)}."
        st.markdown(look.bare(told))


def _sources() -> None:
    table = desk.watched_sources()
    if table.is_empty():
        look.nothing("No audit has listed the sources yet.", "`kvwitness store info` counts what is there without one.")
        return
    told = table.select("state", "source", "lacks", "events", "losses", "lost", "first_ns", "last_ns")
    look.rows(look.timed(told, {"first_ns": "since", "last_ns": "until"}), "Sources, and what of them is missing")


def _losses() -> None:
    found = losses(desk.table("gaps"))
    if found.is_empty():
        look.nothing(
            "No loss is on record." if desk.answer().judged else "Losses are counted by an audit, and there was none."
        )
        return
    times = {"before_ns": "last before", "after_ns": "first after"}
    look.rows(look.timed(found, times), "Losses of telemetry, and between which times", key="losses")


def _rules() -> None:
    if not desk.answer().judged:
        look.nothing("No rule has run yet.", "`kvwitness audit` runs all of them.")
        return
    watched = look.timed(desk.watched_rules(), {"first_ns": "since"})
    look.rows(watched, "Rules: what they found, what they lacked, and since when", key="rules")


def _runs() -> None:
    table = runs(desk.store())
    if table.is_empty():
        look.nothing("No audit has run yet.", "`kvwitness audit`, by hand or on a schedule.")
        return
    look.rows(look.timed(table, {"created_ns": "kept"}), "Audits that are kept, the newest first", key="runs")


def _alerts() -> None:
    told = status(desk.store())
    if told.rules.is_empty() and told.alerts.is_empty():
        look.nothing(
            "No check of this store ever ran, so that no alert was raised or delivered.",
            "`kvwitness check`, on a schedule, or `kvwitness watch`: docs/alerts.md.",
        )
        return
    waiting, failing = int(told.sinks["waiting"].sum()), told.sinks.filter(pl.col("failing_since_ns").is_not_null())
    if len(failing):
        names = look.bare(", ".join(failing["sink"].to_list()))
        st.error(f"Not delivered: {names} cannot be reached; {several(waiting, 'message')} waiting.")
    unheard = told.heartbeats.filter(pl.col("failing_since_ns").is_not_null())
    if len(unheard):
        names = look.bare(", ".join(unheard["target"].to_list()))
        st.error(f"The heartbeat does not arrive at {names}: whoever expects it believes that no check runs.")
    if told.alerts.is_empty():
        look.nothing("Checks run, and no alert was ever raised.")
    else:
        look.small("Alerts, the newest first")
        _dated(desk.hidden(told.alerts.drop("episode")), "Alerts, raised and resolved", "alerts")
    if len(told.sinks):
        look.small("Where they go")
        _dated(told.sinks, "Sinks, what waits for them, and when they were last reached", "sinks")
    if len(told.heartbeats):
        look.small("Where the heartbeat goes")
        _dated(told.heartbeats, "Targets of the heartbeat, and when it arrived last", "heartbeats")
    look.small("When each rule was looked at last")
    _dated(told.rules, "Rules, and when a check looked at them last", "checked")


def _dated(frame: pl.DataFrame, what: str, key: str) -> None:
    times = {name: name.removesuffix("_ns") for name in frame.columns if name.endswith("_ns")}
    look.rows(look.timed(frame, times), what, key=key)


def _imports() -> None:
    found = imports(desk.store())
    if found.is_empty():
        look.nothing("No file was imported.")
        return
    left_out = int(found["left out"].sum())
    if left_out:
        st.warning(f"{several(left_out, 'line')} could not be read and {'was' if left_out == 1 else 'were'} left out.")
    look.rows(look.timed(found, {"committed_ns": "imported"}), "Imported files, and what was left out", key="imports")


def _store() -> None:
    facts, removals = sizes(desk.store())
    look.rows(pl.DataFrame(facts), "The store in numbers", key="store")
    if removals:
        st.markdown("**Removed for good (retention)**")
        look.rows(pl.DataFrame(removals, infer_schema_length=None), "What retention removed", key="removals")


if __name__ == "__main__":
    look.show(page)
