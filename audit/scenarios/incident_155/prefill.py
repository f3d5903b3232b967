"""The prefill engine: computes prompts, shares their common prefixes, sends the pages to decode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.gateway import salt_hmac
from kvwitness.audit.scenarios.incident_155.pool import PagePool, Table, covering, cut
from kvwitness.audit.scenarios.incident_155.traffic import Request

if TYPE_CHECKING:
    from kvwitness.audit.scenarios.incident_155.simulation import Deployment


@dataclass
class _Entry:
    """A common prefix in the reuse index."""

    pages: Table
    tenant: str
    """Who computed it."""
    digest: str
    used: int
    users: int = 1
    ready: bool = False


class Prefill:
    """Takes requests that have decode pages, in order, as its own pages allow."""

    def __init__(self, deployment: Deployment) -> None:
        self._all = deployment
        self._world = deployment.world
        self._waiting: list[Request] = []
        self._cache: dict[str, _Entry] = {}
        self._transfers = 0
        self.pool = PagePool(site.PREFILL_PAGES)

    def queue(self, request: Request) -> None:
        """The request has its decode pages and waits for prefill pages."""
        self._waiting.append(request)
        self._world.after(self._world.rng.between(1_000, 4_000), self._try)

    def allocated(self, request: Request, pages: Table) -> None:
        """Record that pages became the request's own."""
        request.own = pages
        self._world.emit(
            site.PREFILL,
            "page.alloc",
            pool=site.PREFILL_POOL,
            pages=pages,
            request=request.id,
            tenant=request.tenant,
        )

    def wrote(self, request: Request, first: int, end: int) -> None:
        """Record that the positions first..end-1 were computed."""
        self._world.emit(
            site.PREFILL,
            "page.write",
            pool=site.PREFILL_POOL,
            pages=covering(request.prefill_pages, first, end),
            request=request.id,
            op="forward",
            tok=(first, end),
        )

    def hand_off(self, request: Request, tokens: int) -> None:
        """Begin the transfer of so many positions to decode."""
        self._transfers += 1
        request.transfer = f"x{self._transfers:06d}"
        self._world.emit(
            site.PREFILL,
            "transfer.begin",
            transfer=request.transfer,
            request=request.id,
            src_pool=site.PREFILL_POOL,
            src_pages=covering(request.prefill_pages, 0, tokens),
            dst_pool=site.DECODE_POOL,
            dst_pages=covering(request.decode_pages, 0, tokens),
            tokens=tokens,
        )

    def release(self, request: Request, reason: str) -> None:
        """The request lets go of its prefill pages; a prefix that it filled stays in the index."""
        rest, released = request.prefill_pages, request.own
        if request.entry is not None:
            entry = self._cache[request.entry]
            entry.users -= 1
            if request.fills:
                kept = _page_count(entry.pages)
                self._freed(entry.pages, request=request.id, reason=reason, to="cache")
                rest = released = cut(request.own, kept, site.pages_for(request.prompt))
        self.pool.give(released)
        if rest:
            self._freed(rest, request=request.id, reason=reason)
        self._world.after(500, self._try)

    def _try(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            key = _key(request)
            entry = self._cache.get(key)
            usable = entry if entry is not None and entry.ready else None
            need = site.pages_for(request.prompt)
            if usable:
                need -= _page_count(usable.pages)
                usable.users += 1  # not to be evicted on its own behalf
            self._evict(need)
            if need > self.pool.available:
                if usable:
                    usable.users -= 1
                return
            self._waiting.pop(0)
            if usable:
                self._share(request, key, usable)
            self.allocated(request, self.pool.take(need))
            request.prefill_pages = request.shared + request.own
            if request.prefix is not None and entry is None:
                self._reserve(request, key, site.PREFIXES[request.prefix])
            todo = request.prompt - (_prefix_tokens(request) if usable else 0)
            self._world.after(30_000 + todo * 45, self._computed, request)

    def _share(self, request: Request, key: str, entry: _Entry) -> None:
        entry.used = self._world.now
        request.entry, request.shared = key, entry.pages
        self._world.emit(
            site.PREFILL,
            "page.share",
            pool=site.PREFILL_POOL,
            pages=entry.pages,
            request=request.id,
            tenant=request.tenant,
            key=key,
            tok=(0, _prefix_tokens(request)),
            tier="device",
            digest=entry.digest,
        )
        if entry.tenant != request.tenant:
            self._all.truth.shared.append(request.id)

    def _reserve(self, request: Request, key: str, tokens: int) -> None:
        """Announce that this request will fill the entry, so that no second one does."""
        digest = "d:" + hashlib.sha256(key.encode()).hexdigest()[:16]
        pages = cut(request.own, 0, site.pages_for(tokens))
        self._cache[key] = _Entry(pages, request.tenant, digest, used=self._world.now)
        request.entry, request.fills = key, True

    def _evict(self, need: int) -> None:
        """Drop unused entries, the longest unused first, until so many pages are available."""
        if need <= self.pool.available:
            return
        for key, entry in sorted(self._cache.items(), key=lambda item: item[1].used):
            if need <= self.pool.available:
                return
            if entry.users or not entry.ready:
                continue
            self._world.emit(site.PREFILL, "page.unpublish", pool=site.PREFILL_POOL, pages=entry.pages, key=key)
            self._freed(entry.pages, reason="evict", holder="cache")
            self.pool.give(entry.pages)
            del self._cache[key]

    def _freed(self, pages: Table, **fields: str) -> None:
        self._world.emit(site.PREFILL, "page.free", pool=site.PREFILL_POOL, pages=pages, **fields)

    def _computed(self, request: Request) -> None:
        self.wrote(request, _prefix_tokens(request) if request.shared else 0, request.prompt)
        if request.fills and request.entry is not None:
            self._publish(request, request.entry)
        self.hand_off(request, request.prompt)
        self._all.decode.receive(request)

    def _publish(self, request: Request, key: str) -> None:
        entry = self._cache[key]
        entry.ready = True
        self._world.emit(
            site.PREFILL,
            "page.publish",
            pool=site.PREFILL_POOL,
            pages=entry.pages,
            key=key,
            ns={"salt_hmac": salt_hmac(request.tenant)} if request.tenant in site.SALTED else {},
            digest=entry.digest,
            request=request.id,
        )


def _page_count(table: Table) -> int:
    """How many pages a table holds."""
    return sum(last - first + 1 for first, last in table)


def _prefix_tokens(request: Request) -> int:
    return 0 if request.prefix is None else site.PREFIXES[request.prefix]


def _key(request: Request) -> str:
    """Key of the prefix; none is the empty string. Tenants with a salt have entries of their own."""
    if request.prefix is None:
        return ""
    salt = request.tenant if request.tenant in site.SALTED else ""
    return "k:" + hashlib.sha256(f"prefix {request.prefix} {salt}".encode()).hexdigest()[:16]
