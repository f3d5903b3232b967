"""The index of requests and the kinds seen agree with the events they sum up."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import kvwitness.audit
from kvwitness.audit.overall.fleet import bucket_ns, fleet, lag, near_limit, over_time
from kvwitness.audit.overall.lengths import by_length, by_outcome, limits_met
from kvwitness.audit.overall.matrix import sharing
from kvwitness.audit.overall.promises import figures, policies
from kvwitness.audit.overall.search import find_requests
from kvwitness.audit.overall.standing import standings
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.telling.answer import Answer, result_table
from kvwitness.audit.trace import TraceReader

CASES = Path(__file__).parent / "cases"
NS = 1_000_000_000


def stored(path: Path, case: str) -> Store:
    store = Store.create(path)
    reader = TraceReader(CASES / f"{case}.jsonl")
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name=case)
    return store


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = stored(tmp_path_factory.mktemp("summaries") / "store", "real-sglang-0519-placeholder")
    audit_store(store)
    return store


def test_every_request_is_in_the_index_as_the_view_tells_it(recorded: Store) -> None:
    index = recorded.result("request_index")
    with recorded.connect() as con:
        told = con.sql("SELECT request, incarnation, tenant, prompt_tokens, status FROM requests").fetchall()
    mine = index.select("request", "incarnation", "tenant", "prompt_tokens", "status").rows()
    assert sorted(mine) == sorted(told)


def test_the_limit_that_counts_is_that_of_the_query(recorded: Store) -> None:
    index = recorded.result("request_index")
    asked = kvwitness.audit.query("near_limit", store=recorded, near_share=0.0)
    both = asked.join(index, on=["request", "incarnation"])
    assert len(both) == len(asked) == len(index)
    assert both.select(pl.col("input_limit_tokens") == pl.col("limit_tokens")).to_series().all()
    assert both.select(pl.col("outcome") == pl.col("outcome_right")).to_series().all()


def test_kinds_count_every_event_once(recorded: Store) -> None:
    kinds, events = recorded.result("kinds_seen"), recorded.events().select(pl.len()).collect().item()
    assert kinds["events"].sum() == events
    reads = recorded.events(["event"]).filter(pl.col("event") == "page.read").select(pl.len()).collect().item()
    assert kinds.filter(pl.col("event") == "page.read")["events"].sum() == reads


def test_those_over_the_limit_are_the_two_that_leaked(recorded: Store) -> None:
    near = near_limit(recorded.result("request_index"))
    over = near.filter(pl.col("band") == "over the limit")
    assert sorted(over["request"].to_list()) == ["r1017", "r1020"]
    counted = over_time(near, "band", NS)
    assert counted["requests"].sum() == len(near)


@pytest.mark.parametrize(
    ("seconds", "step"), [(1, 1), (600, 5), (13 * 86_400, 3 * 3600), (10 * 365 * 86_400, 7 * 86_400)]
)
def test_steps_read_well(seconds: int, step: int) -> None:
    assert bucket_ns(0, seconds * NS) == step * NS


def test_lengths_count_every_measured_request_once(recorded: Store) -> None:
    index = recorded.result("request_index")
    bins = by_length(index, bins=7)
    users = index.filter((pl.col("traffic") == "user") & pl.col("prompt_tokens").is_not_null())
    assert bins["requests"].sum() == len(users) > 20
    assert (bins["until_tokens"] > bins["from_tokens"]).all()
    bands = by_outcome(index)
    assert bands.filter(pl.col("band") == "beyond the limit")["answered"].to_list() == [2]
    assert limits_met(index)["tokens"].min() == 505


def test_a_request_is_found_by_its_beginning_and_by_its_transfer(recorded: Store) -> None:
    answer, index = Answer.of_store(recorded), recorded.result("request_index")
    begins = index.filter(pl.col("request").str.starts_with("r10"))
    found = find_requests(recorded, answer, "r10", most=5)
    assert (found.total, len(found.rows)) == (len(begins), 5)
    assert find_requests(recorded, answer, "r1017").rows["request"].to_list() == ["r1017"]
    assert find_requests(recorded, answer, "", verdict="leak").rows["request"].to_list() == ["r1017", "r1020"]
    assert find_requests(recorded, answer, "r1017", outcome="refused").total == 0
    moved = (
        recorded.events(["request", "transfer"]).filter(pl.col("request") == "r1020").drop_nulls("transfer").collect()
    )
    assert find_requests(recorded, answer, moved["transfer"][0]).rows["request"].to_list() == ["r1020"]
    assert find_requests(recorded, answer, "nobody").total == 0


def test_forbidden_pairs_are_those_of_the_leaks(recorded: Store) -> None:
    pairs = sharing(recorded.result("read_causes"), recorded.result("findings"))
    forbidden = {(t, o) for t, o, s in pairs.select("tenant", "other_tenant", "standing").rows() if s == "forbidden"}
    assert forbidden == {("t-cedar", "t-ash"), ("t-cedar", "t-birch"), ("t-ash", "t-birch"), ("t-ash", "t-cedar")}


def test_allowed_sharing_is_called_allowed(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", "f01-common-system-prompt")
    audit_store(store)
    pairs = sharing(store.result("read_causes"), store.result("findings"))
    assert set(pairs["standing"]) == {"allowed"}


def test_promises_are_drawn_until_they_end(recorded: Store) -> None:
    told = figures(kvwitness.audit.query("limit_contradictions", store=recorded), 1 << 62)
    assert {"advertised", "enforced"} <= set(told["figure"])
    assert (told["until_ns"] >= told["time_ns"]).all()
    assert policies([]).is_empty()


def test_before_the_first_audit_tables_are_empty_and_typed(tmp_path: Path, recorded: Store) -> None:
    fresh = stored(tmp_path / "store", "k01-oversize-stub-handoff")
    for name in ("request_index", "kinds_seen", "gaps", "read_causes"):
        empty = result_table(fresh, name)
        assert empty.is_empty()
        kept = recorded.result(name).schema
        assert {column: kept[column] for column in empty.columns} == dict(empty.schema), name


def test_the_state_of_the_fleet_follows_from_the_record(tmp_path: Path, recorded: Store) -> None:
    nothing = Store.create(tmp_path / "nothing")
    answer = Answer.of_store(nothing, required=False)
    none = standings(answer.incidents, nothing.casebook.entries())
    assert fleet(answer, none, 0).state == "empty"
    assert fleet(answer, none, 5).state == "unjudged"
    judged = Answer.of_store(recorded)
    open_ = standings(judged.incidents, recorded.casebook.entries())
    assert fleet(judged, open_, 5).state == "leak"
    taken = open_.with_columns(standing=pl.lit("acknowledged"))
    assert fleet(judged, taken, 5).state == "settled"
    behind = lag(recorded, judged)
    assert (behind.unjudged, behind.rows) == (0, recorded.events().select(pl.len()).collect().item())


def test_what_retention_took_away_does_not_stand_for_what_came_in_since(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", "k01-oversize-stub-handoff")
    audit_store(store)
    judged = Answer.of_store(store)
    events = store.events().sort("ingest_row").collect()
    store.retain(older_than_ns=events["time_ns"].sort()[10])
    assert lag(store, judged).unjudged == 0
    with store.writer("late") as writer:
        writer.append(events.tail(3).drop("ingest", "ingest_row").to_arrow())
        writer.flush()
    assert lag(store, judged).unjudged == 3
