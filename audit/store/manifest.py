"""The manifest: which segments count. One JSON file, replaced atomically; everything else derives from it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from kvwitness.audit.store.durable import write_atomic
from kvwitness.audit.store.failures import NewerStore, NoStore, OlderStore, StoreError, explained
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.schema import SCHEMA_VERSION
from kvwitness.audit.store.segment import Segment

FORMAT = "kvwitness-store"
LAYOUT_VERSION = 2
"""Version of the manifest and of the directories. A program refuses a higher one."""


@dataclass(frozen=True)
class Retired:
    """A file or directory that no longer counts, but may still be in use by a reader that began before."""

    name: str
    generation: int
    """The first generation without it."""
    at_ns: int
    grace_s: float
    expired_ns: int | None = None
    """When readers of older generations were locked out; only some time after that the file goes."""


@dataclass(frozen=True)
class ResultRun:
    """One kept set of audit results."""

    run_id: str
    directory: str
    created_ns: int
    tables: Mapping[str, int]
    """table -> rows."""


@dataclass(frozen=True)
class Quarantined:
    """A damaged segment that was moved away; `rows` is None where its footer could not tell."""

    name: str
    moved_to: str
    reason: str
    at_ns: int
    rows: int | None


@dataclass(frozen=True)
class Manifest:
    """The state of a store. Instances are values: a change makes a new one with the next generation."""

    store_id: str
    created_ns: int
    schema_version: int = SCHEMA_VERSION
    generation: int = 0
    published_path: str = ""
    """Where the store was when `store.duckdb` was last published."""
    sealed: tuple[Segment, ...] = ()
    retired: tuple[Retired, ...] = ()
    folder: int = 0
    """Number of the folder into which writers flush (see folders.py)."""
    first_open: int = 0
    """What lies in the folders from this number on counts ..."""
    live: tuple[str, ...] = ()
    """... and of the folders before it these segments, which are not merged yet."""
    writers: Mapping[str, int] = field(default_factory=dict)
    """writer -> highest segment number in a folder that is closed."""
    results: tuple[ResultRun, ...] = ()
    """Kept runs, newest last."""
    quarantined: tuple[Quarantined, ...] = ()
    removals: tuple[Mapping[str, Any], ...] = ()
    """What retention removed: when, by which rule, how many rows."""
    pseudonym_check: str | None = None
    """Set when tenants are kept as pseudonyms: a value by which the key is recognised (not the key)."""

    def retired_names(self) -> set[str]:
        """Names that must not be counted even while their files are still there."""
        return {r.name for r in self.retired} | {q.name for q in self.quarantined}

    def newly_retired(self, names: Iterable[str], *, grace_s: float) -> tuple[Retired, ...]:
        """Records for files that do not count any more from the next generation on."""
        now = time.time_ns()
        return tuple(Retired(n, self.generation + 1, now, grace_s) for n in names)

    def next(self, **changes: Any) -> Manifest:
        """This manifest with changes, one generation on."""
        return replace(self, generation=self.generation + 1, **changes)


def save(manifest: Manifest, layout: Layout) -> None:
    """Replace the manifest on disk, durably. The caller holds the manifest's lock."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "layout_version": LAYOUT_VERSION,
        "schema_version": manifest.schema_version,
        "store_id": manifest.store_id,
        "created_ns": manifest.created_ns,
        "generation": manifest.generation,
        "published_path": manifest.published_path,
        "sealed": [s.to_json() for s in manifest.sealed],
        "folder": manifest.folder,
        "first_open": manifest.first_open,
        "live": list(manifest.live),
        "retired": [vars(r) for r in manifest.retired],
        "writers": dict(manifest.writers),
        "results": [{**vars(r), "tables": dict(r.tables)} for r in manifest.results],
        "quarantined": [vars(q) for q in manifest.quarantined],
        "removals": [dict(r) for r in manifest.removals],
        "pseudonym_check": manifest.pseudonym_check,
    }
    with explained("writing", layout.manifest):
        write_atomic(layout.manifest, orjson.dumps(data, option=orjson.OPT_INDENT_2), layout.tmp)


