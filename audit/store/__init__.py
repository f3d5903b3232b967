"""Where events and results are kept: immutable Parquet segments, and a small `store.duckdb` of views over
them."""

from kvwitness.audit.store.casebook import Casebook, Deed, Entry
from kvwitness.audit.store.compaction import Compaction
from kvwitness.audit.store.failures import (
    CorruptSegment,
    DiskFailure,
    DiskFull,
    MovedStore,
    NewerStore,
    NoStore,
    OlderStore,
    ReadOnlyDisk,
    StoreBusy,
    StoreError,
)
from kvwitness.audit.store.imports import Import, ImportRecord, ImportResult
from kvwitness.audit.store.manifest import Quarantined, ResultRun
from kvwitness.audit.store.migrate import MigrationResult
from kvwitness.audit.store.pseudonyms import Pseudonyms
from kvwitness.audit.store.reader import Reader
from kvwitness.audit.store.retention import Removal
from kvwitness.audit.store.schema import SCHEMA_VERSION, STORE_SCHEMA
from kvwitness.audit.store.segment import Segment
from kvwitness.audit.store.snapshot import Snapshot
from kvwitness.audit.store.stats import Span
from kvwitness.audit.store.store import Store
from kvwitness.audit.store.verification import Problem
from kvwitness.audit.store.writer import Writer

__all__ = [
    "SCHEMA_VERSION",
    "STORE_SCHEMA",
    "Casebook",
    "Compaction",
    "CorruptSegment",
    "Deed",
    "DiskFailure",
    "DiskFull",
    "Entry",
    "Import",
    "ImportRecord",
    "ImportResult",
    "MigrationResult",
    "MovedStore",
    "NewerStore",
    "NoStore",
    "OlderStore",
    "Problem",
    "Pseudonyms",
    "Quarantined",
    "ReadOnlyDisk",
    "Reader",
    "Removal",
    "ResultRun",
    "Segment",
    "Snapshot",
    "Span",
    "Store",
    "StoreBusy",
    "StoreError",
    "Writer",
]
