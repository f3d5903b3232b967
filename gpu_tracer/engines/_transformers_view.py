"""What the transformers adapter knows of one batch processor while it runs: its pool, its live requests, their pages.

The pool of a paged cache is told numbers of pages only, its allocator knows requests. What goes in and out of the pool
is taken from the pool, and for whom from the call that was under way. One object serves one processor, in the thread
that generates.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwitness.gpu_tracer.cache import CacheRecorder
from kvwitness.gpu_tracer.engines._transformers_content import Content, looking
from kvwitness.gpu_tracer.engines.base import CLOCK_VARIABLE, ENGINE_VARIABLE, REMEMBERED, SHARING_VARIABLE, runs
from kvwitness.gpu_tracer.engines.identity import Identity
from kvwitness.gpu_tracer.shadow import Mode, Watched, tracer_from_environment

_RESERVED_SECTORS = 2
"""The first sectors take what padding reads and writes."""
_CHILD = "__child#"
"""Stands in the id of a request that was forked off, behind its parent's."""
_WARMUP = "__warmup_"

TenantOf = Callable[[str], str | None]
"""The tenant of a request, by the id under which it was added; None where nobody knows."""


@dataclass(slots=True, eq=False)
class Seen:
    """A live request."""

    id: str
    name: str
    """As it stands in the record."""
    state: Any
    """The engine's own object for it; what tokens are in it goes into fingerprints and is never recorded."""
    prompt: int
    """Tokens of the prompt."""
    tenant: str | None = None
    table: list[int] = field(default_factory=list)
    """Its pages, as the engine's table had them when it was last looked at."""
    reading: list[int] = field(default_factory=list)
    """Pages that are under an open read."""
    read_to: int = 0
    """Positions below it are under an open read."""
    computed: int = 0
    """Positions below it were written or adopted."""
    attached: int = 0
    """Tokens of the prompt that came from the prefix cache at first admission."""
    sound: list[int] = field(default_factory=list)
    """Full pages that were found to be its own, where reads are refused."""
    started: bool = False
    preempted: bool = False
    over: bool = False
    reason: str = "finish"
    digests: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """What a step does for one request."""

    seen: Seen
    first: int
    end: int
    """Positions [first, end) are computed."""
    written: list[int]
    """The pages that the write indices of the step lead to, in the order of positions."""
    rows: list[int]
    """For each of those pages, the index of the last position that is written on it."""
    read: list[int] | None = None
    """The pages that its read indices lead to, from position 0; None where it reads nothing from the cache."""
    watched: bool = False
    """Whether it is looked at if the bytes land; what rests on it is put down after the step, then."""


