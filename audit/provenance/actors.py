"""Everybody who can hold, write or read a page: requests, and the index, sessions and snapshots of a tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.arrow import Texts
from kvwitness.audit.provenance.kernel import layout as k

OWN_TRAFFIC = ("warmup", "health", "capture", "probe")
HOLDERS = {"cache": k.T_CACHE, "session": k.T_SESSION, "snapshot": k.T_SNAPSHOT}

I64 = npt.NDArray[np.int64]

_KEY = {"request": pl.String, "incarnation": pl.Int32}


@dataclass
class Actors:
    """Numbers for actors: 0 is nobody, then come the holders that are no requests, then the requests.

    Requests are numbered in the order in which they appeared, so that more data adds numbers and changes none.
    """

    requests: pl.DataFrame
    capacity: int = 256
    """Numbers set aside for nobody and the holders."""
    tenants: dict[str, int] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    """`kind\x1ftenant number` -> actor."""

    def __post_init__(self) -> None:
        self.requests = self.requests.sort("first_ev", nulls_last=True, maintain_order=True)
        for name in self.requests["tenant"].drop_nulls().unique(maintain_order=True):
            self.tenant(name)
        self.numbers = pl.int_range(self.capacity, self.capacity + len(self.requests), dtype=pl.Int64)
        self.by_key = self.requests.select("request", "incarnation", self.numbers.alias("actor"))
        self.request_tenants = self._tenant_codes(self.requests["tenant"])

    def _tenant_codes(self, names: pl.Series) -> I64:
        if not self.tenants:
            return np.full(len(names), -1, np.int64)
        codes = names.replace_strict(self.tenants, default=None, return_dtype=pl.Int64)
        return codes.fill_null(-1).to_numpy()

    def tenant(self, name: str | None) -> int:
        """The number of a tenant; -1 for none."""
        return -1 if name is None else self.tenants.setdefault(name, len(self.tenants))

    def renumber_tenants(self, earlier: dict[str, int]) -> None:
        """Give tenants the numbers that an earlier run gave them; those it did not know get new ones."""
        fresh = [name for name in self.tenants if name not in earlier]
        self.tenants = dict(earlier)
        for name in fresh:
            self.tenant(name)
        self.request_tenants = self._tenant_codes(self.requests["tenant"])

    def tenant_of(self, actor: int) -> int:
        """The tenant of a request's actor; -1 for others."""
        return int(self.request_tenants[actor - self.capacity]) if actor >= self.capacity else -1

    def holder(self, kind: str, tenant: int) -> int:
        """The actor for a holder that is no request. Unknown kinds of holder count as the engine's own.

        Raises `KvwitnessError` when there are more holders than numbers were set aside for.
        """
        key = f"{kind}\x1f{tenant}"
        if key not in self.holders:
            if len(self.holders) + 1 >= self.capacity:
                raise KvwitnessError(
                    f"more than {self.capacity - 1:,} holders of pages that are no requests",
                    "Check that `holder` names a kind (cache, session, snapshot) and not a single object.",
                )
            self.holders[key] = 1 + len(self.holders)
        return self.holders[key]

    def of_requests(self, requests: Texts, incarnations: I64) -> I64:
        """The actor of each event's request; 0 where it names none."""
        lives: npt.NDArray[np.intp] = requests.codes.astype(np.intp)
        names, life = np.arange(len(requests.names)), np.zeros(len(requests.names), np.int64)
        if incarnations.any():
            (names, life), lives = np.unique(np.stack([lives, incarnations]), axis=1, return_inverse=True)
        key = pl.DataFrame({"request": requests.named(names), "incarnation": life}, schema=_KEY)
        known = key.join(self.by_key, on=["request", "incarnation"], how="left", maintain_order="left")
        actors: I64 = known["actor"].fill_null(0).to_numpy()[lives.reshape(-1)]
        return actors

    def _holder_rows(self) -> list[tuple[int, str, int]]:
        rows = []
        for key, actor in self.holders.items():
            kind, _, tenant = key.partition("\x1f")
            rows.append((actor, kind, int(tenant)))
        return rows

    def columns(self) -> dict[str, I64]:
        """The columns of the kernel's table of actors."""
        n = self.capacity + len(self.requests)
        own = self.requests["traffic"].is_in(list(OWN_TRAFFIC)).fill_null(False).to_numpy()
        columns = {name: np.zeros(n, np.int64) for name in ("type", "exempt", "tainted")}
        columns |= {"tenant": np.full(n, -1, np.int64), "end": np.full(n, -1, np.int64), "born": np.ones(n, np.int64)}
        columns["type"][: self.capacity] = k.T_ENGINE
        for actor, kind, tenant in self._holder_rows():
            columns["type"][actor] = HOLDERS.get(kind, k.T_ENGINE)
            columns["tenant"][actor] = tenant
        columns["tenant"][self.capacity :] = self.request_tenants
        columns["exempt"][self.capacity :] = own
        columns["end"][self.capacity :] = self.requests["ended_ns"].fill_null(-1).to_numpy()
        columns["born"][self.capacity :] = self.requests["received_ev"].is_not_null().to_numpy()
        return columns

    def frame(self) -> pl.DataFrame:
        """actor, request, incarnation, tenant, holder (null for requests)."""
        names = {code: name for name, code in self.tenants.items()}
        rows = self._holder_rows()
        holders = pl.DataFrame(
            {
                "actor": [0, *(actor for actor, _, _ in rows)],
                "tenant": [None, *(names.get(tenant) for _, _, tenant in rows)],
                "holder": ["nobody", *(kind for _, kind, _ in rows)],
            },
            schema={"actor": pl.Int64, "tenant": pl.String, "holder": pl.String},
        )
        requests = self.requests.select(self.numbers.alias("actor"), "request", "incarnation", "tenant")
        return pl.concat([holders, requests], how="diagonal")
