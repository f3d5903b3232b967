"""One incident: what happened, to whom, on which pages, how one knows, and what people did about it."""

from __future__ import annotations

import io

import polars as pl
import streamlit as st

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.overall.standing import CLOSED
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Deed
from kvwitness.audit.telling import report
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.exhibits import statements
from kvwitness.audit.telling.lanes import concerned, lanes
from kvwitness.audit.telling.story import headline, tell, victims
from kvwitness.audit.wording import page_text
from kvwitness.dashboards import charts, desk, look
from kvwitness.dashboards.roles import login, may_write

_TENANTS = 24


def page() -> None:
    """The page."""
    name = look.parameter("incident")
    if name is None:
        st.title("Incident", anchor=False)
        look.nothing("No incident was named.", "Choose one from the list.")
        look.go(look.INCIDENTS, "All incidents", icon=":material/list:")
        return
    try:
        dossier = desk.dossier(name)
    except KvwitnessError:
        st.title("Incident", anchor=False)
        look.go(look.INCIDENTS, "All incidents", icon=":material/list:")
        raise
    if dossier.incident is not None:  # by its whole id from here on, however it was called
        name = str(dossier.incident["incident"])
    _head(name, dossier)
    look.section("What happened", "", lambda: _story(dossier))
    look.section("Who was affected", "", lambda: _sides(dossier))
    look.section("The evidence in order", "", lambda: _timeline(dossier))
    look.section(
        "The events that prove it",
        "Each is named by its source and number (seq); a rule names those that are marked as proof.",
        lambda: _events(name),
    )
    look.section("The rules that fired", "", lambda: _rules(dossier))
    look.section("The pages around that moment", "", lambda: _pages(dossier))
    look.section("The same in SQL", "For any DuckDB client on store.duckdb, or the page Ask.", lambda: _sql(name))
    look.section(
        "Notes", "Kept for good, with who and when; nothing written here can be changed.", lambda: _notes(name)
    )
    look.section("Take it with you", "", lambda: _exports(name, dossier))


def _row(name: str) -> dict[str, object]:
    found = desk.incidents().filter(pl.col("incident") == name)
    return found.row(0, named=True) if len(found) else {}


def _head(name: str, dossier: Dossier) -> None:
    st.title(f"Incident {look.bare(name)}", anchor=False)
    row = _row(name)
    with st.container(horizontal=True):
        look.badge(dossier.verdict)
        if row:
            look.badge(str(row["standing"]))
        if row.get("assignee"):
            st.badge(f"assigned to {look.bare(row['assignee'])}", color="gray")
    st.markdown(f"#### {look.bare(headline(dossier))}")


def _story(dossier: Dossier) -> None:
    _, *paragraphs = tell(dossier)
    for paragraph in paragraphs:
        st.markdown(look.bare(paragraph))


def _sides(dossier: Dossier) -> None:
    reader, others = st.columns(2)
    request = dossier.request
    with reader:
        st.markdown("**Whose request**")
        if request is None:
            subject = dossier.incident or {}
            st.markdown(look.bare(subject.get("engine") or subject.get("tenant") or "No request: an engine."))
        else:
            st.markdown(f"{look.bare(request['tenant'] or 'tenant not on record')}, request {look.bare(dossier.name)}")
            look.go(
                look.REQUESTS,
                "The request, across all sources",
                icon=":material/swap_horiz:",
                request=str(dossier.name),
            )
    with others:
        st.markdown("**Whose content could be read**")
        found = victims(dossier)
        if not found:
            st.markdown("No other tenant's content is shown to have been readable.")
        with st.container(horizontal=True):
            for tenant in found[:_TENANTS]:
                look.go(look.TENANTS, look.bare(tenant), icon=":material/person:", tenant=tenant)
        if len(found) > _TENANTS:
            look.small(f"and {len(found) - _TENANTS} more, in the export")


def _timeline(dossier: Dossier) -> None:
    drawn, cut = lanes(dossier)
    if drawn.is_empty():
        look.nothing("The findings name no pages, so there is nothing to draw; the events below are all there is.")
        return
    by_time = (
        st.segmented_control("Axis", ["order", "time"], default="order", key="axis", required=True, bind="query-params")
        == "time"
    )
    left_out = " The smallest are left out." if cut else ""
    look.chart(
        charts.lanes(drawn, by_time=by_time),
        look.timed(drawn, {"time_ns": "time"}),
        "What happened to the pages, from left to right: each bar covers the pages that an event names, in the colour "
        f"of the tenant whose deed it is; an edge marks proof. Scroll to zoom, drag to move.{left_out}",
        key="lanes",
    )


def _events(name: str) -> None:
    rows = pl.DataFrame(desk.of_dossier(name, report.evidence), infer_schema_length=None)
    if rows.is_empty():
        look.nothing("The findings name no events.")
        return
    shown = rows.select(
        pl.when("proof").then(pl.lit("proof")).otherwise(pl.lit("")).alias("proof"),
        pl.col("time_ns"), "event", "tenant", pl.col("what").alias("what it shows"), "source", "seq", "pages",
        "positions", pl.col("who").alias("request"), "rules",
    )  # fmt: skip
    look.rows(look.timed(shown, {"time_ns": "time"}), "The events of this incident, in order", key="events")


