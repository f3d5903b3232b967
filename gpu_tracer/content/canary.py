"""Canary rows: marks that a freed page carries until somebody writes it.

When a page is freed, the first 16 bytes of each of its rows are overwritten with a tag. Whoever fills the page writes
over them, so a tag that is still there when the page is about to be read says, for each layer and slot, that nothing
was written since that free; and a tag that is gone when the page is handed out again, that somebody wrote to a page
that nobody owned. A row that was written only past its first 16 bytes is like one that was not written.

A tag is drawn from the secret and from page, generation, slot and part: it tells which free left it behind, and no
content is equal to it by accident. Its bits are such that it is a finite number in every type that caches have
(bfloat16, float16, float32, float8 e4m3 and e5m2), lest attention that reads past the end of a request meet a NaN.

Canary rows leave the rest of a row as it was. *Poison* fills all of it with its tag over and over: nothing is left of
what was there; *scrub* fills it with zeros, and leaves no mark. Either costs a write of the whole page.

All writes here go to the stream that is current, and so have to be enqueued after the last reader of the pages: an
engine that schedules ahead frees pages on the host before the device has read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import torch

from kvwitness.gpu_tracer.content.fingerprint import mix, signed
from kvwitness.gpu_tracer.content.layout import Part, as_bits
from kvwitness.gpu_tracer.content.reference import key_words
from kvwitness.gpu_tracer.tracer import Tracer

STRAY: Final = "stray"
"""`op` of a write that nobody was to make."""
Ids: TypeAlias = Sequence[int] | torch.Tensor
"""Numbers of pages or of generations, on the host or on the device."""
BYTES = 16
"""Of each row that a tag takes; their number of random bits is 80."""
_WORDS = BYTES // 8
FINITE = 0x3B3B_3B3B_3B3B_3B3B


class Canaries:
    """Plants and checks the canary rows of one cache; nothing waits for the device, and what comes back is on it.

    With `poison`, planting a page overwrites all of it. Raises ValueError for a part whose rows are shorter than a tag,
    or do not lie in one stretch.
    """

    def __init__(self, parts: Sequence[Part], secret: bytes, *, poison: bool = False) -> None:
        for part in parts:
            if part.data.ndim != 4 or part.data.stride(-1) != 1 or part.head_bytes < BYTES:
                raise ValueError(f"part {part.name} has no rows of {BYTES} bytes or more in one stretch")
        self._poison = poison
        self._rows = [as_bits(part.data) for part in parts]
        self._heads = [as_bits(part.data)[:, :, 0, : BYTES // part.data.element_size()] for part in parts]
        self._keys = [
            torch.tensor([signed(word) for word in key_words(secret, f"canary {part.name}", 0, _WORDS)]).to(
                part.data.device
            )
            for part in parts
        ]

    def plant(self, pages: Ids, generations: Ids) -> None:
        """Mark all rows of some pages; `generations` says, for each, which one has just ended."""
        for rows, heads, key in zip(self._rows, self._heads, self._keys, strict=True):
            tags, where = _tags(key, pages, generations, heads.shape[1]), torch.as_tensor(pages, device=heads.device)
            if self._poison:
                size = rows.shape[-1] * rows.element_size()
                filled = tags.view(torch.uint8).repeat(1, 1, -(-size // BYTES))[..., :size].contiguous()
                rows[where] = filled.view(rows.dtype)[:, :, None]
            else:
                heads[where] = tags.view(heads.dtype)

    def present(self, pages: Ids, generations: Ids) -> torch.Tensor:
        """`[part, page, slot]`: whether the tag that was planted when that generation ended is still there."""
        found = []
        for heads, key in zip(self._heads, self._keys, strict=True):
            rows = heads[torch.as_tensor(pages, device=heads.device)].contiguous().view(torch.int64)
            found.append((rows == _tags(key, pages, generations, heads.shape[1])).all(-1))
        return torch.stack(found)

    def report(self, tracer: Tracer, pool: str, pages: Sequence[int], generations: Sequence[int]) -> list[int]:
        """Pages with a tag that is gone although nobody owned them since `plant`: each is put on record as written to.

        To be called when pages are about to be handed out again, before their `alloc` is recorded; what comes before
        that belongs to nobody, and is found by the rule `reserved-page-use`. It is dated when it was seen, since nobody
        knows when it happened. Waits for the device.
        """
        whole = self.present(pages, generations).all(-1).all(0).tolist()
        gone = [page for page, intact in zip(pages, whole, strict=True) if not intact]
        for page in gone:
            tracer.write(pool, [page], op=STRAY)
        return gone


def scrub(parts: Sequence[Part], pages: Ids) -> None:
    """Overwrite pages with zeros, whatever their layout. Record it as `page.write` with `op` `scrub`."""
    for part in parts:
        rows = as_bits(part.data)
        rows[torch.as_tensor(pages, device=rows.device)] = 0


def _tags(key: torch.Tensor, pages: Ids, generations: Ids, slots: int) -> torch.Tensor:
    """`[page, slot, word]`."""
    page, generation = (torch.as_tensor(ids, dtype=torch.int64, device=key.device) for ids in (pages, generations))
    of_page = mix(mix(key ^ page[:, None]) ^ generation[:, None])
    return mix(of_page[:, None] ^ torch.arange(slots, device=key.device)[:, None]) & FINITE
