"""A window of a store as one DuckDB file that stands alone, for somebody who has no store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from kvwitness.audit.asking import MOMENT
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.overall.masking import Mask
from kvwitness.audit.queries import queries
from kvwitness.audit.store import Pseudonyms, Store, views
from kvwitness.audit.store import sql as quoting
from kvwitness.audit.store.catalog import EVENTS_ABOUT, STORAGE_VERSION
from kvwitness.audit.store.views import alerts

NAME = "kvwitness.duckdb"
_BATCH = 65_536
_ALWAYS = ("engine.clock", "engine.epoch", "engine.limits", "engine.pool")
"""Kinds of event that hold until they are replaced, so that those from before the window belong to it."""
_SPANS = {
    "findings": ("time_ns", "time_ns"),
    "incidents": ("first_ns", "last_ns"),
    "gaps": ("before_ns", "after_ns"),
    "read_causes": ("first_ns", "last_ns"),
    "unsound_reads": ("time_ns", "time_ns"),
}
"""Result -> columns in which it begins and ends; rows that reach into the window are taken, and undated ones."""


def export(
    store: Store,
    directory: str | Path,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    pseudonyms: Pseudonyms | None = None,
) -> tuple[Path, int]:
    """Write `kvwitness.duckdb` into a directory; returns its path and the number of events in it.

    It holds the events from `since` to before `until` (UTC; None: unbounded), what held already when the window begins
    (limits, pools, clocks), the results of the newest audit that concern the window with the events that prove them,
    and all views and queries. With `pseudonyms` tenants stand under them, also in texts that name one, and columns into
    which a source may put anything are empty; request ids and other names stay as they are.
    Raises KvwitnessError when the file is there already, a time cannot be read, or no time lies between the two.
    """
    path = Path(directory) / NAME
    if path.exists():
        raise KvwitnessError(f"{path} exists already.", "Choose another directory, or remove the file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with store.connect() as con, store.reading():
            window = _window(con, since, until)
            con.execute(f"ATTACH {quoting.text(str(unfinished))} AS export (STORAGE_VERSION '{STORAGE_VERSION}')")
            events = _copy(con, window, pseudonyms)
            con.execute("USE memory")
            con.execute("DETACH export")
        os.replace(unfinished, path)
    finally:
        for left in (unfinished, Path(f"{unfinished}.wal")):
            left.unlink(missing_ok=True)
    return path, events


def _window(
    con: duckdb.DuckDBPyConnection, since: str | datetime | None, until: str | datetime | None
) -> tuple[int, int]:
    """The bounds in nanoseconds."""
    first, last = _ns(con, since, -(2**63)), _ns(con, until, 2**63 - 1)
    if first >= last:
        raise KvwitnessError(f"The window from {since} to {until} is empty.", "`since` has to be earlier than `until`.")
    return first, last


def _ns(con: duckdb.DuckDBPyConnection, moment: str | datetime | None, otherwise: int) -> int:
    if moment is None:
        return otherwise
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    try:
        rows = con.execute(f"SELECT epoch_ns({MOMENT})", [moment]).fetchall()
    except duckdb.Error as error:
        raise KvwitnessError(f"{moment!r} is no time.", "Write 2026-09-01 or 2026-09-01 00:09:40 (UTC).") from error
    return int(rows[0][0])


def _copy(con: duckdb.DuckDBPyConnection, window: tuple[int, int], pseudonyms: Pseudonyms | None) -> int:
    facts = con.execute("SELECT key, value FROM manifest").fetchall()
    mask = _mask(con, pseudonyms) if pseudonyms else None
    audited = con.execute("SELECT count(*) FROM audit_run").fetchall() != [(0,)]
    chosen = _chosen(window, audited)
    con.execute("CREATE TABLE export.events AS SELECT * FROM events WHERE false")
    for batch in _batches(con, f"SELECT * FROM events WHERE {chosen} ORDER BY time_ns, source, seq"):
        _insert(con, "export.events", batch if mask is None else mask.batch(batch))
    results = _results(con, window, mask) if audited else {}
    con.execute("USE export")
    views.comment(con, "events", *EVENTS_ABOUT, kind="TABLE")
    for result in views.RESULTS:
        if result.name in results:
            con.register("result", results[result.name])
            con.execute(f"CREATE TABLE {quoting.name(result.name)} AS SELECT * FROM result")
            con.unregister("result")
            views.comment(con, result.name, result.about, result.comments(), kind="TABLE")
        else:
            con.execute(f"CREATE VIEW {quoting.name(result.name)} AS {result.query(None, ())}")
            views.comment(con, result.name, result.about, result.comments())
    for view in views.OF_ALERTS:
        con.execute(f"CREATE VIEW {quoting.name(view.name)} AS {alerts.elsewhere(view)}")
        views.comment(con, view.name, view.about, view.comments())
    views.create(con)
    for query in queries().values():
        views.create_macro(con, views.Macro(query.name, query.question, *query.macro))
    _describe(con, facts, window, pseudonyms)
    return int(con.execute("SELECT count(*) FROM events").fetchall()[0][0])


def _chosen(window: tuple[int, int], audited: bool) -> str:
    """A condition for the events of the window, for what holds from before, and for what proves its findings."""
    since, until = window
    always = f"time_ns < {until} AND event IN ({quoting.texts(_ALWAYS)})"
    chosen = f"(time_ns >= {since} AND time_ns < {until}) OR ({always})"
    if audited:
        proofs = f"SELECT unnest(places) FROM findings WHERE {_inside('findings', window)}"
        chosen += f" OR {{ingest: ingest, ingest_row: ingest_row}} IN ({proofs})"
    return chosen


def _inside(result: str, window: tuple[int, int]) -> str:
    """A condition for the rows of a result that reach into the window."""
    since, until = window
    first, last = _SPANS[result]
    return f"coalesce({first}, {since}) < {until} AND coalesce({last}, {since}) >= {since}"


def _batches(con: duckdb.DuckDBPyConnection, statement: str) -> Iterator[pa.Table]:
    """The rows of a statement piece by piece; the connection stays free for writing."""
    with con.cursor() as cursor:
        cursor.execute("USE store").fetchall()
        reader = cursor.sql(statement).to_arrow_reader(_BATCH)
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    con.register("piece", rows)
    con.execute(f"INSERT INTO {table} SELECT * FROM piece")
    con.unregister("piece")


def _results(con: duckdb.DuckDBPyConnection, window: tuple[int, int], mask: Mask | None) -> dict[str, pa.Table]:
    """The results of the newest audit that concern the window."""
    results = {}
    for result in views.RESULTS:
        where = ""
        if result.name in _SPANS:
            where = f" WHERE {_inside(result.name, window)}"
        elif result.name in ("request_verdicts", "request_index"):
            where = " WHERE request IN (SELECT request FROM export.events)"
        table = con.sql(f"SELECT * FROM {result.name}{where}").to_arrow_table()
        results[result.name] = table if mask is None else _masked(table, mask)
    return results


def _mask(con: duckdb.DuckDBPyConnection, pseudonyms: Pseudonyms) -> Mask:
    """Knows every tenant of the store, whatever the window."""
    found = con.execute("SELECT DISTINCT tenant FROM events WHERE tenant IS NOT NULL").fetchall()
    return Mask(pseudonyms, [name for (name,) in found])


def _masked(table: pa.Table, mask: Mask) -> pa.Table:
    """Results with pseudonyms in columns of tenants, and in sentences that name one."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return mask.table(frame).to_arrow()


def _describe(
    con: duckdb.DuckDBPyConnection,
    facts: Iterable[tuple[str, str]],
    window: tuple[int, int],
    pseudonyms: Pseudonyms | None,
) -> None:
    """The facts of the store, and those of this file."""
    own = {
        "since_ns": str(window[0]),
        "until_ns": str(window[1]),
        "tenants": "pseudonyms of the export" if pseudonyms else dict(facts).get("tenants", ""),
        "exported_ns": str(int(datetime.now(UTC).timestamp() * 1e9)),
    }
    kept = {key: value for key, value in facts if key in ("store_id", "schema_version", "views_version", "generation")}
    con.execute("CREATE TABLE manifest (key VARCHAR PRIMARY KEY, value VARCHAR)")
    con.executemany("INSERT INTO manifest VALUES (?, ?)", [list(fact) for fact in (kept | own).items()])
    about = "Facts about the store that this was exported from, and the window."
    views.comment(con, "manifest", about, {"key": "Name of the fact.", "value": "The fact, as text."}, kind="TABLE")
