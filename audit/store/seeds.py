"""The empty segments. They give a store without events its columns, and the views' search patterns a first
match."""

from __future__ import annotations

from typing import Any

import orjson

from kvwitness.audit.store.casebook import ensure_seed
from kvwitness.audit.store.durable import make_dir, place, write_atomic
from kvwitness.audit.store.failures import CorruptSegment
from kvwitness.audit.store.folders import SEED_DIR, seed_dirs
from kvwitness.audit.store.layout import FLUSHED, SEED, Layout
from kvwitness.audit.store.schema import SCHEMA_VERSION
from kvwitness.audit.store.segment import check_segment, write_segment
from kvwitness.audit.store.stats import Stats
from kvwitness.audit.store.views.alerts import OF_ALERTS, STATE, file_of

SEED_FILE = f"{SEED}.parquet"
"""File name of the empty segments. It sorts before all others: DuckDB takes the columns from the first
file."""


ANY_SEED = f"{FLUSHED}/{SEED_DIR}/{SEED_DIR}/{SEED_FILE}"
"""Name of an empty segment that every store has."""


def seeds(first_open: int) -> list[str]:
    """Names of the empty segments that a store needs whose open folders begin with this one."""
    return [*(f"{directory}/{SEED_FILE}" for directory in seed_dirs(first_open)), f"imports/{SEED}/{SEED_FILE}"]


def damaged_seeds(layout: Layout, first_open: int) -> list[str]:
    """Names of empty segments that are absent, damaged or of another schema version."""
    out = []
    for name in seeds(first_open):
        try:
            if check_segment(layout.root / name, name).schema_version != SCHEMA_VERSION:
                out.append(name)
        except (CorruptSegment, FileNotFoundError):
            out.append(name)
    return out


def ensure_seeds(layout: Layout, first_open: int) -> None:
    """Write the empty segments that `damaged_seeds` complains about."""
    ensure_seed(layout)
    _ensure_copies(layout)
    make_dir(layout.imports / SEED)
    record = layout.imports / SEED / "import.json"
    if not record.exists():
        empty: dict[str, Any] = {
            "sha256": None,
            "name": "",
            "ingest": "",
            "rows": 0,
            "committed_ns": 0,
            "report": {},
        }
        write_atomic(record, orjson.dumps(empty), layout.tmp)
    for name in damaged_seeds(layout, first_open):
        directory = (layout.root / name).parent
        make_dir(directory.parent)
        make_dir(directory)
        tmp = layout.tmp / name.replace("/", "-")
        tmp.unlink(missing_ok=True)
        write_segment(tmp, [], Stats(), name=name)
        place(tmp, layout.root / name)


def _ensure_copies(layout: Layout) -> None:
    """Copies of alerts that say that no check is on record, where there are none or one is lost. The ledger of the
    alerts, which has what they lack, finds its own state gone and replaces all of them."""
    make_dir(layout.published)
    lost = [name for name in (STATE, *map(file_of, OF_ALERTS)) if not (layout.published / name).exists()]
    if lost:
        write_atomic(layout.published / STATE, orjson.dumps({"begun": False}) + b"\n", layout.tmp)
    for name in lost:
        if name != STATE:
            write_atomic(layout.published / name, b"", layout.tmp)
