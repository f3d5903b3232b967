"""Auxiliary slots: records that travel beside the pages (first token, lengths, hidden states)."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import with_tenant
from kvwitness.audit.rules._losses import lost_meanwhile
from kvwitness.audit.rules.model import Context

WRITE, READ = "aux.write", "aux.read"


def _accesses(context: Context) -> pl.LazyFrame:
    """Writes of a record and reads that found something: a length of 0 is a poll, or a slot that was
    cleared."""
    accesses = context.events.filter(
        pl.col("event").is_in([WRITE, READ]) & (pl.col("length").is_null() | (pl.col("length") > 0))
    )
    columns = ["event", "slot", *KEY, "ev", "ref_ns", "unc_ns", "source", "rank", "writer_rank"]
    return keyed(accesses).select(columns).sort("ev")


def misread(context: Context) -> pl.DataFrame:
    """Reads that got the record of another request.

    A slot that nobody has written yet holds a sentinel and is not judged. A reader's own record precedes
    its read by the meaning of the ids, so a read is only held against a record that was written after the
    reader's own, or when the reader never had one.
    """
    accesses = _accesses(context).collect()
    writes = accesses.filter(pl.col("event") == WRITE)
    reads = accesses.filter(pl.col("event") == READ)
    record = writes.select(
        "slot",
        "ev",
        write_ev="ev",
        writer="request",
        writer_life="incarnation",
        write_ns="ref_ns",
        write_unc="unc_ns",
        write_source="source",
    )
    found = reads.join_asof(record, on="ev", by="slot", check_sortedness=False)
    other = (pl.col("writer") != pl.col("request")) | (pl.col("writer_life") != pl.col("incarnation"))
    strange = found.filter(other)
    own = writes.select("slot", *KEY, own_ev="ev", own_ns="ref_ns", own_unc="unc_ns", own_source="source")
    next_own = strange.join(own, on=["slot", *KEY]).filter(pl.col("own_ev") > pl.col("ev"))
    excused = next_own.filter(_may_precede()).select("ev")
    proven = strange.join(excused, on="ev", how="anti")
    return _describe(context, proven)


def _may_precede() -> pl.Expr:
    """The reader's own write, recorded later by another source, may in truth have come before the read."""
    doubt = pl.col("unc_ns") + pl.col("own_unc")
    return (pl.col("own_source") != pl.col("source")) & ((pl.col("own_ns") - pl.col("ref_ns") <= doubt).fill_null(True))


def _describe(context: Context, rows: pl.DataFrame) -> pl.DataFrame:
    same = pl.col("source") == pl.col("write_source")
    apart = pl.col("ref_ns") - pl.col("write_ns") > pl.col("unc_ns") + pl.col("write_unc")
    sure = same | apart.fill_null(False)
    known = context.requests.select(writer="request", writer_life="incarnation", writer_tenant="tenant")
    named = with_tenant(rows, context).join(known, on=["writer", "writer_life"], how="left")
    named = lost_meanwhile(context, named.with_columns(since="write_ev"))  # such as the reader's own record
    sure = sure & pl.col("lost").is_null()
    strangers = (pl.col("tenant") != pl.col("writer_tenant")).fill_null(False)
    return named.select(
        *KEY,
        "tenant",
        verdict=pl.when(~sure)
        .then(pl.lit("unproven"))
        .when(strangers)
        .then(pl.lit("leak"))
        .otherwise(pl.lit("integrity")),
        other_requests=pl.concat_list("writer"),
        other_tenants=pl.when(strangers)
        .then(pl.concat_list("writer_tenant"))
        .otherwise(pl.lit([], pl.List(pl.String))),
        evs=pl.concat_list("write_ev", "ev"),
        why=pl.format("slot {} held the record of {} when {} consumed it", "slot", "writer", "request"),
        missing=pl.when(~sure).then(pl.col("lost").fill_null("clocks that order the write and the read of the slot")),
    )


def miswritten(context: Context) -> pl.DataFrame:
    """Records with a second writer rank: the designated one is stated, or the first that wrote the record."""
    accesses = _accesses(context)
    fresh = (
        (pl.col("request") != pl.col("request").shift())
        | (pl.col("incarnation") != pl.col("incarnation").shift())
        | (pl.col("event").shift() == READ) & (pl.col("event") == WRITE)
    )
    records = accesses.with_columns(fresh=fresh.over("slot").fill_null(True)).with_columns(
        record=pl.col("fresh").cast(pl.Int64).cum_sum().over("slot")
    )
    writes = (
        records.with_columns(stated=pl.col("writer_rank").drop_nulls().first().over("slot", "record"))
        .filter((pl.col("event") == WRITE) & pl.col("rank").is_not_null())
        .with_columns(
            designated=pl.coalesce("stated", pl.col("rank").first().over("slot", "record")),
            first_ev=pl.col("ev").first().over("slot", "record"),
        )
        .filter(pl.col("rank") != pl.col("designated"))
        .collect()
    )
    return with_tenant(writes, context).select(
        *KEY,
        "tenant",
        verdict=pl.lit("integrity"),
        evs=pl.concat_list("first_ev", "ev"),
        why=pl.format(
            "rank {} wrote the record of {} in slot {}, whose writer is rank {}",
            "rank",
            "request",
            "slot",
            "designated",
        ),
    )
