"""The store: the one object through which everything else reads and writes events and results."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from kvwitness.audit.store import catalog, folders, snapshot
from kvwitness.audit.store.casebook import Casebook
from kvwitness.audit.store.compaction import DUE_SEGMENTS, Compaction, compact
from kvwitness.audit.store.durable import FileLock, make_dir
from kvwitness.audit.store.expiry import GRACE_S
from kvwitness.audit.store.failures import MovedStore, StoreError, explained
from kvwitness.audit.store.imports import (
    Import,
    ImportRecord,
    ImportResult,
    find_import,
    import_batches,
    list_imports,
)
from kvwitness.audit.store.information import info
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, Quarantined, ResultRun, load, save
from kvwitness.audit.store.migrate import MigrationResult, migrate
from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.audit.store.quarantine import quarantine, reinstate
from kvwitness.audit.store.reader import Reader, explained_reading
from kvwitness.audit.store.results import collect_result, put_result, scan_result
from kvwitness.audit.store.retention import Removal, retain
from kvwitness.audit.store.segment import Segment
from kvwitness.audit.store.transaction import audit_lock, commit, heal
from kvwitness.audit.store.verification import Problem, verify
from kvwitness.audit.store.writer import Writer


class Store:
    """A directory of events. Any number of processes may read it and write to it at the same time.

    Every failure that a person can do something about is a StoreError.
    """

    def __init__(self, layout: Layout, *, pseudonyms: Pseudonyms | None = None) -> None:
        self._layout = layout
        self._pseudonyms = pseudonyms
        self._cache: snapshot.Cache = {}
        self._loaded: tuple[tuple[int, int, int], Manifest] | None = None

    @classmethod
    def create(cls, path: str | Path, *, exist_ok: bool = False, pseudonyms: Pseudonyms | None = None) -> Store:
        """Make a store in a directory that does not exist yet or is empty.

        With `pseudonyms` the store keeps tenants only under pseudonyms, for good: it then refuses writers
        without that key. With `exist_ok` an existing store is opened.
        """
        layout = Layout.of(path)
        if layout.manifest.exists():
            if exist_ok:
                return cls.open(path, pseudonyms=pseudonyms)
            raise StoreError(f"There is a store at {layout.root} already.", "Open it, or choose another directory.")
        known = {p.name for p in (*layout.directories(), layout.catalog)}
        if layout.root.exists() and (not layout.root.is_dir() or {p.name for p in layout.root.iterdir()} - known):
            raise StoreError(
                f"{layout.root} exists and holds something that is not a store.",
                "Choose a new or empty directory.",
            )
        with explained("creating", layout.root):
            layout.root.mkdir(parents=True, exist_ok=True)
            for directory in layout.directories():
                make_dir(directory)
            folders.make(layout, 0)
            _create(layout, pseudonyms)
        return cls.open(path, pseudonyms=pseudonyms)

    @classmethod
    def open(cls, path: str | Path, *, pseudonyms: Pseudonyms | None = None) -> Store:
        """Open an existing store.

        Raises NoStore, NewerStore, OlderStore (migrate it first), or StoreError when the key for pseudonyms
        is not the one that the store was created with.
        """
        layout = Layout.of(path)
        manifest = load(layout)
        if pseudonyms is not None and manifest.pseudonym_check != pseudonyms.check:
            kept = "as recorded" if manifest.pseudonym_check is None else "under another key"
            raise StoreError(
                f"The store {layout.root} keeps tenants {kept}.",
                "Use the key that the store was created with, or create a new store: names and pseudonyms, "
                "or two keys, in one store would make one tenant look like two.",
            )
        return cls(layout, pseudonyms=pseudonyms)

    @property
    def path(self) -> Path:
        """The store's directory, absolute."""
        return self._layout.root

    @property
    def checkpoint_dir(self) -> Path:
        """A directory for the audit's own state between runs. The store clears it when retention makes it
        void."""
        return self._layout.checkpoints

    @property
    def casebook(self) -> Casebook:
        """What people say about incidents; see `Casebook`."""
        return Casebook(self._layout)

    @property
    def generation(self) -> int:
        """Grows with every change of the manifest (compaction, results, retention), not with flushes or
        imports."""
        return self._manifest().generation

    def _manifest(self) -> Manifest:
        """As of now; parsed again only when another file has taken its place, which every change of it is."""
        try:
            stat = self._layout.manifest.stat()
        except OSError:
            return load(self._layout)  # says what is wrong
        file = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        known = self._loaded
        if known is None or known[0] != file:
            known = self._loaded = file, load(self._layout)
        return known[1]

    # -- writing ----------------------------------------------------------------------------------------

    def writer(self, name: str, *, origin: str | None = None) -> Writer:
        """A writer of its own for one source of records.

        While another process uses the name, this one gets `name~2`, and so on: `Writer.id` tells. `origin` is
        a note on where the records come from; it is kept with each segment.
        """
        return Writer(self._layout, name, origin=origin, pseudonyms=self._key_for_writing())

    def begin_import(self, name: str) -> Import:
        """An import that is appended to and committed step by step; see `import_batches`."""
        return Import(self._layout, name=name, pseudonyms=self._key_for_writing())

    def import_batches(
        self,
        batches: Iterable[pa.RecordBatch | pa.Table],
        *,
        sha256: str | Callable[[], str],
        name: str = "",
        report: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    ) -> ImportResult:
        """Import a file's events, once: all of them become visible together, or none.

        `sha256` is that of the file's raw bytes; where it is known only at the end of the stream, give a
        function, which is called when `batches` is exhausted (`report`, what the reader counted, alike). The
        same bytes a second time add nothing, also when an earlier attempt was killed half-way.
        """
        return import_batches(
            self._layout, batches, sha256=sha256, name=name, report=report, pseudonyms=self._key_for_writing()
        )

    def find_import(self, sha256: str) -> ImportRecord | None:
        """The import of the file with this SHA-256, if there was one."""
        return find_import(self._layout, sha256)

    def imports(self) -> list[ImportRecord]:
        """All imports, oldest first."""
        return list_imports(self._layout)

    def _key_for_writing(self) -> Pseudonyms | None:
        if self._pseudonyms is None and self._manifest().pseudonym_check is not None:
            raise StoreError(
                f"The store {self.path} keeps tenants under pseudonyms, and no key was given.",
                "Give the key it was created with: KVWITNESS_TENANT_KEY_FILE=FILE in the environment.",
            )
        return self._pseudonyms

    # -- reading ----------------------------------------------------------------------------------------

    def snapshot(self) -> snapshot.Snapshot:
        """The segments as of now, for several reads that must agree."""
        return snapshot.take(self._layout, self._cache)

    def segments(self) -> list[Segment]:
        """Every segment that counts now: sealed, imported, live."""
        return self.snapshot().segments()

    def events(self, columns: list[str] | None = None, *, since: Mapping[str, int] | None = None) -> pl.LazyFrame:
        """All events as of now, lazily; see `Snapshot.events`."""
        return self.snapshot().events(columns, since=since)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with the store attached read-only and its views in scope.

        Live segments and imports appear in it as they come. After a compaction it works for the grace period
        and then fails, saying so; `Reader` reconnects by itself. Raises MovedStore when the store was moved
        or copied and not published since.
        """
        wanted = self._manifest().generation
        con = self._attached(wanted)
        if con is not None and not self._outdated(con):
            return con
        if con is not None:  # it answers, if with the views of an older version: better than nothing on a full disk
            with suppress(StoreError):
                heal(self._layout)
                con.close()
                con = self._attached(wanted)
        else:
            heal(self._layout)
            con = self._attached(wanted)
        if con is None:
            raise StoreError(f"{self._layout.catalog} cannot be opened.", "Run `kvwitness store verify`.")
        return con

    @staticmethod
    def _outdated(con: duckdb.DuckDBPyConnection) -> bool:
        found = catalog.built_for(con)
        return found is not None and found.outdated

    def _attached(self, generation: int) -> duckdb.DuckDBPyConnection | None:
        """A connection to what is published, if that is of this generation or a later one."""
        try:
            con = catalog.attach(self._layout)
        except duckdb.Error:
            return None
        found = catalog.built_for(con)
        if found is not None and found.path == str(self.path) and found.generation >= generation:
            return con
        con.close()
        if found is not None and found.path != str(self.path):
            raise MovedStore(
                f"This store was published at {found.path} and is now at {self.path}: the views in store.duckdb"
                " still read the files of the old place.",
                "Run `kvwitness store publish` once.",
            )
        return None

    def reader(self) -> Reader:
        """SQL for a program that stays, such as a dashboard: it follows compactions and retention by
        itself."""
        return Reader(self._layout.catalog, self.connect)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Put this around `collect()` or a query: if it fails because of a segment, the error names it.

        Raises CorruptSegment for a damaged or missing segment, StoreError when old files were removed
        meanwhile; other errors pass.
        """
        with explained_reading(self._layout):
            yield

    # -- results ----------------------------------------------------------------------------------------

    @contextmanager
    def auditing(self) -> Iterator[None]:
        """Put this around an audit, from the first look at the checkpoints to `put_result`.

        One audit at a time is inside; retention waits for it, so that no result or checkpoint of before comes
        after it. Waits for its turn.
        """
        with audit_lock(self._layout):
            yield

    def put_result(self, run_id: str, tables: Mapping[str, pl.DataFrame]) -> None:
        """Keep the tables of an audit run. Readers see the run whole or not at all; the newest ten are kept.

        In SQL each table of the newest run is a view of its name.
        """
        put_result(self._layout, run_id, tables)

    def result(self, table: str, *, run_id: str | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """A table of the newest run (or of `run_id`), or some of its columns. Raises StoreError when there is none."""
        found = scan_result(self._layout, self._manifest(), table, run_id)
        return collect_result(found if columns is None else found.select(columns))

    def scan_result(self, table: str) -> pl.LazyFrame:
        """A table of the newest run, of which only what is wanted is read. Raises StoreError when there is none."""
        return scan_result(self._layout, self._manifest(), table, None)

    def result_runs(self) -> list[ResultRun]:
        """The kept runs, newest last."""
        return list(self._manifest().results)

    def removals(self) -> list[Mapping[str, Any]]:
        """What retention removed, the oldest first: dictionaries of `Removal`."""
        return list(self._manifest().removals)

    # -- operation --------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Build store.duckdb anew: after the store was moved or restored, or when the file is lost."""
        with explained("publishing", self.path):
            for directory in self._layout.directories():
                make_dir(directory)
            folders.make(self._layout, self._manifest().folder)
        commit(self._layout, lambda manifest: manifest.next())

    def compaction_due(self) -> bool:
        """Whether there are so many small segments that queries become slow."""
        return len(self.snapshot().loose) >= DUE_SEGMENTS

    def compact(self, *, grace_s: float = GRACE_S, wait: bool = False) -> Compaction:
        """Merge small segments, publish, and remove what earlier compactions replaced and leftovers of the
        dead.

        Writers and readers go on meanwhile. Replaced files stay for `grace_s` seconds: queries and snapshots
        that began before can finish, and connections from before still answer; after that they fail, saying
        why. Damaged segments are left alone and reported. Raises StoreBusy when another process is at it and
        not `wait`.
        """
        return compact(self._layout, self._cache, grace_s=grace_s, wait=wait)

    def verify(self) -> list[Problem]:
        """Check every byte and the manifest; an empty list means that all is well."""
        return verify(self._layout, self._cache)

    def quarantine(self) -> list[Quarantined]:
        """Move damaged segments aside and put the loss on record, so that the rest can be read again."""
        return quarantine(self._layout, self._cache)

    def reinstate(self, name: str, source: str | Path) -> str:
        """Put an intact copy of the quarantined segment `name` back; returns its new name."""
        return reinstate(self._layout, name, source)

    def retain(
        self, *, tenant: str | None = None, older_than_ns: int | None = None, grace_s: float | None = None
    ) -> Removal:
        """Remove events for good, and say how many.

        `tenant`: every event that names it, every event of its requests, and the ends of their transfers;
        with them all audit results, which mention it. In a store of pseudonyms give the name (with the key)
        or the pseudonym. `older_than_ns`: every event with an earlier time, and the results of audits from
        before. Exactly one of the two. Checkpoints of the audit go in both cases.

        Waits for a running audit. Events that arrive meanwhile are not covered. The old files go at once for
        a tenant, and after the usual grace period for age, unless `grace_s` says otherwise: queries that are
        running then fail.
        """
        if (tenant is None) == (older_than_ns is None):
            raise StoreError("Retention needs a tenant or an age, and not both.")
        if tenant is not None and self._pseudonyms is not None and not self._pseudonyms.made(tenant):
            tenant = self._pseudonyms.of(tenant)
        return retain(self._layout, self._cache, tenant=tenant, older_than_ns=older_than_ns, grace_s=grace_s)

    def info(self) -> dict[str, Any]:
        """Rows, bytes, times, writers, sources with their ranges of `seq`, imports, results, losses and
        removals.

        `times_backwards` counts events whose clock went back, `times_in_future` those dated after they were
        written: both are kept, and nothing is ever ordered by time.
        """
        return info(self._layout, self.snapshot())

    @classmethod
    def migrate(cls, path: str | Path) -> MigrationResult:
        """Bring a store of an older layout or schema version to the current one; does nothing to a current one.

        Stop the collectors first. Raises NewerStore for a store from a later version of the program.
        """
        return migrate(Layout.of(path))


def _create(layout: Layout, pseudonyms: Pseudonyms | None) -> None:
    """Seeds first, the manifest last: with it the store exists."""
    with FileLock(layout.lock("manifest")):
        if layout.manifest.exists():
            return
        manifest = Manifest(
            store_id=uuid.uuid4().hex,
            created_ns=time.time_ns(),
            published_path=str(layout.root),
            pseudonym_check=pseudonyms.check if pseudonyms is not None else None,
        )
        save(manifest, layout)
        catalog.publish(layout, manifest)
