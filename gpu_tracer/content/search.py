"""Search for content that is known: rows of prompts that a tenant of one's own had sent, in the pages of others.

A *canary tenant* is a tenant that one makes oneself. It sends prompts of random tokens that nobody else can have sent.
While a request of it holds its pages, their fingerprints are learned; wherever they are found later in a page that
another tenant's request reads as its own, content has crossed tenants. No customer's data is needed for that, and none
is looked at but by fingerprints.

What is compared are slots, layer by layer. Layer 0 is left out, since its rows follow from the token and its place
alone, and so are places that a common beginning reaches (`first`): a chat template gives everybody the same rows there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvwitness.gpu_tracer.content.fingerprint import Fingerprints
from kvwitness.gpu_tracer.tracer import Tracer


@dataclass(frozen=True)
class Sighting:
    """Known content on a page."""

    marker: str
    page: int
    layers: tuple[int, ...]
    slots: tuple[int, ...]


class KnownContent:
    """Fingerprints of content that is known, kept on the device.

    `fingerprints` should have 128 bits: many slots are compared with many. Raises ValueError for a cache that has no
    layer but layer 0.
    """

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._telling = [at for at, layer in enumerate(fingerprints.layers) if layer > 0]
        if not self._telling:
            raise ValueError("known content is searched in layers above 0, and this cache has none")
        device = fingerprints.parts[0].data.device
        self._known = torch.empty(fingerprints.lanes, 0, dtype=torch.int64, device=device)
        self._whose = torch.empty(0, dtype=torch.int64, device=device)
        self.markers: list[str] = []

    def __len__(self) -> int:
        """How many slots of layers are known."""
        return int(self._known.shape[1])

    def learn(self, marker: str, pages: Sequence[int], first: int, end: int) -> None:
        """Keep what is at the positions from `first` up to `end` of a request's pages, under a marker.

        `first` is the first position that no other prompt can share, 1 at least. Raises ValueError where there is no
        such position, or no page for one.
        """
        size = self._fingerprints.page_tokens
        if not 1 <= first < end <= len(pages) * size:
            raise ValueError(f"positions {first} to {end} of {len(pages)} pages of {size} are not to be learned")
        slots = self._slots(pages)[:, :, first:end].flatten(1)
        whose = torch.full((slots.shape[1],), len(self.markers), dtype=torch.int64, device=slots.device)
        self.markers.append(marker)
        known, self._whose = torch.cat([self._known, slots], 1), torch.cat([self._whose, whose])
        order = known[0].argsort()
        self._known, self._whose = known[:, order], self._whose[order]

    def forget(self) -> None:
        """Nothing is known any more."""
        self._known, self._whose = self._known[:, :0], self._whose[:0]
        self.markers.clear()

    def find(self, pages: Sequence[int], valid: int) -> list[Sighting]:
        """Where the first `valid` positions of a request's pages hold known content. Waits for the device.

        Give only positions that the request has filled: a page that has just changed hands rightly holds what was there
        before.
        """
        size = self._fingerprints.page_tokens
        used = list(pages[: -(-valid // size)])
        if not used or not len(self):
            return []
        slots = self._slots(used)[:, :, :valid]
        at = torch.searchsorted(self._known[0], slots[0].contiguous()).clamp_(max=len(self) - 1)
        hits = (self._known[:, at] == slots).all(0)
        seen: dict[tuple[str, int], tuple[set[int], set[int]]] = {}
        for (layer, position), whose in zip(hits.nonzero().tolist(), self._whose[at][hits].tolist(), strict=True):
            layers, places = seen.setdefault((self.markers[whose], used[position // size]), (set(), set()))
            layers.add(self._fingerprints.layers[self._telling[layer]])
            places.add(position % size)
        return [
            Sighting(marker, page, tuple(sorted(layers)), tuple(sorted(places)))
            for (marker, page), (layers, places) in seen.items()
        ]

    def report(self, tracer: Tracer, pool: str, request: str, pages: Sequence[int], valid: int) -> list[Sighting]:
        """As `find`, and what is found is put on record as `canary.seen`, once for each marker.

        With the `canary.planted` of the marker, by the request that sent it, that is the rule `canary-leak`, unless
        both are of one tenant.
        """
        found = self.find(pages, valid)
        for marker in dict.fromkeys(one.marker for one in found):
            tracer.canary_seen(marker, request, pool=pool, pages=[one.page for one in found if one.marker == marker])
        return found

    def _slots(self, pages: Sequence[int]) -> torch.Tensor:
        """`[lane, layer, position]`, of the layers that tell."""
        slots = self._fingerprints.slots(self._fingerprints.cells(pages))
        return slots[:, self._telling].flatten(2)
