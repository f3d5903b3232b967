"""Whether the bytes of a step's writes landed: the plan says what was to be written, the cache what was.

Of each page that a step writes, the keys at one position, the last that is written there, are compared before and after
the step, in all layers. Where none of them has changed, although the position held the keys of other inputs, the page
has not been written, whatever the plan said. The comparison is made on the device; one truth value per page comes back,
for which the host has to wait. So it is made by default on CPUs alone, and on an accelerator only when asked for.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvwitness.gpu_tracer.engines._transformers_view import Part, Seen, View

CONTENT_VARIABLE = "KVWITNESS_CONTENT"
"""`1`: look whether writes land; `0`: do not. Default: on CPUs only."""


def looking(processor: Any) -> bool:
    """Whether this processor's writes are looked at: never where steps overlap."""
    if getattr(processor, "use_async_batching", False):
        return False
    asked = os.environ.get(CONTENT_VARIABLE)
    return asked == "1" if asked else processor.model_device.type == "cpu"


class Content:
    """What the pages of one engine hold, as far as that is needed to tell a lost write from an equal one."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._left: dict[int, tuple[bytes, array[int]]] = {}
        """Page -> the inputs up to its beginning (a digest), and those in it, of whoever held it last."""
        self._before: tuple[list[Part], Any, list[Any]] | None = None

    def watch(self, part: Part) -> bool:
        """Whether a part of a step is looked at: prompts, and the first position of a page while decoding."""
        return part.end - part.first > 1 or not part.first % self._view.page_tokens

    def before(self) -> None:
        """Just before a step runs."""
        parts = [part for part in self._view.parts if part.watched]
        self._before = None
        if parts:
            import torch  # the host's own

            rows = [row for part in parts for row in part.rows]
            where = torch.as_tensor(rows, device=self._view.allocator.cache_tensor.device)
            self._before = (parts, where, [keys.index_select(0, where) for keys in self._keys()])

    def after(self) -> list[tuple[Part, list[bool]]]:
        """When it has run: the parts that were looked at, and for each of their pages whether it was written."""
        looked, self._before = self._before, None
        if looked is None:
            return []
        import torch  # the host's own

        parts, where, before = looked
        changed = torch.zeros(len(where), dtype=torch.bool, device=where.device)
        for keys, old in zip(self._keys(), before, strict=True):
            changed |= (keys.index_select(0, where) != old).flatten(1).any(1)
        answers, out = changed.tolist(), []
        for part in parts:
            mine, answers = answers[: len(part.rows)], answers[len(part.rows) :]
            out.append((part, [one or self._equal(part, n) for n, one in enumerate(mine)]))
        return out

    def remember(self, seen: Seen, table: Sequence[int], pages: Sequence[int]) -> None:
        """A request lets go of pages of its table; they keep what it has computed on them."""
        going = {page for page in pages if self._view.owner.get(page) is seen}
        if not going:
            return
        tokens, size = _tokens(seen.state), self._view.page_tokens
        before = b""
        for n, page in enumerate(table):
            held = array("q", tokens[n * size : min((n + 1) * size, seen.computed)])
            if page in going:
                self._left[page] = (before, held)
            before = _chained(before, held)

    def forget(self, pages: Sequence[int]) -> None:
        """Pages hold what nobody sent."""
        for page in pages:
            self._left.pop(page, None)

    def _equal(self, part: Part, n: int) -> bool:
        """Whether the page held, up to the position that is looked at, the very inputs that were to be written."""
        size = self._view.page_tokens
        start = (part.first // size + n) * size
        left = self._left.get(part.written[n])
        if left is None:
            return False
        end = min(part.end, start + size)
        tokens = _tokens(part.seen.state)
        if left[1][: end - start] != array("q", tokens[start:end]):
            return False
        before = b""
        for at in range(0, start, size):
            before = _chained(before, array("q", tokens[at : at + size]))
        return before == left[0]

    def _keys(self) -> list[Any]:
        """Each layer's keys, a row per index."""
        return [keys for keys, _ in self._view.allocator._kv_token_views.values()]


def _tokens(state: Any) -> list[int]:
    return list(state.initial_tokens) + list(state.generated_tokens)


def _chained(before: bytes, held: array[int]) -> bytes:
    """Digest of all inputs up to the end of a page, given that up to its beginning."""
    return hashlib.blake2b(held.tobytes(), key=before, digest_size=16).digest()
