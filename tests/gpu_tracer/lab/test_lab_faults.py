"""Each fault of the lab leaks in earnest, and is found; without a fault nothing is."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.audit.trace.ring import Sizes  # noqa: E402
from kvwitness.gpu_tracer.lab.cluster import Cluster  # noqa: E402
from kvwitness.gpu_tracer.lab.faults import TOLD, Fault, Guard  # noqa: E402
from kvwitness.gpu_tracer.lab.run import Outcome, run  # noqa: E402
from kvwitness.gpu_tracer.lab.traffic import ASH, SECRET, play, script  # noqa: E402
from tests.engines.judged import Judged, judged  # noqa: E402

torch.set_num_threads(1)
FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
LEFT_BEHIND = [Fault.PLACEHOLDER, Fault.DROPPED_PAGES, Fault.DROPPED_LAYER]
"""Where the bytes that are read were left behind at a free: a guard helps then."""
BYTES_ALONE = [Fault.DROPPED_PAGES, Fault.DROPPED_LAYER, Fault.UNSEEN_WRITE]
"""Where the record of pages and transfers is in order, and nothing but fingerprints can tell."""


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@functools.cache
def seen(fault: Fault, guard: Guard = Guard.NONE, seed: int = 0) -> tuple[Outcome, Judged]:
    """A run and what the audit says of it."""
    work = Path(_directory().name) / f"{fault}-{guard}-{seed}"
    (work / "rings").mkdir(parents=True)
    outcome = run(work / "rings", fault, guard=guard, seed=seed)
    return outcome, judged(work / "rings", work)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_answer_to_another_tenant_holds_the_secret_and_depends_on_it(fault: Fault) -> None:
    outcome, _ = seen(fault)
    told = [one for one in outcome.answers if outcome.tells(one)]
    assert [(one.job.request, one.job.tenant, one.status) for one in told] == [(TOLD[fault].request, "t-birch", 200)]
    assert SECRET not in told[0].job.prompt
    assert told[0] in [one for one, _ in outcome.depending]


@pytest.mark.parametrize("guard", [Guard.SCRUB, Guard.POISON, Guard.REFUSE])
@pytest.mark.parametrize("fault", LEFT_BEHIND)
def test_with_a_guard_nothing_depends_on_the_secret_and_the_fault_is_found_all_the_same(
    fault: Fault, guard: Guard
) -> None:
    outcome, found = seen(fault, guard)
    assert outcome.depending == []
    assert not any(outcome.tells(one) for one in outcome.answers)
    refused = fault is Fault.PLACEHOLDER and guard is Guard.REFUSE  # then it was served, and never answered
    assert found.verdicts[TOLD[fault].request] == ("exposure" if refused else "integrity")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_at_the_request_that_leaked(fault: Fault) -> None:
    _, found = seen(fault)
    victim = [one for one in found.findings if one["request"] == TOLD[fault].request]
    assert {*TOLD[fault].rules} <= {one["rule"] for one in victim}
    elsewhere = {one["rule"] for one in found.findings if one["request"] == TOLD[fault].also}
    assert {*TOLD[fault].elsewhere} <= elsewhere
    leaks = [one for one in victim if one["verdict"] == "leak"]
    assert {tenant for one in leaks for tenant in one["other_tenants"]} == {ASH}
    assert all(one["pages"] and one["gens"] for one in leaks)


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_that_a_fault_did_not_touch_are_clean(fault: Fault) -> None:
    outcome, found = seen(fault)
    assert found.verdicts.keys() == {one.job.request for one in outcome.answers}
    concerned = {TOLD[fault].request, TOLD[fault].also} - {None}
    assert {name for name, verdict in found.verdicts.items() if verdict != "clean"} == concerned


@pytest.mark.parametrize("fault", BYTES_ALONE)
def test_where_the_record_is_in_order_the_bytes_tell(fault: Fault) -> None:
    _, found = seen(fault)
    assert {one["rule"] for one in found.findings} == {"stale-content"}


def test_the_layer_that_was_lost_is_named() -> None:
    _, found = seen(Fault.DROPPED_LAYER)
    assert all("in layer 1" in one["why"] for one in found.findings)
    _, whole = seen(Fault.DROPPED_PAGES)
    assert not any("layer" in one["why"] for one in whole.findings)


def test_no_text_is_on_record() -> None:
    outcome, found = seen(Fault.PLACEHOLDER)
    record = found.events.write_json()
    assert "decode-0/0/kv" in record
    for text in (f"={SECRET}", f'"{SECRET}', "pin", "note:", outcome.script.secret.prompt[:8]):
        assert text not in record


@pytest.mark.parametrize("guard", Guard)
def test_without_a_fault_nothing_is_found(guard: Guard) -> None:
    outcome, found = seen(Fault.NONE, guard)
    assert outcome.depending == []
    assert {one.status for one in outcome.answers if one.job.request == "r-long"} == {400}
    assert found.findings == []
    assert set(found.verdicts.values()) == {"clean"}


def healthy(rounds: int, work: Path) -> Judged:
    """So many rounds of traffic, in deployments that live for fifty each."""
    (work / "rings").mkdir(parents=True)
    for first in range(0, rounds, 50):
        sizes = Sizes(slots=1 << 15, strings=1 << 15, arena=8 << 20)
        cluster = Cluster(work / "rings", label=f"d{first}-", sizes=sizes, guard=list(Guard)[first // 50 % 3])
        for seed in range(first, min(first + 50, rounds)):
            play(cluster, script(str(1000 + 17 * seed), seed // 2, f"-{seed}"))
        cluster.close()
    return judged(work / "rings", work)


def test_healthy_rounds_in_one_deployment_are_clean(tmp_path: Path) -> None:
    found = healthy(12, tmp_path)
    assert (found.lost, found.findings) == (0, [])
    assert len(found.verdicts) == 12 * 9
    assert set(found.verdicts.values()) == {"clean"}


@pytest.mark.slow
def test_five_hundred_healthy_rounds_are_clean(tmp_path: Path) -> None:
    found = healthy(500, tmp_path)
    assert (found.lost, found.findings) == (0, [])
    assert set(found.verdicts.values()) == {"clean"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_whatever_the_words(fault: Fault, seed: int) -> None:
    _, found = seen(fault, seed=seed)
    rules = {one["rule"] for one in found.findings if one["request"] == TOLD[fault].request}
    assert {*TOLD[fault].rules} <= rules
    assert found.verdicts[TOLD[fault].request] == "leak"
