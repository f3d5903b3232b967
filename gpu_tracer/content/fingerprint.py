"""Fingerprints of pages with torch, on the device where the cache is; the numbers are those of `reference`.

torch has no unsigned words of 64 bits to calculate with, so they are kept as signed ones, whose sums and products wrap
to the same bits. Where asked to, cells are computed by the Triton kernel of `kernel` instead of by operations of torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from kvwitness.gpu_tracer.content.geometry import Geometry, geometry
from kvwitness.gpu_tracer.content.layout import Part, bytes_of
from kvwitness.gpu_tracer.content.reference import GOLDEN, MASK_32, MASK_64, STIR_1, STIR_2, WORD, lane_words

if TYPE_CHECKING:
    from kvwitness.gpu_tracer.content.kernel import Launch

_LANE = 64
"""Bits of a lane."""
_PIECE = 1 << 18
"""Bytes that are gone over at a time on a CPU."""


class Fingerprints:
    """Takes fingerprints of the pages of one cache.

    `secret` (16 bytes or more) keys them: only those with the same secret can be compared. `bits` is 64, or 128: two
    lanes of 64. With `kernel`, cells are taken by the Triton kernel, of those parts that it can go over; before it is
    used, what it says of one page is compared with what torch says. With several GPUs, the cache's has to be the
    current one, as for any kernel of Triton.

    Raises ValueError where the parts do not have the same slots per page; with `kernel`, ModuleNotFoundError where
    Triton is not installed, ValueError for a cache that is on no GPU, and RuntimeError where the two do not agree.
    """

    def __init__(self, parts: Sequence[Part], secret: bytes, *, bits: int = 64, kernel: bool = False) -> None:
        if not parts or len({part.data.shape[1] for part in parts}) > 1:
            raise ValueError("fingerprints need parts that have the same number of slots in a page")
        if bits not in (_LANE, 2 * _LANE):
            raise ValueError(f"fingerprints have 64 or 128 bits, not {bits}")
        self.parts = tuple(parts)
        self.page_tokens = int(parts[0].data.shape[1])
        self.layers = tuple(sorted({part.layer for part in parts}))
        self.bits, self.lanes = bits, bits // _LANE
        self._keys = [_keys(part, secret, self.lanes) for part in parts]
        self.launches: list[tuple[Launch, list[int]]] = []
        """For each geometry the kernel's launch, and the numbers of the parts whose cells it takes."""
        if kernel:
            self.launches = self._prepared()
            self._compare()

    @property
    def by_torch(self) -> tuple[str, ...]:
        """Names of the parts whose cells operations of torch take, and no kernel."""
        by_kernel = {at for _, which in self.launches for at in which}
        return tuple(part.name for at, part in enumerate(self.parts) if at not in by_kernel)

    def cells(self, pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """`[lane, part, page, slot]`: the fingerprint of each cell.

        torch refuses a number that is no page's; where the numbers are on the device, the kernel cannot, and gives 0.
        """
        if not self.launches:
            return self._by_torch(range(len(self.parts)), pages)
        device = self.parts[0].data.device
        if not isinstance(pages, torch.Tensor):
            _check(pages, min(int(part.data.shape[0]) for part in self.parts))
        index = torch.as_tensor(pages, dtype=torch.int64, device=device)
        out = torch.empty((self.lanes, len(self.parts), len(index), self.page_tokens), dtype=torch.int64, device=device)
        table = torch.cat([torch.full((1,), len(index), dtype=torch.int64, device=device), index])
        taken: set[int] = set()
        for launch, which in self.launches:
            room = launch.room(len(index))
            launch.into(room, table)
            out[:, which] = room.sum(1).view(self.lanes, len(which), len(index), self.page_tokens)
            taken.update(which)
        rest = [at for at in range(len(self.parts)) if at not in taken]
        if rest:
            out[:, rest] = self._by_torch(rest, index)
        return out

    def slots(self, cells: torch.Tensor) -> torch.Tensor:
        """`[lane, layer, page, slot]`: the cells of a layer added up."""
        rows = []
        for layer in self.layers:
            of_layer = [at for at, part in enumerate(self.parts) if part.layer == layer]
            rows.append(cells[:, of_layer].sum(1))
        return torch.stack(rows, 1)

    def pages(self, pages: Sequence[int] | torch.Tensor, valid: int | None = None) -> list[list[int]]:
        """For each page one number per layer: `reference.page` of the layer's slots, the first lane in front.

        `valid` says how many positions, counted from the first of `pages` on, hold something (absent: all).
        """
        slots = self.slots(self.cells(pages))
        return rolled_up(slots, slots.shape[2] * self.page_tokens if valid is None else valid)

    def digests(self, pages: Sequence[int] | torch.Tensor, valid: int | None = None) -> list[str]:
        """As `pages`, as text for `content.digest`: scheme, slots that hold something, 16 or 32 digits per layer."""
        every = len(pages) * self.page_tokens if valid is None else valid
        return self.told(self.pages(pages, valid), every)

    def told(self, pages: Sequence[Sequence[int]], valid: int) -> list[str]:
        """What `pages` returns, as `digests` does."""
        return digests_of(pages, valid, self.page_tokens, self.lanes)

    def _by_torch(self, which: Sequence[int], pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
        return torch.stack([_cells(self.parts[at], self._keys[at], pages) for at in which], 1)

    def _prepared(self) -> list[tuple[Launch, list[int]]]:
        """A launch for each geometry, and the parts that it takes the cells of."""
        try:
            from kvwitness.gpu_tracer.content.kernel import Launch
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] != "triton":
                raise
            raise ModuleNotFoundError(
                "kernel=True needs Triton, which is not installed: pip install triton, or leave it to torch"
            ) from missing
        if self.parts[0].data.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError("kernel=True is for a cache on a GPU, and this one is on the CPU: leave it to torch")
        alike: dict[Geometry, list[int]] = {}
        for at, part in enumerate(self.parts):
            shape = geometry(part)
            if shape is not None:
                alike.setdefault(shape, []).append(at)
        launches = []
        for shape, which in alike.items():
            keys = torch.stack([self._keys[at] for at in which], 1)
            launches.append((Launch(shape, [self.parts[at].data for at in which], keys), which))
        return launches

    def _compare(self) -> None:
        """Raises RuntimeError where the kernel says something else of the first page than torch does."""
        same = (self.cells([0]) == self._by_torch(range(len(self.parts)), [0])).flatten(2).all(-1).all(0).tolist()
        wrong = [part.name for part, one in zip(self.parts, same, strict=True) if not one]
        if wrong:
            device = self.parts[0].data.device
            raise RuntimeError(f"on {device} the kernel says something else than torch of part {', '.join(wrong)}")


def rolled_up(slots: torch.Tensor, valid: int) -> list[list[int]]:
    """For each page one number per layer: `slots` is `[lane, layer, page, slot]`, of which `valid` positions count."""
    return [[joined(lanes) for lanes in layers] for layers in _pages(slots, valid).permute(2, 1, 0).tolist()]


def digests_of(pages: Sequence[Sequence[int]], valid: int, size: int, lanes: int) -> list[str]:
    """What `rolled_up` returns as text for `content.digest`, of pages of `size` slots."""
    bits = lanes * _LANE
    return [
        f"nh{bits}/{min(size, max(0, valid - at * size))}:" + ".".join(f"{one:0{bits // 4}x}" for one in layers)
        for at, layers in enumerate(pages)
    ]


def add_shards(shards: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cells or slots of tensor-parallel ranks that hold different heads, as those of the whole cache."""
    return torch.stack(list(shards)).sum(0)


def mix(value: torch.Tensor) -> torch.Tensor:
    """As `reference.mix`."""
    value = (value ^ ((value >> 30) & 0x3_FFFF_FFFF)) * signed(STIR_1)
    value = (value ^ ((value >> 27) & 0x1F_FFFF_FFFF)) * signed(STIR_2)
    return value ^ ((value >> 31) & 0x1_FFFF_FFFF)


def signed(word: int) -> int:
    """The signed word with the same 64 bits."""
    return word - 2**64 if word >> 63 else word


def joined(lanes: Sequence[int]) -> int:
    """One number of some lanes, the first in front."""
    total = 0
    for lane in lanes:
        total = total << _LANE | lane & MASK_64
    return total


def _check(pages: Sequence[int], number: int) -> None:
    for page in pages:
        if not 0 <= page < number:
            raise IndexError(f"there is no page {page}: the cache has {number}")


def _cells(part: Part, keys: torch.Tensor, pages: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """`[lane, page, slot]`."""
    index = torch.as_tensor(pages, dtype=torch.int64, device=part.data.device)
    if part.data.device.type != "cpu":
        return _hashed(bytes_of(part, index), keys)
    # a piece at a time stays in the processor's caches, which a device does not need: there, each costs a launch
    each = max(1, _PIECE // max(1, part.head_bytes * part.data.shape[1] * part.data.shape[2]))
    some = (index[at : at + each] for at in range(0, len(index), each))
    pieces = [_hashed(bytes_of(part, piece), keys) for piece in some]
    return torch.cat(pieces, 1) if pieces else _hashed(bytes_of(part, index), keys)


def _hashed(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """`[lane, page, slot]`: NH of the rows `[page, slot, head, byte]`."""
    if rest := rows.shape[-1] % WORD:
        rows = torch.nn.functional.pad(rows, (0, WORD - rest))
    words = rows.view(torch.int64).flatten(2)  # [page, slot, word], the heads one after another
    lanes = []
    for flat in keys.flatten(1):
        low = (words + flat).bitwise_and_(MASK_32)
        high = (words >> 32).add_(flat >> 32).bitwise_and_(MASK_32)
        lanes.append(low.mul_(high).sum(-1))
    return torch.stack(lanes)


def _pages(slots: torch.Tensor, valid: int) -> torch.Tensor:
    """`[lane, layer, page]`: the slots of a page that hold something, each stirred with its place, added up."""
    pages, page_tokens = slots.shape[-2:]
    places = torch.arange(1, page_tokens + 1, device=slots.device) * signed(GOLDEN)
    stirred = mix(slots ^ mix(places))
    held = torch.arange(pages * page_tokens, device=slots.device).view(pages, page_tokens) < valid
    return (stirred * held).sum(-1)


def _keys(part: Part, secret: bytes, lanes: int) -> torch.Tensor:
    """`[lane, head, word]`."""
    words = -(-part.head_bytes // WORD)
    heads = range(part.first_head, part.first_head + part.data.shape[2])
    table = [
        [[signed(word) for word in lane_words(secret, part.name, head, words, lane)] for head in heads]
        for lane in range(lanes)
    ]
    return torch.tensor(table, dtype=torch.int64, device=part.data.device)
