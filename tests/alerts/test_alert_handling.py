"""What people do with incidents reaches their alerts: acknowledged, assigned, closed, reopened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwitness.audit.alerts.config import RuleSetting
from kvwitness.audit.store import Deed
from tests.alerts.support import Desk, drift, leak, over_limit, put
from tests.alerts.test_alert_checks import Post


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk.at(tmp_path)
    yield made
    made.ledger.close()


def test_an_alert_ends_when_the_last_of_its_incidents_is_closed(desk: Desk) -> None:
    desk.finds(leak(1), leak(2))
    desk.finds(leak(1, standing="closed", standing_by="ada"), leak(2))
    assert [n.status for n in desk.sink.notices] == ["firing"]
    desk.finds(leak(1, standing="closed", standing_by="ada"), leak(2, standing="closed", standing_by="bob"), due=[])
    told = desk.sink.notices[-1]
    assert (told.status, told.incidents) == ("resolved", 2)
    assert told.summary.startswith("The last of 2 incidents was closed by bob.")
    assert desk.ledger.alerts()[0].ended_by == "closed"


def test_closing_ends_what_would_have_to_be_calm_for_longer(desk: Desk) -> None:
    for _ in range(3):  # comes and goes
        desk.finds(drift())
        desk.finds(after="2h")
    desk.finds(drift())
    desk.finds(drift(standing="closed", standing_by="ada"))
    assert desk.sink.notices[-1].status == "resolved"
    assert desk.ledger.firing() == []


@pytest.mark.parametrize("again", ["open", "changed since closed"])
def test_what_is_reopened_or_has_changed_is_a_new_episode(desk: Desk, again: str) -> None:
    desk.finds(leak(1))
    desk.finds(leak(1, standing="closed", standing_by="ada"))
    desk.finds(leak(1, standing=again, standing_by="ada"), due=[])  # its rule was not looked at
    assert desk.ledger.firing() == []
    desk.finds(leak(1, standing=again, standing_by="ada"))
    assert [(n.status, n.episode) for n in desk.sink.notices] == [("firing", 1), ("resolved", 1), ("firing", 2)]


def test_an_incident_that_was_closed_before_raises_nothing(desk: Desk) -> None:
    desk.finds(leak(1, standing="closed", standing_by="ada"))
    assert desk.ledger.alerts() == []


def test_who_takes_it_up_is_told_at_once_and_once(desk: Desk) -> None:
    mine = {"standing": "acknowledged", "standing_by": "ada"}
    desk.finds(leak(1), leak(2))
    desk.finds(leak(1, **mine), leak(2))  # not yet all of it
    assert len(desk.sink.notices) == 1
    desk.finds(leak(1, **mine), leak(2, **mine))
    desk.finds(leak(1, **mine), leak(2, **mine))
    told = desk.sink.notices[-1]
    assert (len(desk.sink.notices), told.status, told.taken_up) == (2, "updated", True)
    assert (told.acknowledged, told.acknowledged_by, told.assigned_to) == (2, ("ada",), ())
    desk.finds(leak(1, **mine, assignee="bob"), leak(2, **mine))
    assert desk.sink.notices[-1].assigned_to == ("bob",)
    desk.finds(leak(1, **mine, assignee="bob"), leak(2, **mine), leak(3))  # something new that nobody has seen
    assert not desk.sink.notices[-1].taken_up
    assert len(desk.sink.notices) == 4


def test_notes_reach_the_next_check_whatever_is_due(tmp_path: Path) -> None:
    post = Post(tmp_path)
    put(post.store, over_limit(0, 1))
    post.check()
    (row,) = post.store.result("incidents").to_dicts()
    known = {"verdict": row["verdict"], "findings": row["findings"]}
    post.store.casebook.add(row["incident"], Deed.ACKNOWLEDGE, by="ada", **known)
    post.check("1m")
    assert post.sink.notices[-1].acknowledged_by == ("ada",)
    post.store.casebook.add(row["incident"], Deed.CLOSE, by="bob", text="engine patched", **known)
    report = post.check("1m")
    assert (report.due, report.outcome.resolved) == (0, 1)
    assert "engine patched" not in post.sink.notices[-1].to_json()  # what people write stays in the store
    post.store.casebook.add(row["incident"], Deed.REOPEN, by="bob", **known)
    assert post.check("5m").outcome.opened == 1


def test_notes_that_cannot_be_read_hold_no_alert_back(tmp_path: Path) -> None:
    post = Post(tmp_path, rules={"capacity-drift": RuleSetting()})
    put(post.store, over_limit(0, 1))
    post.store.casebook.add("inc-1", Deed.NOTE, by="ada", text="seen")
    (path,) = [p for p in (post.store.path / "casebook").iterdir() if "empty" not in p.name]
    path.write_bytes(b"{")
    assert post.check().failed is None
    assert {n.title for n in post.sink.notices} == {
        "kvwitness: Notes about incidents cannot be read", "1 request with wrong or undefined content: e",
    }  # fmt: skip
