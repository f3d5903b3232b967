"""What transfer events prove without any page state."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.rules._transfers import event_level, unterminated_transfers
from tests.rules.traces import Trace, context_of


def begun(t: float = 1, transfer: str = "x", request: str = "r1", **fields: object) -> Trace:
    return begin(Trace().received(0, "r1", "t-a"), t, transfer, request, **fields)


def begin(trace: Trace, t: float, transfer: str = "x", request: str = "r1", **fields: object) -> Trace:
    given = {"src_pool": "p/0/kv", "src_pages": [1], "dst_pool": "d/0/kv", "dst_pages": [2], "tokens": 16}
    return trace.add(t, "p/0", "transfer.begin", transfer=transfer, request=request, **(given | fields))


def ended(trace: Trace, t: float, how: str, transfer: str = "x", **fields: object) -> Trace:
    return trace.add(t, "d/0", f"transfer.{how}", transfer=transfer, **fields)


def hanging(trace: Trace) -> list[tuple[str, str]]:
    rows = unterminated_transfers(context_of(trace), {"bound_s": 600})
    return rows.select("request", "pool").rows() if rows.width else []


def contradictions(trace: Trace) -> list[str]:
    rows = event_level(context_of(trace))
    assert rows.filter(pl.col("verdict") != "integrity").is_empty()
    return rows["why"].to_list()


def with_another(trace: Trace, t: float) -> Trace:
    """Another transfer begins and ends, so that the record shows ends at all."""
    return ended(begin(trace, t, "other", "r9"), t + 1, "done", "other", tokens=16, bytes=1, pages_ok=1)


def test_a_transfer_with_no_word_for_longer_than_the_bound() -> None:
    assert hanging(with_another(begun(), 700)) == [("r1", "d/0/kv"), ("r1", "p/0/kv")]
    assert hanging(with_another(begun(), 500)) == []


def test_time_runs_from_the_end_of_the_request() -> None:
    trace = begun().finished(400, "r1", 200)
    assert hanging(with_another(trace, 900)) == []
    assert hanging(with_another(trace, 1100)) != []


def test_any_word_ends_a_transfer() -> None:
    for how in ("done", "failed", "drained"):
        assert hanging(with_another(ended(begun(), 2, how), 900)) == []


def test_a_new_attempt_can_hang_after_a_failed_one() -> None:
    assert hanging(with_another(begin(ended(begun(), 2, "failed"), 3), 900)) != []


def test_a_record_that_never_shows_ends_proves_nothing() -> None:
    assert hanging(begun().add(900, "p/0", "page.alloc", pool="p/0/kv", pages=[1], request="r9")) == []


def test_a_transfer_of_no_page_cannot_hang() -> None:
    assert hanging(with_another(begun(src_pages=[], dst_pages=[], tokens=0), 900)) == []


def test_done_after_failed() -> None:
    trace = ended(begun(), 2, "failed", tokens=8)
    assert contradictions(ended(trace, 3, "done", tokens=16)) == [
        "d/0 was told that transfer x is done after it had failed"
    ]


def test_done_after_a_new_attempt() -> None:
    trace = begin(ended(begun(), 2, "failed", tokens=8), 3)
    assert contradictions(ended(trace, 4, "done", tokens=16, bytes=9, pages_ok=1)) == []


def test_done_without_tokens_claims_nothing() -> None:
    assert contradictions(ended(ended(begun(), 2, "failed"), 3, "done")) == []
    assert contradictions(ended(begun(), 2, "done", bytes=0)) == []


def test_tokens_without_a_byte_or_a_page() -> None:
    assert len(contradictions(ended(begun(), 2, "done", tokens=16, bytes=0))) == 1
    assert len(contradictions(ended(begun(), 2, "done", tokens=16, pages_ok=0))) == 1
    assert contradictions(ended(begun(), 2, "done", tokens=0, bytes=0, pages_ok=0)) == []


def test_nothing_to_move_moves_no_byte() -> None:
    assert contradictions(ended(begun(tok=[16, 16]), 2, "done", tokens=16, bytes=0)) == []
