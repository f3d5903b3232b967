"""Requests: lengths against limits, how they ended, and one request across everybody who saw it."""

from __future__ import annotations

import polars as pl
import streamlit as st

from kvwitness.audit.overall.lengths import by_length, by_outcome, limits_met
from kvwitness.audit.overall.overview import MEANING
from kvwitness.audit.rules.model import Verdict
from kvwitness.audit.summaries import OUTCOMES
from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.history import collapsed, holdings, timeline
from kvwitness.audit.telling.traces import traces_of
from kvwitness.audit.wording import page_text, runs_text, several, span_text
from kvwitness.dashboards import charts, desk, look

_LISTED = 50
"""Requests of one trace that are linked to."""


def page() -> None:
    """The page."""
    name = look.parameter("request")
    if name is not None:
        _one(name)
        return
    if (trace := look.parameter("trace")) is not None:
        _traced(trace)
        return
    st.title("Requests", anchor=False)
    if not desk.answer().judged:
        look.nothing("No audit has looked at the requests yet.", "`kvwitness audit` judges what the store holds.")
        return
    index = desk.index()
    if index.is_empty():
        look.nothing(
            "The newest audit kept no index of requests.",
            "Run `kvwitness audit` once more with this version of kvwitness.",
        )
        return
    look.section("Prompt lengths against the limits on their path", "", lambda: _lengths(index))
    look.section("Near the limit and beyond it", "", lambda: _bands(index))
    look.section(
        "Find a request", "By its id or the beginning of it, its trace id (OpenTelemetry), or a transfer.", _search
    )


def _lengths(index: pl.DataFrame) -> None:
    bins = by_length(index)
    if bins.is_empty():
        look.nothing("No true prompt length is on record (prompt_tokens of request.received).")
        return
    limits = limits_met(index).with_columns(label=pl.format("{} {}", "engine", "tokens"))
    look.chart(
        charts.lengths(bins, limits),
        bins,
        "Requests of users by true prompt length and by how they ended. Dashed: the enforced limits on record.",
        key="lengths",
    )


def _bands(index: pl.DataFrame) -> None:
    table = by_outcome(index)
    look.rows(table, "How requests ended, by their share of the limit on their path", key="bands")


def _search() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input("Request, trace or transfer", key="find", bind="query-params", width=320)
        outcome = st.selectbox("Ended", ["all", *OUTCOMES], key="outcome", bind="query-params")
        verdict = st.selectbox("Verdict", ["all", *map(str, Verdict)], key="verdict", bind="query-params")
    asked = [None if chosen == "all" else str(chosen) for chosen in (outcome, verdict)]
    sought = desk.find(text or "", *asked)
    found = sought.rows
    if found.is_empty():
        look.nothing("No request on record is like that.", "Ids are compared letter by letter; choose less above.")
        return
    if len(found) <= 8:
        for row in found.iter_rows(named=True):
            look.go(look.REQUESTS, f"{look.bare(row['request'])}: {row['verdict']}", request=row["request"])
    shown = found.select(
        "request", "tenant", "verdict", "outcome", "prompt_tokens", "limit_tokens", "limit_engine", "status",
        "finish_reason", "completion_tokens", "received_ns",
    )  # fmt: skip
    picked = st.dataframe(
        look.timed(shown, {"received_ns": "received"}),
        hide_index=True,
        key="found",
        on_select="rerun",
        selection_mode="single-row",
        alt="Requests that were found; choose one for its page",
    )
    cut = f", {len(found):,} of them shown" if sought.total > len(found) else ""
    look.small(f"{several(sought.total, 'request')}{cut}")
    if chosen := picked.selection.rows:
        st.query_params.clear()
        st.query_params["request"] = shown["request"][chosen[0]]
        st.rerun()


