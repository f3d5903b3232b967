"""A whole vLLM engine with a real model under the adapter: healthy traffic is clean, faults that it has are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.trace import expand_pages
from kvwitness.gpu_tracer.engines import vllm as adapter
from kvwitness.gpu_tracer.engines.identity import Identity
from tests.engines.judged import judged
from tests.engines.vllm.model import Whole, tiny_weights

ASH = [5 + n * 7 % 450 for n in range(160)]
BIRCH = [9 + n * 11 % 450 for n in range(120)]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def loads_nothing(rings: Path, weights: str) -> Iterator[Whole]:
    engine = Whole(
        weights, pages=12, length=256, caching=False, disable_hybrid_kv_cache_manager=True,
        kv_transfer_config={
            "kv_connector": "ClaimsAndLoadsNothing", "kv_role": "kv_both",
            "kv_connector_module_path": "tests.engines.vllm.connectors",
        },
    )  # fmt: skip
    yield engine
    engine.close()


def salted(salt: str) -> str:
    return f"salt-{Identity.from_environment().hashed('salt', salt)}"


def test_healthy_traffic_is_clean(rings: Path, weights: str, tmp_path: Path) -> None:
    engine = Whole(weights)
    first = engine.ask((ASH, "ash"), (BIRCH, "birch"))
    again = engine.ask((ASH, "ash"), (ASH, "birch"))
    engine.close()
    assert [one.cached for one in again] == [128, 0]
    assert again[0].tokens == first[0].tokens == again[1].tokens
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    assert record.findings == []
    assert list(record.verdicts.values()) == ["clean"] * 4
    told = {r["request"]: (r["cached_tokens"], r["completion_tokens"]) for r in record.rows("request.finished")}
    assert sorted(told.values()) == [(0, 8), (0, 8), (0, 8), (128, 8)]


def test_a_connector_that_claims_a_hit_and_loads_nothing_shows_the_previous_tenants_pages(
    loads_nothing: Whole, rings: Path, tmp_path: Path
) -> None:
    loads_nothing.ask((ASH[:90], "ash"))
    (birch,) = loads_nothing.ask((BIRCH, "birch"))
    assert birch.finish == "length"
    assert birch.cached == 96
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    names = {r["tenant"]: r["request"] for r in record.rows("request.received")}
    victim, reader = names[salted("ash")], names[salted("birch")]
    assert record.verdicts == {victim: "clean", reader: "leak"}
    leaks = [f for f in record.findings if f["verdict"] == "leak"]
    assert {f["rule"] for f in leaks} >= {"unwritten-page-read"}
    (unwritten,) = (f for f in leaks if f["rule"] == "unwritten-page-read")
    assert unwritten["request"] == reader
    assert unwritten["other_tenants"] == [salted("ash")]
    (begun,) = record.rows("transfer.begin")
    assert begun["request"] == reader
    held = {page for r in record.rows("page.alloc") if r["request"] == victim for page in r["pages"]}
    shown = set(expand_pages(unwritten["pages"]).tolist())
    assert shown == held & set(begun["dst_pages"])
    assert shown


def test_what_is_refused_is_answered_by_an_error_and_never_by_the_previous_tenants_pages(
    rings: Path, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuse")
    engine: Whole = request.getfixturevalue("loads_nothing")
    (ash,) = engine.ask((ASH[:90], "ash"))
    (birch,) = engine.ask((BIRCH, "birch"))
    (again,) = engine.ask((ASH[:90], "ash"))
    assert (birch.finish, birch.tokens) == ("error", [])
    assert ash.tokens == again.tokens
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    reader = next(r["request"] for r in record.rows("request.received") if r["tenant"] == salted("birch"))
    assert [(r["request"], r["by"]) for r in record.rows("request.aborted")] == [(reader, "kvwitness")]
    assert [r["request"] for r in record.rows("shadow.finding")] == [reader]
    (finished,) = (r for r in record.rows("request.finished") if r["request"] == reader)
    assert (finished["status"], finished["finish_reason"]) == (500, "error")


def test_with_refusal_on_healthy_traffic_is_answered_as_before(
    rings: Path, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_SHADOW", "refuse")
    engine = Whole(weights)
    first = engine.ask((ASH, "ash"), (BIRCH, "birch"))
    again = engine.ask((ASH, "ash"), (ASH, "birch"))
    engine.close()
    assert again[0].tokens == first[0].tokens == again[1].tokens
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    assert record.rows("shadow.finding") == []
    assert list(record.verdicts.values()) == ["clean"] * 4


def test_a_store_that_ignores_salts_serves_one_tenant_what_another_put_there(
    rings: Path, weights: str, tmp_path: Path
) -> None:
    engine = Whole(
        weights, disable_hybrid_kv_cache_manager=True,
        kv_transfer_config={
            "kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "stored")},
        },
    )  # fmt: skip
    (ash,) = engine.ask((ASH[:100], "ash"))
    (other,) = engine.ask((BIRCH[:100], "birch"))
    (birch,) = engine.ask((ASH[:100], "birch"))
    engine.close()
    assert (ash.cached, other.cached, birch.cached) == (0, 0, 96)
    assert (birch.finish, birch.tokens) == ("length", ash.tokens)
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    first, _, last = [r["request"] for r in record.rows("request.received")]
    assert [(f["rule"], f["verdict"], f["request"]) for f in record.findings] == [("salt-crossing", "exposure", last)]
    (crossing,) = record.findings
    assert crossing["other_requests"] == [first]


def test_a_row_of_the_worker_that_is_not_as_planned_is_recorded_as_what_was_read(
    rings: Path, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    method = GPUModelRunner._prepare_inputs

    def crossed(runner: Any, *args: Any, **kwargs: Any) -> Any:
        """The second request's first page becomes the first one's."""
        batch = runner.input_batch
        if len(batch.req_ids) == 2:
            rows = batch.block_table.block_tables[0].get_numpy_array()
            rows[1, 0] = rows[0, 0]
        return method(runner, *args, **kwargs)

    engine = Whole(weights)
    truth = engine.ask((ASH, "ash"), (BIRCH, "birch"))
    monkeypatch.setattr(GPUModelRunner, "_prepare_inputs", crossed)
    wrong = engine.ask((ASH, "ash2"), (BIRCH, "birch2"))
    engine.close()
    assert wrong[0].tokens != truth[0].tokens  # what it reads there is what the second has written
    record = judged(rings, tmp_path)
    assert not adapter.guard.errors
    names = {r["tenant"]: r["request"] for r in record.rows("request.received")}
    verdicts = {tenant: record.verdicts[name] for tenant, name in names.items()}
    assert (verdicts[salted("ash")], verdicts[salted("birch")]) == ("clean", "clean")
    assert verdicts[salted("ash2")] == "leak"
    read = [f for f in record.findings if f["request"] == names[salted("ash2")] and f["verdict"] == "leak"]
    assert {tenant for f in read for tenant in f["other_tenants"]} == {salted("birch2")}
