"""What each page says of each kind of store."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.rows import HeartbeatRow
from kvwitness.audit.cli.app import run
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store
from kvwitness.audit.wording import several
from tests.dashboards.conftest import PAGES, Open, judged, said
from tests.telling.test_traces import ALONE, SHARED, traced


@pytest.mark.parametrize("state", ["leaky", "gappy", "empty", "unjudged"])
def test_every_page_stands_on_every_store(state: str, look_at: Open, request: pytest.FixtureRequest) -> None:
    store: Store = request.getfixturevalue(state)
    for page in PAGES:
        app = look_at(store, page)
        assert not app.exception, (page, app.exception)
        assert not app.error, (page, [e.value for e in app.error])
        assert app.title, page


def test_no_store_says_how_to_get_one(look_at: Open, tmp_path: Path) -> None:
    app = look_at(tmp_path / "nowhere")
    assert not app.exception
    assert "kvwitness demo" in said(app)


def test_an_empty_store_says_what_to_do_next(look_at: Open, empty: Store) -> None:
    assert "kvwitness import" in said(look_at(empty))


def test_events_without_an_audit_are_not_called_clean(look_at: Open, unjudged: Store) -> None:
    told = said(look_at(unjudged))
    assert "none has been judged yet" in told
    assert "kvwitness audit" in told


def test_the_overview_names_the_leaks_and_whose_content_it_was(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky)
    told = said(app)
    assert "2 requests leaked: r1017 and r1020" in told
    assert "t-ash, t-birch and t-cedar" in told
    assert {metric.label: metric.value for metric in app.metric}["leak"] == "2"
    counted = next(frame.value for frame in app.dataframe if "standing" in frame.value.columns)
    assert set(counted["standing"]) == {"open"}
    assert all(age.endswith((" s", " min", " h")) for age in counted["age of the oldest"]), counted


def test_missing_telemetry_is_said_and_not_green(look_at: Open, gappy: Store) -> None:
    app = look_at(gappy)
    told = said(app)
    assert "unproven" in told
    assert "Every pool on record is observed" not in told
    assert "1 loss of telemetry" in told


def test_a_whole_record_is_called_watched(look_at: Open, leaky: Store) -> None:
    assert f"{len(RULES)} of {len(RULES)} rules had everything they need" in said(look_at(leaky))


def test_incidents_are_filtered_by_the_address(look_at: Open, leaky: Store) -> None:
    everything = leaky.result("incidents")
    leaks = everything.filter(pl.col("verdict") == "leak")
    assert f"{several(len(everything), 'incident')}**" in said(look_at(leaky, "incidents"))
    assert f"{several(len(leaks), 'incident')}**" in said(look_at(leaky, "incidents", verdict="leak"))
    mine = leaks.filter((pl.col("tenant") == "t-ash") | pl.col("other_tenants").list.contains("t-ash"))
    assert f"{several(len(mine), 'incident')}**" in said(look_at(leaky, "incidents", verdict="leak", tenant="t-ash"))


def test_the_incident_tells_its_story_with_both_sides_and_the_proof(look_at: Open, leaky: Store) -> None:
    incident = leaky.result("incidents").filter(pl.col("request") == "r1017")["incident"][0]
    app = look_at(leaky, "incident", incident=incident)
    told = said(app)
    assert "Request r1017 of tenant t-cedar read content of 2 other tenants: t-ash and t-birch" in told
    assert "What it means." in told
    assert "Where it may be wrong." in told
    events = next(frame.value for frame in app.dataframe if "what it shows" in frame.value.columns)
    proofs = events[events["proof"] == "proof"]
    assert len(proofs) > 3
    assert {"page.read decode", "request.finished"} <= set(events["event"])
    assert not app.code
    app.toggle(key="sql").set_value(True).run()
    assert any("FROM findings" in code.value for code in app.code)


def test_an_incident_of_an_engine_has_a_page_too(look_at: Open, leaky: Store) -> None:
    incident = leaky.result("incidents").filter(pl.col("request").is_null())["incident"][0]
    app = look_at(leaky, "incident", incident=incident)
    assert not app.exception
    assert not app.error, [e.value for e in app.error]
    assert "capacity-drift" in "".join(box.label for box in app.expander)


def test_an_incident_goes_by_the_beginning_of_its_id(look_at: Open, own: Store) -> None:
    row = own.result("incidents").row(0, named=True)
    own.casebook.add(row["incident"], "note", by="ada", text="seen")
    assert "seen" in said(look_at(own, "incident", incident=row["incident"][:9]))


def test_an_unknown_incident_is_told_in_a_sentence(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "incident", incident="inc-0000")
    assert not app.exception
    assert "There is no incident and no request 'inc-0000' on record." in said(app)


def test_the_page_map_shows_a_moment_and_the_life_of_a_page(look_at: Open, leaky: Store) -> None:
    incident = leaky.result("incidents").filter(pl.col("request") == "r1017").row(0, named=True)
    pool = incident["pools"][0]
    app = look_at(leaky, "page_map", pool=pool["pool"], at=incident["first_ns"], page=pool["pages"][0])
    told = said(app)
    assert "held with another tenant's content still in them" in told
    life = next(frame.value for frame in app.dataframe if "generation" in frame.value.columns and "what" in frame.value)
    assert "leak of r1017: unwritten-page-read" in " ".join(life["findings"])


def test_without_an_audit_no_page_denies_the_pools_that_are_on_record(look_at: Open, unjudged: Store) -> None:
    for page in ("page_map", "limits"):
        told = said(look_at(unjudged, page))
        assert "by an audit, and there was none" in told
        for denied in ("No page events are on record", "No pool of pages is on record"):
            assert denied not in told


@pytest.mark.parametrize("asked", ["9" * 4400, "-5", "1e9", "²", "abc"])
def test_an_address_that_names_no_moment_and_no_page_shows_the_map_all_the_same(
    look_at: Open, small: Store, asked: str
) -> None:
    app = look_at(small, "page_map", at=asked, page=asked)
    assert not app.error, [e.value for e in app.error]
    assert "Pages 0 to" in said(app)


def test_of_hundreds_of_pools_the_least_watched_are_listed_and_all_in_a_table(look_at: Open, tmp_path: Path) -> None:
    app = look_at(judged(tmp_path / "store", _fleet(tmp_path / "fleet.jsonl", 300)))
    assert not app.error
    listed = [m.value for m in app.markdown if "/full" in m.value]
    assert 0 < len(listed) < 20
    assert "eng\\-299" not in "".join(listed)
    assert "blind-0/0/full" in listed[0].replace("\\", "")
    table = next(frame.value for frame in app.dataframe if "pool" in frame.value.columns)
    assert len(table) == 301
    app = look_at(Store.open(tmp_path / "store"), "limits")
    boxes = [m.value for m in app.markdown if m.value.startswith("**")]
    assert 0 < len(boxes) < 20
    assert len(next(f.value for f in app.dataframe if "contradictions" in f.value.columns)) > 200


def _fleet(path: Path, engines: int) -> Path:
    """A trace of so many engines that contradict each other, and of one whose pages nobody is seen to use."""
    events: list[dict[str, object]] = []
    for n in range(engines):
        source, at = f"eng-{n:03}/0", 1_788_221_334.0 + n
        events += [
            {"t": at, "seq": 1, "source": source, "event": "engine.pool", "pool": f"{source}/full", "pages_total": 9,
             "page_tokens": 16},
            {"t": at, "seq": 2, "source": source, "event": "engine.limits", "engine": f"eng-{n:03}",
             "advertised_tokens": 100 + n, "input_limit_tokens": 100 + n},
            {"t": at, "seq": 3, "source": source, "event": "page.alloc", "pool": f"{source}/full", "pages": [1],
             "request": f"q{n}", "tenant": "t-a"},
            {"t": at, "seq": 4, "source": source, "event": "page.write", "pool": f"{source}/full", "pages": [1],
             "request": f"q{n}", "op": "forward", "tok": [0, 16]},
        ]  # fmt: skip
    events.append({"t": 1_788_221_334.0, "seq": 1, "source": "blind-0/0", "event": "page.alloc", "request": "b",
                   "pool": "blind-0/0/full", "pages": [1], "tenant": "t-a"})  # fmt: skip
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_steps_move_the_moment(look_at: Open, leaky: Store) -> None:
    incident = leaky.result("incidents").filter(pl.col("request") == "r1017").row(0, named=True)
    app = look_at(leaky, "page_map", pool=incident["pools"][0]["pool"], at=incident["first_ns"])
    app.button(key="step+1 s").click().run()
    assert app.query_params["at"] == str(incident["first_ns"] + 1_000_000_000)


def test_a_request_is_found_by_its_id_and_told_across_all_sources(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "requests", find="r1017")
    found = next(frame.value for frame in app.dataframe if "limit_engine" in frame.value.columns)
    assert list(found["request"]) == ["r1017"]
    app = look_at(leaky, "requests", request="r1017")
    course = next(frame.value for frame in app.dataframe if "what" in frame.value.columns)
    assert len(set(course["source"])) > 1
    assert {"request.received", "transfer.begin", "page.read decode"} <= set(course["event"])


def test_a_request_is_found_by_its_transfer(look_at: Open, leaky: Store) -> None:
    moves = leaky.events(["transfer", "request"]).filter(
        (pl.col("request") == "r1017") & pl.col("transfer").is_not_null()
    )
    app = look_at(leaky, "requests", find=moves.collect()["transfer"][0])
    found = next(frame.value for frame in app.dataframe if "limit_engine" in frame.value.columns)
    assert list(found["request"]) == ["r1017"]


def test_limits_tell_their_contradictions(look_at: Open, own: Store) -> None:
    told = said(look_at(own, "limits"))
    assert "enforces" in told
    assert "Nothing that engines announced contradicts" not in told


def test_one_tenant_is_told_what_a_customer_would_ask(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "tenants", tenant="t-ash")
    readers = next(frame.value for frame in app.dataframe if "proved" in frame.value.columns)
    assert "r1017" in set(readers["request"])


def test_questions_are_asked_with_their_parameters(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "ask", query="could_have_read", request_id="r1017")
    app.button[0].click().run()
    assert not app.error
    assert any("t-ash" in frame.value.to_string() for frame in app.dataframe)


def test_a_wrong_parameter_is_told_in_a_sentence(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "ask", query="could_have_read", request_id="r9999")
    app.button[0].click().run()
    assert "No event names the request 'r9999'." in app.error[0].value.replace("\\", "")


def test_sql_only_reads(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "ask", query="sql")
    app.text_area[0].set_value("DROP VIEW events")
    app.button[0].click().run()
    assert "DROP is not allowed here" in app.error[0].value
    app.text_area[0].set_value("SELECT count(*) AS n FROM events")
    app.button[0].click().run()
    assert not app.error


def test_health_counts_what_is_lost(look_at: Open, gappy: Store) -> None:
    app = look_at(gappy, "health")
    lost = next(frame.value for frame in app.dataframe if "from_seq" in frame.value.columns)
    assert set(lost["reason"]) == {"numbers are missing"}


def test_a_heartbeat_that_does_not_arrive_is_said(look_at: Open, own: Store) -> None:
    with Ledger.of(own) as ledger, ledger.transaction():
        ledger.set_done("late-read", 1_790_000_000_000_000_000, 0)
        ledger.set_heartbeat(HeartbeatRow("pager", None, 3, 1_790_000_000_000_000_000, "no route"))
    app = look_at(own, "health")
    assert "The heartbeat does not arrive at pager" in app.error[0].value
    beats = next(frame.value for frame in app.dataframe if "target" in frame.value.columns)
    assert list(beats["failures"]) == [3]


def test_risks_accepted_by_command_stand_beside_the_limits(look_at: Open, own: Store) -> None:
    accept = ["alerts", "accept", "rule=capacity-drift", "--until", "2199-01-01", "--by", "cto", "--reason", "known"]
    assert run([*accept, "--store", str(own.path), "--quiet"]) == 0
    app = look_at(own, "limits")
    accepted = next(frame.value for frame in app.dataframe if "accepted by" in frame.value.columns)
    assert list(accepted["accepted by"]) == ["cto"]


def test_events_that_came_in_since_are_said(look_at: Open, own: Store) -> None:
    with own.writer("late") as writer:
        writer.append(own.events().head(3).select(_event_columns(own)).collect().to_arrow())
        writer.flush()
    assert "3 events came in since and are not judged yet" in said(look_at(own, "health"))


def _event_columns(store: Store) -> list[str]:
    from kvwitness.audit.trace import EVENT_SCHEMA

    return [name for name in EVENT_SCHEMA.names if name in store.events().collect_schema()]


def test_accepted_risks_stand_beside_the_limits(
    look_at: Open, leaky: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "alerts.toml"
    risk = """runbook = "https://runbooks.example.com/kv"

