"""How a KV cache lies in memory, as views that all fingerprints are taken through.

Engines differ in where they put layers, K and V, pages, slots and heads. A `Part` is one of those pieces, brought into
the one order `[page, slot, head, ...]` by views, which copy nothing. Strides may be any; the data type may be any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Part:
    """One piece of what a cache holds for a slot, such as K of one layer."""

    layer: int
    name: str
    """The same on all ranks, and at both ends of a transfer: it chooses the key."""
    data: torch.Tensor
    """The cache itself, seen as `[page, slot, head, ...]`."""
    first_head: int = 0
    """Number of the first head in the whole model, where this rank holds only some."""

    def __post_init__(self) -> None:
        if self.data.ndim < 4:
            raise ValueError(f"part {self.name} has shape {tuple(self.data.shape)}, not [page, slot, head, ...]")

    @property
    def head_bytes(self) -> int:
        """Bytes that one head holds for one slot."""
        return int(self.data[0, 0, 0].numel() * self.data.element_size())


def by_page(layer: int, name: str, data: torch.Tensor, *, first_head: int = 0) -> Part:
    """A part that lies as `[page, slot, head, dim]`.

    For `[page, head, slot, dim]` give `data.transpose(1, 2)`; for vLLM's `[2, page, ...]`, K is `data[0]`, V `data[1]`.
    """
    return Part(layer, name, data, first_head)


def by_slot(layer: int, name: str, data: torch.Tensor, page_tokens: int, *, first_head: int = 0) -> Part:
    """A part that lies as `[slot, head, dim]`, pages one after another, as in SGLang's pools and with MLA.

    Slots after the last full page are left out. Raises ValueError where there is no full page.
    """
    pages = data.shape[0] // page_tokens
    if not pages:
        raise ValueError(f"part {name} has {data.shape[0]} slots, less than a page of {page_tokens}")
    return Part(layer, name, data[: pages * page_tokens].view(pages, page_tokens, *data.shape[1:]), first_head)


def whole_pages(layer: int, name: str, data: torch.Tensor) -> Part:
    """A part that has one row per page, `[page, ...]`: an indexer's scales, or the state of a Mamba layer."""
    return Part(layer, name, data[:, None, None])


def bytes_of(part: Part, pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """The bytes of some pages, `[page, slot, head, byte]`, copied out of the cache."""
    index = torch.as_tensor(pages, dtype=torch.int64, device=part.data.device)
    taken = as_bits(part.data).index_select(0, index).flatten(3).contiguous()
    return taken.view(torch.uint8)


def as_bits(data: torch.Tensor) -> torch.Tensor:
    """The same memory as a type that every operation knows: those of 8 bits are not known to all."""
    return data.view(torch.uint8) if data.element_size() == 1 else data
