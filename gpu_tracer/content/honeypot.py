"""Honeypot pages: filled with marks, handed out to nobody, and looked at from time to time.

No request ever gets such a page, so whatever changes one is a write that went astray: through a wrong number, past the
end of a page, or by a transfer that nobody stopped. All bytes of all its rows are marks, so a write anywhere in it is
seen, unlike with canary rows. Who *reads* one reads marks, which are nobody's content, and finite numbers in every type
that caches have.

Keep the pages out of the allocator, and do not name them as reserved in `engine.pool`: to a reserved page anybody may
write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvwitness.gpu_tracer.content.canary import FINITE, STRAY
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints, mix, signed
from kvwitness.gpu_tracer.content.layout import Part, as_bits
from kvwitness.gpu_tracer.content.reference import WORD, key_words
from kvwitness.gpu_tracer.tracer import Tracer


@dataclass(frozen=True)
class Touched:
    """A honeypot page that somebody has written to since it was planted."""

    page: int
    parts: tuple[str, ...]
    """Names of the parts that have changed."""
    slots: tuple[int, ...]


class Honeypots:
    """The honeypot pages of one cache, planted when it is made.

    `kernel` is as with `Fingerprints`. Raises ValueError where no page is given, or one twice, and IndexError for a
    number that is no page's.
    """

    def __init__(self, parts: Sequence[Part], secret: bytes, pages: Sequence[int], *, kernel: bool = False) -> None:
        if not pages or len({*pages}) != len(pages):
            raise ValueError(f"honeypots need pages, each once, not {list(pages)}")
        number = min(int(part.data.shape[0]) for part in parts)
        for page in pages:
            if not 0 <= page < number:
                raise IndexError(f"there is no page {page}: the cache has {number}")
        self.pages = tuple(pages)
        self.fingerprints = Fingerprints(parts, secret, kernel=kernel)
        self._secret = secret
        self.plant()

    def plant(self) -> None:
        """Fill the pages with marks again."""
        for part in self.fingerprints.parts:
            index = torch.as_tensor(self.pages, device=part.data.device)
            bits = as_bits(part.data)
            rows = _marks(part, self._secret, self.pages)[..., : part.head_bytes].contiguous().to(bits.device)
            bits[index] = rows.view(bits.dtype).view(len(self.pages), *bits.shape[1:])
        self._planted = self.fingerprints.cells(self.pages)

    def touched(self) -> list[Touched]:
        """Pages that are not as they were planted. Waits for the device."""
        changed = (self.fingerprints.cells(self.pages) != self._planted).any(0).cpu()
        found = []
        for at, page in enumerate(self.pages):
            of_page = changed[:, at]
            if bool(of_page.any()):
                names = [self.fingerprints.parts[part].name for part in of_page.any(1).nonzero().flatten().tolist()]
                found.append(Touched(page, tuple(names), tuple(of_page.any(0).nonzero().flatten().tolist())))
        return found

    def report(self, tracer: Tracer, pool: str) -> list[Touched]:
        """As `touched`; each page's write is put on record, and all are planted again.

        A `page.write` that belongs to nobody, on a page that nobody holds: the rule `reserved-page-use`. It is dated
        when it was seen, since nobody knows when it happened.
        """
        found = self.touched()
        for one in found:
            tracer.write(pool, [one.page], op=STRAY)
        if found:
            self.plant()
        return found


def _marks(part: Part, secret: bytes, pages: Sequence[int]) -> torch.Tensor:
    """`[page, slot, head, byte]`, on the host; the last word may be longer than the head."""
    _, slots, heads = part.data.shape[:3]
    words = -(-part.head_bytes // WORD)
    key = torch.tensor([signed(one) for one in key_words(secret, f"honeypot {part.name}", 0, heads * words)])
    places = torch.tensor(pages)[:, None] * slots + torch.arange(slots)
    return (mix(key.view(heads, words) ^ mix(places)[..., None, None]) & FINITE).view(torch.uint8)
