"""`store.duckdb`: views over the segments for SQL, written so that any DuckDB from 1.4 on can open it.

It holds no events and no lock: it is built beside, synced, and put in place by a rename, so readers can have
it open at any time. Every published generation has a marker, an empty segment that its views read last. When
files that a generation needs are about to go, its marker goes first. A connection that was opened before then
fails with the marker's name, which says what to do, instead of quietly finding fewer files. The order
matters: within one query the file names are searched before the marker is opened, so a query that finds its
marker has found its files, too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.queries import queries
from kvwitness.audit.store import sql, views
from kvwitness.audit.store.casebook import ENTRY_COLUMNS
from kvwitness.audit.store.durable import place, sync_fd
from kvwitness.audit.store.failures import StoreError, explained, storage_error
from kvwitness.audit.store.folders import patterns
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, ResultRun
from kvwitness.audit.store.schema import COMMENTS, STORE_SCHEMA
from kvwitness.audit.store.seeds import ensure_seeds
from kvwitness.audit.store.segment import METADATA_KEY, write_segment
from kvwitness.audit.store.stats import Stats
from kvwitness.audit.store.views import alerts
from kvwitness.audit.store.views.model import TS_COMMENT

STORAGE_VERSION = "v1.0.0"
"""File format of store.duckdb. The default of DuckDB 2 cannot be opened by 1.x."""
_OWN = {"events", "segments", "sealed_segments", "imports", "incident_notes", "manifest", "result_runs"}
RESERVED = frozenset(
    _OWN | {view.name for view in (*views.DERIVED, *views.RETIRED)} | {view.name for view in views.OF_ALERTS}
)
"""Names of views and tables that results must not take."""
_MARKER = re.compile(r"(\d{10})-was-replaced--please-reopen-store\.duckdb\.parquet")
_SEGMENT = {
    "segment": "Name of the file, from the store's directory.",
    "kind": "`sealed`, `live` or `import`.",
    "rows": "Events in it.",
    "bytes": "Its size. [bytes]",
    "min_time_ns": "Earliest event in it. [ns since the Unix epoch]",
    "max_time_ns": "Latest event in it. [ns since the Unix epoch]",
    "created_ns": "When it was written. [ns since the Unix epoch]",
    "schema_version": "Version of its columns.",
    "sha256": "Checksum that its footer holds.",
}
_ASSUMED_ROWS = 50_000_000
"""How many events DuckDB should expect behind a search pattern. By itself it expects as many in every file as are in
the first, which is the empty one: it would take the events for the smaller side of every join, put all of them into a
hash table, and read every file to its end instead of the stretches that the other side names."""
EVENTS_ABOUT: tuple[str, dict[str, str]] = (
    "Every event, one row each. Order by (source, seq), never by time.",
    COMMENTS | {"ts": TS_COMMENT, "segment": "The file that holds the row; changes with compaction."},
)
"""What `events` is, and what its columns mean."""
_ABOUT: dict[str, tuple[str, dict[str, str]]] = {
    "events": EVENTS_ABOUT,
    "segments": (
        "The files that hold the events: sealed, imported and live.",
        {name: text for name, text in _SEGMENT.items() if name != "bytes"},
    ),
    "sealed_segments": (
        "The files that the compactor wrote, as of the generation published here.",
        {name: text for name, text in _SEGMENT.items() if name != "kind"},
    ),
    "imports": (
        "The files that were imported, by the SHA-256 of their bytes.",
        {
            "sha256": "SHA-256 of the file's bytes.",
            "name": "What it was called.",
            "ingest": "Its `ingest` in events.",
            "rows": "Events that came from it.",
            "committed_ns": "When it became visible. [ns since the Unix epoch]",
            "report": "What its reader counted, as JSON.",
        },
    ),
    "incident_notes": (
        "What people said about incidents and did with them, one row per entry. Order by at_ns.",
        {name: text for name, (_, text) in ENTRY_COLUMNS.items()} | {"at_ts": "at_ns as a timestamp (UTC)."},
    ),
    "manifest": (
        "Facts about the store as of the generation published here.",
        {"key": "Name of the fact.", "value": "The fact, as text."},
    ),
    "result_runs": (
        "Kept audit runs; the result views show the newest.",
        {
            "run_id": "Id of the run.",
            "created_ns": "When it was kept. [ns since the Unix epoch]",
            "table_name": "A table of the run.",
            "rows": "Rows of that table.",
            "newest": "Whether it is the run that the views show.",
        },
    ),
}
"""View or table -> what a row of it is, and what its columns mean."""


def marker(layout: Layout, generation: int) -> Path:
    """The file whose presence says that readers of this generation still see everything."""
    return layout.generations / f"{generation:010d}-was-replaced--please-reopen-store.duckdb.parquet"


def markers(layout: Layout) -> dict[int, Path]:
    """generation -> marker, for those that readers may still use."""
    found = ((_MARKER.fullmatch(p.name), p) for p in layout.generations.iterdir())
    return {int(m[1]): p for m, p in found if m}


def publish(layout: Layout, manifest: Manifest) -> None:
    """Build `store.duckdb` for a manifest and put it in place. The caller holds the manifest's lock."""
    with explained("publishing", layout.catalog):
        ensure_seeds(layout, manifest.first_open)
        mark = marker(layout, manifest.generation)
        if not mark.exists():
            tmp = layout.tmp / f"{mark.name}.{os.getpid()}"
            tmp.unlink(missing_ok=True)
            write_segment(tmp, [], Stats(), name=layout.relative(mark))
            place(tmp, mark)
        built = layout.tmp / f"store.{os.getpid()}.{os.urandom(4).hex()}.duckdb"
        try:
            _build(built, layout, manifest)
            fd = os.open(built, os.O_RDONLY)
            try:
                sync_fd(fd)
            finally:
                os.close(fd)
            place(built, layout.catalog)
        finally:
            built.unlink(missing_ok=True)
            Path(f"{built}.wal").unlink(missing_ok=True)


