"""Joining the two sides of SGLang's hand-over where each made a request id of its own.

A router sends a prompt to a prefill and a decode server with one number for both, the room. Where it sends no request
id along, each server makes its own, and only the room says that the two are one request.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import cast

import polars as pl

from kvwitness.audit.store import Store

NEAR_NS = 600 * 1_000_000_000
"""A room is drawn at random for each request; so far apart in time it is another request's."""


class Partners:
    """The requests of a store by their rooms. It is read when the first room is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _received(self) -> pl.DataFrame:
        columns = ["event", "request", "time_ns", "extra"]
        frame = self._store.events(columns).filter(pl.col("event") == "request.received")
        room = pl.col("extra").str.json_path_match("$.room").cast(pl.UInt64, strict=False)
        return frame.select("request", "time_ns", room=room).collect()

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self._received["request"].drop_nulls().to_list())

    @cached_property
    def _by_room(self) -> dict[int, list[tuple[int, str]]]:
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for request, time, room in self._received.drop_nulls().iter_rows():
            found[cast(int, room)].append((time, request))
        return found

    def name_of(self, request: str, room: int, time_ns: int) -> str | None:
        """The id under which the store has the other side of a request; its own where it has none, or several.

        None: it has both, the request by what others say of it. They are left apart, lest those come apart instead.
        """
        others = {name for when, name in self._by_room.get(room, ()) if abs(when - time_ns) <= NEAR_NS}
        if len(others) != 1 or request in others:
            return request
        return None if request in self._known else others.pop()
