"""Limits: what engines promise, enforce and can hold, and what pools do with content; contradictions first."""

from __future__ import annotations

import time

import polars as pl
import streamlit as st

from kvwitness.audit.alerts.accepted import given_in
from kvwitness.audit.alerts.config import accepted_risks
from kvwitness.audit.overall.promises import acceptances, figures, policies
from kvwitness.dashboards import charts, desk, look

_SHOWN = 12
"""Engines whose contradictions are shown each in a box; of more, all stand in a table."""


def page() -> None:
    """The page."""
    st.title("Limits", anchor=False)
    told = desk.query("limit_contradictions") if desk.rows() else pl.DataFrame()
    if told.is_empty():
        look.nothing(
            "No engine has stated its limits (engine.limits), so no promise can be compared with what is enforced.",
            "The tracer and `kvwitness import` of engine logs record them.",
        )
    else:
        look.section("Contradictions", "", lambda: _contradictions(told))
        look.section("Advertised, enforced and backed tokens over time", "", lambda: _figures(told))
    look.section("What pools do with content", "", _policies)
    look.section("Accepted risks", "", _acceptances)


def _contradictions(told: pl.DataFrame) -> None:
    rows = told.filter(pl.col("contradictions").list.len() > 0)
    if rows.is_empty():
        look.nothing("Nothing that engines announced contradicts anything else that they announced.")
        return
    for row in rows.head(_SHOWN).iter_rows(named=True):
        with st.container(border=True):
            role = f" ({row['role']})" if row["role"] else ""
            st.markdown(f"**{look.bare(row['engine'])}**{look.bare(role)} since {look.when(row['time_ns'])}")
            for contradiction in row["contradictions"]:
                st.markdown(f"- {look.bare(contradiction)}")
    if len(rows) > _SHOWN:
        told = rows.select("engine", "role", "contradictions", "time_ns")
        with st.expander(f"All {len(rows):,}", icon=":material/table:"):
            look.rows(look.timed(told, {"time_ns": "since"}), "Contradictions, by engine", key="contradictions")


def _figures(told: pl.DataFrame) -> None:
    last = desk.behind().newest_ns
    table = figures(told, last or 0)
    if table.is_empty():
        look.nothing("The announcements hold no figures.")
        return
    drawn = look.as_datetime(table).with_columns(until=look.as_time("until_ns"))
    look.chart(
        charts.limits(drawn),
        look.timed(table, {"time_ns": "since", "until_ns": "until"}),
        "Tokens that each engine advertises, enforces as an input limit, and can hold in its smallest pool, over time.",
        key="figures",
    )


def _policies() -> None:
    table = policies(desk.pools())
    if table.is_empty():
        judged = desk.answer().judged
        look.nothing(
            "No pool of pages is on record." if judged else "Pools are listed by an audit, and there was none."
        )
        return
    look.rows(table, "What each pool does with content: scrubbing and prefix sharing", key="policies")


def _acceptances() -> None:
    path = desk.settings().alerts
    configured = accepted_risks(path) if path else ()
    accepted = acceptances((*configured, *given_in(desk.store())), time.time_ns())
    if accepted.is_empty():
        look.nothing(
            "No acceptance of a risk is on record.",
            "`kvwitness alerts accept` gives one. Those of a configuration of alerts are shown where KVWITNESS_ALERTS="
            "FILE in the environment of the command names it.",
        )
        return
    table = look.timed(desk.hidden(accepted), {"until_ns": "until"})
    look.rows(table, "Risks that somebody accepted, and until when", key="acceptances")


if __name__ == "__main__":
    look.show(page)
