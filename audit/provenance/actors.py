"""Everybody who can hold, write or read a page: requests, and the index, sessions and snapshots of a tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.provenance.kernel import layout as k

OWN_TRAFFIC = ("warmup", "health", "capture", "probe")
HOLDERS = {"cache": k.T_CACHE, "session": k.T_SESSION, "snapshot": k.T_SNAPSHOT}

I64 = npt.NDArray[np.int64]


@dataclass
class Actors:
    """Numbers for actors. 0 is nobody; requests follow in the order of the relation; holders come last."""

    requests: pl.DataFrame
    tenants: dict[str, int] = field(default_factory=dict)
    _holders: dict[tuple[str, int], int] = field(default_factory=dict)
    _holder_tenants: list[int] = field(default_factory=list)
    _holder_types: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = self.requests["tenant"].drop_nulls().unique(maintain_order=True)
        for name in names:
            self.tenants[name] = len(self.tenants)
        self.by_key = self.requests.select(
            "request", "incarnation", pl.int_range(1, len(self.requests) + 1, dtype=pl.Int64).alias("actor")
        )
        self.request_tenants = self._tenant_codes(self.requests["tenant"])

    def _tenant_codes(self, names: pl.Series) -> I64:
        return (
            names.replace_strict(self.tenants, default=None, return_dtype=pl.Int64).fill_null(-1).to_numpy()
            if self.tenants
            else np.full(len(names), -1, np.int64)
        )

    def tenant(self, name: str | None) -> int:
        """The number of a tenant; -1 for none."""
        return -1 if name is None else self.tenants.setdefault(name, len(self.tenants))

    def holder(self, kind: str, tenant: int) -> int:
        """The actor for a holder that is no request. Unknown kinds of holder count as the engine's own."""
        key = (kind, tenant)
        if key not in self._holders:
            self._holders[key] = 1 + len(self.requests) + len(self._holder_types)
            self._holder_types.append(HOLDERS.get(kind, k.T_ENGINE))
            self._holder_tenants.append(tenant)
        return self._holders[key]

    def of_requests(self, events: pl.DataFrame) -> I64:
        """The actor of each event's request; 0 where it names none."""
        keyed = events.select("request", pl.col("incarnation").fill_null(0).cast(pl.Int32))
        joined = keyed.join(self.by_key, on=["request", "incarnation"], how="left", maintain_order="left")
        return joined["actor"].fill_null(0).to_numpy().copy()

    def columns(self) -> dict[str, I64]:
        """The columns of the kernel's table of actors."""
        n = len(self.requests)
        own = self.requests["traffic"].is_in(list(OWN_TRAFFIC)).fill_null(False).to_numpy()
        holders = np.zeros(len(self._holder_types), np.int64)
        return {
            "tenant": np.concatenate([[-1], self.request_tenants, np.array(self._holder_tenants, np.int64)]),
            "type": np.concatenate([[k.T_ENGINE], np.zeros(n, np.int64), np.array(self._holder_types, np.int64)]),
            "exempt": np.concatenate([[0], own.astype(np.int64), holders]),
            "end": np.concatenate([[-1], self.requests["ended_ns"].fill_null(-1).to_numpy(), holders - 1]),
            "born": np.concatenate([[1], self.requests["received_ev"].is_not_null().to_numpy(), holders + 1]),
            "tainted": np.zeros(1 + n + len(holders), np.int64),
        }

    def frame(self) -> pl.DataFrame:
        """actor, request, incarnation, tenant, holder (null for requests)."""
        names = {code: name for name, code in self.tenants.items()}
        holders = [kind for kind, _ in self._holders]
        rows = pl.DataFrame(
            {
                "actor": np.arange(1 + len(self.requests), 1 + len(self.requests) + len(holders)),
                "request": pl.Series([None] * len(holders), dtype=pl.String),
                "incarnation": pl.Series([None] * len(holders), dtype=pl.Int32),
                "tenant": pl.Series([names.get(t) for t in self._holder_tenants], dtype=pl.String),
                "holder": pl.Series(holders, dtype=pl.String),
            }
        )
        nobody = pl.DataFrame({"actor": [0], "holder": ["nobody"]}, schema={"actor": pl.Int64, "holder": pl.String})
        requests = self.requests.select(
            pl.int_range(1, len(self.requests) + 1, dtype=pl.Int64).alias("actor"), "request", "incarnation", "tenant"
        )
        return pl.concat([nobody, requests, rows.cast({"actor": pl.Int64})], how="diagonal")
