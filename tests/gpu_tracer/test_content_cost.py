"""What is said of the cost is what shapes say, and what the code does."""

from __future__ import annotations

import pytest

from kvwitness.gpu_tracer.content.cost import CACHES, TAG_BYTES, Cache, amount, page_table, table

KIB = {
    "Llama 3.1 8B, bfloat16": 128,
    "Llama 3.1 70B, bfloat16, one of 8 GPUs": 40,
    "Llama 3.1 70B, FP8, one of 8 GPUs": 20,
    "DeepSeek-V3, MLA in bfloat16": 68.6,
    "DeepSeek-V3.2, `fp8_ds_mla` and indexer": 46.9,
    "78 layers of MLA in bfloat16, and indexer": 97.8,
}
"""Per token and GPU, by hand: layers x (K and V of the heads there, or the latent and the indexer's 132 bytes)."""


def test_tokens_take_what_the_models_shapes_say() -> None:
    assert {one.name: round(one.token_bytes / 1024, 1) for one in CACHES} == KIB


def test_a_table_has_a_line_for_each_cache() -> None:
    one = Cache("two layers", 2, (100, 60), scales=4)
    header, _, line = table([one], tokens=10, page_tokens=4).splitlines()
    # 2 x 164 B; ten times; 2 x 3 pages x (4 x 2 + 1) cells of 8 B; 2 x 2 tags of 16 B for ten; one layer of 10 slots
    assert line == "| two layers | 328 B | 3.2 KiB | 432 B | 640 B | 19.5 % | 240 B |"
    assert header.count("|") == line.count("|")
    *_, line = page_table([one], sizes=(1, 16), honeypots=2).splitlines()
    assert line == "| two layers | 328 B | 5.12 KiB | 10.2 KiB |"


def test_amounts_are_readable() -> None:
    assert [amount(one) for one in (7, 1024, 1 << 20, 1000 << 20, 1023 << 20, 3 << 30)] == [
        "7 B",
        "1 KiB",
        "1 MiB",
        "1000 MiB",
        "1023 MiB",
        "3 GiB",
    ]


def test_tags_and_cells_are_as_long_as_it_says() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    import torch

    from kvwitness.gpu_tracer.content.canary import BYTES
    from kvwitness.gpu_tracer.content.fingerprint import Fingerprints
    from kvwitness.gpu_tracer.content.layout import by_page
    from kvwitness.gpu_tracer.content.search import KnownContent

    one = Cache("three layers", 3, (32, 16))
    parts = [
        by_page(layer, f"{layer} {row}", torch.randint(0, 255, (4, 4, 1, row), dtype=torch.uint8))
        for layer in range(3)
        for row in one.rows
    ]
    taken = Fingerprints(parts, b"a secret for the tests", bits=128)
    cells = taken.cells([0, 1])
    assert cells.numel() * cells.element_size() == one.cell_bytes(8, 4, 128)
    assert TAG_BYTES == BYTES
    known = KnownContent(taken)
    known.learn("m", [0, 1], 1, 8)
    assert len(known) == 2 * 7
