"""What the SGLang adapter knows of one scheduler while it runs: its pool, its live requests, who holds which page.

SGLang's allocator is told slots only, never for whom; its request table says which slots a request reads. All that is
kept here follows from these two: a page that stands in a request's row and that nobody held was allocated for it, a
page of the prefix tree that stands there is shared, and a page goes back when the allocator takes it back.

One object serves one scheduler, in the one thread that SGLang schedules in.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvwitness.gpu_tracer.cache import CacheRecorder
from kvwitness.gpu_tracer.engines.base import CLOCK_VARIABLE, ENGINE_VARIABLE, REMEMBERED, SHARING_VARIABLE
from kvwitness.gpu_tracer.engines.identity import Identity
from kvwitness.gpu_tracer.shadow import tracer_from_environment

_ALLOCATORS = ("PagedTokenToKVPoolAllocator", "TokenToKVPoolAllocator")
"""Allocators whose ids are the physical pages; others translate, or keep several pools behind one number."""
_ROLES = {"prefill": "prefill", "decode": "decode"}
_LIVE = 4096
"""From so many live requests on, it is looked whether some of them are over."""
_MADE_UP_ID = 32
"""Hex digits of the id that SGLang makes for a request whose client gave none."""

_log = logging.getLogger("kvwitness.gpu_tracer")


@dataclass(slots=True, eq=False)
class Seen:
    """A live request."""

    id: str
    name: str
    """As it stands in the record."""
    prompt: int
    """Tokens of the prompt as it arrived, before the engine put anything in its place."""
    transfer: str | None = None
    """The bootstrap room, where prefill and decode are apart."""
    tenant: str | None = None
    salt: str | None = None
    """Keyed hash of what keeps it apart in the prefix tree."""
    adapter: str | None = None
    request: Any = None
    """The engine's own object for it, once there is one."""
    table: list[int] = field(default_factory=list)
    """Its pages in the order of token positions."""
    held: set[int] = field(default_factory=set)
    """Pages that it was given or attached to."""
    read_to: int = 0
    """Positions below it are under an open read."""
    computed: int = 0
    """Positions below it are written by its own steps, or taken as present by the engine."""
    decoding: bool = False
    preempted: bool = False
    receiving: bool = False
    """Whether it waits for a transfer."""
    told: bool = False
    """Whether the engine has answered."""
    aborting: bool = False
    """Whether its abort was asked for, and has not been carried out yet."""
    ended: bool = False
    """Whether its abort stands in the record; there may be no answer then."""
    digests: list[bytes] = field(default_factory=list)