def load(layout: Layout, *, any_schema: bool = False) -> Manifest:
    """Read the manifest.

    Raises NoStore when there is none, NewerStore when it is from a later version of the program, OlderStore
    when its schema has to be migrated first (unless `any_schema`), StoreError when it is damaged.
    """
    data = _checked(layout, any_schema=any_schema)
    try:
        return _from_json(data)
    except (KeyError, TypeError, ValueError) as exc:
        raise _damaged(layout.manifest, exc) from exc


def current_folder(layout: Layout) -> int:
    """The number of the folder into which writers flush, and nothing else of the manifest; errors as in `load`."""
    return int(_checked(layout, any_schema=False)["folder"])


def layout_version(layout: Layout) -> int:
    """Version of the directories."""
    return int(_parsed(layout)["layout_version"])


def _checked(layout: Layout, *, any_schema: bool) -> dict[str, Any]:
    data = _parsed(layout)
    version = data["schema_version"]
    if data["layout_version"] > LAYOUT_VERSION or version > SCHEMA_VERSION:
        raise NewerStore(
            f"The store {layout.root} was written by a newer version of kvwitness (layout "
            f"{data['layout_version']}, "
            f"schema {version}; this program knows layout {LAYOUT_VERSION}, schema {SCHEMA_VERSION}).",
            "Install the newer version (`pip install --upgrade kvwitness`). Nothing has been changed.",
        )
    if (version < SCHEMA_VERSION or data["layout_version"] < LAYOUT_VERSION) and not any_schema:
        raise OlderStore(
            f"The store {layout.root} has layout {data['layout_version']} and schema version {version}; this program "
            f"reads and writes layout {LAYOUT_VERSION}, schema {SCHEMA_VERSION}.",
            "Stop the collectors that write to it, make a backup, and run `kvwitness store migrate`.",
        )
    return data


def _parsed(layout: Layout) -> dict[str, Any]:
    path = layout.manifest
    try:
        with explained("reading", path):
            raw = _read(path)
    except StoreError as exc:
        if not isinstance(exc.__cause__, (FileNotFoundError, NotADirectoryError)):
            raise
        raise NoStore(
            f"There is no store at {layout.root}.",
            "Create one with `kvwitness import FILE --store DIR`, or give the directory that holds manifest.json.",
        ) from exc
    try:
        data = orjson.loads(raw)
        if data["format"] != FORMAT or not isinstance(data["layout_version"], int):
            raise ValueError("not a manifest of a store")
        if not isinstance(data["schema_version"], int):
            raise ValueError("no schema version")
    except (ValueError, KeyError, TypeError) as exc:
        raise _damaged(path, exc) from exc
    return dict(data)


def _from_json(data: dict[str, Any]) -> Manifest:
    return Manifest(
        store_id=data["store_id"],
        created_ns=data["created_ns"],
        schema_version=data["schema_version"],
        generation=data["generation"],
        published_path=data["published_path"],
        sealed=tuple(Segment.from_json(s) for s in data["sealed"]),
        folder=data.get("folder", 0),  # layout 1 had none
        first_open=data.get("first_open", 0),
        live=tuple(data.get("live", ())),
        retired=tuple(Retired(**r) for r in data["retired"]),
        writers=data["writers"],
        results=tuple(ResultRun(**r) for r in data["results"]),
        quarantined=tuple(Quarantined(**q) for q in data["quarantined"]),
        removals=tuple(data["removals"]),
        pseudonym_check=data["pseudonym_check"],
    )


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _damaged(path: Path, exc: Exception) -> StoreError:
    return StoreError(
        f"The manifest {path} is damaged: {exc}.",
        "It is replaced atomically, so this comes from the disk or from an edit. Restore manifest.json from "
        "a backup; the segments in flushed/, imports/ and sealed/ are not touched.",
    )


def state_of(layout: Layout) -> tuple[int, int, int]:
    """A value that changes whenever the manifest is replaced."""
    info = os.stat(layout.manifest)
    return info.st_ino, info.st_mtime_ns, info.st_size
