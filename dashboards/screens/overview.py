"""Overview: is something wrong now, and what is not being watched?"""

from __future__ import annotations

import time

import polars as pl
import streamlit as st

from kvwitness.audit.overall.fleet import all_covered, bucket_ns, near_limit, over_time
from kvwitness.audit.overall.overview import MEANING, verdict_counts
from kvwitness.audit.overall.standing import by_verdict, unsettled
from kvwitness.audit.wording import duration
from kvwitness.dashboards import charts, desk, look
from kvwitness.dashboards.parts import incident_row

_SHOWN = 6
_LISTED = 12
"""Pools or rules that are listed one by one, the least watched first; of more, all stand in a table."""
_COUNTED = ("leak", "integrity", "exposure", "unproven", "clean")


def page() -> None:
    """The page."""
    st.title("Overview", anchor=False)
    incidents = desk.incidents()
    state = desk.state(incidents)
    _verdict(state.state, state.told)
    if state.state in ("empty", "unjudged"):
        _first_steps(state.state)
        return
    _counts()
    look.section("Incidents to look at", "", lambda: _urgent(incidents))
    look.section("Answered although the prompt was near or over the limit", "", _near_limit)
    look.section("What is watched, and what is not", "Green only where nothing is missing.", _coverage)


def _verdict(state: str, told: str) -> None:
    with st.container(border=True):
        look.badge(state)
        st.markdown(f"**{look.bare(told)}**")


def _first_steps(state: str) -> None:
    if state == "empty":
        look.nothing(
            "The store is there, and nothing has come in.",
            "`kvwitness import FILE` brings in a trace, `kvwitness tail DIR` follows a running engine.",
        )
    else:
        look.nothing(
            "No audit has run yet.", "`kvwitness audit` judges what is there; this page then shows it by itself."
        )


def _counts() -> None:
    look.small("Requests by verdict")
    counts = verdict_counts(desk.answer())
    for column, verdict in zip(st.columns(len(_COUNTED)), _COUNTED, strict=True):
        column.metric(verdict, f"{counts[verdict]:,}", help=MEANING[verdict], border=True)


def _urgent(incidents: pl.DataFrame) -> None:
    urgent = unsettled(incidents)
    if urgent.is_empty():
        look.nothing("No incident is waiting for somebody to take it up.")
    for row in urgent.head(_SHOWN).iter_rows(named=True):
        incident_row(row)
    if len(incidents):
        look.go(
            look.INCIDENTS,
            "All incidents" if len(incidents) > 1 else "The incident in the list",
            icon=":material/list:",
        )
        with st.expander("By verdict and standing", icon=":material/table:"):
            counted, now_ns = by_verdict(incidents), time.time_ns()
            ages = [None if at is None else duration(max(0, now_ns - at)) for at in counted["first_ns"]]
            aged = counted.with_columns(pl.Series("age of the oldest", ages, pl.String))
            told = look.timed(aged, {"first_ns": "first", "last_ns": "last"})
            look.rows(told, "Incidents by verdict and by where they stand, how old they are, and first and last time")


def _near_limit() -> None:
    index = desk.index()
    near = near_limit(index)
    if near.is_empty():
        known = index["limit_tokens"].drop_nulls().len()
        why = "No answered prompt came near its limit." if known else "No enforced limit is on record (engine.limits)."
        look.nothing(why)
        return
    dated = index["received_ns"].drop_nulls()
    step = bucket_ns(int(dated.min()), int(dated.max()))  # type: ignore[arg-type]
    table = over_time(near, "band", step)
    look.chart(
        charts.over_time(table),
        look.timed(table, {"time_ns": "from"}),
        "Requests answered with success whose prompt reached 90 % of the enforced limit on their path, or exceeded "
        f"it, in steps of {duration(step)}.",
        key="near-limit",
    )
    look.go(look.REQUESTS, "All lengths against all limits", icon=":material/straighten:")


def _coverage() -> None:
    pools = desk.watched_pools()
    if all_covered(desk.answer(), pools):
        st.success("Every pool on record is observed, every rule had its input, and nothing is unproven.")
    _state_table(pools, "pool", "Pools of pages")
    rules = desk.watched_rules()
    odd = rules.filter(pl.col("state") != "observed")
    told = f"{len(rules) - len(odd)} of {len(rules)} rules had everything they need."
    st.markdown(told)
    _state_table(odd, "rule", "Rules that did not")
    with st.expander("Sources", icon=":material/table:"):
        sources = desk.watched_sources().select("state", "source", "lacks", "events", "lost", "first_ns", "last_ns")
        look.rows(
            look.timed(sources, {"first_ns": "since", "last_ns": "until"}), "Sources, and what of them is missing"
        )


def _state_table(frame: pl.DataFrame, name: str, title: str) -> None:
    if frame.is_empty():
        return
    st.markdown(f"**{title}**")
    for row in frame.head(_LISTED).iter_rows(named=True):
        mark, what = st.columns([1, 6], vertical_alignment="center")
        with mark:
            look.badge(row["state"])
        since = f" since {look.when(row['first_ns'])}" if row.get("first_ns") is not None else ""
        what.markdown(f"{look.bare(row[name])}{': ' + look.bare(row['lacks']) if row['lacks'] else ''}{since}")
    if len(frame) > _LISTED:
        counts = ", ".join(
            f"{count:,} {state}" for state, count in frame.group_by("state", maintain_order=True).len().rows()
        )
        with st.expander(f"All {len(frame):,}: {counts}", icon=":material/table:"):
            times = {at: told for at, told in {"first_ns": "since", "last_ns": "until"}.items() if at in frame.columns}
            look.rows(look.timed(frame, times), title, key=title)


if __name__ == "__main__":
    look.show(page)
