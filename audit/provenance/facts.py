"""What the replay saw that is anything but plainly sound, in words.

One row per cause and event: `fact` (below), `ev` (when it showed), the affected side (`request`, `incarnation`,
`tenant`, `holder` where it is none), the other side (`other_*`), `ev2` (the write, allocation or release that it
refers to; null when none), `since` (the event from which on the page's state was relied upon), `pool`, `pages`,
`gens` (parallel), `positions` (token positions concerned, 0 where whole pages are meant) and `x` (a detail that the
fact's own note explains).
"""

from __future__ import annotations

import polars as pl

from kvwitness.audit.provenance.actors import Actors
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.pools import Pools

FACTS: dict[int, tuple[str, str]] = {
    k.X_UNWRITTEN: (
        "unwritten",
        "read of positions with no complete write in the live generation; other = old writer; x = 1: sent unwritten",
    ),
    k.X_FOREIGN: (
        "foreign",
        "read of what another wrote, unadmitted; x = 1: it came with the reader's own transfer, 2: through a share",
    ),
    k.X_NOT_READY: ("not_ready", "such a read while the write was open, or through a share of what was not written"),
    k.X_TAINTED: ("tainted", "sound-looking read of what `other` computed after an unsound read of its own"),
    k.X_SHARED: ("shared", "read of another tenant's pages that the sharing policy admits"),
    k.X_UNKNOWN: ("unknown", "read of a page whose content came before the record began"),
    k.X_UNCOVERED: ("uncovered", "decode read past what was transferred, shared or written; x = what was covered"),
    k.X_LATE_READ: ("late_read", "read complete after release; x = 0 intact, 1 lease over, 2 overwritten by `other`"),
    k.X_LATE_WRITE: ("late_write", "write of `other` landed on a page it no longer held; x = 1: nobody holds it"),
    k.X_DOUBLE_WRITE: ("double_write", "write by `other`, which never held the page"),
    k.X_DOUBLE_ALLOC: ("double_alloc", "allocation of a page that `other` holds"),
    k.X_DOUBLE_FREE: ("double_free", "release by one who does not hold the page"),
    k.X_RESERVED_ALLOC: ("reserved_alloc", "a reserved page handed to a request"),
    k.X_STRAY_WRITE: ("stray_write", "write with no owner, or by none who could own, on a page that is not reserved"),
    k.X_STEP_FREE: ("step_free", "release of a page that a running step names"),
    k.X_STEP_REALLOC: ("step_realloc", "the same page handed to `other` before the step ended"),
    k.X_FALSE_DONE: ("false_done", "transfer said to be done, position not completely written"),
    k.X_POSITION: ("position", "page used at another place than its own; x = its place"),
    k.X_ORPHAN: ("orphan", "page held long after its request ended; x = 1: until the end of the record"),
    k.X_TIMEOUT_FREE: ("timeout_free", "transfer target released on timeout with no word from the writer"),
    k.X_OPEN_READ_HIT: ("open_read_hit", "write of `other` landed on rows that the reader was still reading"),
    k.X_SESSION: ("session", "the request goes on in pages that a session of its tenant keeps"),
    k.X_ACROSS: ("across", "admitted read of what `other` wrote before a loss at one who reports on the pool"),
}
"""Code -> (name, what it means)."""

NAMES = {code: name for code, (name, _) in FACTS.items()}


def named(raw: pl.DataFrame, actors: Actors, pools: Pools) -> pl.DataFrame:
    """Put names to the numbers of `Replay.take_facts`."""
    who = actors.frame()
    side = who.select(pl.col("actor").alias("a"), "request", "incarnation", "tenant", "holder")
    other = who.select(
        pl.col("actor").alias("b"),
        pl.col("request").alias("other_request"),
        pl.col("tenant").alias("other_tenant"),
        pl.col("holder").alias("other_holder"),
    )
    pool_names = pl.DataFrame({"pool": range(len(pools.names)), "pool_name": pools.names}).cast(
        {"pool": pl.Int64, "pool_name": pl.String}
    )
    return (
        raw.join(side, on="a", how="left", maintain_order="left")
        .join(other, on="b", how="left", maintain_order="left")
        .join(pool_names, on="pool", how="left", maintain_order="left")
        .with_columns(
            pl.col("code").replace_strict(NAMES, return_dtype=pl.String).alias("fact"),
            pl.when(pl.col("ev2") >= 0).then("ev2").alias("ev2"),
            pl.when(pl.col("since") >= 0).then("since").alias("since"),
        )
        .drop("pool", "code", "a", "b")
        .rename({"pool_name": "pool"})
        .sort("ev", maintain_order=True)
    )
