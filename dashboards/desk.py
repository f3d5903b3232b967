"""What the pages read: the store, the newest audit and what people said, each kept for as long as it stays the same.

Everything comes from functions of `kvwitness.audit`. What is kept is keyed by the newest run of the audit, and where it
comes from the events by what changes with those, so that a new audit is seen at once and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import streamlit as st

import kvwitness.audit
from kvwitness.audit.overall import coverage, matrix, standing
from kvwitness.audit.overall.fleet import Fleet, Lag, fleet, lag
from kvwitness.audit.overall.masking import Mask
from kvwitness.audit.overall.overview import incident_rows
from kvwitness.audit.overall.search import Found, find_requests, of_trace
from kvwitness.audit.store import Pseudonyms, Store
from kvwitness.audit.telling import pagemap
from kvwitness.audit.telling.answer import Answer, result_table
from kvwitness.audit.telling.dossier import Dossier, open_dossier, open_request
from kvwitness.audit.telling.history import page_history
from kvwitness.dashboards.roles import names_hidden
from kvwitness.dashboards.settings import Settings

Revision = tuple[str, str, bool]
"""Store, newest run, whether names are hidden: the tables of an audit are the same as long as this is."""

Record = tuple[Revision, tuple[int, ...]]
"""A revision, and numbers that change with the events that are read beside it."""

Seen = tuple[Revision, bool, int, tuple[int, int]]
"""A revision, whether there are events, how often retention took some away, and the revision of the notes: a page that
is open is drawn anew when any of it changes."""

INDEX_COLUMNS = ("outcome", "traffic", "prompt_tokens", "limit_tokens", "limit_engine", "received_ns")
_KEPT = 4
"""Stores, lists of pools and the like that are kept."""

_RUNS = 2
"""Runs whose tables are kept, which take most of the room: the newest, with and without names."""


def settings() -> Settings:
    """Of this process."""
    return Settings.from_environment()


@st.cache_resource(max_entries=_KEPT, show_spinner=False)
def _opened(path: str) -> Store:
    return Store.open(path, pseudonyms=Pseudonyms.from_environment())


def store() -> Store:
    """The store that is shown. Raises `NoStore` and its kin, which say what to do, also when it has gone since."""
    shown = _opened(str(settings().store))
    _ = shown.generation  # raises when there is no store any more
    return shown


@st.cache_resource(show_spinner=False)
def _pseudonyms(path: str) -> Pseudonyms:
    return Pseudonyms.random()


def revision() -> Revision:
    """Which judgement there is to read, as of now."""
    shown = store()
    runs = shown.result_runs()
    return str(shown.path), runs[-1].directory if runs else "", names_hidden()


def seen() -> Seen:
    """What whoever looks at a page has seen when it is as of now."""
    shown = store()
    return revision(), any(segment.rows for segment in shown.segments()), len(shown.removals()), shown.casebook.revision


def judged_record() -> Record:
    """For what is read of the events that were judged: retention takes some away, and is a generation of the store."""
    return revision(), (store().generation,)


def whole_record() -> Record:
    """For what is read of all events, those that came since the audit included."""
    return revision(), (store().generation, rows())


def rows() -> int:
    """Events in the store, from the descriptions of its segments."""
    return sum(segment.rows for segment in store().segments())


@st.cache_resource(max_entries=_RUNS, show_spinner="Reading the newest audit")
def _judged(revision: Revision) -> tuple[Answer, Mask | None]:
    """The tables of the newest audit, and what hides the names in them."""
    answer = Answer.of_store(_opened(revision[0]), required=False)
    if not revision[2]:
        return answer, None
    mask = Mask.for_answer(_pseudonyms(revision[0]), answer)
    return mask.answer(answer), mask


def _answer(revision: Revision) -> Answer:
    kept, mask = _judged(revision)
    fresh = kept.as_of_now(_opened(revision[0]))
    return replace(fresh, events=mask.events(fresh.events)) if mask else fresh


def answer() -> Answer:
    """The newest audit beside the events of now, with names or pseudonyms as the viewer may see."""
    return _answer(revision())


@st.cache_resource(max_entries=_RUNS, show_spinner=False)
def _tables(revision: Revision) -> dict[tuple[str, tuple[str, ...] | None], pl.DataFrame]:
    """What was read of a run; all of it goes with the run."""
    return {}


def _table(revision: Revision, name: str, columns: tuple[str, ...] | None = None) -> pl.DataFrame:
    kept, key = _tables(revision), (name, columns)
    if key not in kept:
        kept[key] = _shown(result_table(_opened(revision[0]), name, columns), revision)
    return kept[key]


def table(name: str) -> pl.DataFrame:
    """A table of the newest audit; no rows where there was none, or where an older version did not write it."""
    return _table(revision(), name)


def hidden(frame: pl.DataFrame) -> pl.DataFrame:
    """Any frame with tenants as the viewer may see them."""
    return _shown(frame, revision())


def index() -> pl.DataFrame:
    """What charts need of the index of requests, which has a row for each: all of it takes much room."""
    return _table(revision(), "request_index", INDEX_COLUMNS)


def find(text: str, outcome: str | None, verdict: str | None) -> Found:
    """Requests by what somebody has of them."""
    now = revision()
    found = find_requests(_opened(now[0]), _answer(now), text, outcome=outcome, verdict=verdict)
    return Found(_shown(found.rows, now), found.total)


@st.cache_data(max_entries=16, show_spinner="Looking for the trace")
def _of_trace(record: Record, trace: str) -> list[str]:
    return of_trace(_opened(record[0][0]), trace)


def traced(trace: str) -> list[str]:
    """The requests that carry a trace id (OpenTelemetry)."""
    return _of_trace(whole_record(), trace)


def _shown(frame: pl.DataFrame, revision: Revision) -> pl.DataFrame:
    """A frame with tenants as the viewer may see them."""
    mask = _judged(revision)[1]
    return mask.table(frame) if mask else frame


def query(name: str, **parameters: Any) -> pl.DataFrame:
    """The answer to an incident query, as of the newest audit and the events of now."""
    now = whole_record()
    return _shown(_query(now, name, tuple(sorted(parameters.items()))), now[0])


@st.cache_data(max_entries=32, show_spinner="Asking the store")
def _query(record: Record, name: str, parameters: tuple[tuple[str, Any], ...]) -> pl.DataFrame:
    return kvwitness.audit.query(name, store=_opened(record[0][0]), **dict(parameters))


def name_for_asking(shown: str) -> str:
    """The name under which the store keeps a tenant that is shown, which for some viewers is not the same."""
    now = revision()
    if not now[2]:
        return shown
    names = Answer.of_store(_opened(now[0]), required=False).requests["tenant"].drop_nulls().unique().to_list()
    return next((name for name in names if _pseudonyms(now[0]).of(name) == shown), shown)


# -- incidents ---------------------------------------------------------------------------------------


def incidents() -> pl.DataFrame:
    """The incidents, strongest first, with where each stands."""
    rows = incident_rows(answer())
    return standing.standings(rows, entries())


def entries() -> pl.DataFrame:
    """What people said about incidents."""
    return hidden(store().casebook.entries())


def state(incidents: pl.DataFrame) -> Fleet:
    """How things stand with the whole fleet."""
    return fleet(answer(), incidents, rows())


def behind() -> Lag:
    """How far the audit is behind the record."""
    return lag(store(), answer())


@st.cache_resource(max_entries=16, show_spinner="Gathering the events of the incident")
def _dossier(record: Record, name: str) -> Dossier:
    return open_dossier(_answer(record[0]), name)


def dossier(name: str) -> Dossier:
    """Everything on record about an incident."""
    return _dossier(judged_record(), name)


@st.cache_resource(max_entries=16, show_spinner="Gathering the events of the request")
def _request(record: Record, name: str) -> Dossier:
    return open_request(_answer(record[0]), name)


def request(name: str) -> Dossier:
    """Everything on record about a request."""
    return _request(whole_record(), name)


@st.cache_resource(max_entries=16, show_spinner=False)
def _of_dossier(record: Record, name: str, key: str, _made: Callable[[Dossier], Any]) -> Any:
    return _made(_dossier(record, name))


def of_dossier(name: str, made: Callable[[Dossier], Any]) -> Any:
    """What a function of the audit makes of the dossier of an incident."""
    return _of_dossier(judged_record(), name, f"{made.__module__}.{made.__qualname__}", made)


# -- pages -------------------------------------------------------------------------------------------


@st.cache_resource(max_entries=_KEPT, show_spinner=False)
def _pools(record: Record) -> list[pagemap.Pool]:
    return pagemap.pools(_answer(record[0]), _table(record[0], "kinds_seen"))


def pools() -> list[pagemap.Pool]:
    """The pools whose pages are on record."""
    return _pools(judged_record())


@st.cache_resource(max_entries=12, show_spinner="Looking at the pool as it was")
def _page_map(record: Record, pool: pagemap.Pool, at_ns: int) -> pagemap.PageMap:
    return pagemap.page_map(_answer(record[0]), pool, at_ns)


def moment_of_interest(pool: str) -> int | None:
    """When the strongest incident on pages of a pool began; None when there is none."""
    here = pl.col("pools").list.eval(pl.element().struct.field("pool") == pool).list.any()
    found = incident_rows(answer()).filter(here.fill_null(False))
    return int(found["first_ns"][0]) if len(found) else None


def page_map(pool: pagemap.Pool, at_ns: int) -> pagemap.PageMap:
    """A pool at a moment."""
    return _page_map(judged_record(), pool, at_ns)


@st.cache_resource(max_entries=12, show_spinner="Reading the history of the page")
def _history(record: Record, pool: str, page: int) -> list[dict[str, Any]]:
    return page_history(_answer(record[0]), pool, page)


def history(pool: str, page: int) -> list[dict[str, Any]]:
    """Every event that names a page."""
    return _history(whole_record(), pool, page)


# -- coverage and sharing ----------------------------------------------------------------------------


def watched_pools() -> pl.DataFrame:
    """Which pools are observed, in part or blind."""
    return coverage.pools(table("kinds_seen"), table("gaps"))


def watched_sources() -> pl.DataFrame:
    """Which sources are on record, and what of them is missing."""
    return coverage.sources(table("kinds_seen"), table("gaps"))


def watched_rules() -> pl.DataFrame:
    """Which rules had what they need."""
    shown = answer()
    return coverage.rules(shown.undecided, shown.findings, table("kinds_seen"))


def sharing() -> pl.DataFrame:
    """Who read what whom had written."""
    return matrix.sharing(table("read_causes"), answer().findings)
