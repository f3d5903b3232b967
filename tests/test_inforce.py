"""A store has one set of rule parameters in force, and each run says what it judged by."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.config import load
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.inforce import FILE, Parameters
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store, StoreError
from kvwitness.audit.trace import TraceReader
from tests.alerts.support import ManualClock, over_limit, put
from tests.cli.conftest import CASES, Command, command

__all__ = ["command"]

PROBING = CASES / "k09-prefix-probing.jsonl"


def params(store: Store) -> list[tuple[str, str, str]]:
    with store.connect() as con:
        asked = "SELECT rule, param, value FROM rule_params WHERE origin IS NOT NULL ORDER BY ALL"
        return con.execute(asked).fetchall()


def checked(store: Store, config: Path) -> None:
    with Ledger.of(store) as ledger:
        assert (
            check(store, load(config), ManualClock(), ledger, jitter=random.Random(1), every_rule=True).failed is None
        )


def test_an_audit_by_hand_judges_as_the_checks_do(tmp_path: Path, command: Command) -> None:
    store = Store.create(tmp_path / "s")
    put(store, over_limit(0, 1))
    config = tmp_path / "alerts.toml"
    config.write_text(
        'runbook = "https://r.example.org/"\n[rules.orphaned-pages]\nbound_s = 7\n'
        '[sinks.duty]\ntype = "slack"\nurl = { env = "NOT_SET_HERE" }\n[[route]]\nname = "all"\nsinks = ["duty"]\n'
    )
    said = command("audit", "--store", store.path, "--config", config, "--format", "jsonl")  # needs no key of a sink
    assert f"judged with orphaned-pages.bound_s = 7 ({config})" in said.err
    config.write_text('runbook = "https://r.example.org/"\n[rules.orphaned-pages]\nbound_s = 8\n')
    checked(store, config)
    assert params(store) == [("orphaned-pages", "bound_s", "8")]
    assert "bound_s = 8" in command("audit", "--store", store.path, "--format", "jsonl").err
    assert params(store) == [("orphaned-pages", "bound_s", "8")]
    config.write_text('runbook = "https://r.example.org/"\n')
    checked(store, config)  # has none: the defaults are in force
    assert "judged with" not in command("audit", "--store", store.path, "--format", "jsonl").err
    assert params(store) == []


def test_parameters_decide_what_is_found_and_stand_beside_it(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    reader = TraceReader(PROBING)
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name=PROBING.name)
    plain = audit_store(store)
    held = audit_store(store, parameters=Parameters({"prefix-probing": {"min_probes": 100}}, "a test"))
    again = audit_store(store)
    assert "prefix-probing" in plain.judgement.findings["rule"].to_list()
    assert "prefix-probing" not in held.judgement.findings["rule"].to_list()
    assert again.judgement.findings.equals(held.judgement.findings)
    rows = store.result("rule_params", run_id=again.run_id).rows(named=True)
    (row,) = [r for r in rows if r["origin"]]
    assert (row["rule"], row["param"], row["value"], row["origin"]) == ("prefix-probing", "min_probes", "100", "a test")
    assert all(r["value"] == r["default_value"] for r in rows if not r["origin"])
    reset = audit_store(store, parameters=Parameters())
    assert reset.judgement.findings.equals(plain.judgement.findings)


def test_parameters_that_cannot_be_read_are_not_taken_for_defaults(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    (store.path / FILE).write_text("{")
    with pytest.raises(StoreError, match=FILE):
        audit_store(store)
    assert audit_store(store, parameters=Parameters()).parameters == Parameters()


def test_a_trace_is_judged_by_the_parameters_that_are_named(tmp_path: Path, command: Command) -> None:
    config = tmp_path / "alerts.toml"
    config.write_text('runbook = "https://r.example.org/"\n[rules.prefix-probing]\nmin_probes = 100\n')
    plain = command("audit", "--trace", PROBING, "--format", "json").document
    named = command("audit", "--trace", PROBING, "--config", config, "--format", "json").document
    rules = [{f["rule"] for f in document["findings"] + document["engine_findings"]} for document in (plain, named)]
    assert rules[0] - rules[1] == {"prefix-probing"}
