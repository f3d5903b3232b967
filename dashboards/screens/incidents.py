"""Incidents: all of them, by verdict, standing, tenant, rule; what is chosen stands in the address."""

from __future__ import annotations

import polars as pl
import streamlit as st

from kvwitness.audit.overall.overview import MEANING
from kvwitness.audit.overall.standing import STANDINGS
from kvwitness.audit.rules.model import Verdict
from kvwitness.audit.wording import several
from kvwitness.dashboards import desk, look
from kvwitness.dashboards.parts import incident_row

_PER_PAGE = 20


def page() -> None:
    """The page."""
    st.title("Incidents", anchor=False)
    if not desk.answer().judged:
        look.nothing("Nothing has been judged yet.", "`kvwitness audit` judges what the store holds.")
        return
    incidents = desk.incidents()
    if incidents.is_empty():
        look.nothing("The newest audit found nothing.", "Overview says what was watched, and what was not.")
        return
    chosen = _chosen(incidents)
    st.markdown(f"**{several(len(chosen), 'incident')}** of {len(incidents):,}")
    _list(chosen)
    look.section("For others", "", lambda: _exports(chosen))


def _chosen(incidents: pl.DataFrame) -> pl.DataFrame:
    verdicts = [str(v) for v in Verdict if str(v) in set(incidents["verdict"].to_list())]
    tenants = _names(incidents, "tenant", "other_tenants")
    rules = incidents["rules"].explode().drop_nulls().unique().sort().to_list()
    with st.container(horizontal=True):
        verdict = st.selectbox(
            "Verdict", ["all", *verdicts], key="verdict", bind="query-params", help=_meanings(verdicts)
        )
        standing = st.selectbox("Standing", ["all", *STANDINGS], key="standing", bind="query-params")
        tenant = st.selectbox("Tenant, on either side", ["all", *tenants], key="tenant", bind="query-params")
        rule = st.selectbox("Rule", ["all", *rules], key="rule", bind="query-params")
    if verdict != "all":
        incidents = incidents.filter(pl.col("verdict") == verdict)
    if standing != "all":
        incidents = incidents.filter(pl.col("standing") == standing)
    if tenant != "all":
        incidents = incidents.filter((pl.col("tenant") == tenant) | pl.col("other_tenants").list.contains(tenant))
    if rule != "all":
        incidents = incidents.filter(pl.col("rules").list.contains(rule))
    return incidents


def _meanings(verdicts: list[str]) -> str:
    return "  \n".join(f"{verdict}: {MEANING[verdict]}" for verdict in verdicts)


def _names(incidents: pl.DataFrame, one: str, several_: str) -> list[str]:
    both = pl.concat([incidents[one], incidents[several_].explode()]).drop_nulls().unique().sort()
    return [str(name) for name in both.to_list()]


def _list(chosen: pl.DataFrame) -> None:
    pages = max(1, -(-len(chosen) // _PER_PAGE))
    number = 1
    if pages > 1:
        number = int(st.number_input(f"Page (of {pages})", 1, pages, key="page", bind="query-params", width=160))
    for row in chosen.slice((number - 1) * _PER_PAGE, _PER_PAGE).iter_rows(named=True):
        incident_row(row)
    if chosen.is_empty():
        look.nothing("No incident is like that.", "Choose less above.")


def _exports(chosen: pl.DataFrame) -> None:
    told = chosen.drop("pools", "evs")
    notify = desk.query("tenants_to_notify")
    with st.container(horizontal=True):
        st.download_button("These incidents (CSV)", look.csv(told), "incidents.csv", "text/csv", on_click="ignore")
        if len(notify):
            st.download_button(
                f"Tenants to notify ({len(notify)}, CSV)",
                look.csv(notify),
                "tenants-to-notify.csv",
                "text/csv",
                on_click="ignore",
            )
    if notify.is_empty():
        look.small("No tenant has to be notified: no finding proves that anybody's content was readable by another.")


if __name__ == "__main__":
    look.show(page)
