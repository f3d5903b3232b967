"""The Triton kernel says what the plain reference says, bit by bit; Triton's interpreter runs it, without a GPU."""

from __future__ import annotations

import random

import pytest

from tests.gpu_tracer.conftest import REASON, TRITON

torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("triton", reason=TRITON)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvwitness.gpu_tracer.content import kernel  # noqa: E402
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints, add_shards  # noqa: E402
from kvwitness.gpu_tracer.content.geometry import geometry  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_page, by_slot, whole_pages  # noqa: E402
from tests.gpu_tracer.content.test_fingerprint import SECRET, TYPES, expected, layouts, noise  # noqa: E402

BITS = (64, 128)


def long_rows(seed: int) -> dict[str, list[Part]]:
    """Rows as models of today have them, and longer ones than a program takes at once."""
    byte = torch.uint8
    return {
        "656 bytes": [by_slot(0, "latent", noise((4, 1, 656), byte, seed), 2)],
        "1152 bytes": [by_slot(0, "latent", noise((4, 1, 1152), byte, seed), 2)],
        "heads in one row": [by_page(0, "K", noise((2, 2, 8, 256), byte, seed))],
        "a state": [whole_pages(0, "state", noise((2, 5008), byte, seed))],
        "a state that is no whole words": [whole_pages(0, "state", noise((2, 2053), byte, seed))],
        "heads apart": [by_page(0, "K", noise((2, 3, 2, 2560), byte, seed).transpose(1, 2))],
        "an indexer's keys and scales": [
            by_page(0, "keys", noise((3, 4 * 132), byte, seed)[:, : 4 * 128].view(3, 4, 1, 128)),
        ],
    }


@pytest.mark.parametrize("layout", sorted(layouts(torch.uint8, 0)))
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_bit_by_bit_the_reference(kind: torch.dtype, layout: str, bits: int) -> None:
    parts = layouts(kind, 7)[layout]
    taken = Fingerprints(parts, SECRET, bits=bits, kernel=True)
    assert taken.by_torch == ()
    for pages, valid in (([3, 0, 4], None), ([1, 2], parts[0].data.shape[1] + 1)):
        assert taken.pages(pages, valid) == expected(parts, pages, valid, bits)


@pytest.mark.parametrize("layout", sorted(long_rows(0)))
@pytest.mark.parametrize("bits", BITS)
def test_bit_by_bit_the_reference_in_long_rows(layout: str, bits: int) -> None:
    parts = long_rows(3)[layout]
    taken = Fingerprints(parts, SECRET, bits=bits, kernel=True)
    assert taken.by_torch == ()
    assert taken.pages([1, 0]) == expected(parts, [1, 0], None, bits)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*TYPES, torch.int64]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 37),
    st.randoms(),
)
def test_bit_by_bit_torch_in_any_order_of_memory(
    kind: torch.dtype, pages: int, size: int, heads: int, dim: int, rng: random.Random
) -> None:
    order = rng.sample(range(4), 4)
    shape = (pages, size, heads, dim)
    memory = noise(tuple(shape[at] for at in order), kind, rng.randrange(2**31))
    part = by_page(0, "K", memory.permute([order.index(at) for at in range(4)]))
    chosen = [rng.randrange(pages) for _ in range(2)]
    by_kernel = Fingerprints([part], SECRET, bits=128, kernel=True)
    assert by_kernel.by_torch == ()
    assert torch.equal(by_kernel.cells(chosen), Fingerprints([part], SECRET, bits=128).cells(chosen))


def test_parts_that_lie_alike_share_a_launch_and_others_have_their_own() -> None:
    memory = noise((6, 2, 3, 4, 2, 32), torch.float16)
    parts = [by_page(at, f"{at} {kv}", memory[at, row]) for at in range(6) for row, kv in enumerate("KV")]
    parts.append(by_slot(6, "latent", noise((12, 1, 40), torch.uint8), 4))
    taken = Fingerprints(parts, SECRET, kernel=True)
    assert [len(which) for _, which in taken.launches] == [12, 1]
    assert taken.pages([2, 1]) == expected(parts, [2, 1])


def test_what_lies_at_no_even_distances_is_left_to_torch_and_named() -> None:
    odd = by_page(0, "odd", noise((2, 2, 1, 4, 6), torch.float32).permute(0, 1, 2, 4, 3)[:, :, :, :, :3])
    assert geometry(odd) is None
    parts = [odd, by_page(0, "even", noise((2, 2, 1, 8), torch.float32))]
    taken = Fingerprints(parts, SECRET, kernel=True)
    assert taken.by_torch == ("odd",)
    assert taken.pages([1, 0]) == expected(parts, [1, 0])
    assert Fingerprints(parts, SECRET).by_torch == ("odd", "even")


def test_shards_add_up() -> None:
    cache = noise((3, 4, 8, 16), torch.bfloat16)
    whole = Fingerprints([by_page(0, "K", cache)], SECRET).cells([0, 1, 2])
    shards = [
        Fingerprints([by_page(0, "K", cache[:, :, at : at + 2], first_head=at)], SECRET, kernel=True).cells([0, 1, 2])
        for at in range(0, 8, 2)
    ]
    assert torch.equal(add_shards(shards), whole)


def test_a_launch_follows_the_table_it_is_given_and_leaves_the_rest_alone() -> None:
    memory = noise((5, 4, 1, 64), torch.uint8)
    part = by_page(0, "K", memory)
    shape = geometry(part)
    assert shape is not None
    keys = Fingerprints([part], SECRET)._keys[0][:, None]
    launch = kernel.Launch(shape, [memory], keys)
    table, out = torch.zeros(5, dtype=torch.int64), launch.room(4)
    plain = Fingerprints([part], SECRET)
    for pages in ([4, 1, 3], [2], [0, 1, 2, 3]):
        # what a replay of a captured launch does: the same memory, other pages and another number of them
        table[0], table[1 : 1 + len(pages)] = len(pages), torch.tensor(pages)
        out.fill_(-1)
        launch.into(out, table)
        held = 4 * len(pages)
        assert torch.equal(out[0, 0, 0, :held], plain.cells(pages).flatten())
        assert bool((out[0, 0, 0, held:] == -1).all())


def test_a_number_that_is_no_pages_reads_nothing() -> None:
    memory = noise((2, 4, 1, 64), torch.uint8)
    taken = Fingerprints([by_page(0, "K", memory)], SECRET, kernel=True)
    cells = taken.cells(torch.tensor([1, 2, -1, 2**40]))
    assert torch.equal(cells[:, :, 0], taken.cells([1])[:, :, 0])
    assert not bool(cells[:, :, 1:].any())
    for page in (2, -1):
        with pytest.raises(IndexError, match=f"no page {page}: the cache has 2"):
            taken.cells([0, page])


def test_a_cache_that_is_on_no_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="for a cache on a GPU, and this one is on the CPU"):
        Fingerprints([by_page(0, "K", noise((1, 2, 1, 64), torch.uint8))], SECRET, kernel=True)


def test_a_kernel_that_disagrees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernel.Launch.into
    monkeypatch.setattr(kernel.Launch, "into", lambda self, out, table: (right(self, out, table), out[..., -1].add_(1)))
    with pytest.raises(RuntimeError, match="on cpu the kernel says something else than torch of part K"):
        Fingerprints([by_page(0, "K", noise((1, 2, 1, 64), torch.uint8))], SECRET, kernel=True)
