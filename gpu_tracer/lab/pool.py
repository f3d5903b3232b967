"""The pages of one engine: real memory, a free list, and attention that reads through a table of pages."""

from __future__ import annotations

import math

import torch

from kvwitness.gpu_tracer.content.canary import Canaries, scrub
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints
from kvwitness.gpu_tracer.content.layout import by_page
from kvwitness.gpu_tracer.lab.faults import Guard
from kvwitness.gpu_tracer.lab.model import CODE, HEADS, LAYERS, WIDTH
from kvwitness.gpu_tracer.tracer import Tracer

PAGE_TOKENS = 8
SINK = 0
"""The page that padding goes to; no request gets it."""


class Full(Exception):
    """There are not enough free pages."""


class Pool:
    """Pages of K and V, handed out to requests; the last page that was freed is the first to be handed out again."""

    def __init__(
        self, name: str, tracer: Tracer, pages: int, *, secret: bytes, guard: Guard = Guard.NONE, sharing: str = "none"
    ) -> None:
        self.name, self.tracer, self.guard = name, tracer, guard
        self.kv = torch.zeros(LAYERS, 2, pages, PAGE_TOKENS, WIDTH)
        self.available = list(range(pages - 1, SINK, -1))
        heads = self.kv.view(*self.kv.shape[:-1], WIDTH // CODE, CODE)
        parts = [by_page(at, f"layer {at} {kv}", heads[at, row]) for at in range(LAYERS) for row, kv in enumerate("KV")]
        self.fingerprints = Fingerprints(parts, secret)
        self._parts = parts
        self._canaries = Canaries(parts, secret, poison=guard is Guard.POISON)
        self._ended = [0] * pages
        """How many generations of each page have ended."""
        tracer.engine_pool(
            name,
            page_tokens=PAGE_TOKENS,
            pages_total=pages,
            reserved=[SINK],
            scrub="on_free" if guard in (Guard.SCRUB, Guard.POISON) else "never",
            sharing=sharing,
            reason="start",
        )

    def alloc(self, count: int, request: str, tenant: str) -> list[int]:
        """Raises `Full`, and takes nothing, where there are not so many."""
        if count > len(self.available):
            raise Full(f"{self.name} has {len(self.available)} free pages, not {count}")
        taken = [self.available.pop() for _ in range(count)]
        if taken:
            self.tracer.alloc(self.name, taken, request, tenant=tenant)
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Pages that nobody owns any more can be handed out again; their free is on record already."""
        for page in pages:
            self._ended[page] += 1
        if self.guard is Guard.SCRUB and pages:
            scrub(self._parts, pages)
        if self.guard in (Guard.POISON, Guard.REFUSE) and pages:
            self._canaries.plant(pages, [self._ended[page] for page in pages])
        if self.guard in (Guard.SCRUB, Guard.POISON) and pages:
            self.tracer.write(self.name, pages, op="scrub")
        self.available += reversed(pages)

    def unwritten(self, table: list[int], tokens: int) -> int:
        """In how many of the first `tokens` positions of a table something is as the last free left it."""
        pages = table[: pages_for(tokens)]
        left = self._canaries.present(pages, [self._ended[page] for page in pages]).any(0)
        return int(left.flatten()[:tokens].sum())

    def free(self, pages: list[int], request: str, *, tokens: int, reason: str = "finish") -> None:
        """A request lets go of its pages, of which it had filled `tokens` positions."""
        self.digest(pages, request, tokens, "free")
        self.tracer.free(self.name, pages, request, reason=reason)
        self.give_back(pages)

    def digest(self, pages: list[int], request: str, tokens: int, at: str, transfer: str | None = None) -> None:
        """Record the fingerprints of the pages that hold the first `tokens` positions of a table."""
        held = pages[: pages_for(tokens)]
        if held and self.tracer.active:
            digests = self.fingerprints.digests(held, tokens)
            self.tracer.content_digest(self.name, held, digests=digests, at=at, transfer=transfer, request=request)

    def attend(
        self, table: list[int], first: int, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Paged attention: put K and V of new positions into their pages, then read all pages of the table."""
        end = first + len(q)
        at = torch.arange(first, end)
        pages = torch.tensor(table)
        self.kv[layer, 0, pages[at // PAGE_TOKENS], at % PAGE_TOKENS] = k
        self.kv[layer, 1, pages[at // PAGE_TOKENS], at % PAGE_TOKENS] = v
        used = pages[: pages_for(end)]
        heads = HEADS[layer]
        keys, values = (rows.reshape(-1, heads, WIDTH // heads)[:end] for rows in self.kv[layer, :, used])
        scores = torch.einsum("qhd,khd->hqk", q.view(-1, heads, WIDTH // heads), keys)
        future = torch.arange(end) > at[:, None]
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(len(q), WIDTH)


def pages_for(tokens: int) -> int:
    """How many pages so many positions take."""
    return -(-tokens // PAGE_TOKENS)


def covering(table: list[int], first: int, end: int) -> list[int]:
    """The pages of a table that hold some positions."""
    return table[first // PAGE_TOKENS : pages_for(end)]
