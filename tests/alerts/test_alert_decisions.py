"""What is said, to whom, how often, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwitness.audit.alerts.config import Acceptance, QuietHours, Route, Silence
from kvwitness.audit.alerts.decide import resolve_by_hand
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.model import Signal
from tests.alerts.support import T0_NS, Desk, Memory, drift, leak

DAY_NS = 86_400 * 10**9


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk.at(tmp_path)
    yield made
    made.ledger.close()


def test_a_storm_of_155_is_one_page_with_updates_and_one_resolution(desk: Desk) -> None:
    found = [leak(0)]
    desk.finds(*found)
    for n in range(1, 155):
        found.append(leak(n))
        desk.finds(*found, after="10m")
    desk.finds(*found, after="23h")
    assert all(n.status != "resolved" for n in desk.sink.notices)
    desk.finds(*found, after="1h")
    statuses = [n.status for n in desk.sink.notices]
    assert statuses[0] == "firing"
    assert statuses[-1] == "resolved"
    assert set(statuses[1:-1]) == {"updated"}
    assert 20 <= len(statuses) <= 28  # once an hour, not 155 times
    assert desk.sink.notices[0].incidents == 1
    assert desk.sink.notices[-1].incidents == 155
    assert len({n.key for n in desk.sink.notices}) == len(statuses)


def test_155_at_once_are_one_page_with_the_count(desk: Desk) -> None:
    desk.finds(*(leak(n) for n in range(155)))
    assert desk.sink.said == [("firing", "critical", 155)]
    assert desk.sink.notices[0].title == "155 requests leaked: dec-1"
    assert desk.sink.notices[0].runbook == "https://runbooks.example.org/#foreign-page-read"


def test_the_same_again_says_nothing(desk: Desk) -> None:
    for _ in range(5):
        desk.finds(leak(1), leak(2))
    assert desk.sink.said == [("firing", "critical", 2)]


def test_leaks_on_two_engines_are_two_alerts(desk: Desk) -> None:
    desk.finds(leak(1), leak(2, engine="dec-2"))
    assert [n.labels["engine"] for n in desk.sink.notices] == ["dec-1", "dec-2"] or [
        n.labels["engine"] for n in desk.sink.notices
    ] == ["dec-2", "dec-1"]


def test_names_of_tenants_stay_here_unless_they_are_asked_for(tmp_path: Path) -> None:
    for name, wanted in (("a", False), ("b", True)):
        desk = Desk.at(tmp_path / name, name_tenants=wanted) if (tmp_path / name).mkdir() is None else None
        assert desk is not None
        desk.finds(leak(1))
        assert ("t-b" in desk.sink.notices[0].to_json()) is wanted
        assert desk.sink.notices[0].tenants == 2


def test_a_lasting_condition_fires_until_it_is_gone(desk: Desk) -> None:
    for _ in range(3):
        desk.finds(drift(), after="30h")
    assert desk.sink.said == [("firing", "medium", 1)]
    desk.finds()
    assert [n.status for n in desk.sink.notices] == ["firing", "resolved"]


def test_one_that_comes_and_goes_has_to_stay_away_longer_each_time(desk: Desk) -> None:
    for _ in range(12):
        desk.finds(drift())
        desk.finds()
    assert len(desk.sink.notices) <= 6
    assert desk.sink.notices[-1].status == "firing"


def test_findings_that_come_back_after_a_calm_need_a_longer_calm(desk: Desk) -> None:
    desk.finds(leak(1))
    desk.finds(leak(1), after="24h")
    desk.finds(leak(1), leak(2), after="1h")
    desk.finds(leak(1), leak(2), after="24h")
    assert [n.status for n in desk.sink.notices] == ["firing", "resolved", "firing"]
    assert desk.sink.notices[-1].episode == 2
    desk.finds(leak(1), leak(2), after="24h")
    assert desk.sink.notices[-1].status == "resolved"


def test_rules_that_are_not_due_leave_their_alerts_alone(desk: Desk) -> None:
    desk.finds(drift())
    desk.finds(leak(1), due=["foreign-page-read"])
    assert [n.verdict for n in desk.sink.notices] == ["exposure", "leak"]
    desk.finds(due=["foreign-page-read"])
    assert {row.verdict for row in desk.ledger.firing()} == {"exposure"}


def test_a_severity_that_rises_is_said_at_once(desk: Desk) -> None:
    integrity = leak(1, verdict="integrity", rules=("status-mismatch",))
    desk.finds(integrity)
    desk.finds(integrity, leak(2, verdict="integrity", rules=("canary-leak",)))
    assert desk.sink.said == [("firing", "high", 1), ("updated", "critical", 2)]
    assert desk.sink.notices[1].previous_severity == "high"


def test_unproven_requests_raise_no_alert_but_a_gap_of_a_source_does(desk: Desk) -> None:
    desk.finds(leak(1, verdict="unproven"), Signal("inc-g", "unproven", ("telemetry-gap",), engine="e"))
    assert [n.rules for n in desk.sink.notices] == [("telemetry-gap",)]


def test_many_alerts_at_once_become_one(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, group_by=("incident",), storm=20)
    desk.finds(*(leak(n) for n in range(21)))
    assert [(n.incidents, dict(n.labels)) for n in desk.sink.notices] == [(21, {"verdict": "leak", "storm": "many"})]
    desk.finds(*(leak(n) for n in range(22)))
    assert [n.incidents for n in desk.sink.notices] == [21, 1]


def accepted(until_ns: int) -> Acceptance:
    return Acceptance("risk-1", Matcher(rule=("capacity-drift",)), "CISO", until_ns, "known", "info", 7 * DAY_NS)


def test_an_acceptance_changes_severity(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, acceptances=(accepted(T0_NS + 300 * DAY_NS),))
    desk.finds(drift())
    assert desk.sink.said == [("firing", "info", 1)]
    assert desk.sink.notices[0].accepted == "risk-1"


def test_an_acceptance_of_what_fires_already_moves_it(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path)
    desk.finds(drift(), drift("pf-2"))
    match = Matcher(rule=("capacity-drift",), engine=("pf-1",))
    risk = Acceptance("risk-1", match, "CISO", T0_NS + 300 * DAY_NS, "known", "info", DAY_NS)
    later = Desk.at(tmp_path, sinks=desk.config.sinks, acceptances=(risk,))
    later.clock = desk.clock
    later.finds(drift(), drift("pf-2"), after="2h")
    assert sorted(desk.sink.said) == [("firing", "info", 1), ("firing", "medium", 2), ("updated", "medium", 1)]


def test_an_acceptance_ends_loudly(tmp_path: Path) -> None:
    from kvwitness.audit.alerts.signals import of_the_watching

    desk = Desk.at(tmp_path, acceptances=(accepted(T0_NS + 30 * DAY_NS),))

    def day(days: str) -> list[tuple[str, str]]:
        seen = len(desk.sink.notices)
        desk.clock.turn(days)
        watching = of_the_watching(desk.config, desk.ledger, desk.clock.now_ns(), None)
        desk.finds(drift(), *watching, after="1s")
        return sorted((n.title, n.severity) for n in desk.sink.notices[seen:] if n.status == "firing")

    drifted = "Advertised, enforced and real capacity disagree (pf-1)"
    assert day("1d") == [(drifted, "info")]
    assert day("25d") == [("kvwitness: A risk acceptance is about to end", "medium")]
    assert day("5d") == [(drifted, "medium"), ("kvwitness: A risk acceptance has ended", "high")]
    assert [row.labels for row in desk.ledger.firing() if "accepted" in row.labels] == []


def test_a_silence_keeps_quiet_and_what_still_fires_is_told_at_its_end(tmp_path: Path) -> None:
    silence = Silence("s1", Matcher(engine=("dec-*",)), "sre", T0_NS + DAY_NS // 2, "upgrade")
    desk = Desk.at(tmp_path, silences=(silence,))
    desk.finds(leak(1))
    assert desk.sink.notices == []
    assert [row.silenced for row in desk.ledger.firing()] == [True]
    desk.finds(leak(1), leak(2, engine="pf-1"))
    assert [n.labels["engine"] for n in desk.sink.notices] == ["pf-1"]
    desk.finds(leak(1), after="12h")
    assert desk.sink.notices[-1].labels["engine"] == "dec-1"


def test_quiet_hours_hold_back_what_is_not_urgent(tmp_path: Path) -> None:
    # T0 is Monday, 21 September 2026, 14:13:20 UTC.
    desk = Desk.at(tmp_path, quiet=(QuietHours(tuple(range(7)), 22 * 60, 7 * 60, "UTC", "critical"),))
    desk.finds(after="9h")
    desk.finds(drift(), leak(1))
    assert desk.sink.said == [("firing", "critical", 1)]
    desk.finds(drift(), leak(1), drift("pf-2"), after="2h")
    assert len(desk.sink.notices) == 1
    desk.clock.turn("6h")
    desk.deliver()
    assert desk.sink.said[1:] == [("firing", "medium", 2)] or desk.sink.said[1:] == [("updated", "medium", 2)]


def test_routes_by_verdict_and_severity(tmp_path: Path) -> None:
    pager, mail = Memory(), Memory()
    routes = (
        Route("leaks", Matcher(verdict=("leak",)), ("pager",), True),
        Route("rest", Matcher(), ("mail",), False),
    )
    desk = Desk.at(tmp_path, sinks={"pager": pager, "mail": mail}, routes=routes)
    desk.finds(leak(1), drift())
    assert [n.verdict for n in pager.notices] == ["leak"]
    assert sorted(n.verdict for n in mail.notices) == ["exposure", "leak"]


def test_who_hears_late_hears_of_a_firing_alert_and_of_its_end(tmp_path: Path) -> None:
    pager, mail = Memory(), Memory()
    routes = (
        Route("urgent", Matcher(severity="critical"), ("pager",), True),
        Route("rest", Matcher(), ("mail",), False),
    )
    desk = Desk.at(tmp_path, sinks={"pager": pager, "mail": mail}, routes=routes)
    low, high = (
        leak(n, verdict="integrity", rules=(rule,)) for n, rule in ((1, "status-mismatch"), (2, "canary-leak"))
    )
    desk.finds(low)
    desk.finds(low, high)
    desk.finds(low, high, after="24h")
    assert [n.status for n in pager.notices] == ["firing", "resolved"]
    assert [n.status for n in mail.notices] == ["firing", "updated", "resolved"]


def test_an_alert_ended_by_hand_comes_back_with_news_only(desk: Desk) -> None:
    desk.finds(drift())
    alert = desk.sink.notices[0].alert
    with desk.ledger.transaction():
        assert resolve_by_hand(desk.ledger, desk.config, alert, "ann", desk.clock.now_ns())
        assert not resolve_by_hand(desk.ledger, desk.config, alert, "ann", desk.clock.now_ns())
    desk.finds(drift())
    assert [n.status for n in desk.sink.notices] == ["firing", "resolved"]
    assert "ann" in desk.sink.notices[-1].summary
    desk.finds(drift(findings=2))
    assert [n.status for n in desk.sink.notices] == ["firing", "resolved", "firing"]
