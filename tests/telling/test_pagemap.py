"""The map of a pool at a moment, beside a walk through the same events one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.api import judge_file
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.order import ordered
from kvwitness.audit.telling import pagemap
from kvwitness.audit.telling.answer import Answer

CASES = Path(__file__).parents[1] / "cases"
TRACES = ["real-sglang-0519-placeholder", "real-vllm-healthy", "k01-oversize-stub-handoff", "f01-common-system-prompt"]


def opened(case: str) -> tuple[Answer, pl.DataFrame, list[pagemap.Pool]]:
    judgement, _, events = judge_file(CASES / f"{case}.jsonl")
    answer = Answer.of_trace(judgement, events)
    order = ordered(events)
    kinds = (
        order.with_columns(pl.col("pool").fill_null(pl.col("dst_pool")))
        .group_by("source", "event", "pool")
        .agg(events=pl.len(), first_ns=pl.col("ref_ns").min(), last_ns=pl.col("ref_ns").max())
    )
    return answer, order, pagemap.pools(answer, kinds)


def walked(order: pl.DataFrame, pool: str, until: int) -> dict[int, dict[str, Any]]:
    """page -> holder, sharers, writer: one event after the other."""
    state: dict[int, dict[str, Any]] = {}
    for row in order.filter(pl.col("ref_ns") <= until).iter_rows(named=True):
        phase_open = row["phase"] == "begin"
        for page in row["pages"] or [] if row["pool"] == pool else []:
            here = state.setdefault(page, {"held": None, "sharers": set(), "writer": None})
            if row["event"] == "page.alloc":
                here["held"] = row["request"] or row["holder"]
            elif row["event"] == "page.share":
                here["sharers"].add(row["request"])
            elif row["event"] == "page.free":
                if row["request"] in here["sharers"]:
                    here["sharers"].discard(row["request"])
                elif row["to"]:
                    here["held"] = row["to"]
                else:
                    here["held"] = None
            elif row["event"] == "page.write" and not phase_open:
                here["writer"] = row["request"]
    return state


@pytest.mark.parametrize("case", TRACES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_holders_and_writers_are_those_of_a_walk(case: str, share: float) -> None:
    answer, order, pools = opened(case)
    for pool in pools:
        at = pool.first_ns + int((pool.last_ns - pool.first_ns) * share)
        shown = pagemap.page_map(answer, pool, at).pages
        expected = walked(order, pool.name, at)
        for row in shown.iter_rows(named=True):
            here = expected.get(row["page"], {"held": None, "sharers": set(), "writer": None})
            if row["page"] in pool.reserved:
                assert row["state"] == pagemap.RESERVED
                continue
            where = (pool.name, row["page"], at)
            assert row["sharers"] == len(here["sharers"]), where
            assert row["writer"] == here["writer"], where
            if here["sharers"]:
                assert row["state"] == pagemap.SHARED, where
            elif here["held"] is None:
                assert row["state"] == pagemap.FREE, where
            else:
                assert row["state"] in (pagemap.HELD, pagemap.KEPT), where
                assert here["held"] in (row["request"], row["holder"]), where


def test_pages_with_content_of_another_tenant_are_marked() -> None:
    answer, _, pools = opened("real-sglang-0519-placeholder")
    leak = answer.incidents.filter(pl.col("request") == "r1017").row(0, named=True)
    (pages,) = leak["pools"]
    pool = next(pool for pool in pools if pool.name == pages["pool"])
    shown = pagemap.page_map(answer, pool, leak["first_ns"]).pages
    marked = set(shown.filter("foreign")["page"].to_list())
    named = set(pages["pages"])
    assert marked <= named
    others = shown.filter(pl.col("page").is_in(sorted(marked)))["writer_tenant"].unique().to_list()
    assert set(others) == set(leak["other_tenants"])


def test_what_was_not_looked_at_is_unknown_and_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagemap, "_FIRST_LOOK_NS", 1)
    monkeypatch.setattr(pagemap, "_ENOUGH", -1)
    answer, _, pools = opened("real-sglang-0519-placeholder")
    shown = pagemap.page_map(answer, pools[0], pools[0].last_ns)
    assert not shown.whole
    assert pagemap.UNKNOWN in shown.pages["state"]
    assert shown.pages["generation"].null_count() > 0


def test_before_the_record_there_is_nothing_to_show() -> None:
    answer, _, pools = opened("k01-oversize-stub-handoff")
    with pytest.raises(KvwitnessError, match=r"Nothing of .* is on record at that time"):
        pagemap.page_map(answer, pools[0], pools[0].first_ns - 1)
