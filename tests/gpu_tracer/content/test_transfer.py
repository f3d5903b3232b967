"""The two ends of a transfer are compared although their pages have other sizes and their ranks other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from kvwitness.gpu_tracer.content.fingerprint import Fingerprints, add_shards  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page  # noqa: E402
from kvwitness.gpu_tracer.content.transfer import blocks, record  # noqa: E402
from kvwitness.gpu_tracer.tracer import Tracer  # noqa: E402
from tests.engines.judged import Judged, judged  # noqa: E402
from tests.gpu_tracer.content.test_fingerprint import SECRET, noise  # noqa: E402

LAYERS, HEADS, DIM, TOKENS = 3, 8, 16, 37
SRC, DST = "p/0/kv", "d/0/kv"


class Side:
    """One end: a cache of its own page size, spread over so many ranks, in which a request lies on scattered pages."""

    def __init__(self, size: int, ranks: int, pages: list[int], content: torch.Tensor) -> None:
        self.size, self.ranks, self.pages = size, ranks, pages
        self.cache = noise((LAYERS, 2, 16, size, HEADS, DIM), torch.bfloat16, 99)
        for at in range(TOKENS):
            self.cache[:, :, pages[at // size], at % size] = content[:, :, at]

    def slots(self, bits: int) -> torch.Tensor:
        each = HEADS // self.ranks
        return add_shards([self._of_rank(rank * each, each, bits) for rank in range(self.ranks)])

    def _of_rank(self, first: int, each: int, bits: int) -> torch.Tensor:
        parts: list[Part] = [
            by_page(layer, f"{layer} {kv}", self.cache[layer, row, :, :, first : first + each], first_head=first)
            for layer in range(LAYERS)
            for row, kv in enumerate("KV")
        ]
        taken = Fingerprints(parts, SECRET, bits=bits)
        return taken.slots(taken.cells(self.pages))


def ends(src: tuple[int, int], dst: tuple[int, int]) -> tuple[Side, Side]:
    content = noise((LAYERS, 2, TOKENS, HEADS, DIM), torch.bfloat16, 3)
    sides = []
    for size, ranks in (src, dst):
        pages = [11, 2, 7, 5, 13, 1, 9, 4, 3, 6][: -(-TOKENS // size)]
        sides.append(Side(size, ranks, pages, content))
    return sides[0], sides[1]


def told(work: Path, sender: Side, receiver: Side, bits: int = 64) -> Judged:
    """What the audit says of what both ends put on record."""
    rings, block = work / "rings", min(sender.size, receiver.size)
    rings.mkdir(parents=True)
    prefill, decode = Tracer(rings, "p/0"), Tracer(rings, "d/0")
    for tracer, pool, side in ((prefill, SRC, sender), (decode, DST, receiver)):
        tracer.engine_pool(pool, page_tokens=side.size, pages_total=16, reason="start")
    prefill.request_received("r1", "t-ash", prompt_tokens=TOKENS)
    prefill.alloc(SRC, sender.pages, "r1", tenant="t-ash")
    prefill.write(SRC, sender.pages, "r1", op="forward", tok=(0, TOKENS))
    decode.alloc(DST, receiver.pages, "r1", tenant="t-ash")
    prefill.transfer_begin("x", "r1", src_pool=SRC, src_pages=sender.pages, dst_pool=DST, dst_pages=receiver.pages,
                           tokens=TOKENS)  # fmt: skip
    record(prefill, SRC, sender.pages, sender.slots(bits), valid=TOKENS, block=block, at="send", transfer="x")
    decode.write(DST, receiver.pages, "r1", op="transfer", tok=(0, TOKENS))
    record(decode, DST, receiver.pages, receiver.slots(bits), valid=TOKENS, block=block, at="receive", transfer="x")
    prefill.close()
    decode.close()
    return judged(rings, work)


WAYS = [((16, 8), (4, 2)), ((4, 1), (16, 4)), ((8, 2), (8, 4)), ((16, 4), (16, 4))]


@pytest.mark.parametrize(("src", "dst"), WAYS)
@pytest.mark.parametrize("bits", [64, 128])
def test_what_arrived_as_it_was_sent_is_clean(
    tmp_path: Path, src: tuple[int, int], dst: tuple[int, int], bits: int
) -> None:
    assert [one for one in told(tmp_path, *ends(src, dst), bits=bits).findings if one["rule"] == "stale-content"] == []


@pytest.mark.parametrize(("src", "dst"), WAYS)
@pytest.mark.parametrize("position", [0, 21, TOKENS - 1])
def test_one_bit_of_one_layer_is_found_on_its_page(
    tmp_path: Path, src: tuple[int, int], dst: tuple[int, int], position: int
) -> None:
    sender, receiver = ends(src, dst)
    page = receiver.pages[position // receiver.size]
    receiver.cache[2, 1, page, position % receiver.size, 5].view(torch.uint8)[9] ^= 1
    (found,) = [one for one in told(tmp_path, sender, receiver).findings if one["rule"] == "stale-content"]
    assert (found["request"], found["verdict"], found["pages"]) == ("r1", "integrity", [page])
    assert "in layer 2" in found["why"]


def test_what_goes_into_no_blocks_is_refused_and_empty_blocks_are_left_out() -> None:
    slots = torch.zeros((1, 2, 3, 8), dtype=torch.int64)
    pages, digests = blocks([5, 6, 7], slots, valid=9, block=4)
    assert pages == [5, 5, 6]
    assert [one.partition(":")[0] for one in digests] == ["nh64/4", "nh64/4", "nh64/1"]
    assert blocks([5, 6, 7], slots, valid=24)[0] == [5, 6, 7]
    for block, named in ((3, [5, 6, 7]), (0, [5, 6, 7]), (4, [5, 6])):
        with pytest.raises(ValueError, match="do not go into blocks"):
            blocks(named, slots, valid=9, block=block)
