"""Fingerprints of pages with torch, on the device where the cache is; the numbers are those of `reference`.

torch has no unsigned words of 64 bits to calculate with, so they are kept as signed ones, whose sums and products wrap
to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvwitness.gpu_tracer.content.layout import Part, bytes_of
from kvwitness.gpu_tracer.content.reference import GOLDEN, MASK_32, MASK_64, STIR_1, STIR_2, WORD, key_words

SCHEME = "nh64"
_PIECE = 1 << 18
"""Bytes that are gone over at a time on a CPU."""


class Fingerprints:
    """Takes fingerprints of the pages of one cache.

    `secret` (16 bytes or more) keys them: only those with the same secret can be compared. Raises ValueError where the
    parts do not have the same slots per page.
    """

    def __init__(self, parts: Sequence[Part], secret: bytes) -> None:
        if not parts or len({part.data.shape[1] for part in parts}) > 1:
            raise ValueError("fingerprints need parts that have the same number of slots in a page")
        self.parts = tuple(parts)
        self.page_tokens = int(parts[0].data.shape[1])
        self.layers = tuple(sorted({part.layer for part in parts}))
        self._keys = [_keys(part, secret) for part in parts]

    def cells(self, pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """`[part, page, slot]`: the fingerprint of each cell."""
        return torch.stack([_cells(part, key, pages) for part, key in zip(self.parts, self._keys, strict=True)])

    def slots(self, cells: torch.Tensor) -> torch.Tensor:
        """`[layer, page, slot]`: the cells of a layer added up."""
        rows = []
        for layer in self.layers:
            of_layer = [at for at, part in enumerate(self.parts) if part.layer == layer]
            rows.append(cells[of_layer].sum(0))
        return torch.stack(rows)

    def pages(self, pages: Sequence[int] | torch.Tensor, valid: int | None = None) -> list[list[int]]:
        """For each page one number per layer: `reference.page` of the layer's slots.

        `valid` says how many positions, counted from the first of `pages` on, hold something (absent: all).
        """
        slots = self.slots(self.cells(pages))
        rolled = _pages(slots, slots.shape[1] * self.page_tokens if valid is None else valid)
        return [[one & MASK_64 for one in layers] for layers in rolled.T.tolist()]

    def digests(self, pages: Sequence[int] | torch.Tensor, valid: int | None = None) -> list[str]:
        """As `pages`, as text for `content.digest`: scheme, slots that hold something, 16 digits for each layer."""
        size = self.page_tokens
        every = len(pages) * size if valid is None else valid
        return [
            f"{SCHEME}/{min(size, max(0, every - at * size))}:" + ".".join(f"{one:016x}" for one in layers)
            for at, layers in enumerate(self.pages(pages, valid))
        ]


def add_shards(shards: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cells or slots of tensor-parallel ranks that hold different heads, as those of the whole cache."""
    return torch.stack(list(shards)).sum(0)


def mix(value: torch.Tensor) -> torch.Tensor:
    """As `reference.mix`."""
    value = (value ^ ((value >> 30) & 0x3_FFFF_FFFF)) * signed(STIR_1)
    value = (value ^ ((value >> 27) & 0x1F_FFFF_FFFF)) * signed(STIR_2)
    return value ^ ((value >> 31) & 0x1_FFFF_FFFF)


def _cells(part: Part, key: torch.Tensor, pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
    index = torch.as_tensor(pages, dtype=torch.int64, device=part.data.device)
    if part.data.device.type != "cpu":
        return _hashed(bytes_of(part, index), key)
    # a piece at a time stays in the processor's caches, which a device does not need: there, each costs a launch
    each = max(1, _PIECE // max(1, part.head_bytes * part.data.shape[1] * part.data.shape[2]))
    some = (index[at : at + each] for at in range(0, len(index), each))
    pieces = [_hashed(bytes_of(part, piece), key) for piece in some]
    return torch.cat(pieces) if pieces else _hashed(bytes_of(part, index), key)


def _hashed(rows: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """`[page, slot]`: NH of the rows `[page, slot, head, byte]`."""
    if rest := rows.shape[-1] % WORD:
        rows = torch.nn.functional.pad(rows, (0, WORD - rest))
    words = rows.view(torch.int64).flatten(2)  # [page, slot, word], the heads one after another
    flat = key.flatten()
    low = (words + flat).bitwise_and_(MASK_32)
    high = (words >> 32).add_(flat >> 32).bitwise_and_(MASK_32)
    return low.mul_(high).sum(-1)


def _pages(slots: torch.Tensor, valid: int) -> torch.Tensor:
    """`[layer, page]`: the slots of a page that hold something, each stirred with its place, added up."""
    _, pages, page_tokens = slots.shape
    places = torch.arange(1, page_tokens + 1, device=slots.device) * signed(GOLDEN)
    stirred = mix(slots ^ mix(places))
    held = torch.arange(pages * page_tokens, device=slots.device).view(pages, page_tokens) < valid
    return (stirred * held).sum(-1)


def _keys(part: Part, secret: bytes) -> torch.Tensor:
    """`[head, word]`."""
    words = -(-part.head_bytes // WORD)
    heads = range(part.first_head, part.first_head + part.data.shape[2])
    table = [[signed(word) for word in key_words(secret, part.name, head, words)] for head in heads]
    return torch.tensor(table, dtype=torch.int64, device=part.data.device)


def signed(word: int) -> int:
    """The signed word with the same 64 bits."""
    return word - 2**64 if word >> 63 else word