def _build(path: Path, layout: Layout, manifest: Manifest) -> None:
    try:
        with duckdb.connect(":memory:", config={"threads": 1}) as con:
            con.execute(f"ATTACH {sql.text(str(path))} AS store (STORAGE_VERSION '{STORAGE_VERSION}')")
            con.execute("USE store")
            con.execute("SET enable_progress_bar = false")
            con.execute("BEGIN")  # else every statement would be synced by itself
            _manifest_table(con, layout, manifest)
            _segments_view(con, layout, manifest)
            _imports_view(con, layout)
            _notes_view(con, layout)
            _alert_views(con, layout)
            _result_views(con, layout, manifest)
            # A view that is made looks up the files of all views below it. A table that is as empty and of the
            # same columns stands in for the events meanwhile.
            con.register("no_events", STORE_SCHEMA.empty_table())
            con.execute(
                "CREATE TABLE events AS SELECT *, make_timestamp_ns(time_ns) AS ts, '' AS segment FROM no_events"
            )
            views.create(con)
            for query in queries().values():
                views.create_macro(con, views.Macro(query.name, query.question, *query.macro))
            con.execute("DROP TABLE events")
            con.unregister("no_events")
            _events_view(con, layout, manifest)
            con.execute("COMMIT")
            con.execute("USE memory")
            con.execute("DETACH store")
    except (duckdb.Error, pa.ArrowException, OSError) as exc:
        if "No space left" in str(exc) or "disk is full" in str(exc).lower():
            raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "publishing", path) from exc
        raise StoreError(
            f"store.duckdb could not be built: {exc}.",
            "The segments are not touched. Run `kvwitness store verify` to see whether one of them is "
            "damaged; if the disk is full, free space and run `kvwitness store publish`.",
        ) from exc


def _manifest_table(con: duckdb.DuckDBPyConnection, layout: Layout, manifest: Manifest) -> None:
    facts = {
        "store_id": manifest.store_id,
        "schema_version": str(manifest.schema_version),
        "views_version": str(views.VERSION),
        "views": _fingerprint(),
        "generation": str(manifest.generation),
        "path": str(layout.root),
        "sealed_segments": str(len(manifest.sealed)),
        "quarantined_segments": str(len(manifest.quarantined)),
        "tenants": "pseudonyms" if manifest.pseudonym_check else "as recorded",
    }
    con.execute("CREATE TABLE manifest (key VARCHAR PRIMARY KEY, value VARCHAR)")
    con.executemany("INSERT INTO manifest VALUES (?, ?)", [list(f) for f in facts.items()])
    views.comment(con, "manifest", *_ABOUT["manifest"], kind="TABLE")


def _branch(columns: str, files: str, layout: Layout, where: str = "", *, rows: int = _ASSUMED_ROWS) -> str:
    cut = len(str(layout.root)) + 2
    return (
        f"SELECT {columns}, make_timestamp_ns(time_ns) AS ts, substr(filename, {cut}) AS segment "
        f"FROM read_parquet({files}, filename = true, hive_partitioning = false, explicit_cardinality = {rows}){where}"
    )


def _imports_gone(layout: Layout, manifest: Manifest) -> str:
    """The retired segments of imports, as a list of literals."""
    return sql.texts(sorted(str(layout.root / n) for n in manifest.retired_names() if n.startswith("imports/")))


