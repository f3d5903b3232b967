"""Events beside those before them: in stretches of any length as in one piece."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvwitness.audit import turns

spoken = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 9)), max_size=30)


@given(spoken=spoken, at_once=st.integers(1, 12), first=st.integers(0, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stretches_say_what_one_piece_says(
    monkeypatch: pytest.MonkeyPatch, spoken: list[tuple[str | None, int]], at_once: int, first: int
) -> None:
    events = pl.DataFrame(spoken, {"source": pl.String, "seq": pl.Int64}, orient="row")
    events = events.with_row_index("ev", first).select("source", pl.col("ev").cast(pl.Int64), "seq")
    named = events.filter(pl.col("source").is_not_null())
    expected = named.with_columns(pl.col("ev", "seq").shift().over("source").name.prefix("prev_"))
    monkeypatch.setattr(turns, "AT_ONCE", at_once)
    assert pl.concat(turns.in_turn(events.lazy(), ["seq"], before=["seq"])).equals(expected)