[[acceptance]]
id = "drift"
match = { rule = "capacity-drift" }
accepted_by = "Head of Platform"
until = 2099-01-01
reason = "the pool grows with the next delivery"
"""
    config.write_text(risk)
    monkeypatch.setenv("KVWITNESS_ALERTS", str(config))
    app = look_at(leaky, "limits")
    assert not app.error, [e.value for e in app.error]
    accepted = next(frame.value for frame in app.dataframe if "accepted by" in frame.value.columns)
    assert list(accepted["accepted by"]) == ["Head of Platform"]
    assert list(accepted["state"]) == ["holds"]


def test_without_a_check_the_alerts_say_so(look_at: Open, leaky: Store) -> None:
    assert "No check of this store ever ran" in said(look_at(leaky, "health"))


def test_a_request_is_found_by_its_trace(look_at: Open, tmp_path: Path) -> None:
    store = judged(tmp_path / "store", traced(tmp_path / "traced.jsonl"))
    for pseudonyms in (False, True):
        app = look_at(store, "requests", find=ALONE, pseudonyms=pseudonyms)
        assert list(app.dataframe[-1].value["request"]) == ["r1003"]
        app = look_at(store, "requests", trace=ALONE.upper(), pseudonyms=pseudonyms)
        assert app.title[0].value == "Request r1003"
    facts = look_at(store, "requests", trace=ALONE).dataframe[0].value
    assert ALONE in set(facts["value"])
    assert "2 requests carry this trace id" in said(look_at(store, "requests", trace=SHARED))
    assert "No request on record carries this trace id" in said(look_at(store, "requests", trace="f" * 32))
