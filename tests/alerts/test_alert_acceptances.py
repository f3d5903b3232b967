"""Accepting a risk by command: what it changes, what it does not, and how it ends."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvwitness.audit.alerts.accepted import given_in
from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.clock import SECOND_NS
from kvwitness.audit.alerts.config import load
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from tests.alerts.support import ManualClock
from tests.cli.conftest import CASES, Command, command

__all__ = ["command"]

DRIFT = CASES / "k14-advertised-beyond-pool.jsonl"


@pytest.fixture
def drifting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a capacity that does not fit, and a configuration."""
    monkeypatch.chdir(tmp_path)
    store = Store.create(tmp_path / "kvwitness-store")
    reader = TraceReader(DRIFT)
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name=DRIFT.name)
    (tmp_path / "kvwitness-alerts.toml").write_text(
        f'runbook = "https://r.example.org/"\n[sinks.journal]\ntype = "jsonfile"\npath = "{tmp_path}/out.jsonl"\n'
        '[[route]]\nname = "all"\nsinks = ["journal"]\n'
    )
    return tmp_path


def told(folder: Path) -> list[tuple[str, str, str | None]]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [(line["status"], line["severity"], line["accepted"]) for line in lines]


def test_from_an_alert_to_an_accepted_risk_and_back(drifting: Path, command: Command) -> None:
    assert command("check", "--exit-status").status == 1
    (engine,) = {row["engine"] for row in command("incidents", "--rule", "capacity-drift", "--format", "jsonl").rows}
    accept = ("alerts", "accept", "rule=capacity-drift", f"engine={engine}", "--by", "Head of Platform")
    said = command(*accept, "--until", "2199-03-31", "--reason", "next delivery")
    assert said.status == 0
    assert "accepted by Head of Platform until 2199-04-01" in said.err
    assert command("check", "--all", "--exit-status").status == 0
    ident = command("alerts", "acceptances", "--format", "jsonl").rows[0]["id"]
    assert {(s, a) for s, _, a in told(drifting)} == {("firing", None), ("resolved", None), ("firing", ident)}
    assert command("audit", "--format", "json").status == 1  # what is found is found
    shown = command("alerts", "status", "--format", "json").document
    assert (shown["firing"], shown["accepted"], shown["acceptances"][0]["state"]) == (1, 1, "holds")
    assert command("alerts", "unaccept", ident).status == 0
    assert command("alerts", "unaccept", ident).status == 2
    assert command("check", "--all", "--exit-status").status == 1


def test_its_end_is_an_alert_until_somebody_takes_it_back(drifting: Path, command: Command) -> None:
    command("alerts", "accept", "rule=capacity-drift", "--by", "ada", "--until", "2199-03-31", "--reason", "r")
    store = Store.open(drifting / "kvwitness-store")
    (one,) = given_in(store)
    config = load(drifting / "kvwitness-alerts.toml")
    with Ledger.of(store) as ledger:
        for before_s, wanted in ((86_400, "acceptance-expiring"), (-1, "acceptance-expired")):
            clock = ManualClock(one.until_ns - before_s * SECOND_NS)
            check(store, config, clock, ledger, jitter=random.Random(1), every_rule=True)
            firing = [Notice.from_json(row.notice) for row in ledger.firing() if row.notice]
            assert wanted in [rule for n in firing for rule in n.rules]
        severities = {n.severity for n in firing if "capacity-drift" in n.rules}
        assert severities != {"info"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("rule=none-such", "--until", "2199-01-01"), "fits no rule"),
        (("verdict=bad", "--until", "2199-01-01"), "fits no verdict"),
        (("colour=red", "--until", "2199-01-01"), "is not NAME=VALUE"),
        (("rule=capacity-drift", "--until", "soon"), "no day and no time"),
        (("rule=capacity-drift", "--until", "2001-01-01"), "is over"),
        (("rule=capacity-drift", "--until", "9999-12-31"), "later than 2261"),
        (("rule=capacity-drift", "--until", "2199-01-01", "--warn-before", "9999999d"), "longer than a hundred years"),
        (("rule=capacity-drift", "--until", "2199-01-01", "--severity", "loud"), "no severity"),
        (("rule=capacity-drift", "--until", "2199-01-01", "--warn-before", "x"), "no duration"),
    ],
)
def test_what_cannot_be_accepted(drifting: Path, command: Command, given: tuple[str, ...], said: str) -> None:
    refused = command("alerts", "accept", *given, "--by", "ada", "--reason", "r")
    assert (refused.status, said in refused.err) == (2, True), refused.err
    assert given_in(Store.open(drifting / "kvwitness-store")) == ()


def test_those_of_a_configuration_are_listed_without_the_keys_of_its_sinks(drifting: Path, command: Command) -> None:
    config = drifting / "kvwitness-alerts.toml"
    config.write_text(
        'runbook = "https://r.example.org/"\n[sinks.duty]\ntype = "slack"\nurl = { env = "NOT_SET_HERE" }\n'
        '[[route]]\nname = "all"\nsinks = ["duty"]\n[[acceptance]]\nid = "drift-2026"\n'
        'match = { rule = "capacity-drift" }\naccepted_by = "cto"\nuntil = 2001-01-01\nreason = "r"\n'
    )
    (row,) = command("alerts", "acceptances", "--format", "jsonl").rows
    assert (row["id"], row["state"], row["about"]) == ("drift-2026", "has ended", "rule capacity-drift")
