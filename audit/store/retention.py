"""Removing events for good: those of a tenant, or those before a time."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from kvwitness.audit.store import rewrite
from kvwitness.audit.store.expiry import GRACE_S, expire
from kvwitness.audit.store.failures import explained
from kvwitness.audit.store.layout import Layout
from kvwitness.audit.store.manifest import Manifest
from kvwitness.audit.store.rotation import closed
from kvwitness.audit.store.schema import STORE_SCHEMA, conform
from kvwitness.audit.store.segment import Segment
from kvwitness.audit.store.snapshot import Cache, Snapshot, take
from kvwitness.audit.store.transaction import audit_lock, commit, maintenance_lock

_KEYS = ["event", "request", "incarnation", "tenant", "transfer", "time_ns"]
_REQUEST = ["request", "incarnation"]


@dataclass(frozen=True)
class Removal:
    """What one call of retention removed."""

    at_ns: int
    rule: str
    """`tenant` or `age`. The tenant's name is not kept."""
    rows: int = 0
    """Events removed."""
    requests: int = 0
    """Requests of the tenant, all of whose events were removed."""
    shared_requests: int = 0
    """Of these, request ids that another tenant used as well: events that name the other tenant were kept."""
    segments_rewritten: int = 0
    segments_dropped: int = 0
    results_dropped: int = 0
    """Audit runs removed: all of them with a tenant, since their tables name it and its requests, and those
    from before the age."""
    quarantined_left: int = 0
    """Damaged segments in quarantine/, which cannot be searched: delete these files by hand if they may hold
    the tenant's events."""
    cutoff_ns: int | None = None


class Doomed:
    """Which events go. Gathered over the whole store first, applied to one row group at a time then."""

    def __init__(self, snapshot: Snapshot, *, tenant: str | None, older_than_ns: int | None) -> None:
        self.tenant = tenant
        self.cutoff_ns = older_than_ns
        self.requests = pl.DataFrame(schema={"request": pl.String, "incarnation": pl.Int32})
        self.transfers = pl.Series("transfer", [], dtype=pl.String)
        self.shared_requests = 0
        if tenant is not None:
            self._gather(snapshot.events(_KEYS), tenant)

    def _gather(self, events: pl.LazyFrame, tenant: str) -> None:
        events = events.with_columns(pl.col("incarnation").fill_null(0))
        named = events.filter(pl.col("request").is_not_null())
        own = named.filter(pl.col("tenant") == tenant).select(_REQUEST).unique()
        self.requests = own.collect(engine="streaming")
        mine = self.requests.lazy()
        others = named.filter(pl.col("tenant") != tenant).select(_REQUEST).unique()
        self.shared_requests = mine.join(others, on=_REQUEST, how="semi").select(pl.len()).collect().item()
        moved = named.filter(pl.col("transfer").is_not_null()).select("transfer", *_REQUEST).unique()
        theirs = moved.join(mine, on=_REQUEST, how="anti").select("transfer")
        transfers = moved.join(mine, on=_REQUEST, how="semi").join(theirs, on="transfer", how="anti")
        self.transfers = transfers.select(pl.col("transfer").unique()).collect(engine="streaming").to_series()

    def mark(self, events: pl.LazyFrame) -> pl.LazyFrame:
        """The events with a column `doomed`, in the same order."""
        old = pl.lit(False) if self.cutoff_ns is None else pl.col("time_ns") < self.cutoff_ns
        if self.tenant is None:
            return events.with_columns(doomed=old)
        mine = self.requests.lazy().with_columns(mine=True)
        marked = events.with_columns(pl.col("incarnation").fill_null(0)).join(
            mine, on=_REQUEST, how="left", maintain_order="left"
        )
        nameless = pl.col("tenant").is_null()
        of_request = nameless & pl.col("mine").fill_null(False)
        of_transfer = nameless & pl.col("request").is_null() & pl.col("transfer").is_in(self.transfers.implode())
        own = (pl.col("tenant") == self.tenant).fill_null(False)
        return marked.with_columns(doomed=old | own | of_request | of_transfer.fill_null(False))

    def keep(self, table: pa.Table) -> pa.Table:
        """The rows that stay."""
        keys = pl.from_arrow(table.select(_KEYS))
        assert isinstance(keys, pl.DataFrame)
        stays = ~self.mark(keys.lazy()).select("doomed").collect().to_series()
        return conform(table.filter(stays.to_arrow()), STORE_SCHEMA)


def retain(
    layout: Layout, cache: Cache, *, tenant: str | None, older_than_ns: int | None, grace_s: float | None
) -> Removal:
    """Remove events; see `Store.retain`."""
    by_tenant = tenant is not None
    grace = grace_s if grace_s is not None else 0.0 if by_tenant else GRACE_S
    with audit_lock(layout), maintenance_lock(layout, wait=True):
        closed(layout)
        snapshot = take(layout, cache).settled()
        # What cannot be read for certain cannot be searched for certain.
        snapshot.check()
        doomed = Doomed(snapshot, tenant=tenant, older_than_ns=older_than_ns)
        affected = _affected(snapshot, doomed)
        gone = [s for s in snapshot.segments() if s.name in affected]
        new = [s for s in (_rewritten(layout, s, affected[s.name], doomed) for s in gone) if s is not None]
        runs = [r for r in snapshot.manifest.results if older_than_ns is None or r.created_ns < older_than_ns]
        removal = Removal(
            at_ns=time.time_ns(),
            rule="tenant" if by_tenant else "age",
            rows=sum(affected.values()),
            requests=doomed.requests.height,
            shared_requests=doomed.shared_requests,
            segments_rewritten=len(new),
            segments_dropped=len(gone) - len(new),
            results_dropped=len(runs),
            quarantined_left=len(snapshot.manifest.quarantined) if by_tenant else 0,
            cutoff_ns=older_than_ns,
        )
        if by_tenant or removal.rows:
            _clear(layout)
        dropped = {r.directory for r in runs}
        commit(layout, lambda m: _change(m, gone, new, removal, grace, dropped))
        expire(layout)
    return removal


def _affected(snapshot: Snapshot, doomed: Doomed) -> dict[str, int]:
    """segment -> number of its events that go."""
    events = snapshot.events([*_KEYS, "segment"])
    counts = doomed.mark(events).filter("doomed").group_by("segment").len().collect(engine="streaming")
    return dict(counts.iter_rows())


def _rewritten(layout: Layout, segment: Segment, removed: int, doomed: Doomed) -> Segment | None:
    return None if removed == segment.rows else rewrite.merge(layout, [segment], doomed.keep)


def _change(
    manifest: Manifest,
    gone: list[Segment],
    new: list[Segment],
    removal: Removal,
    grace_s: float,
    dropped: set[str],
) -> Manifest:
    changes: dict[str, Any] = rewrite.replaced(manifest, gone, new, grace_s=grace_s)
    changes["removals"] = (*manifest.removals, asdict(removal))
    changes["results"] = tuple(r for r in manifest.results if r.directory not in dropped)
    changes["retired"] = (*changes["retired"], *manifest.newly_retired(sorted(dropped), grace_s=grace_s))
    return manifest.next(**changes)


def _clear(layout: Layout) -> None:
    """The audit's checkpoints hold what is removed. They go first: a new audit can make them again."""
    with explained("clearing", layout.checkpoints):
        for path in layout.checkpoints.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
