"""Where everything lies in a store's directory, and how files are named.

manifest.json                what is sealed, retired, quarantined; replaced atomically; the truth
store.duckdb                 views for SQL, derived from the manifest; replaced atomically
flushed/<block>/<cell>/ev-<writer>-<n>.parquet   one per flush of a writer (see folders.py)
imports/<sha256>/            one per imported file: import.json and its segments
sealed/ev-<id>.parquet       what the compactor merged
generations/                 one small empty file per published generation (see catalog.py)
results/<run>/<table>.parquet        results of audits
rule-params.json             rule parameters in force, where some are not the defaults (see audit/inforce.py)
checkpoints/                 the audit's own memory between runs
published/                   copies of what the alerts remember, for SQL (see views/alerts.py)
casebook/<time>-<n>.json     what people say about incidents, one file per entry
staging/  tmp/  locks/       work in progress; nothing here is ever read as content
quarantine/                  damaged segments, moved away on request
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from kvwitness.audit.store.failures import StoreError

_SEGMENT = re.compile(r"ev-(?P<writer>.+)-(?P<number>\d{10})\.parquet")
_PATTERN_CHARACTERS = set("*?[]{}")
IMPORT_PREFIX = "import-"
FLUSHED = "flushed"
"""Directory of the live segments. (`live` was that of layout 1, into which a writer of that time must not find.)"""
LIVE = "live"
"""... and that directory."""
BEFORE = "before"
"""Directory in `flushed` for what a store of layout 1 had in `live`."""
SEED = "0-empty"
"""Name of the writer and of the import that hold no rows: they keep the search patterns of the views
non-empty."""


@dataclass(frozen=True)
class Layout:
    """The paths of one store. `root` is absolute, without symbolic links."""

    root: Path

    @classmethod
    def of(cls, path: str | Path) -> Layout:
        """The layout for a store at `path`.

        Raises StoreError for a path that cannot be written into a view, because DuckDB reads some characters
        as a search pattern.
        """
        root = Path(path).expanduser().resolve()
        odd = sorted(_PATTERN_CHARACTERS & set(str(root)))
        if odd:
            raise StoreError(
                f"The path of a store must not contain {' '.join(odd)}: {root}.",
                "DuckDB would take these characters for a search pattern. Choose another directory.",
            )
        return cls(root)

    @property
    def manifest(self) -> Path:
        """The list of what counts."""
        return self.root / "manifest.json"

    @property
    def catalog(self) -> Path:
        """The DuckDB file with the views."""
        return self.root / "store.duckdb"

    @property
    def flushed(self) -> Path:
        """Live segments: as their writers flushed them."""
        return self.root / FLUSHED

    @property
    def sealed(self) -> Path:
        """Segments as the compactor merged them."""
        return self.root / "sealed"

    @property
    def imports(self) -> Path:
        """Imported files, one directory each, named by the SHA-256 of the file's bytes."""
        return self.root / "imports"

    @property
    def generations(self) -> Path:
        """One marker per published generation that readers may still use."""
        return self.root / "generations"

    @property
    def results(self) -> Path:
        """Results of audits, one directory per run."""
        return self.root / "results"

    @property
    def checkpoints(self) -> Path:
        """State that the audit keeps between runs; the store only gives it a place."""
        return self.root / "checkpoints"

    @property
    def casebook(self) -> Path:
        """What people say about incidents, one file per entry."""
        return self.root / "casebook"

    @property
    def published(self) -> Path:
        """Copies of what the alerts remember, for the views."""
        return self.root / "published"

    @property
    def staging(self) -> Path:
        """Imports and results that are not committed yet."""
        return self.root / "staging"

    @property
    def tmp(self) -> Path:
        """Files that are being written."""
        return self.root / "tmp"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"

    @property
    def quarantine(self) -> Path:
        """Damaged segments."""
        return self.root / "quarantine"

    def directories(self) -> list[Path]:
        """Every directory of a store, in the order in which to create them."""
        return [
            self.tmp,
            self.locks,
            self.flushed,
            self.sealed,
            self.imports,
            self.generations,
            self.results,
            self.checkpoints,
            self.casebook,
            self.published,
            self.staging,
            self.quarantine,
        ]

    def lock(self, name: str) -> Path:
        """The file of a named lock."""
        return self.locks / f"{name}.lock"

    def relative(self, path: Path) -> str:
        """A path inside the store as the manifest writes it."""
        return path.relative_to(self.root).as_posix()


def writer_id(name: str) -> str:
    """A writer's name in a form that is safe in file names; reversible with `writer_name`."""
    if not name or len(name) > 120:
        raise StoreError(
            f"A writer's name must have 1 to 120 characters, got {len(name)}.",
            "Name the writer after the source it records, such as decode-0/rank-1.",
        )
    if name.startswith(IMPORT_PREFIX):
        raise StoreError(
            f"A writer's name must not begin with {IMPORT_PREFIX}: {name}.", "Imports are named like that."
        )
    return quote(name, safe=" @+=,~").replace(" ", "%20")


def writer_name(ident: str) -> str:
    """The name that `writer_id` was given."""
    return unquote(ident)


def segment_name(writer: str, number: int) -> str:
    """File name of a writer's segment; `writer` is in the form of `writer_id`."""
    return f"ev-{writer}-{number:010d}.parquet"


def parse_segment(name: str) -> tuple[str, int] | None:
    """(writer, number) of a live segment's file name; None for any other file."""
    match = _SEGMENT.fullmatch(name)
    return (match["writer"], int(match["number"])) if match else None