def _rules(dossier: Dossier) -> None:
    for rule in dict.fromkeys(finding["rule"] for finding in dossier.findings):
        mine = [finding for finding in dossier.findings if finding["rule"] == rule]
        known = RULES.get(rule)
        title = known.title if known else rule
        with st.expander(f"{look.bare(rule)}: {look.bare(title)}"):
            for finding in mine:
                pages = f" Pages {page_text(finding['pages'], 6)} of {finding['pool']}." if finding["pages"] else ""
                st.markdown(f"- **{finding['verdict']}**: {look.bare(finding['why'])}{look.bare('.' + pages)}")
                if finding["missing"]:
                    st.markdown(f"  Not on record: {look.bare(finding['missing'])}")
            if known:
                st.markdown(f"**What it means.** {look.bare(known.meaning)}")
                st.markdown(f"**Where it may be wrong.** {look.bare(known.false_positives)}")
                look.small(f"Needs {', '.join(known.needs)}. {', '.join((*known.atlas, *known.cwe))}")


def _pages(dossier: Dossier) -> None:
    pools = concerned(dossier)
    found = [pool for pool in desk.pools() if pool.name in pools]
    if not found or dossier.incident is None:
        look.nothing("The findings name no pages of a pool on record.")
        return
    pool, at = found[0], dossier.incident["first_ns"]
    marked = frozenset(pools[pool.name])
    margin = max(64, (max(marked) - min(marked)) // 16)
    first, last = max(0, min(marked) - margin), min(pool.pages_total - 1, max(marked) + margin)
    shown = desk.page_map(pool, at)
    look.chart(
        charts.page_grid(shown, marked, first, last, content=True),
        look.timed(charts.page_table(shown, first, last), {"held_ns": "since", "written_ns": "written"}),
        f"{pool.name} at {look.exact(at)}, pages {first:,} to {last:,}: by the tenant whose content was in them, "
        "whoever held them. Framed: the pages of this incident. A line across: held by one, with content of another.",
        key="moment",
    )
    look.go(look.PAGE_MAP, "The whole pool, before and after", icon=":material/grid_view:", pool=pool.name, at=str(at))


def _sql(name: str) -> None:
    if not st.toggle(
        "Find it", key="sql", bind="query-params", help="The SQL is tried on the record before it is shown."
    ):
        return
    for question, sql in desk.of_dossier(name, statements):
        with st.expander(look.bare(question), icon=":material/code:"):
            st.code(f"{sql};", language="sql", wrap_lines=True)


def _notes(name: str) -> None:
    row = _row(name)
    entries = desk.entries().filter(pl.col("incident") == name)
    for entry in entries.iter_rows(named=True):
        to = f" to {look.bare(entry['assignee'])}" if entry["assignee"] else ""
        st.markdown(f"**{look.bare(entry['by'])}**: {look.bare(entry['deed'])}{to}, {look.when(entry['at_ns'])}")
        if entry["text"]:
            st.markdown(f"> {look.bare(entry['text'])}")
    if entries.is_empty():
        look.small("Nobody has written anything yet.")
    if may_write() and row:
        _form(name, row)


def _form(name: str, row: dict[str, object]) -> None:
    deeds = [Deed.REOPEN, Deed.NOTE] if row["standing"] == CLOSED else [*Deed][:4]
    with st.form("note", clear_on_submit=True):
        deed = st.selectbox("What you do", [str(deed) for deed in deeds])
        known = login()
        by = known or st.text_input("Your name", key="by")
        assignee = st.text_input("To whom (when you assign it)")
        text = st.text_area("Reason or note: ids and facts, no content of prompts")
        if st.form_submit_button("Write it down"):
            with look.told():
                verdict, findings = str(row["verdict"]), row["findings"]
                assert isinstance(findings, int)
                desk.store().casebook.add(
                    name, deed, by=by, text=text, assignee=assignee.strip() or None if deed == Deed.ASSIGN else None,
                    verdict=verdict, findings=findings,
                )  # fmt: skip
                st.rerun()


def _exports(name: str, dossier: Dossier) -> None:
    entries = desk.entries().filter(pl.col("incident") == name).to_dicts()
    with st.container(horizontal=True):
        st.download_button(
            "Report (HTML)", lambda: report.as_html(dossier, entries), f"{name}.html", "text/html", on_click="ignore"
        )
        st.download_button(
            "Events (Parquet)", lambda: _parquet(report.events_of(dossier)), f"{name}.parquet", on_click="ignore"
        )
        st.download_button("Events (JSON Lines)", lambda: report.as_jsonl(dossier), f"{name}.jsonl", on_click="ignore")
        if victims(dossier):
            st.download_button(
                "Tenants to notify (CSV)",
                lambda: look.csv(report.to_notify(dossier)),
                f"{name}-tenants-to-notify.csv",
                "text/csv",
                on_click="ignore",
            )


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


if __name__ == "__main__":
    look.show(page)
