"""What each look at the bytes goes over, in bytes, for caches of models as they are in use: `docs/content-cost.md`.

Counted from the shapes alone. How long a device takes for it is another question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TAG_BYTES: Final = 16
"""As `canary.BYTES`, which needs torch."""
CELL_BYTES: Final = 8
"""Of one lane."""


@dataclass(frozen=True)
class Cache:
    """What one GPU holds of a model's KV cache."""

    name: str
    layers: int
    rows: tuple[int, ...]
    """Bytes of each row that a layer has for a token: those of K and V, of the latent, of an indexer's key."""
    scales: int = 0
    """Bytes per token and layer that lie together, in one row per page."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token, in all layers."""
        return self.layers * (sum(self.rows) + self.scales)

    @property
    def canary_bytes(self) -> int:
        """Bytes that canary rows take of a token's; a page's scales have none."""
        return self.layers * TAG_BYTES * len(self.rows)

    def cell_bytes(self, tokens: int, page_tokens: int, bits: int = 64) -> int:
        """Bytes of the cells of so many tokens, in pages of that size."""
        pages = -(-tokens // page_tokens)
        cells = pages * (page_tokens * len(self.rows) + (1 if self.scales else 0))
        return self.layers * cells * CELL_BYTES * bits // 64


CACHES: Final = (
    Cache("Llama 3.1 8B, bfloat16", 32, (2048, 2048)),
    Cache("Llama 3.1 70B, bfloat16, one of 8 GPUs", 80, (256, 256)),
    Cache("Llama 3.1 70B, FP8, one of 8 GPUs", 80, (128, 128)),
    Cache("DeepSeek-V3, MLA in bfloat16", 61, (1152,)),
    Cache("DeepSeek-V3.2, `fp8_ds_mla` and indexer", 61, (656, 128), scales=4),
    Cache("78 layers of MLA in bfloat16, and indexer", 78, (1152, 128), scales=4),
)
"""Shapes from the models' public configurations."""


def table(caches: Iterable[Cache] = CACHES, *, tokens: int = 8192, page_tokens: int = 64) -> str:
    """What a request of so many tokens costs in each mode, as a table in Markdown."""
    lines = [
        "| cache on one GPU | per token | the request | cells | canary rows | of the request | known content |",
        "|---|---|---|---|---|---|---|",
    ]
    for cache in caches:
        size, marks = tokens * cache.token_bytes, tokens * cache.canary_bytes
        known = 3 * CELL_BYTES * (cache.layers - 1) * tokens  # two lanes, and whose it is
        columns = (
            cache.name,
            amount(cache.token_bytes),
            amount(size),
            amount(cache.cell_bytes(tokens, page_tokens)),
            amount(marks),
            f"{100 * marks / size:.1f} %",
            amount(known),
        )
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def page_table(caches: Iterable[Cache] = CACHES, *, sizes: tuple[int, ...] = (1, 16, 64), honeypots: int = 4) -> str:
    """What one page of each size holds, and what honeypots take from the cache, as a table in Markdown."""
    heads = "".join(f" page of {size} |" for size in sizes)
    lines = [f"| cache on one GPU |{heads} {honeypots} honeypots of {sizes[-1]} |", "|---" * (len(sizes) + 2) + "|"]
    for cache in caches:
        columns = [amount(size * cache.token_bytes) for size in sizes]
        lines.append(f"| {cache.name} | {' | '.join(columns)} | {amount(honeypots * sizes[-1] * cache.token_bytes)} |")
    return "\n".join(lines) + "\n"


def amount(count: int) -> str:
    """Bytes, as a person reads them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count} B"


def page() -> str:
    """The whole of `docs/content-cost.md`."""
    return f"""\
# What a look at the bytes costs

<!-- Written by `python docs/generate.py` from gpu_tracer/content/cost.py; edit that, not this page. -->

Each way to look at the bytes of pages ([fingerprints](fingerprints.md)) goes over a number of bytes that follows from
the shape of the cache. Nothing here is a time: no GPU has been measured.

| mode | when | goes over |
|---|---|---|
| events alone | always | no byte of the cache |
| canary rows, planted | at each free | writes {TAG_BYTES} bytes of each row of the page |
| canary rows, checked | at an alloc, or before the first read | reads the same {TAG_BYTES} bytes |
| poison | at each free | writes all of the page |
| scrub | at each free, or each alloc | writes all of the page |
| fingerprints, 64 bits | at both ends of a transfer, at a free | reads all of the page, writes 8 bytes per cell |
| fingerprints, 128 bits | the same, where somebody wants two to agree | reads as much, writes 16 bytes per cell |
| seal | with the digests | nothing on the device; one BLAKE2b per layer and page on the host |
| honeypots | as often as you look | reads all of those few pages, which requests do without |
| known content | for some requests, when their pages have been filled | as fingerprints of 128 bits, and what is kept |

A memory is read in sectors of 32 bytes or more: canary rows move at least twice what is counted here. Fingerprints by
the kernel go over the page once; by operations of torch, several times, over copies.

## A request of 8,192 tokens, in pages of 64

{table()}
*Cells* is what fingerprints of 64 bits write. *Known content* is what a request of 8,192 tokens of a canary tenant
takes on the device for as long as it is known: 128 bits and a number for each slot and layer above 0.

## Pages

{page_table()}
Layers times the rows of a token; layouts with padding take more. Where a layer has rows of another length, such as a
window or a state, count it for itself: `Cache` in `gpu_tracer/content/cost.py` takes any shape, and
`table([Cache(...)])` prints it.
"""
