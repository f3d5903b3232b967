"""The replay's state on disk: plain arrays and plain names, so that reading one runs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.provenance import kernel
from kvwitness.audit.provenance.actors import OWN_TRAFFIC
from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.replay import Replay

Column = npt.NDArray[Any]

_DERIVED = ("actors", "pools", "scratch", "facts", "fact_pages")
"""Tables that are made anew, from the record."""

_TABLES = {name: dtype for name, dtype in k.TABLES.items() if name not in _DERIVED}


def _shape(replay: Replay) -> dict[str, Any]:
    """What must be the same for a state to be of use: the kernel's source, the pools, the numbering of actors."""
    pools = replay.encoder.pools
    fields = ("base", "size", "tokens", "ordinals", "source", "known", "traced", "allocs", "reporters", "sharing")
    return {
        "kernel": kernel.fingerprint(),
        "pools": pools.names,
        "layout": [pools.table[name].tolist() for name in fields],
        "sources": replay.encoder.sources,
        "capacity": replay.encoder.actors.capacity,
        "writers": sorted(replay.encoder.transfer_writers),
    }


def _taken_for_granted(replay: Replay, upto: int, tenants: dict[str, int]) -> dict[str, Column]:
    """What the replay of the events before `upto` took from the whole record, which more data may show otherwise."""
    encoder = replay.encoder
    requests = encoder.actors.requests.filter(pl.col("first_ev") < upto)
    codes = pl.DataFrame(
        {"tenant": list(tenants), "code": list(tenants.values())}, {"tenant": pl.String, "code": pl.Int64}
    )
    said = requests.join(codes, on="tenant", how="left", maintain_order="left").select(
        tenant=pl.col("code").fill_null(-1),
        exempt=pl.col("traffic").is_in(list(OWN_TRAFFIC)).fill_null(False),
        born=pl.col("received_ev").is_not_null(),
    )
    return {
        "losses": np.array(sorted(ev for ev in encoder.losses if ev < upto), np.int64),
        "read_on": np.array(sorted(ev for ev in encoder.read_on if ev < upto), np.int64),
        **{f"request_{name}": said[name].to_numpy() for name in said.columns},
    }


def save(replay: Replay, path: Path) -> None:
    """Write the state of a replay. The caller makes it durable and visible."""
    tables = replay.world.tables
    arrays = {}
    world = replay.world
    for name, dtype in _TABLES.items():
        table = world.counters if name == "count" else getattr(world, name)
        used = 1 if name == "count" else world.used(name)
        for column in dtype.names or ():
            arrays[f"{name}.{column}"] = tables.kept(table, column, used)
    arrays["tainted"] = tables.column(replay.world.actors, "tainted")
    arrays["gap_ev"] = tables.column(replay.world.pools, "gap_ev")
    arrays["keys"] = replay.world.keys
    arrays |= _taken_for_granted(replay, replay.upto, replay.encoder.actors.tenants)
    encoder = replay.encoder
    names = {
        "shape": _shape(replay),
        "upto": replay.upto,
        "holders": encoder.actors.holders,
        "tenants": encoder.actors.tenants,
        "transfers": encoder.transfers.codes,
        "keys": encoder.keys.codes,
        "digests": encoder.digests.codes,
        "pairs": list(encoder.pairs),
    }
    arrays["names"] = np.frombuffer(json.dumps(names).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def restore(replay: Replay, path: Path) -> bool:
    """Bring a fresh replay to a saved state; False when that state is of another kernel or other pools, or more data
    shows otherwise what it took for granted."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
        names = json.loads(saved["names"].tobytes())
        if names["shape"] != json.loads(json.dumps(_shape(replay))):
            return False
        granted = _taken_for_granted(replay, names["upto"], names["tenants"])
        if not all(np.array_equal(values, saved[name]) for name, values in granted.items()):
            return False
        tables = replay.world.tables
        made = {}
        for name, dtype in _TABLES.items():
            columns = {column: saved[f"{name}.{column}"] for column in dtype.names or ()}
            made[name] = tables.from_columns(dtype, columns, len(next(iter(columns.values()))))
        keys, gaps, tainted = saved["keys"], saved["gap_ev"].tolist(), np.flatnonzero(saved["tainted"]).tolist()
    # All of it could be read: a damaged state has changed nothing so far.
    for name, table in made.items():
        replay.world.put(name, table)
    replay.world.keys, replay.upto = keys, names["upto"]
    encoder = replay.encoder
    encoder.actors.holders.update(names["holders"])
    encoder.actors.renumber_tenants(names["tenants"])
    encoder.transfers.codes.update(names["transfers"])
    encoder.keys.codes.update(names["keys"])
    encoder.digests.codes.update(names["digests"])
    encoder.pairs.update({pair: n for n, pair in enumerate(names["pairs"])})
    for pool, ev in enumerate(gaps):
        tables.put(replay.world.pools, pool, gap_ev=ev)
    replay._take_actors()
    for actor in tainted:
        tables.put(replay.world.actors, actor, tainted=1)
    return True