def _events_view(con: duckdb.DuckDBPyConnection, layout: Layout, manifest: Manifest) -> None:
    columns = ", ".join(sql.name(n) for n in STORE_SCHEMA.names)
    root = str(layout.root)
    branches = []
    if names := [*(s.name for s in manifest.sealed), *manifest.live]:
        files = sql.texts(f"{root}/{name}" for name in names)
        rows = sum(s.rows for s in manifest.sealed) if manifest.sealed else _ASSUMED_ROWS
        branches.append(_branch(columns, f"[{files}]", layout, rows=rows))
    # One search pattern for each scan: DuckDB looks up the first pattern of a scan while it plans, and the
    # further ones later, when the marker has been opened already. (From 2.0 on it looks through further directories
    # of one pattern later, too, and opens the marker once more after that.)
    # No pattern finds replaced live segments: to name them in a condition takes DuckDB time that grows with the
    # square of their number, half a minute at 6,000.
    for pattern in patterns(manifest.first_open):
        branches.append(_branch(columns, sql.text(f"{root}/{pattern}"), layout))
    gone = _imports_gone(layout, manifest)
    where = f" WHERE filename NOT IN ({gone})" if gone else ""
    branches.append(_branch(columns, sql.text(f"{root}/imports/*/*.parquet"), layout, where))
    branches.append(_branch(columns, sql.text(str(marker(layout, manifest.generation))), layout, rows=1))
    con.execute("CREATE VIEW events AS " + " UNION ALL ".join(branches))
    views.comment(con, "events", *_ABOUT["events"])


