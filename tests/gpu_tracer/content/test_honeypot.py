"""Pages that nobody gets: any write to them is seen and put on record, and whoever reads them is found by the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.gpu_tracer.content.honeypot import Honeypots, Touched  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page, whole_pages  # noqa: E402
from kvwitness.gpu_tracer.tracer import Tracer  # noqa: E402
from tests.engines.judged import Judged, judged  # noqa: E402
from tests.gpu_tracer.content.test_fingerprint import SECRET, TYPES, layouts  # noqa: E402

POOL = "e/0/kv"


def cache(kind: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, list[Part]]:
    memory = torch.zeros(2, 8, 4, 2, 24).to(kind)
    return memory, [by_page(0, "K", memory[0]), by_page(1, "V", memory[1])]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_byte_is_a_mark_and_every_number_finite(kind: torch.dtype) -> None:
    memory, parts = cache(kind)
    Honeypots(parts, SECRET, [5, 2])
    assert bool(memory.float().isfinite().all())
    raw = memory.view(torch.uint8)[:, [5, 2]]
    assert len(raw.flatten(2).unique(dim=1)) == 2
    assert float((raw == 0).float().mean()) < 0.1  # five random bits in each byte
    others = [0, 1, 3, 4, 6, 7]
    assert not bool(memory[:, others].float().any())


@pytest.mark.parametrize("layout", sorted(layouts(torch.uint8, 0)))
def test_any_layout_can_have_them(layout: str) -> None:
    parts = layouts(torch.float16, 3)[layout]
    pots = Honeypots(parts, SECRET, [3])
    assert pots.touched() == []
    part = parts[-1]
    part.data[2] = 1.0
    assert pots.touched() == []
    part.data[3].view(torch.int16)[-1, -1, -1] ^= 1
    (found,) = pots.touched()
    assert (found.page, found.parts, found.slots) == (3, (part.name,), (part.data.shape[1] - 1,))


def test_one_bit_past_the_head_of_a_row_is_seen_and_planting_again_forgets_it() -> None:
    memory, parts = cache()
    pots = Honeypots(parts, SECRET, [2, 5])
    memory.view(torch.int16)[1, 5, 3, 1, 23] ^= 1
    assert pots.touched() == [Touched(5, ("V",), (3,))]
    pots.plant()
    assert pots.touched() == []


def test_pages_that_cannot_be_honeypots_are_refused() -> None:
    _, parts = cache()
    for pages, said in (([], "each once"), ([1, 1], "each once")):
        with pytest.raises(ValueError, match=said):
            Honeypots(parts, SECRET, pages)
    with pytest.raises(IndexError, match="no page 8: the cache has 8"):
        Honeypots([*parts, whole_pages(1, "scales", torch.zeros(9, 4, 7))], SECRET, [8])


def traffic(tmp_path: Path, *, write: bool = False, read: bool = False) -> Judged:
    """Two requests of two tenants, beside honeypot page 6."""
    memory, parts = cache()
    (tmp_path / "rings").mkdir()
    tracer = Tracer(tmp_path / "rings", "e/0")
    tracer.engine_pool(POOL, page_tokens=4, pages_total=8, reserved=[0], reason="start")
    pots = Honeypots(parts, SECRET, [6])
    for request, tenant, pages in (("r1", "t-ash", [3, 4]), ("r2", "t-birch", [1, 2])):
        tracer.request_received(request, tenant, prompt_tokens=8)
        tracer.alloc(POOL, pages, request, tenant=tenant)
        memory[:, pages] = 1.0
        tracer.write(POOL, pages, request, op="forward", tok=(0, 8))
        table = [pages[0], 6] if read and request == "r2" else pages
        tracer.read(POOL, table, request, op="decode", tok=(0, 8))
        if write and request == "r1":
            memory[0, 6, 1] = 1.0  # who wrote it, nobody recorded
        pots.report(tracer, POOL)
        tracer.free(POOL, pages, request, reason="finish")
        tracer.response(request, status=200, finish_reason="stop", prompt_tokens=8, completion_tokens=1)
    tracer.close()
    return judged(tmp_path / "rings", tmp_path)


def test_nothing_is_found_where_nobody_comes_near(tmp_path: Path) -> None:
    found = traffic(tmp_path)
    assert (found.findings, found.verdicts) == ([], {"r1": "clean", "r2": "clean"})


def test_a_write_is_put_on_record_once_and_found(tmp_path: Path) -> None:
    found = traffic(tmp_path, write=True)
    assert [(one["pages"], one["op"]) for one in found.rows("page.write") if "request" not in one] == [([6], "stray")]
    (finding,) = found.findings
    assert (finding["rule"], finding["verdict"], finding["pages"]) == ("reserved-page-use", "integrity", [6])
    assert "1 page that nobody held" in finding["why"]


def test_a_request_whose_table_leads_there_is_found(tmp_path: Path) -> None:
    found = traffic(tmp_path, read=True)
    (finding,) = found.findings
    assert (finding["rule"], finding["request"], finding["pages"]) == ("unwritten-page-read", "r2", [6])
    assert found.verdicts == {"r1": "clean", "r2": "integrity"}
