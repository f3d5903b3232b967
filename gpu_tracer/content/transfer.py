"""Digests of the two ends of a transfer that lie differently: in pages of other sizes, or on other numbers of ranks.

Slots have the same fingerprint however long pages are, and those of tensor-parallel ranks add up. So both ends take
their slots, add up those of their ranks, and roll them up in *blocks* of a length that both can make: the greatest
common divisor of the lengths of their pages. What is recorded is one digest for each block of a request, with the page
that it lies on; the rule `stale-content` lays the blocks of both ends beside each other by their positions in the
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvwitness.gpu_tracer.content.fingerprint import digests_of, rolled_up

if TYPE_CHECKING:
    import torch

    from kvwitness.gpu_tracer.tracer import Tracer


def blocks(
    pages: Sequence[int], slots: torch.Tensor, *, valid: int, block: int | None = None
) -> tuple[list[int], list[str]]:
    """For each block of `block` positions (absent: a page) its page and its digest.

    `slots` is `[lane, layer, page, slot]`, parallel to `pages`: `Fingerprints.slots`, with the ranks of a side added up
    (`add_shards`). Of the positions, counted from the first of `pages` on, the first `valid` hold something; blocks in
    which nothing is are left out. Raises ValueError where a page is not a whole number of blocks.
    """
    lanes, layers, number, size = slots.shape
    block = size if block is None else block
    if block < 1 or size % block or number != len(pages):
        raise ValueError(
            f"{number} pages of {size} slots do not go into blocks of {block} for {len(pages)} page numbers"
        )
    held = -(-min(valid, number * size) // block)
    cut = slots.reshape(lanes, layers, number * size // block, block)[:, :, :held]
    digests = digests_of(rolled_up(cut, valid), valid, block, lanes)
    return [pages[at * block // size] for at in range(held)], digests


def record(
    tracer: Tracer,
    pool: str,
    pages: Sequence[int],
    slots: torch.Tensor,
    *,
    valid: int,
    block: int,
    at: str,
    **more: Any,
) -> None:
    """Record what `blocks` says as `content.digest`; `at` is `send` or `receive`, and `more` has the `transfer`."""
    named, digests = blocks(pages, slots, valid=valid, block=block)
    tracer.content_digest(pool, named, digests=digests, at=at, **more)