class View:
    """One processor."""

    def __init__(self, processor: Any, identity: Identity, version: str, tenant_of: TenantOf | None) -> None:
        cache = processor.cache
        self.processor, self.scheduler, self.identity = processor, processor.scheduler, identity
        self._tenant_of = tenant_of
        life = secrets.token_hex(4)
        self.engine = os.environ.get(ENGINE_VARIABLE) or f"transformers-{life}"
        rank = int(getattr(processor.distributed_helper, "tp_rank", 0) or 0)
        self.tracer = tracer_from_environment(f"{self.engine}/{rank}", refuses=True)
        self.refusing = isinstance(self.tracer, Watched) and self.tracer.mode is Mode.REFUSE
        allocators = list(cache.cache_allocators.values())
        self.allocator = allocators[0]
        self.blind = self._blind(processor, allocators)
        """Why nothing can be said about pages of this engine; None where it can."""
        self.pool = f"{self.engine}/{rank}/kv-{life}"
        self.cache = CacheRecorder(self.tracer, self.pool)
        self.page_tokens = int(self.allocator.tokens_per_page)
        self.stride = int(self.allocator.block_physical_stride)
        """From one page's first index to the next page's."""
        self.unseen: tuple[str, ...] = ()
        self.live: dict[str, Seen] = {}
        self.names: dict[str, str] = {}
        self.owner: dict[int, Seen] = {}
        """Page -> the request that was given it."""
        self.kept: set[int] = set()
        """Pages whose owner is gone and that somebody else, or only the prefix cache, keeps."""
        self.asking: Seen | None = None
        """The request for which the pool is being asked."""
        self.given: list[int] = []
        self.taken: list[int] = []
        """What the pool has given and taken back in the call that is under way."""
        self.offloading = False
        self.step = 0
        self.parts: list[Part] = []
        """The step that is being prepared, or that runs."""
        self.content: Content | None = Content(self) if looking(processor) else None
        self._describe(processor, version)

    @staticmethod
    def _blind(processor: Any, allocators: Sequence[Any]) -> str | None:
        if len(allocators) != 1:
            return "the model has several kinds of attention, whose pages share memory"
        if type(allocators[0]).__name__ != "FullAttentionCacheAllocator":
            return f"the cache is managed by {type(allocators[0]).__name__}"
        return None

    def _describe(self, processor: Any, version: str) -> None:
        allocator, tracer = self.allocator, self.tracer
        reserved = _RESERVED_SECTORS * int(allocator.blocks_per_sector)
        if self.blind is None:
            tracer.engine_pool(
                self.pool, page_tokens=self.page_tokens, pages_total=int(allocator.num_blocks) + reserved, kind="kv",
                reserved=range(reserved), scrub="never", sharing=os.environ.get(SHARING_VARIABLE) or "global",
                reason="start",
            )  # fmt: skip
        length = getattr(processor.config, "max_position_embeddings", None)
        tracer.engine_limits(
            self.engine, role="unified", advertised_tokens=None if length is None else int(length),
            pool_tokens=int(allocator.num_blocks) * self.page_tokens, version=version,
            model=os.path.basename(str(getattr(processor.config, "_name_or_path", "") or "").rstrip("/")) or None,
        )  # fmt: skip
        if uncertainty := os.environ.get(CLOCK_VARIABLE):
            tracer.engine_clock(self.engine, offset_s=0.0, uncertainty_s=float(uncertainty))

    # -- requests ---------------------------------------------------------------------------------------

    def admit(self, state: Any) -> Seen:
        """A request arrived, or comes back after it was set aside."""
        rid = str(state.request_id)
        seen = self.live.get(rid)
        if seen is not None:
            seen.state = state
            return seen
        return self._arrived(rid, state)

    def _arrived(self, rid: str, state: Any) -> Seen:
        prompt = int(getattr(state, "_true_initial_tokens", 0) or len(state.initial_tokens))
        seen = self.live[rid] = Seen(rid, self._name(rid), state, prompt)
        who = self._tenant(rid)
        if who is not None:  # without a tenant there is nothing to be said that the format has a place for
            seen.tenant = who[0]
            self.tracer.request_received(
                seen.name, who[0], prompt_tokens=prompt, max_new_tokens=state.max_new_tokens, tenant_source=who[1]
            )
        if self.blind or self.unseen:
            self.gap(self.blind or f"not seen in this engine: {', '.join(self.unseen)}")
        return seen

    def _tenant(self, rid: str) -> tuple[str, str] | None:
        whole, _, _ = rid.partition(_CHILD)
        if self._tenant_of is not None and (tenant := self._tenant_of(whole)) is not None:
            return tenant, "host"
        name = self.identity.attested(whole.rpartition("/")[0])
        return None if name is None else (name, "gateway")

    def _name(self, rid: str) -> str:
        """The id of a request, without the proof of whose it is, and told from an earlier use of the same id."""
        front, _, bare = rid.rpartition("/")
        name = bare if front and self.identity.attested(front) is not None else rid
        if name in self.names:
            name = f"{name}-{secrets.token_hex(4)}"
        if len(self.names) >= REMEMBERED:
            del self.names[next(iter(self.names))]
        self.names[name] = rid
        return name

    def find(self, rid: str) -> Seen | None:
        """A live request; one that was forked off is first heard of when its pages are."""
        seen = self.live.get(rid)
        if seen is None and _CHILD in rid:
            state = self.scheduler.active_requests.get(rid.partition(_CHILD)[0])
            return None if state is None else self._arrived(rid, state)
        return seen

    def answered(self, seen: Seen, *, status: int | None, finish: str, tokens: int) -> None:
        """The engine is done with a request."""
        if seen.over:
            return
        seen.over = True
        self.tracer.response(
            seen.name, status=status, finish_reason=finish, prompt_tokens=seen.prompt, cached_tokens=seen.attached,
            completion_tokens=tokens, answered_by=self.tracer.source,
        )  # fmt: skip

    def gap(self, reason: str) -> None:
        """Put down that something was not seen: no request that lives across it can be called clean."""
        self.tracer.gap(dropped=1, reason=reason)

    # -- pages ------------------------------------------------------------------------------------------

    def call(self, seen: Seen | None) -> None:
        """A call of the allocator begins, for a request or for nobody."""
        self.asking, self.given, self.taken = seen, [], []

    def allocated(self, seen: Seen | None) -> None:
        """Put down what the pool has given in the call."""
        pages, self.given = self.given, []
        if not pages:
            return
        if seen is None:  # a dummy request of the engine's own
            self.tracer.alloc(self.pool, pages, holder="engine")
            if self.content is not None:
                self.content.forget(pages)
            return
        for page in pages:
            self.owner[page] = seen
        self.tracer.alloc(self.pool, pages, seen.name, tenant=seen.tenant)

    def let_go(self, seen: Seen, table: Sequence[int], pages: Sequence[int], reason: str) -> None:
        """A request lets go of pages of its table; those that the pool did not take back are kept by somebody else, or
        by the prefix cache."""
        back = set(self.taken)
        if self.content is not None:
            self.content.remember(seen, table, pages)
        gone = [page for page in pages if page in back]
        own = [page for page in pages if page not in back and self.owner.get(page) is seen]
        left = [page for page in pages if page not in back and self.owner.get(page) is not seen]
        if gone or left:
            self.tracer.free(self.pool, gone + left, seen.name, reason=reason)
        if own:
            self.tracer.free(self.pool, own, seen.name, reason=reason, to="cache")
            self.kept.update(own)
        self._back(gone)

    def evicted(self) -> None:
        """The pool took pages back that nobody used: the prefix cache gives them up."""
        pages, self.taken = self.taken, []
        if pages:
            self.tracer.unpublish(self.pool, pages, reason="evict")
            self._back(pages)

    def _back(self, pages: Sequence[int]) -> None:
        """Pages are in the pool again; if the cache kept them, it lets go."""
        kept = [page for page in pages if page in self.kept]
        for page in pages:
            self.owner.pop(page, None)
        if kept:
            self.kept.difference_update(kept)
            self.tracer.free(self.pool, kept, holder="cache", reason="evict")

    def emptied(self) -> None:
        """The pool starts over: nobody holds anything, and nothing can be found."""
        by: dict[int, tuple[Seen, list[int]]] = {}
        for page, seen in self.owner.items():
            if page not in self.kept:
                by.setdefault(id(seen), (seen, []))[1].append(page)
        for seen, pages in by.values():
            self.tracer.free(self.pool, pages, seen.name, reason="flush")
            self.start_over(seen)
        if self.kept:
            pages = sorted(self.kept)
            self.tracer.unpublish(self.pool, pages, reason="flush")
            self.tracer.free(self.pool, pages, holder="cache", reason="evict")
        self.owner.clear()
        self.kept.clear()

    def copied(self, page: int, copy: int) -> None:
        """A page of a request is about to be copied for one that was forked off and has been given the other page."""
        seen = self.owner.get(copy)
        if seen is None:
            self.tracer.copy(self.pool, [page], [copy])
            return
        place, size = seen.table.index(copy), self.page_tokens
        self.attach(seen, [page], place)
        self.tracer.copy(self.pool, [page], [copy], request=seen.name, tok=(place * size, (place + 1) * size))
        self.tracer.free(self.pool, page, seen.name, reason="copied")

    def strays(self) -> None:
        """Pages that came out of or into the pool in no call that is known."""
        if self.given:
            self.tracer.alloc(self.pool, self.given, holder="engine")
        if self.taken:
            self.tracer.free(self.pool, self.taken, holder="engine")
        self.given, self.taken = [], []

    def attach(self, seen: Seen, pages: Sequence[int], first: int = 0) -> None:
        """A request attaches to pages that exist already; `first` is the place of the first of them."""
        size, hashes = self.page_tokens, self.allocator.ledger.block_to_hash
        for place, page in enumerate(pages, first):
            tok = (place * size, (place + 1) * size)
            if (key := hashes.get(page)) is None:
                self.tracer.share(self.pool, page, seen.name, tok=tok, tenant=seen.tenant)
            else:
                self.cache.share(page, seen.name, seen.tenant, self.key(key), self.digest(seen, place), tok)

    def publish(self, seen: Seen, page: int, place: int, tokens: Sequence[int]) -> None:
        """A page of a request became findable."""
        key = self.key(self.allocator.ledger.block_to_hash[page])
        self.cache.publish(page, seen.name, key, self.digest(seen, place, tokens))

    def key(self, page_hash: int) -> str:
        """Under which key a page can be found, so that nobody can try out prompts on it."""
        return self.identity.hashed("key", page_hash.to_bytes(8, "little"))

    def digest(self, seen: Seen, place: int, tokens: Sequence[int] | None = None) -> str | None:
        """Fingerprint of the inputs of a request up to the end of a page; None where they are not known that far."""
        size, digests = self.page_tokens, seen.digests
        known = seen.state.initial_tokens if tokens is None else tokens
        while len(digests) <= place:
            n = len(digests)
            page = known[n * size : (n + 1) * size]
            if len(page) < size:
                return None
            before = digests[-1] if n else b""
            digests.append(hashlib.blake2b(array("q", page).tobytes(), key=before, digest_size=16).digest())
        return self.identity.hashed("inputs", digests[place])

    # -- steps --------------------------------------------------------------------------------------------

    def writes(self, part: Part, only: Sequence[bool] | None = None) -> None:
        """Put down what a step writes for a request; with `only`, those of the pages for which it is true."""
        size, start = self.page_tokens, part.first // self.page_tokens
        for at, end in runs([n for n in range(len(part.written)) if only is None or only[n]]):
            tok = (max(part.first, (start + at) * size), min(part.end, (start + end) * size))
            pages = part.written[at:end]
            self.tracer.write(
                self.pool, pages if len(pages) > 1 else pages[0], part.seen.name, tok=tok, op="forward", step=self.step
            )

    def reads(self, part: Part) -> None:
        """Open reads of what a step sees and what is not under an open read yet."""
        seen, pages, size = part.seen, part.read, self.page_tokens
        if pages is None:
            return
        had = seen.reading
        same = 0
        if had and pages[: len(had)] == had:
            same = len(had)
        elif had:
            while same < len(had) and same < len(pages) and had[same] == pages[same]:
                same += 1
        start = min(seen.read_to, same * size)
        decoding = part.first >= seen.prompt
        if had and decoding and part.end - start < size and part.end % size:
            return  # positions that it has written itself; the page is put down when it is full
        self.tracer.read(
            self.pool, pages[start // size :], seen.name, tok=(start, part.end),
            op="decode" if decoding else "prefill", step=self.step,
        )  # fmt: skip
        seen.reading, seen.read_to = pages, part.end

    def would_read_wrongly(self, seen: Seen, end: int) -> bool:
        """Whether the next step of a request, which reads positions [0, end), would meet what is not its own.

        Pages that were full when they were looked at are not looked at again, unless they have changed places.
        """
        if not isinstance(self.tracer, Watched):
            return False
        if self.tracer.taken_of(seen.name):
            return True
        size, table = self.page_tokens, self.allocator.block_table.get(seen.id, ())
        pages = list(table[: -(-end // size)])
        same = 0
        while same < len(seen.sound) and same < len(pages) and seen.sound[same] == pages[same]:
            same += 1
        if same * size < end and self.tracer.look(self.pool, pages[same:], seen.name, (same * size, end)):
            return True
        seen.sound = pages[: end // size]
        return False

    def finish_reading(self, seen: Seen) -> None:
        """Put down what decoding has read since the last full page."""
        first, end, size = seen.read_to, seen.computed, self.page_tokens
        if seen.reading and first < end and len(seen.table) * size >= end:
            self.tracer.read(
                self.pool, seen.table[first // size : -(-end // size)], seen.name, tok=(first, end), op="decode",
                step=self.step,
            )  # fmt: skip
        seen.read_to = max(first, end)

    def start_over(self, seen: Seen) -> None:
        """The request has let go of all its pages."""
        seen.table, seen.reading, seen.read_to, seen.computed = [], [], 0, 0


def is_dummy(rid: str) -> bool:
    """Whether a request is one that the engine makes up in order to warm up."""
    return rid.startswith(_WARMUP)
