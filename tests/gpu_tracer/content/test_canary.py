"""Canary rows say which rows nobody wrote since a free, and which were written while nobody owned them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.gpu_tracer.content.canary import BYTES, Canaries, scrub  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page, whole_pages  # noqa: E402
from kvwitness.gpu_tracer.tracer import Tracer  # noqa: E402
from tests.engines.judged import judged  # noqa: E402

SECRET = b"a secret for the tests"
TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8]


def cache(
    kind: torch.dtype = torch.bfloat16, pages: int = 6, size: int = 4, width: int = 64
) -> tuple[torch.Tensor, list[Part]]:
    memory = torch.zeros(2, pages, size, 2, width).to(kind)
    return memory, [by_page(0, "K", memory[0]), by_page(0, "V", memory[1])]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_tag_is_finite_and_takes_only_the_head_of_a_row(kind: torch.dtype) -> None:
    memory, parts = cache(kind, 64)
    canaries = Canaries(parts, SECRET)
    canaries.plant(range(64), [3] * 64)
    assert bool(memory.float().isfinite().all())
    taken = BYTES // memory.element_size()
    assert not bool(memory[..., 1, :].float().any() or memory[..., 0, taken:].float().any())
    assert bool(canaries.present(range(64), [3] * 64).all())


def test_each_row_that_is_written_loses_its_tag_and_no_other() -> None:
    memory, parts = cache()
    canaries = Canaries(parts, SECRET)
    canaries.plant([1, 4], [1, 1])
    memory[0, 4, 2] = 1.0  # K of one slot, while V of it is lost
    left = canaries.present([4, 1], [1, 1])
    assert [tuple(at) for at in (~left).nonzero().tolist()] == [(0, 0, 2)]


def test_a_tag_tells_which_free_left_it() -> None:
    memory, parts = cache()
    canaries = Canaries(parts, SECRET)
    canaries.plant([1, 2], [1, 5])
    assert not bool(canaries.present([1, 2], [2, 4]).any())
    memory[:, 3] = memory[:, 1]  # the bytes of another page are not its own
    assert not bool(canaries.present([3], [1]).any())
    assert not bool(Canaries(parts, SECRET + b"!").present([1, 2], [1, 5]).any())


def test_a_write_to_a_page_that_nobody_owns_is_seen_on_that_page() -> None:
    memory, parts = cache()
    canaries = Canaries(parts, SECRET)
    canaries.plant([1, 2, 3], [1, 1, 1])
    memory[1, 2, 0, 0, 0] += 1
    intact = canaries.present([1, 2, 3], [1, 1, 1]).all(-1).all(0)
    assert intact.tolist() == [True, False, True]


@pytest.mark.parametrize("late", [True, False])
def test_a_write_after_the_free_is_put_on_record_and_found(tmp_path: Path, late: bool) -> None:
    memory, parts = cache()
    canaries, generation = Canaries(parts, SECRET), 1
    (tmp_path / "rings").mkdir()
    tracer = Tracer(tmp_path / "rings", "e/0")
    tracer.engine_pool("e/0/kv", page_tokens=memory.shape[2], pages_total=memory.shape[1], reason="start")
    for request, tenant in (("r1", "t-ash"), ("r2", "t-birch")):
        if request == "r2":
            assert canaries.report(tracer, "e/0/kv", [2, 3], [generation] * 2) == ([3] if late else [])
        tracer.request_received(request, tenant, prompt_tokens=8)
        tracer.alloc("e/0/kv", [2, 3], request, tenant=tenant)
        memory[:, [2, 3]] = 1.0
        tracer.write("e/0/kv", [2, 3], request, op="forward", tok=(0, 8))
        tracer.read("e/0/kv", [2, 3], request, op="decode", tok=(0, 8))
        tracer.free("e/0/kv", [2, 3], request, reason="finish")
        canaries.plant([2, 3], [generation] * 2)
        if late:
            memory[1, 3, 0] = 2.0  # of r1, after its pages were freed, and nobody recorded it
        tracer.response(request, status=200, finish_reason="stop", prompt_tokens=8, completion_tokens=1)
    tracer.close()
    found = judged(tmp_path / "rings", tmp_path).findings
    told = [("reserved-page-use", "integrity", [3])] if late else []
    assert [(one["rule"], one["verdict"], one["pages"]) for one in found] == told


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 60])
def test_poison_leaves_nothing_of_its_pages_and_others_alone(kind: torch.dtype, width: int) -> None:
    memory, parts = cache(kind, width=width)
    memory.view(torch.uint8).fill_(0x41)
    poison = Canaries(parts, SECRET, poison=True)
    poison.plant([1, 4], [1, 7])
    changed = (memory.view(torch.uint8) & ~0x3B & 0xFF == 0).flatten(2).all(-1)
    assert [page for page in range(6) if bool(changed[:, page].all())] == [1, 4]
    assert bool((memory[:, [0, 2, 3, 5]].view(torch.uint8) == 0x41).all())
    assert bool(memory.float().isfinite().all())
    assert bool(poison.present([4, 1], [7, 1]).all())
    memory[1, 4, 3] = 2
    assert [tuple(at) for at in (~poison.present([4, 1], [7, 1])).nonzero().tolist()] == [(1, 0, 3)]


def test_scrub_takes_all_layouts() -> None:
    memory, parts = cache(torch.float8_e5m2)
    memory.view(torch.uint8).fill_(0x41)
    scales = torch.ones(6, 5)
    scrub([*parts, whole_pages(0, "scales", scales)], torch.tensor([2, 5]))
    assert [page for page in range(6) if not bool(memory[:, page].float().any())] == [2, 5]
    assert scales.sum(1).tolist() == [5, 5, 0, 5, 5, 0]


def test_rows_that_have_no_room_are_refused() -> None:
    with pytest.raises(ValueError, match="part scales"):
        Canaries([by_page(0, "scales", torch.zeros(2, 2, 1, 3))], SECRET)
    with pytest.raises(ValueError, match="part K"):
        Canaries([by_page(0, "K", torch.zeros(2, 2, 64, 8).transpose(2, 3))], SECRET)
