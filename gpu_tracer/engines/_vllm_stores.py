"""Stores behind a vLLM connector, outside of any engine's memory, whose keys are known: what they hold, and for whom.

What comes out of a store was put there by an earlier request. Where it is known by what the connector finds it, that
request can be named: the store is recorded as a pool of its own, whose pages are published under the connector's key,
in the namespace of whoever put them there, and shared by whoever finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvwitness.gpu_tracer.engines._vllm_view import Seen, View

KEYED_BY_INPUTS = ("ExampleConnector", "SharedStorageConnector")
"""Connectors that find a prompt by its tokens and media alone, up to its last full page but for its last token."""
_PAGES = 1 << 16
"""Pages of a store that are remembered: beyond that the oldest entries are forgotten, and found again as unknown."""


class ExternalStore:
    """A store whose entries are whole prompts."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.pool = f"{view.pool}-store"
        self._entries: dict[str, list[int]] = {}
        """Key -> the pages that stand for an entry."""
        self._free = list(range(_PAGES))
        view.tracer.engine_pool(
            self.pool, page_tokens=view.page_tokens, pages_total=_PAGES, kind="host", sharing="global", reason="start"
        )

    def put(self, seen: Seen, request: Any) -> None:
        """The step that has been planned computes the end of a prompt, which the connector then puts into its store."""
        view, place = self._view, self._last(request)
        if place < 0 or (named := self._key(seen, request, place)) is None or named[0] in self._entries:
            return
        key, digest = named
        while len(self._free) <= place and self._entries:
            oldest = self._entries.pop(next(iter(self._entries)))
            view.tracer.unpublish(self.pool, oldest, reason="evict")
            view.tracer.free(self.pool, oldest, holder="cache", reason="evict")
            self._free += oldest
        pages = self._entries[key] = self._free[: place + 1]
        del self._free[: place + 1]
        view.tracer.alloc(self.pool, pages, holder="cache")
        view.tracer.copy(view.pool, seen.table[: place + 1], pages, to_pool=self.pool, request=seen.name)
        view.tracer.publish(
            self.pool, pages, key=key, digest=digest, ns={"salt_hmac": seen.salt} if seen.salt else {},
            request=seen.name, tenant=seen.tenant,
        )  # fmt: skip

    def found(self, seen: Seen, request: Any, upto: int) -> tuple[str, list[int]] | None:
        """The connector has found positions up to `upto` of a prompt: pool and pages where they are from, if known."""
        view, place = self._view, upto // self._view.page_tokens - 1
        named = self._key(seen, request, place) if place >= 0 else None
        pages = None if named is None else self._entries.get(named[0])
        if named is None or pages is None:
            return None
        view.tracer.share(
            self.pool, pages, seen.name, key=named[0], digest=named[1], tok=(0, upto), tenant=seen.tenant,
            ns={"salt_hmac": seen.salt} if seen.salt else {}, tier="store",
        )  # fmt: skip
        return self.pool, pages

    def left(self, seen: Seen, pages: list[int]) -> None:
        """A load from the store has ended."""
        self._view.tracer.free(self.pool, pages, seen.name, reason="finish")

    def _last(self, request: Any) -> int:
        """Place of the last page of a prompt that goes into the store."""
        return (int(request.num_prompt_tokens) - 1) // self._view.page_tokens - 1

    def _key(self, seen: Seen, request: Any, place: int) -> tuple[str, str] | None:
        """Key and digest of a prompt up to the end of a page."""
        digest = self._view.digest(seen, request, place)
        return None if digest is None else (self._view.identity.hashed("store", digest), digest)
