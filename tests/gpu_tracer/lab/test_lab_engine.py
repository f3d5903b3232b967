"""The lab's engine is one: attention through pages is attention, and the model does what it is said to do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON

torch = pytest.importorskip("torch", reason=REASON)

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvwitness.gpu_tracer.lab.model import HEADS, WIDTH, Model  # noqa: E402
from kvwitness.gpu_tracer.lab.pool import PAGE_TOKENS, Full, Pool, pages_for  # noqa: E402
from kvwitness.gpu_tracer.lab.text import text, tokens  # noqa: E402
from kvwitness.gpu_tracer.tracer import Tracer  # noqa: E402

PAGES = 12


def pool(rings: Path | None = None) -> Pool:
    return Pool("e/kv", Tracer(rings, "e/0"), PAGES, secret=bytes(16))


@given(st.integers(0, 1), st.integers(1, 40), st.permutations(range(1, PAGES)), st.integers(0, 2**31))
def test_attention_over_pages_is_attention_over_a_plain_sequence(
    layer: int, length: int, table: list[int], seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(length, WIDTH, generator=drawn) for _ in range(3))
    cut = length // 2
    one = pool()
    parts = [(0, slice(0, cut)), (cut, slice(cut, length))] if cut else [(0, slice(0, length))]
    paged = torch.cat([one.attend(table, first, layer, q[part], k[part], v[part]) for first, part in parts])
    heads = [rows.view(length, HEADS[layer], -1).transpose(0, 1) for rows in (q, k, v)]
    scores = heads[0] @ heads[1].transpose(1, 2)
    masked = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    plain = (masked.softmax(-1) @ heads[2]).transpose(0, 1).reshape(length, WIDTH)
    torch.testing.assert_close(paged, plain, atol=1e-3, rtol=1e-3)


def answer(prompt: str, most: int = 12) -> str:
    model, one = Model(), pool()
    ids = tokens(prompt)
    table = one.alloc(pages_for(len(ids) + most), "r", "t")
    first = 0
    new = ids
    for _ in range(most):
        nexts = model.forward(new, first, lambda layer, q, k, v, at=first: one.attend(table, at, layer, q, k, v))
        first += len(new)
        new = [nexts]
        ids = [*ids, nexts]
    return text(ids[len(prompt) :])


def test_it_goes_on_with_what_followed_on_the_same_characters() -> None:
    assert answer("the key=4711; what is it? the key=", 5) == "4711;"
    assert answer("red fox, red hen; red f", 6) == "ox, re"


def test_a_pool_never_hands_out_its_sink_nor_more_than_it_has() -> None:
    one = pool()
    assert sorted(one.alloc(PAGES - 1, "r", "t")) == list(range(1, PAGES))
    with pytest.raises(Full):
        one.alloc(1, "r", "t")


def test_a_character_that_the_model_does_not_know_is_named() -> None:
    with pytest.raises(ValueError, match="'Z'"):
        tokens("aZb")


def test_the_page_that_was_freed_last_is_handed_out_first() -> None:
    one = pool()
    pages = one.alloc(3, "r", "t")
    one.free(pages, "r", tokens=3 * PAGE_TOKENS)
    assert one.alloc(3, "s", "t") == pages
