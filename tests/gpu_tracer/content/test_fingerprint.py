"""Fingerprints on tensors are those of the plain reference, bit by bit, however a cache lies in memory."""

from __future__ import annotations

import random

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvwitness.gpu_tracer.content import reference  # noqa: E402
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints, add_shards  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page, by_slot, whole_pages  # noqa: E402

SECRET = b"a secret for the tests"
TYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint8,
    torch.int8,
]


def noise(shape: tuple[int, ...], kind: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random bits as that type, so NaN and infinities are among them."""
    width = torch.empty((), dtype=kind).element_size()
    drawn = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (*shape[:-1], shape[-1] * width), dtype=torch.uint8, generator=drawn)
    return bits.view(kind)


def raw(row: torch.Tensor) -> bytes:
    # into memory of its own: a row of one element is contiguous whatever its stride, and then cannot be seen as bytes
    own = torch.empty(row.numel(), dtype=row.dtype).copy_(row.flatten())
    return bytes(own.view(torch.uint8).tolist())


def expected(parts: list[Part], pages: list[int], valid: int | None = None, bits: int = 64) -> list[list[int]]:
    """As `Fingerprints.pages`, by the reference."""
    lanes = [of_lane(parts, pages, valid, lane) for lane in range(bits // 64)]
    if bits == 64:
        return lanes[0]
    return [[a << 64 | b for a, b in zip(*both, strict=True)] for both in zip(*lanes, strict=True)]


def of_lane(parts: list[Part], pages: list[int], valid: int | None, lane: int) -> list[list[int]]:
    size = parts[0].data.shape[1]
    found = []
    for at, page in enumerate(pages):
        layers = []
        for layer in sorted({part.layer for part in parts}):
            held = size if valid is None else min(size, max(0, valid - at * size))
            slots = []
            for slot in range(held):
                cells = []
                for part in parts:
                    if part.layer != layer:
                        continue
                    rows = [raw(part.data[page, slot, head]) for head in range(part.data.shape[2])]
                    words = -(-part.head_bytes // 8)
                    keys = [
                        reference.lane_words(SECRET, part.name, part.first_head + head, words, lane)
                        for head in range(len(rows))
                    ]
                    cells.append(reference.cell(rows, keys))
                slots.append(reference.slot(cells))
            layers.append(reference.page(slots))
        found.append(layers)
    return found


def layouts(kind: torch.dtype, seed: int) -> dict[str, list[Part]]:
    """The same few pages in the ways in which engines lay them out."""
    pages, size, heads, dim = 5, 4, 2, 24
    vllm = noise((2, pages, size, heads, dim), kind, seed)
    head_first = noise((pages, heads, size, dim), kind, seed)
    slots = noise((pages * size + size - 1, heads, dim), kind, seed)
    padded = noise((pages, size, heads, dim + 8), kind, seed)[..., :dim]
    between = noise((pages, 2, size, heads, dim), kind, seed)
    latent = noise((pages * size, 1, 72), kind, seed)
    scales = noise((pages, size, 5), kind, seed)
    flat = noise((pages, 3, 2, size, heads, dim), kind, seed)
    return {
        "vLLM": [by_page(0, "K", vllm[0]), by_page(0, "V", vllm[1])],
        "heads first": [by_page(0, "K", head_first.transpose(1, 2))],
        "SGLang": [by_slot(0, "K", slots, size)],
        "padded rows": [by_page(0, "K", padded)],
        "K and V in turns": [by_page(0, "K", between[:, 0]), by_page(0, "V", between[:, 1])],
        "MLA": [by_slot(0, "latent", latent, size)],
        "one row per page": [whole_pages(0, "scales", scales)],
        "transformers": [
            by_page(layer, f"{layer} {kv}", flat[:, layer, row]) for layer in range(3) for row, kv in enumerate("KV")
        ],
    }


@pytest.mark.parametrize("layout", sorted(layouts(torch.uint8, 0)))
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("bits", [64, 128])
def test_bit_by_bit_the_reference(kind: torch.dtype, layout: str, bits: int) -> None:
    parts = layouts(kind, 7)[layout]
    taken = Fingerprints(parts, SECRET, bits=bits)
    for pages, valid in (([3, 0, 4], None), ([1, 2], parts[0].data.shape[1] + 1), ([2], 0)):
        assert taken.pages(pages, valid) == expected(parts, pages, valid, bits)


@settings(max_examples=30)
@given(
    st.sampled_from(TYPES), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 21), st.randoms()
)
def test_bit_by_bit_the_reference_in_any_shape(
    kind: torch.dtype, pages: int, size: int, heads: int, dim: int, rng: random.Random
) -> None:
    # every dimension in another place in memory than in the view
    order = rng.sample(range(4), 4)
    shape = (pages, size, heads, dim)
    memory = noise(tuple(shape[at] for at in order), kind, rng.randrange(2**31))
    parts = [by_page(0, "K", memory.permute([order.index(at) for at in range(4)]))]
    chosen = [rng.randrange(pages) for _ in range(2)]
    assert Fingerprints(parts, SECRET).pages(chosen) == expected(parts, chosen)


def test_shards_add_up_and_their_number_does_not_matter() -> None:
    cache = noise((3, 4, 8, 16), torch.bfloat16)
    whole = Fingerprints([by_page(0, "K", cache)], SECRET).cells([0, 1, 2])
    for ranks in (2, 4, 8):
        each = 8 // ranks
        cells = [
            Fingerprints(
                [by_page(0, "K", cache[:, :, rank * each : (rank + 1) * each], first_head=rank * each)], SECRET
            ).cells([0, 1, 2])
            for rank in range(ranks)
        ]
        assert torch.equal(add_shards(cells), whole)


def test_slots_are_the_same_whatever_the_page_size_and_wherever_they_lie() -> None:
    slots = noise((16, 2, 8), torch.float16)
    large = Fingerprints([by_slot(0, "K", slots, 8)], SECRET)
    small = Fingerprints([by_slot(0, "K", slots, 2)], SECRET)
    of_large, of_small = (one.slots(one.cells(range(16 // one.page_tokens))).flatten() for one in (large, small))
    assert torch.equal(of_large, of_small)
    moved = slots.clone()
    moved[:8], moved[8:] = slots[8:], slots[:8]
    assert Fingerprints([by_slot(0, "K", moved, 8)], SECRET).pages([1, 0]) == large.pages([0, 1])


def test_what_other_hashes_miss_is_seen() -> None:
    rows = noise((1, 4, 1, 32), torch.float16)
    swapped_words, swapped_slots, negated = rows.clone(), rows.clone(), rows.clone()
    swapped_words[0, 0, 0, :4], swapped_words[0, 0, 0, 4:8] = rows[0, 0, 0, 4:8], rows[0, 0, 0, :4]
    swapped_slots[0, 0], swapped_slots[0, 1] = rows[0, 1], rows[0, 0]
    negated[0, 2] = -rows[0, 2]
    seen = {
        Fingerprints([by_page(0, "K", one)], SECRET).digests([0])[0]
        for one in (rows, swapped_words, swapped_slots, negated, torch.zeros_like(rows))
    }
    assert len(seen) == 5


def test_no_flip_of_one_or_two_bits_is_missed_in_200_000() -> None:
    words, flips = 16, 200_000
    drawn = torch.Generator().manual_seed(1)
    row = torch.randint(-(2**63), 2**63 - 1, (words,), dtype=torch.int64, generator=drawn)
    rows = row.repeat(flips, 1)
    every = torch.arange(flips)
    first = torch.randint(0, 64 * words, (flips,), generator=drawn)
    second = torch.randint(0, 64 * words, (flips,), generator=drawn)
    single = every < flips // 4
    for bits in (first, second.where(~single & (second != first), first)):
        there = (bits == first) & (bits is not first)  # a second flip of the same bit would undo the first
        rows[every, bits // 64] ^= torch.where(there, 0, torch.ones(flips, dtype=torch.int64) << (bits % 64))
    changed = (rows != row).any(-1)
    assert bool(changed.all())
    taken = Fingerprints([by_page(0, "K", rows.view(flips, 1, 1, words))], SECRET).cells(torch.arange(flips))
    plain = Fingerprints([by_page(0, "K", row.view(1, 1, 1, words))], SECRET).cells([0])
    assert int((taken == plain).sum()) == 0


def test_another_secret_another_part_or_another_head_gives_other_numbers() -> None:
    cache = noise((1, 1, 1, 8), torch.uint8)
    given = [
        Fingerprints([by_page(0, "K", cache)], SECRET),
        Fingerprints([by_page(0, "K", cache)], SECRET + b"!"),
        Fingerprints([by_page(0, "V", cache)], SECRET),
        Fingerprints([by_page(0, "K", cache, first_head=1)], SECRET),
    ]
    assert len({one.digests([0])[0] for one in given}) == len(given)


def test_what_cannot_be_fingerprinted_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="10 bytes; 16"):
        Fingerprints([by_page(0, "K", noise((1, 1, 1, 8), torch.uint8))], bytes(10))
    with pytest.raises(ValueError, match="64 or 128 bits, not 96"):
        Fingerprints([by_page(0, "K", noise((1, 1, 1, 8), torch.uint8))], SECRET, bits=96)
    with pytest.raises(ValueError, match="same number of slots"):
        Fingerprints([by_page(0, n, noise((1, s, 1, 8), torch.uint8)) for n, s in (("K", 1), ("V", 2))], SECRET)
    with pytest.raises(ValueError, match="shape"):
        by_page(0, "K", noise((4, 8), torch.uint8))
    with pytest.raises(ValueError, match="less than a page of 16"):
        by_slot(0, "K", noise((4, 1, 8), torch.uint8), 16)


def test_a_digest_says_how_many_slots_it_is_of() -> None:
    taken = Fingerprints([by_page(at, f"K{at}", noise((2, 4, 1, 8), torch.uint8, at)) for at in range(2)], SECRET)
    first, second = taken.digests([0, 1], 5)
    assert (first.partition(":")[0], second.partition(":")[0]) == ("nh64/4", "nh64/1")
    assert [len(one) for one in second.partition(":")[2].split(".")] == [16, 16]
