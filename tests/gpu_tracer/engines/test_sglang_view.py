"""What the SGLang adapter makes of an engine's request table, allocator and tree, without SGLang: they are made up."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvwitness.gpu_tracer.engines import sglang as adapter
from kvwitness.gpu_tracer.engines._sglang_transfers import Transfers
from kvwitness.gpu_tracer.engines._sglang_view import View
from kvwitness.gpu_tracer.engines.identity import Identity
from tests.engines.judged import Judged, judged

SIZE, PAGES = 4, 32
KEY = b"0123456789abcdef"


class PagedTokenToKVPoolAllocator:
    """By its name, an allocator that the adapter follows."""

    page_size, size = SIZE, SIZE * (PAGES - 1)


class Finish:
    def to_json(self) -> dict[str, str]:
        return {"type": "length"}


class FINISH_ABORT(Finish):
    status_code = None

    def to_json(self) -> dict[str, str]:
        return {"type": "abort"}


class Mode:
    def __init__(self, *, extend: bool) -> None:
        self._extend = extend

    def is_prebuilt(self) -> bool:
        return False

    is_idle = is_prebuilt

    def is_extend(self) -> bool:
        return self._extend


class Engine:
    """Requests and their rows, moved by hand; what SGLang would call, calls the adapter."""

    def __init__(self) -> None:
        self.rows = SimpleNamespace(req_to_token=np.zeros((8, 64), dtype=np.int32))
        self.allocator, self.tree = PagedTokenToKVPoolAllocator(), SimpleNamespace(disable=False)
        arguments = SimpleNamespace(
            disaggregation_mode="null", pp_size=1, served_model_name="tiny", model_path="/x/tiny",
            enable_hierarchical_cache=False, dcp_size=1,
        )  # fmt: skip
        scheduler = SimpleNamespace(
            token_to_kv_pool_allocator=self.allocator, req_to_token_pool=self.rows, tree_cache=self.tree,
            server_args=arguments, ps=SimpleNamespace(tp_rank=0, dp_rank=None), enable_overlap=False,
            model_config=SimpleNamespace(context_len=60), max_req_input_len=60,
            spec_algorithm=SimpleNamespace(is_none=lambda: True),
        )  # fmt: skip
        self.view = View(scheduler, Identity(KEY), "sglang 0.5.19")
        self._free = list(range(1, 8))

    def arrives(self, name: str, tokens: list[int], salt: str | None) -> Any:
        sampling = SimpleNamespace(max_new_tokens=8)
        adapter._request_arrives(
            None, SimpleNamespace(rid=name, input_ids=tokens, cache_salt=salt, sampling_params=sampling)
        )
        kv = SimpleNamespace(req_pool_idx=self._free.pop(0), kv_committed_len=0)
        return SimpleNamespace(
            rid=name, origin_input_ids=array("q", tokens), output_ids=[], kv=kv, finished_reason=None
        )

    def steps(self, request: Any, pages: list[int], upto: int, *, prefix: int = 0, decode: bool = False) -> None:
        """A step for one request, whose row has these pages."""
        slots = [page * SIZE + n for page in pages for n in range(SIZE)]
        self.rows.req_to_token[request.kv.req_pool_idx, : len(slots)] = slots
        request.kv.kv_committed_len = upto
        batch = SimpleNamespace(forward_mode=Mode(extend=not decode), reqs=[request], prefix_lens=[prefix])
        adapter._running(None, batch)
        adapter._ran(None, batch)

    def inserts(self, request: Any, pages: list[int], present: int = 0) -> None:
        slots = np.array([page * SIZE + n for page in pages for n in range(SIZE)])

        class Key:
            token_ids = request.origin_input_ids

            def __len__(self) -> int:
                return len(slots)

        parameters = SimpleNamespace(key=Key(), value=slots)
        adapter._inserting(self.tree, parameters)
        adapter._inserted(None, SimpleNamespace(prefix_len=present), self.tree, parameters)

    def ends(self, request: Any, released: list[int], finish: Finish | None = None) -> None:
        request.finished_reason = finish or Finish()
        adapter._pages_back(self.allocator, np.array(released, dtype=np.int64))
        adapter._row_back(self.rows, request)
        adapter._answering(None, None, None, [request])


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    (tmp_path / "rings").mkdir()
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("KVWITNESS_ENGINE", "e")
    made = Engine()
    monkeypatch.setattr(adapter, "view", made.view)
    monkeypatch.setattr(adapter, "transfers", Transfers(made.view))
    yield made
    made.view.tracer.close()


def record(tmp_path: Path) -> Judged:
    return judged(tmp_path / "rings", tmp_path)


def test_pages_pass_from_one_request_to_the_next(engine: Engine, tmp_path: Path) -> None:
    first = engine.arrives("r1", [*range(6)], "ash")
    engine.steps(first, [3, 4], 6)
    engine.steps(first, [3, 4], 7, prefix=6, decode=True)
    engine.ends(first, [3, 4])
    second = engine.arrives("r2", [*range(7)], "birch")
    engine.steps(second, [4, 5], 7)
    engine.ends(second, [4, 5])
    seen = record(tmp_path)
    assert seen.verdicts == {"r1": "clean", "r2": "clean"}
    assert [(r["request"], r["pages"]) for r in seen.rows("page.alloc")] == [("r1", [3, 4]), ("r2", [4, 5])]
    assert [r["reason"] for r in seen.rows("page.free")] == ["finish", "finish"]
    assert engine.view.live == {}


def test_a_page_that_was_given_and_never_written_is_found(engine: Engine, tmp_path: Path) -> None:
    first = engine.arrives("r1", [*range(8)], "ash")
    engine.steps(first, [3, 4], 8)
    engine.ends(first, [3, 4])
    second = engine.arrives("r2", [*range(8)], "birch")
    engine.steps(second, [3, 4], 8, prefix=4)  # as if the first page had come from somewhere
    assert record(tmp_path).verdicts == {"r1": "clean", "r2": "leak"}


def test_the_tree_keeps_pages_and_lends_them(engine: Engine, tmp_path: Path) -> None:
    first = engine.arrives("r1", [*range(10)], "ash")
    engine.steps(first, [3, 4, 5], 10)
    engine.inserts(first, [3, 4])
    engine.ends(first, [5])
    second = engine.arrives("r2", [*range(8), 77], "ash")
    engine.steps(second, [3, 4, 6], 9, prefix=8)
    engine.inserts(second, [3, 4], present=8)
    engine.ends(second, [6])
    adapter._pages_back(engine.allocator, np.array([3, 4]))
    third = engine.arrives("r3", [*range(4)], "birch")
    engine.steps(third, [3], 4)
    seen = record(tmp_path)
    assert set(seen.verdicts.values()) == {"clean"}
    published = {r["pages"][0]: (r["key"], r["digest"]) for r in seen.rows("page.publish")}
    assert {r["pages"][0]: (r["key"], r["digest"]) for r in seen.rows("page.share")} == published
    assert [r.get("to") for r in seen.rows("page.free") if r["pages"] == [3, 4]] == ["cache", None, None]
    assert [r["pages"] for r in seen.rows("page.unpublish")] == [[3, 4]]


def test_a_copy_that_the_tree_has_already_takes_the_requests_own_place(engine: Engine, tmp_path: Path) -> None:
    first, second = engine.arrives("r1", [*range(10)], "ash"), engine.arrives("r2", [*range(10)], "ash")
    engine.steps(first, [3, 4, 5], 10)
    engine.steps(second, [6, 7, 8], 10)
    engine.inserts(first, [3, 4])
    adapter._pages_back(engine.allocator, np.array([6, 7]))
    engine.inserts(second, [6, 7], present=8)
    engine.steps(second, [3, 4, 8], 11, prefix=10)
    engine.ends(second, [8])
    engine.ends(first, [5])
    seen = record(tmp_path)
    assert seen.verdicts == {"r1": "clean", "r2": "clean"}
    assert [r["pages"] for r in seen.rows("page.share")] == [[3], [4]]


def test_a_session_hands_pages_on(engine: Engine, tmp_path: Path) -> None:
    first = engine.arrives("r1", [*range(8)], "ash")
    engine.steps(first, [3, 4], 8)
    first.finished_reason = Finish()
    adapter._answering(None, None, None, [first])
    second = engine.arrives("r2", [*range(12)], "ash")
    engine.steps(second, [3, 4, 5], 12, prefix=8)
    engine.ends(second, [3, 4, 5])
    seen = record(tmp_path)
    assert seen.grave() == []
    assert engine.view.owner == {}


def test_an_abort_is_put_down_when_it_is_carried_out(engine: Engine, tmp_path: Path) -> None:
    running, waiting = engine.arrives("r1", [*range(8)], "ash"), engine.arrives("r2", [*range(8)], "ash")
    engine.steps(running, [3, 4], 8)
    adapter._aborting(None, SimpleNamespace(rid="r", abort_all=False))
    assert waiting.finished_reason is None
    engine.steps(running, [3, 4, 5], 9, decode=True)
    engine.ends(running, [3, 4, 5], FINISH_ABORT())
    seen = record(tmp_path)
    assert seen.grave() == []
    told = [r["event"] for r in seen.rows("page.read", "page.free", "request.aborted") if r["request"] == "r1"]
    assert told[-1] == "request.aborted"
    assert [r["request"] for r in seen.rows("request.aborted")] == ["r2", "r1"]


def test_no_salt_stands_in_the_record(engine: Engine, tmp_path: Path) -> None:
    engine.arrives("r1", [1, 2], "the salt itself")
    (received,) = record(tmp_path).rows("request.received")
    assert received["tenant"] == f"salt-{Identity(KEY).hashed('salt', 'the salt itself')}"
    assert "the salt itself" not in str(received)
