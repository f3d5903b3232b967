"""Tenants: who read what whom had written, what one tenant has to be told, and who seems to be probing."""

from __future__ import annotations

import polars as pl
import streamlit as st

from kvwitness.audit.overall.matrix import PROBING
from kvwitness.dashboards import charts, desk, look


def page() -> None:
    """The page."""
    st.title("Tenants", anchor=False)
    if not desk.answer().judged:
        look.nothing("Who read what can only be told after an audit.", "`kvwitness audit` judges what the store holds.")
        return
    look.section("Who read what whom had written", "", _matrix)
    look.section("Probing for others' prompts", "", _probing)
    look.section("One tenant", "", _one)


def _matrix() -> None:
    pairs = desk.sharing()
    if pairs.is_empty():
        look.nothing("No read on record met the content of another tenant.")
        return
    look.chart(
        charts.matrix(pairs),
        look.timed(pairs, {"first_ns": "first", "last_ns": "last"}),
        "Each cell: how many requests of the tenant on the left read content of the tenant above. forbidden: a leak "
        "is proved; unproven: reads met it, and no finding proves that it was readable; allowed: the policy admits it.",
        key="matrix",
    )


def _probing() -> None:
    found = desk.answer().findings.filter(pl.col("rule").is_in(PROBING))
    if found.is_empty():
        look.nothing("No finding of prefix probing, of shares across salts or of keys that stand for two contents.")
        return
    told = found.select("verdict", "rule", "tenant", "other_tenants", "why", "time_ns")
    look.rows(look.timed(told, {"time_ns": "time"}), "Findings that speak of probing", key="probing")


def _one() -> None:
    names = desk.answer().requests["tenant"].drop_nulls().unique().sort().to_list()
    if not names:
        look.nothing("No tenant is on record.")
        return
    chosen = st.selectbox("Tenant", names, index=None, key="tenant", bind="query-params", placeholder="Choose one")
    if chosen is None:
        return
    name = desk.name_for_asking(str(chosen))
    st.markdown("**As the customer would ask it**")
    look.rows(desk.query("customer_exposure", tenant_id=name), f"What the record says about {chosen}", key="exposure")
    st.markdown("**Requests of others that could read its content**")
    readers = desk.query("readers_of_tenant", tenant_id=name)
    if readers.is_empty():
        look.nothing("None on record.")
        return
    for row in readers.filter(pl.col("proved")).unique("incident", maintain_order=True).head(10).iter_rows(named=True):
        if row["incident"]:
            label = f"{row['request']} of {row['tenant']}, {look.when(row['time_ns'])}"
            look.go(look.INCIDENT, look.bare(label), icon=":material/report:", incident=row["incident"])
    shown = readers.select("request", "tenant", "proved", "verdict", "rules", "page_count", "time_ns")
    look.rows(look.timed(shown, {"time_ns": "first"}), f"Requests that could read content of {chosen}", key="readers")


if __name__ == "__main__":
    look.show(page)
