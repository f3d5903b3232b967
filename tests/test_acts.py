"""Acts are counted from numbers as from rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kvwitness.audit import acts
from kvwitness.audit.provenance.arrow import table_of
from kvwitness.audit.provenance.order import ordered
from tests.provenance.support import CASES, frame_of

TRACES = ("k01-oversize-stub-handoff", "real-sglang-0519-placeholder", "f04-copy-on-write-fork")


def events_of(name: str) -> pl.DataFrame:
    return ordered(frame_of(CASES / f"{name}.jsonl"))


@pytest.mark.parametrize("name", TRACES)
def test_counted_from_numbers_as_from_rows(name: str) -> None:
    events = events_of(name)
    shuffled = events.sample(fraction=1.0, shuffle=True, seed=3)
    counted = acts.counted(table_of(shuffled), shuffled["ev"].to_numpy(), shuffled["ref_ns"].to_numpy())
    assert_frame_equal(counted, acts.acts_of(events.lazy()).collect())
    assert counted["events"].sum() == len(events)


def test_lives_of_one_request_are_apart() -> None:
    each: dict[str, Any] = {"source": "e/0", "event": "page.alloc", "pool": "e/0/kv", "pages": [1], "request": "r1"}
    lines = [{**each, "t": n + 1, "seq": n + 1, "incarnation": life} for n, life in enumerate([0, 2, 0, 7])]
    lines.append({**each, "t": 9, "seq": 9})
    events = ordered(frame_of(lines))
    counted = acts.counted(table_of(events), events["ev"].to_numpy(), events["ref_ns"].to_numpy())
    assert_frame_equal(counted, acts.acts_of(events.lazy()).collect())
    assert counted.select("incarnation", "events", "first_ev", "last_ev").rows() == [
        (0, 3, 0, 4),
        (2, 1, 1, 1),
        (7, 1, 3, 3),
    ]


def test_more_names_than_one_number_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    events = events_of(TRACES[0])
    plain = acts.counted(table_of(events), events["ev"].to_numpy(), events["ref_ns"].to_numpy())
    monkeypatch.setattr(acts, "prod", lambda sizes: 1 << 70)
    assert_frame_equal(acts.counted(table_of(events), events["ev"].to_numpy(), events["ref_ns"].to_numpy()), plain)


def test_no_events() -> None:
    events = events_of(TRACES[0]).clear()
    assert_frame_equal(
        acts.counted(table_of(events), np.zeros(0, np.int64), np.zeros(0, np.int64)), pl.DataFrame(schema=acts.SCHEMA)
    )