def _traced(trace: str) -> None:
    """What the address `?trace=ID` shows: the request that carries the trace id, or a list where several do."""
    found = desk.traced(trace)
    if len(found) == 1:
        _one(found[0])
        return
    st.title(f"Trace {look.bare(trace)}", anchor=False)
    look.go(look.REQUESTS, "All requests", icon=":material/arrow_back:")
    if not found:
        look.nothing(
            "No request on record carries this trace id.",
            "Trace ids have 32 hexadecimal digits. They come in with spans and logs (`kvwitness collect`), or as a "
            "field trace_id of an event.",
        )
        return
    look.small(f"{several(len(found), 'request')} carry this trace id.")
    for name in found[:_LISTED]:
        look.go(look.REQUESTS, look.bare(name), request=name)
    if len(found) > _LISTED:
        look.small(f"and {len(found) - _LISTED:,} more")


# -- one request -------------------------------------------------------------------------------------


def _one(name: str) -> None:
    st.title(f"Request {look.bare(name)}", anchor=False)
    look.go(look.REQUESTS, "All requests", icon=":material/arrow_back:")
    dossier = desk.request(name)
    judged = desk.answer().judged
    verdict = dossier.verdict if judged else "unjudged"
    with st.container(horizontal=True):
        look.badge(verdict)
        st.markdown(look.bare(MEANING.get(verdict, "no audit has seen it yet")))
    if dossier.missing:
        st.markdown(f"Not on record: {look.bare(dossier.missing)}")
    if dossier.incident:
        look.go(
            look.INCIDENT, "What was found about it", icon=":material/report:", incident=dossier.incident["incident"]
        )
    look.section("What is known of it", "", lambda: _facts(dossier))
    look.section(
        "Across everybody who saw it",
        "In replay order: ids order events where clocks cannot.",
        lambda: _course(dossier),
    )
    look.section("Pages it held", "", lambda: _held(dossier))


def _facts(dossier: Dossier) -> None:
    row = dossier.request or {}
    hidden = {"request", "incarnation", "tenants", "first_ev", "last_ev"}
    facts = [
        {
            "fact": name.replace("_ns", "").replace("_", " "),
            "value": look.when(value) if name.endswith("_ns") else str(value),
        }
        for name, value in row.items()
        if value is not None and name not in hidden and not name.endswith("_ev")
    ]
    facts += [{"fact": "trace id (OpenTelemetry)", "value": trace} for trace in traces_of(dossier.own)]
    look.rows(pl.DataFrame(facts), "Facts about the request", key="facts")


def _course(dossier: Dossier) -> None:
    rows = collapsed(timeline(dossier), ["source", "event", "pool", "findings"], "tok")
    table = [
        {
            "proof": "proof" if row["findings"] else "",
            "time_ns": row["time_ns"],
            "source": row["source"],
            "seq": row["seq"],
            "event": row["event"],
            "pool": row["pool"],
            "pages": runs_text(row["pages"], 4),
            "positions": span_text(row["tok"]),
            "what": row["note"] + (f"; {row['times']} times" if row["until_ns"] else ""),
        }
        for row in rows
    ]
    frame = look.timed(pl.DataFrame(table, infer_schema_length=None), {"time_ns": "time"})
    look.rows(frame, "What every source recorded of the request, in order", key="course")


def _held(dossier: Dossier) -> None:
    held = holdings(dossier)
    if held.is_empty():
        look.nothing("That it held any page is not on record.")
        return
    told = held.with_columns(
        number=pl.col("pages").list.len(),
        pages=pl.col("pages").map_elements(lambda pages: page_text(pages.to_list(), 6), return_dtype=pl.String),
    )
    look.rows(look.timed(told, {"from_ns": "from", "until_ns": "until"}), "Pages that the request held", key="held")
    pool, first = held["pool"][0], int(held["from_ns"][0])
    look.go(look.PAGE_MAP, "The pool at that time", icon=":material/grid_view:", pool=pool, at=str(first))


if __name__ == "__main__":
    look.show(page)
