"""What there is in a store, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvwitness.audit.store.imports import list_imports
from kvwitness.audit.store.layout import IMPORT_PREFIX, Layout, writer_name
from kvwitness.audit.store.snapshot import Snapshot
from kvwitness.audit.store.stats import Stats


def info(layout: Layout, snapshot: Snapshot) -> dict[str, Any]:
    """Facts about a store; see `Store.info`."""
    segments = snapshot.segments()
    manifest = snapshot.manifest
    total = Stats()
    for segment in segments:
        total.add(segment.stats)
    size = sum(s.bytes for s in segments)
    imports = list_imports(layout)
    ingests = [name for name in total.ingests if name is not None]
    return {
        "path": str(layout.root),
        "store_id": manifest.store_id,
        "schema_version": manifest.schema_version,
        "generation": manifest.generation,
        "published_path": manifest.published_path,
        "moved": manifest.published_path != str(layout.root),
        "tenants": "pseudonyms" if manifest.pseudonym_check else "as recorded",
        "rows": total.rows,
        "bytes": size,
        "bytes_per_row": round(size / total.rows, 2) if total.rows else None,
        "segments": dict(Counter(s.kind for s in segments)),
        "min_time_ns": total.min_time_ns,
        "max_time_ns": total.max_time_ns,
        "times_backwards": total.backwards,
        "times_in_future": total.future,
        "sources": [
            {"source": name, "rows": span.rows, "min_seq": span.first, "max_seq": span.last}
            for name, span in sorted(total.sources.items(), key=lambda item: item[0] or "")
        ],
        "writers": [
            {"writer": writer_name(n), "rows": total.ingests[n].rows} for n in sorted(ingests) if not _imported(n)
        ],
        "imports": [
            {"name": r.name, "sha256": r.sha256, "rows": r.rows, "committed_ns": r.committed_ns} for r in imports
        ],
        "result_runs": [
            {"run_id": r.run_id, "created_ns": r.created_ns, "tables": dict(r.tables)} for r in manifest.results
        ],
        "quarantined": [
            {"name": q.name, "rows": q.rows, "reason": q.reason, "moved_to": q.moved_to} for q in manifest.quarantined
        ],
        "removals": [dict(r) for r in manifest.removals],
        "waiting_for_removal": len(manifest.retired),
    }


def _imported(ingest: str) -> bool:
    return ingest.startswith(IMPORT_PREFIX)
