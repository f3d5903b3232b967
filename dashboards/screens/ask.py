"""Ask: the incident queries as a menu with forms, and SQL that only reads."""

from __future__ import annotations

import io

import polars as pl
import streamlit as st

from kvwitness.audit import asking
from kvwitness.audit.queries import Parameter, Query, queries
from kvwitness.audit.wording import several
from kvwitness.dashboards import desk, look
from kvwitness.dashboards.roles import may_ask

_OWN = "sql"
_ROWS, _SECONDS = 10_000, 30.0


def page() -> None:
    """The page."""
    st.title("Ask", anchor=False)
    if not may_ask():
        look.nothing("Answers in SQL name tenants, and here they stand under pseudonyms.", "Ask a responder.")
        return
    known = queries()
    names = [*known, _OWN]
    asked = look.parameter("query")
    name = st.selectbox(
        "Question",
        names,
        index=names.index(asked) if asked in names else 0,
        format_func=lambda name: f"{known[name].question} ({name})" if name in known else "One of your own, in SQL",
    )
    st.query_params["query"] = name
    if name in known:
        _incident_query(known[str(name)])
    else:
        _own()


def _limits() -> tuple[int, float]:
    with st.container(horizontal=True):
        rows = st.number_input("Most rows", 1, 1_000_000, _ROWS, width=160)
        seconds = st.number_input("Most seconds", 1.0, 600.0, _SECONDS, width=160)
    return int(rows), float(seconds)


def _incident_query(query: Query) -> None:
    st.markdown(f"**It means:** {look.bare(query.means)}")
    st.markdown(f"**It cannot say:** {look.bare(query.cannot_say)}")
    if query.scan:
        look.small("It reads most of the store, whatever is asked: on a large one it takes its time.")
    with st.form("parameters"):
        given = {parameter.name: _field(parameter, query.name) for parameter in query.parameters}
        rows, seconds = _limits()
        asked = st.form_submit_button("Ask", icon=":material/play_arrow:")
    with st.expander("The SQL"):
        st.code(query.text, language="sql", wrap_lines=True)
    if asked:
        _answer(query, {name: value for name, value in given.items() if value}, rows, seconds)


def _field(parameter: Parameter, query: str) -> str:
    default = "" if parameter.default is None else f" (default {parameter.default})"
    return st.text_input(
        f"{parameter.name}, {parameter.type}{default}",
        value=look.parameter(parameter.name) or "",
        help=parameter.meaning,
        key=f"{query}-{parameter.name}",
    ).strip()


def _answer(query: Query, given: dict[str, str], limit: int, timeout: float) -> None:
    with look.told(), asking.connect(desk.store()) as connection, desk.store().reading():
        with look.progress(f"Asking {query.name}") as progress:
            frame, more = asking.run(connection, query, given, limit=limit, timeout=timeout, progress=progress)
        _show(frame, more, query.name)


def _own() -> None:
    look.small("One SELECT, SHOW, DESCRIBE or EXPLAIN. The store is read-only; docs/sql.md describes its views.")
    with st.form("own"):
        statement = st.text_area(
            "SQL", "SELECT verdict, count(*) AS requests FROM request_verdicts GROUP BY ALL", height=160
        )
        rows, seconds = _limits()
        asked = st.form_submit_button("Ask", icon=":material/play_arrow:")
    if asked:
        with look.told(), asking.connect(desk.store()) as connection, desk.store().reading():
            asking.checked(connection, statement)
            with look.progress("Asking") as progress:
                frame, more = asking.ask(connection, statement, limit=rows, timeout=seconds, progress=progress)
            _show(frame, more, "answer")


def _show(frame: pl.DataFrame, more: bool, name: str) -> None:
    if frame.is_empty():
        look.nothing("The answer has no rows.", "What a query without rows proves, and what not, stands above.")
        return
    st.markdown(f"**{several(len(frame), 'row')}**{', and there are more: raise the limit' if more else ''}")
    look.rows(frame, f"The answer to {name}", key="answer")
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    with st.container(horizontal=True):
        st.download_button("CSV", look.csv(frame), f"{name}.csv", "text/csv", on_click="ignore")
        st.download_button("Parquet", buffer.getvalue(), f"{name}.parquet", on_click="ignore")


if __name__ == "__main__":
    look.show(page)