class View:
    """One scheduler and its pool."""

    def __init__(self, scheduler: Any, identity: Identity, version: str) -> None:
        self.scheduler, self.identity, self.version = scheduler, identity, version
        self.allocator, self.rows = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
        args, parallel = scheduler.server_args, _parallel(scheduler)
        life = secrets.token_hex(4)
        self.engine = os.environ.get(ENGINE_VARIABLE) or f"sglang-{life}"
        rank = int(getattr(parallel, "tp_rank", 0) or 0)
        self.speaks = rank == 0
        """Whether this process tells of requests; with tensor parallelism every rank has them, and pages of its own."""
        group = getattr(parallel, "dp_rank", None)
        self.tracer = tracer_from_environment(f"{self.engine}/{rank if group is None else f'{group}.{rank}'}")
        self.role = _ROLES.get(str(args.disaggregation_mode), "unified")
        self.page_tokens = int(self.allocator.page_size)
        self.pages = int(self.allocator.size) // self.page_tokens + 1
        self.blind = _blind(scheduler)
        """Why nothing can be said about pages of this engine; None where it can."""
        self.in_order = not getattr(scheduler, "enable_overlap", True) and int(args.pp_size) == 1
        """Whether a step has ended before the next one is made."""
        self.model = os.path.basename(str(args.served_model_name or args.model_path).rstrip("/"))
        self.pool = f"{self.engine}/{rank}/kv-{life}"
        if self.role == "decode" and (peer := own_peer(scheduler)) is not None:
            self.pool = peer_pool(peer)  # the sender has to find the name by itself
        self.cache = CacheRecorder(self.tracer, self.pool)
        self.unseen: tuple[str, ...] = ()
        self.live: dict[str, Seen] = {}
        self._prune_at = _LIVE
        self.names: dict[str, str] = {}
        """Names in use or lately used -> id and room of the request."""
        self.owner: dict[int, Seen] = {}
        """Page -> the request that was given it."""
        self.cached: set[int] = set()
        """Pages that the prefix tree can find."""
        self.inserting: list[int] | None = None
        """Pages that the tree is taking in."""
        self.step = 0
        self.running = False
        self._describe(args)

    def _describe(self, args: Any) -> None:
        tracer, scheduler = self.tracer, self.scheduler
        tracer.engine_pool(
            self.pool, page_tokens=self.page_tokens, pages_total=self.pages, kind="kv", reserved=[0], scrub="never",
            sharing=os.environ.get(SHARING_VARIABLE) or "global", reason="start",
        )  # fmt: skip
        tracer.engine_limits(
            self.engine, role=self.role, advertised_tokens=int(scheduler.model_config.context_len),
            input_limit_tokens=int(scheduler.max_req_input_len) - 1,  # a prompt as long as that is refused
            pool_tokens=(self.pages - 1) * self.page_tokens, version=self.version, model=self.model,
        )  # fmt: skip
        if uncertainty := os.environ.get(CLOCK_VARIABLE):
            tracer.engine_clock(self.engine, offset_s=0.0, uncertainty_s=float(uncertainty))
        if self.blind:
            _log.warning("pages of this engine are not recorded: %s", self.blind)

    # -- requests ---------------------------------------------------------------------------------------

    def admit(self, received: Any) -> None:
        """A request arrived; its prompt is still the client's."""
        rid = str(received.rid)
        room = getattr(received, "bootstrap_room", None) if self.role != "unified" else None
        seen = Seen(rid, self._name(rid, room), len(received.input_ids or ()), None if room is None else str(room))
        self.live[rid] = seen
        if len(self.live) > self._prune_at:
            self._prune()
        salts = [one for one in (getattr(received, "cache_salt", None), getattr(received, "extra_key", None)) if one]
        salt = "\0".join(map(str, salts)) or None
        hashed = None if salt is None else self.identity.hashed("salt", salt)
        adapter = getattr(received, "lora_id", None)
        seen.salt, seen.adapter = hashed, adapter
        health = rid.startswith("HEALTH_CHECK")
        who = ("engine", "engine") if health else self._tenant(received, salt)
        if who is not None:
            seen.tenant = who[0]
            if self.speaks:
                self.tracer.request_received(
                    seen.name, who[0], prompt_tokens=seen.prompt, salt_hmac=hashed, adapter=adapter,
                    max_new_tokens=getattr(received.sampling_params, "max_new_tokens", None), model=self.model,
                    tenant_source=who[1], traffic="health" if health else None,
                    engine_request=None if seen.name == rid else rid,
                )  # fmt: skip
        if self.blind or self.unseen:
            self.gap(self.blind or f"not seen in this engine: {', '.join(self.unseen)}")

    def _tenant(self, received: Any, salt: str | None) -> tuple[str, str] | None:
        """Tenant and who supplied it. What a gateway attests with the key counts most, then what separates tenants in
        the engine's own prefix cache, then the key by which a gateway routes, then a session."""
        route = getattr(received, "routing_key", None)
        for value in (route, getattr(received, "extra_key", None), getattr(received, "cache_salt", None)):
            if (name := self.identity.attested(value)) is not None:
                return name, "gateway"
        if salt is not None:
            return f"salt-{self.identity.hashed('salt', salt)}", "cache_salt"
        if route:
            return f"route-{self.identity.hashed('route', str(route))}", "routing_key"
        session = getattr(received, "session_id", None)
        return self.identity.tenant(session=None if session is None else str(session))

    def _name(self, rid: str, room: int | None) -> str:
        """A name that prefill and decode both give to a request: the client's id, or that of the room they meet in."""
        made_up = len(rid) == _MADE_UP_ID and all(c in "0123456789abcdef" for c in rid)
        name = f"room-{room}" if room is not None and (made_up or rid in self.names) else rid
        if name in self.names and room is None:
            name = f"{rid}-{secrets.token_hex(4)}"  # a second life of an id that a client uses again
        if len(self.names) >= REMEMBERED:
            del self.names[next(iter(self.names))]
        self.names[name] = rid
        return name

    def find(self, request: Any) -> Seen | None:
        """The live request that an object of the engine stands for."""
        seen = self.live.get(request.rid)
        if seen is not None:
            seen.request = request
        return seen

    def forget_if_over(self, seen: Seen) -> None:
        """Keep nothing of a request that is answered and holds nothing."""
        if seen.told and not seen.held and not seen.table and self.live.get(seen.id) is seen:
            del self.live[seen.id]

    def aborted(self, seen: Seen) -> None:
        """Put an abort down that was asked for and is carried out now."""
        if not seen.aborting:
            return
        seen.aborting, seen.ended = False, True
        if self.speaks:
            self.finish_reading(seen)  # what it read came before
            self.tracer.request_aborted(seen.name, by="engine", reason="asked for from outside the scheduler")

    def _prune(self) -> None:
        """Forget requests that were aborted while they waited: nobody says that they are over."""
        for seen in list(self.live.values()):
            if seen.ended and not seen.held and not seen.table:
                del self.live[seen.id]
        self._prune_at = max(_LIVE, 2 * len(self.live))

    def gap(self, reason: str) -> None:
        """Put down that something was not seen: no request that lives across it can be called clean."""
        self.tracer.gap(dropped=1, reason=reason)

    # -- pages ------------------------------------------------------------------------------------------

    def row(self, request: Any, first: int, end: int) -> list[int]:
        """Pages [first, end) of a request, as the engine's own table has them."""
        size = self.page_tokens
        index = row_of(request)
        slots = self.rows.req_to_token[index, first * size : end * size : size]
        return [slot // size for slot in slots.tolist()]

    def sync(self, seen: Seen, request: Any, tokens: int, *, whole: bool = True) -> None:
        """Bring a request's table up to the engine's, as far as `tokens` positions, and say whose new pages are.

        With `whole`, pages that stood there are looked at again: the tree may have put its own in their place.
        """
        end = -(-tokens // self.page_tokens)
        first = 0 if whole else len(seen.table)
        if first < end:
            self.take(seen, first, self.row(request, first, end))

    def take(self, seen: Seen, first: int, pages: list[int]) -> None:
        """From place `first` on, these are the pages of a request."""
        new: list[int] = []
        for place, page in enumerate(pages, first):
            if page in seen.held or page == 0:
                continue
            before = self.owner.get(page)
            if page in self.cached:
                self._share(seen, page, place)
            elif before is not None:
                self._handed_on(before, seen, page, place)
            else:
                new.append(page)
                self.owner[page] = seen
            seen.held.add(page)
        seen.table[first:] = pages
        if new:
            self.tracer.alloc(self.pool, new, seen.name, tenant=seen.tenant)

    def _share(self, seen: Seen, page: int, place: int) -> None:
        size, digest = self.page_tokens, self.digest(seen, place)
        tok = (place * size, (place + 1) * size)
        if digest is None:
            self.tracer.share(self.pool, page, seen.name, tok=tok, tenant=seen.tenant)
        else:
            self.cache.share(page, seen.name, seen.tenant, self.key(seen, digest), digest.hex(), tok)

    def _handed_on(self, before: Seen, seen: Seen, page: int, place: int) -> None:
        """A session keeps the pages of one request for the next."""
        if before.told:
            before.held.discard(page)
            self.tracer.free(self.pool, page, before.name, reason="finish", to="session")
            self.owner[page] = seen
            self._share(seen, page, place)
            self.forget_if_over(before)
        else:  # two at once in one page: the audit is the one to say what that is
            self.owner[page] = seen
            self.tracer.alloc(self.pool, page, seen.name, tenant=seen.tenant)

    def released(self, pages: Iterable[int]) -> None:
        """The allocator takes pages back."""
        evicted: list[int] = []
        stray: list[int] = []
        by: dict[int, tuple[Seen, list[int]]] = {}
        for page in pages:
            seen = self.owner.pop(page, None)
            if page in self.cached:
                self.cached.discard(page)
                evicted.append(page)
                if seen is not None:
                    seen.held.discard(page)
            elif seen is not None:
                seen.held.discard(page)
                by.setdefault(id(seen), (seen, []))[1].append(page)
            else:
                stray.append(page)
        if evicted:
            self.tracer.unpublish(self.pool, evicted, reason="evict")
            self.tracer.free(self.pool, evicted, reason="evict", holder="cache")
        for seen, gone in by.values():
            if over(seen.request):
                self.finish_reading(seen)
            self.tracer.free(self.pool, gone, seen.name, reason=self.why(seen))
            self.forget_if_over(seen)
        if stray:
            self.tracer.free(self.pool, stray, holder="engine")

    def row_given_up(self, seen: Seen) -> None:
        """A request gives its row up. What the tree has stays there; the rest goes back, or has gone back already."""
        self.finish_reading(seen)
        kept = [page for page in dict.fromkeys(seen.table) if page in seen.held and page in self.cached]
        mine = [page for page in kept if self.owner.get(page) is seen]
        for page in mine:
            del self.owner[page]
        shared = [page for page in kept if page not in set(mine)]
        reason = self.why(seen) or "preempt"
        if mine:
            self.tracer.free(self.pool, mine, seen.name, reason=reason, to="cache")
        if shared:
            self.tracer.free(self.pool, shared, seen.name, reason=reason)
        seen.held.difference_update(kept)
        seen.held.intersection_update(page for page in seen.held if self.owner.get(page) is seen)
        seen.table, seen.read_to, seen.computed, seen.decoding = [], 0, 0, False
        self.aborted(seen)
        self.forget_if_over(seen)

    def why(self, seen: Seen) -> str | None:
        """Why a request lets go of pages: `finish`, `abort`, or None while it goes on."""
        if not over(seen.request):
            return "duplicate" if self.inserting is not None else None
        return "abort" if type(seen.request.finished_reason).__name__ == "FINISH_ABORT" else "finish"

    def emptied(self) -> None:
        """The pool starts over: nobody holds anything, and nothing can be found."""
        if self.cached:
            pages = sorted(self.cached)
            self.cached.clear()
            self.tracer.unpublish(self.pool, pages, reason="flush")
            self.tracer.free(self.pool, pages, reason="evict", holder="cache")
        for page in list(self.owner):
            if (seen := self.owner.pop(page, None)) is not None:
                seen.held.discard(page)
                self.tracer.free(self.pool, page, seen.name, reason="flush")

    # -- the prefix tree --------------------------------------------------------------------------------

    def inserted(self, key: Any, pages: Sequence[int], present: int) -> None:
        """The tree took in a run of pages from position 0, of which it had `present` tokens before."""
        size = self.page_tokens
        for place in range(present // size, min(len(pages), len(key) // size)):
            page = pages[place]
            seen = self.owner.get(page)
            if page in self.cached or seen is None:
                continue
            self.cached.add(page)
            digest = self.digest(seen, place, key.token_ids)
            if digest is None:
                self.tracer.publish(self.pool, page, request=seen.name)
            else:
                self.cache.publish(page, seen.name, self.key(seen, digest), digest.hex())

    def digest(self, seen: Seen, place: int, tokens: Any = None) -> bytes | None:
        """Keyed fingerprint of the inputs of a request up to the end of a page, whatever its salt.

        None where tokens alone do not say what the inputs were, or are not known that far.
        """
        request, size, digests = seen.request, self.page_tokens, seen.digests
        if request is None or getattr(request, "input_embeds", None) is not None:
            return None
        if len(digests) <= place and tokens is None:
            tokens = request.origin_input_ids
        while len(digests) <= place:
            n = len(digests)
            page = tokens[n * size : (n + 1) * size]
            if len(page) < size:
                return None
            before = digests[-1] if n else str(seen.adapter).encode()
            digests.append(bytes.fromhex(self.identity.hashed("inputs", before + array("q", page).tobytes())))
        return digests[place]

    def key(self, seen: Seen, digest: bytes) -> str:
        """Under which key a page can be found: the tree keeps requests with different salts apart."""
        return self.identity.hashed("key", str(seen.salt).encode() + digest)

    # -- reads ------------------------------------------------------------------------------------------

    def reading(self, seen: Seen, first: int) -> None:
        """Open reads of all that a request's step sees and that is not under an open read yet."""
        end, size = seen.computed, self.page_tokens
        start = min(seen.read_to, first)
        self.tracer.read(
            self.pool, seen.table[start // size : -(-end // size)], seen.name, tok=(start, end),
            op="decode" if seen.decoding else "prefill", step=self.step,
        )  # fmt: skip
        seen.read_to = end

    def finish_reading(self, seen: Seen) -> None:
        """Put down what decoding has read since the last full page."""
        if seen.decoding and seen.read_to < seen.computed and seen.table:
            self.reading(seen, seen.read_to)


def _parallel(scheduler: Any) -> Any:
    """Where the scheduler's ranks stand: on itself until 0.5.20, in the process since."""
    if (own := getattr(scheduler, "ps", None)) is not None:
        return own
    return importlib.import_module("sglang.srt.runtime_context").get_parallel()


def _blind(scheduler: Any) -> str | None:
    """What of this engine's set-up the adapter cannot follow; None where it can."""
    allocator, args = type(scheduler.token_to_kv_pool_allocator).__name__, scheduler.server_args
    if allocator not in _ALLOCATORS:
        return f"the pool is managed by {allocator}"
    if not scheduler.spec_algorithm.is_none():
        return "speculative decoding is on"
    if getattr(args, "enable_hierarchical_cache", False):
        return "the hierarchical cache is on"
    if int(getattr(args, "dcp_size", 1) or 1) > 1:
        return "decode context parallelism is on"
    return None


def over(request: Any) -> bool:
    """Whether the engine is done with a request."""
    return request is not None and request.finished_reason is not None


def row_of(request: Any) -> Any:
    """Row of a request in the engine's table: `Req.req_pool_idx` until 0.5.18, on `Req.kv` since."""
    kv: Any = getattr(request, "kv", None)
    return kv.req_pool_idx if hasattr(kv, "req_pool_idx") else request.req_pool_idx


def committed(request: Any) -> int:
    """Positions of a request that are computed, or are being computed by the step that is about to run."""
    kv: Any = getattr(request, "kv", None)
    return int(kv.kv_committed_len if hasattr(kv, "kv_committed_len") else request.kv_committed_len)


def own_peer(scheduler: Any) -> str | None:
    """How the transfer engine of a decode process is known to those who write into its pages; None where it is not."""
    manager = getattr(getattr(scheduler, "disagg_decode_prealloc_queue", None), "kv_manager", None)
    named = getattr(manager, "get_session_id", None)
    if named is not None:
        return str(named())
    agent = getattr(getattr(manager, "agent", None), "name", None)
    return None if agent is None else str(agent)


def peer_pool(peer: str) -> str:
    """The pool of a decode process, by what both sides know of it; the address in it is not recorded."""
    return f"decode-{hashlib.sha256(peer.encode()).hexdigest()[:8]}/0/kv"
