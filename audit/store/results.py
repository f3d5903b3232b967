"""Results of audits: a set of tables per run, kept whole or not at all, shown to SQL as views over the newest
run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.store.catalog import RESERVED
from kvwitness.audit.store.durable import FileLock, HashingFile, make_dir, sync_dir, write_atomic
from kvwitness.audit.store.expiry import GRACE_S
from kvwitness.audit.store.failures import StoreError, explained
from kvwitness.audit.store.imports import staging_lock
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest, ResultRun
from kvwitness.audit.store.transaction import commit

KEPT_RUNS = 10
_RECORD = "run.json"
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class DamagedResult:
    """A file of a kept run that fails its checksum or is absent."""

    name: str
    run_id: str
    how: str


def put_result(layout: Layout, run_id: str, tables: Mapping[str, pl.DataFrame]) -> None:
    """Keep the tables of one run; see `Store.put_result`."""
    _check_names(run_id, tables)
    ident = uuid.uuid4().hex[:16]
    staged = layout.staging / ident
    final = layout.results / f"{run_id}-{ident}"
    lock = FileLock(staging_lock(layout, ident))
    with explained("keeping results in", final):
        lock.acquire(wait=True)
        try:
            make_dir(staged)
            digests = {name: _write(staged / f"{name}.parquet", frame.to_arrow()) for name, frame in tables.items()}
            write_atomic(staged / _RECORD, orjson.dumps({"run_id": run_id, "sha256": digests}), layout.tmp)
            run = ResultRun(run_id, layout.relative(final), time.time_ns(), {n: f.height for n, f in tables.items()})

            def place(manifest: Manifest) -> Manifest:
                # Only here, under the manifest's lock, so that nobody takes the directory for a leftover.
                os.rename(staged, final)
                sync_dir(layout.results)
                runs = (*manifest.results, run)
                old = [r.directory for r in runs[:-KEPT_RUNS]]
                return manifest.next(
                    results=runs[-KEPT_RUNS:],
                    retired=(*manifest.retired, *manifest.newly_retired(old, grace_s=GRACE_S)),
                )

            commit(layout, place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            lock.release(unlink=True)


def scan_result(layout: Layout, manifest: Manifest, table: str, run_id: str | None) -> pl.LazyFrame:
    """A table of the newest run, or of the newest with this id; see `Store.scan_result`."""
    runs = [r for r in manifest.results if run_id is None or r.run_id == run_id]
    if not runs:
        which = f"of run {run_id!r}" if run_id else "of an audit"
        raise StoreError(f"The store {layout.root} has no results {which}.", "Run `kvwitness audit` first.")
    run = runs[-1]
    if table not in run.tables:
        raise StoreError(f"Audit run {run.run_id} has no table {table!r}.", f"It has: {', '.join(sorted(run.tables))}.")
    return pl.scan_parquet(layout.root / run.directory / f"{table}.parquet", glob=False, hive_partitioning=False)


def collect_result(scanned: pl.LazyFrame) -> pl.DataFrame:
    """What a scanned result holds. Raises StoreError when its file cannot be read."""
    try:
        return scanned.collect()
    except (pl.exceptions.PolarsError, OSError) as exc:
        raise StoreError(
            f"A result of an audit cannot be read: {exc}.",
            "Run `kvwitness store verify`, then `kvwitness audit` again.",
        ) from exc


def check_results(layout: Layout, manifest: Manifest) -> list[DamagedResult]:
    """Files of kept runs that fail their checksum."""
    found = []
    for run in manifest.results:
        directory = layout.root / run.directory
        try:
            digests: dict[str, Any] = orjson.loads((directory / _RECORD).read_bytes())["sha256"]
        except (OSError, ValueError, KeyError) as exc:
            found.append(DamagedResult(f"{run.directory}/{_RECORD}", run.run_id, f"it cannot be read ({exc})"))
            continue
        for table in run.tables:
            path = directory / f"{table}.parquet"
            if not path.exists():
                found.append(DamagedResult(layout.relative(path), run.run_id, "it is not there"))
            elif _digest(path) != digests.get(table):
                found.append(DamagedResult(layout.relative(path), run.run_id, "its bytes differ from its checksum"))
    return found


def _write(path: Path, table: pa.Table) -> str:
    file = HashingFile(path)
    try:
        with pq.ParquetWriter(file, table.schema, compression="zstd", compression_level=3) as writer:
            writer.write_table(table)
        file.sync()
        return file.digest()
    finally:
        file.dispose()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_names(run_id: str, tables: Mapping[str, pl.DataFrame]) -> None:
    if not _RUN.fullmatch(run_id):
        raise StoreError(f"{run_id!r} cannot name an audit run.", "Use letters, digits, dots, dashes and underscores.")
    if not tables:
        raise StoreError(f"Audit run {run_id} has no tables.")
    for name in tables:
        if not _TABLE.fullmatch(name) or name in RESERVED:
            raise StoreError(
                f"{name!r} cannot name a table of results.",
                "Use lower-case letters, digits and underscores, and none of: " + ", ".join(sorted(RESERVED)) + ".",
            )
