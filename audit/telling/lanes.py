"""The evidence of an incident as marks on ranges of pages, for drawing: what happened to which pages, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from kvwitness.audit.telling.dossier import Dossier
from kvwitness.audit.telling.exhibits import shows
from kvwitness.audit.trace import compress_pages

KINDS = {
    "page.alloc": "alloc",
    "page.share": "share",
    "page.write": "write",
    "page.copy": "write",
    "page.read": "read",
    "page.free": "free",
    "transfer.begin": "transfer",
    "transfer.done": "transfer done",
    "transfer.failed": "transfer failed",
}
"""Kind of event -> what is drawn."""
_SCHEMA = {
    "order": pl.Int64,
    "time_ns": pl.Int64,
    "pool": pl.String,
    "first_page": pl.Int64,
    "end_page": pl.Int64,
    "kind": pl.String,
    "request": pl.String,
    "tenant": pl.String,
    "source": pl.String,
    "seq": pl.Int64,
    "proof": pl.Boolean,
    "shows": pl.String,
}
_PAIRS = (("pool", "pages"), ("dst_pool", "dst_pages"), ("src_pool", "src_pages"), ("to_pool", "to_pages"))


def lanes(dossier: Dossier, *, most: int = 5_000) -> tuple[pl.DataFrame, bool]:
    """One row per event and run of pages of the incident's pools, in replay order, and whether any were left out.

    Columns: order (of the event among those drawn, from 1), time_ns, pool, first_page and end_page (half-open), kind,
    request, tenant, source, seq, proof (whether a rule names it), shows (in words). At most `most` rows, those of the
    request itself and of proofs with many pages first.
    """
    pools = concerned(dossier)
    own = dossier.request["request"] if dossier.request else None
    drawn: list[dict[str, Any]] = []
    order = 0
    for row in dossier.events.filter(pl.col("event").is_in(list(KINDS))).iter_rows(named=True):
        runs = list(_runs(row, pools, own))
        if runs:
            order += 1
        drawn += [_mark(row, dossier, order, pool, first, end) for pool, first, end in runs]
    if len(drawn) <= most:
        return pl.DataFrame(drawn, schema=_SCHEMA), False
    largest = sorted(drawn, key=lambda mark: (mark["request"] != own, mark["first_page"] - mark["end_page"]))[:most]
    return pl.DataFrame(sorted(largest, key=lambda mark: mark["order"]), schema=_SCHEMA), True


def concerned(dossier: Dossier) -> dict[str, set[int]]:
    """Pool -> pages that findings of the incident's verdict name; where those name none, those of all findings."""
    for findings in ([f for f in dossier.findings if f["verdict"] == dossier.verdict], dossier.findings):
        pools: dict[str, set[int]] = {}
        for finding in findings:
            if finding["pool"] and finding["pages"]:
                pools.setdefault(finding["pool"], set()).update(finding["pages"])
        if pools:
            return pools
    return {}


def _runs(row: dict[str, Any], pools: dict[str, set[int]], own: str | None) -> Iterator[tuple[str, int, int]]:
    """The runs of pages of an event that are drawn: all of the request's own, of others those that met them."""
    for pool_column, pages_column in _PAIRS:
        pool, pages = row[pool_column], row[pages_column]
        if pool not in pools or not pages:
            continue
        met = pages if own is not None and row["request"] == own else [page for page in pages if page in pools[pool]]
        for run in compress_pages(sorted(set(met))):
            first, last = (run, run) if isinstance(run, int) else run
            yield pool, first, last + 1


def _mark(row: dict[str, Any], dossier: Dossier, order: int, pool: str, first: int, end: int) -> dict[str, Any]:
    kind = KINDS[row["event"]]
    if row["event"] == "page.write" and row["op"] == "transfer":
        kind = "transfer"
    return {
        "order": order,
        "time_ns": row["ref_ns"],
        "pool": pool,
        "first_page": first,
        "end_page": end,
        "kind": kind,
        "request": row["request"],
        "tenant": row["tenant"] or _tenant(row["request"], dossier),
        "source": row["source"],
        "seq": row["seq"],
        "proof": len(row["rules"]) > 0,
        "shows": shows(row, dossier),
    }


def _tenant(request: str | None, dossier: Dossier) -> str | None:
    if dossier.request is not None and request == dossier.request["request"]:
        tenant: str | None = dossier.request["tenant"]
        return tenant
    return dossier.tenants.get(request or "")
