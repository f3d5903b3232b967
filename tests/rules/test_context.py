"""What a rule asks of its context comes out the same, whoever asked before."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from polars.testing import assert_frame_equal

from tests.provenance.support import CASES
from tests.rules.traces import context_of

_NUMBERS = ("ev", "ev2", "since")


def test_events_are_found_by_their_numbers() -> None:
    trace = CASES / "k01-oversize-stub-handoff.jsonl"
    facts = pl.DataFrame({"ev": [9, 12], "ev2": [4, None], "since": [None, 2]}, dict.fromkeys(_NUMBERS, pl.Int64))
    context = replace(context_of(trace), facts=facts)
    events = context.events.collect()
    for wanted, columns in (
        ([9, 4, None, 4], ("source", "seq")),  # named by facts
        ([3, 9, 1], ("source", "ref_ns", "unc_ns")),  # and others
        ([5, 3], ("request", "time_ns")),  # none of them
        ([12, 6], ("tok_first", "source")),  # a column that is asked for rarely
        ([], ("source",)),
    ):
        found = context.at(pl.Series(wanted, dtype=pl.Int64), *columns)
        expected = events.filter(pl.col("ev").is_in([ev for ev in wanted if ev is not None]))
        assert_frame_equal(found, expected.select("ev", *columns))