def _segments_view(con: duckdb.DuckDBPyConnection, layout: Layout, manifest: Manifest) -> None:
    con.execute(
        "CREATE TABLE sealed_segments (segment VARCHAR, rows BIGINT, bytes BIGINT, min_time_ns BIGINT, "
        "max_time_ns BIGINT, created_ns BIGINT, schema_version INTEGER, sha256 VARCHAR)"
    )
    rows = [
        [s.name, s.rows, s.bytes, s.min_time_ns, s.max_time_ns, s.created_ns, s.schema_version, s.sha256]
        for s in manifest.sealed
    ]
    if rows:
        con.executemany("INSERT INTO sealed_segments VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    root = str(layout.root)
    branches = ["SELECT segment, 'sealed' AS kind, * EXCLUDE (segment, bytes) FROM sealed_segments"]
    if manifest.live:
        branches.append(_told(layout, f"[{sql.texts(f'{root}/{name}' for name in manifest.live)}]", "live"))
    branches += [_told(layout, sql.text(f"{root}/{pattern}"), "live") for pattern in patterns(manifest.first_open)]
    gone = _imports_gone(layout, manifest)
    where = f" AND file_name NOT IN ({gone})" if gone else ""
    branches.append(_told(layout, sql.text(f"{root}/imports/*/*.parquet"), "import", where))
    con.execute("CREATE VIEW segments AS " + " UNION ALL ".join(branches))
    views.comment(con, "segments", *_ABOUT["segments"])
    views.comment(con, "sealed_segments", *_ABOUT["sealed_segments"], kind="TABLE")


def _told(layout: Layout, files: str, kind: str, where: str = "") -> str:
    """What segments say of themselves in their footers."""
    cut = len(str(layout.root)) + 2
    return (
        f"SELECT substr(file_name, {cut}), '{kind}', (j->>'rows')::BIGINT, (j->>'min_time_ns')::BIGINT, "
        "(j->>'max_time_ns')::BIGINT, (j->>'created_ns')::BIGINT, (j->>'schema_version')::INTEGER, "
        f"j->>'sha256' FROM (SELECT file_name, decode(value)::JSON AS j FROM parquet_kv_metadata({files}) WHERE key = "
        f"{sql.text(METADATA_KEY.decode())}::BLOB{where}) WHERE (j->>'rows')::BIGINT > 0"
    )


def _imports_view(con: duckdb.DuckDBPyConnection, layout: Layout) -> None:
    columns = {
        "sha256": "VARCHAR",
        "name": "VARCHAR",
        "ingest": "VARCHAR",
        "rows": "BIGINT",
        "committed_ns": "BIGINT",
        "report": "JSON",
    }
    spec = ", ".join(f"{k}: {sql.text(v)}" for k, v in columns.items())
    pattern = sql.text(f"{layout.root}/imports/*/import.json")
    con.execute(
        f"CREATE VIEW imports AS SELECT * FROM read_json({pattern}, columns = {{{spec}}}) WHERE sha256 IS NOT NULL"
    )
    views.comment(con, "imports", *_ABOUT["imports"])


def _notes_view(con: duckdb.DuckDBPyConnection, layout: Layout) -> None:
    spec = ", ".join(f"{sql.name(name)}: {sql.text(kind)}" for name, (kind, _) in ENTRY_COLUMNS.items())
    pattern = sql.text(f"{layout.casebook}/*.json")
    con.execute(
        "CREATE VIEW incident_notes AS SELECT *, make_timestamp_ns(at_ns) AS at_ts "
        f"FROM read_json({pattern}, columns = {{{spec}}}) WHERE incident IS NOT NULL"
    )
    views.comment(con, "incident_notes", *_ABOUT["incident_notes"])


def _alert_views(con: duckdb.DuckDBPyConnection, layout: Layout) -> None:
    for view in views.OF_ALERTS:
        con.execute(f"CREATE VIEW {sql.name(view.name)} AS {alerts.query(view, layout.published)}")
        views.comment(con, view.name, view.about, view.comments())


def _result_views(con: duckdb.DuckDBPyConnection, layout: Layout, manifest: Manifest) -> None:
    con.execute(
        "CREATE TABLE result_runs (run_id VARCHAR, created_ns BIGINT, table_name VARCHAR, rows BIGINT, newest BOOLEAN)"
    )
    newest = manifest.results[-1] if manifest.results else None
    rows: list[list[Any]] = [
        [run.run_id, run.created_ns, table, count, run is newest]
        for run in manifest.results
        for table, count in run.tables.items()
    ]
    if rows:
        con.executemany("INSERT INTO result_runs VALUES (?, ?, ?, ?, ?)", rows)
    views.comment(con, "result_runs", *_ABOUT["result_runs"], kind="TABLE")
    stable = {view.name for view in views.RESULTS}
    for view in views.RESULTS:
        path = _result_file(layout, newest, view.name)
        present = tuple(pq.read_schema(path).names) if path else ()
        con.execute(f"CREATE VIEW {sql.name(view.name)} AS {view.query(str(path) if path else None, present)}")
        views.comment(con, view.name, view.about, view.comments())
    for table in () if newest is None else newest.tables:
        if table not in stable:
            source = f"read_parquet({sql.text(str(_result_file(layout, newest, table)))}, hive_partitioning = false)"
            con.execute(f"CREATE VIEW {sql.name(table)} AS SELECT * FROM {source}")
            views.comment(con, table, "A further result of the newest audit; not one of the stable views.", {})


def _result_file(layout: Layout, run: ResultRun | None, table: str) -> Path | None:
    """Where a table of a run lies; None when the run has none of this name."""
    if run is None or table not in run.tables:
        return None
    return layout.root / run.directory / f"{table}.parquet"


def attach(layout: Layout) -> duckdb.DuckDBPyConnection:
    """A connection that has the published store attached read-only as `store`, and selected.

    The store is attached to a database in memory rather than opened: DuckDB hands out one shared instance per
    path within a process, and that could be an older generation that somebody still holds open.
    """
    con = duckdb.connect(":memory:")
    try:
        con.execute("SET enable_progress_bar = false")  # it would go to standard output, among the data
        con.execute(f"ATTACH {sql.text(str(layout.catalog))} AS store (READ_ONLY)")
        con.execute("USE store")
    except duckdb.Error:
        con.close()
        raise
    return con


@dataclass(frozen=True)
class Published:
    """What a `store.duckdb` was built for."""

    generation: int
    path: str
    """Where the store was."""
    views_version: int
    """0: from before views had versions."""
    views: str
    """A value that changes with the text of any view or query."""

    @property
    def outdated(self) -> bool:
        """Whether this program would publish other views. Those of a newer one are left alone."""
        return self.views_version <= views.VERSION and self.views != _fingerprint()


def published(layout: Layout) -> Published | None:
    """What `store.duckdb` was built for; None when it is absent or unreadable."""
    if not layout.catalog.exists():
        return None
    try:
        with attach(layout) as con:
            return built_for(con)
    except duckdb.Error:
        return None


def built_for(con: duckdb.DuckDBPyConnection) -> Published | None:
    """What the store was built for that a connection has attached; None if it is not a published store."""
    try:
        facts = dict(con.execute("SELECT key, value FROM store.manifest").fetchall())
        version = int(facts.get("views_version", 0))
        return Published(int(facts["generation"]), facts["path"], version, facts.get("views", ""))
    except (duckdb.Error, KeyError, ValueError):
        return None


@cache
def _fingerprint() -> str:
    published = (
        views.DERIVED, views.RESULTS, views.OF_ALERTS, views.RETIRED, views.MACROS, _ABOUT, _ASSUMED_ROWS,
    )  # fmt: skip
    told = [repr(published), *(alerts.query(view, Path()) for view in views.OF_ALERTS), *map(repr, queries().values())]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
