"""What the vLLM adapter knows of one engine while it runs: its pool, its live requests, who holds which page.

vLLM's page pool is told block numbers only, never for whom; its scheduler knows requests. Here the two come together.
One object serves one scheduler, in the one thread that vLLM schedules in.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from kvwitness.gpu_tracer.cache import CacheRecorder
from kvwitness.gpu_tracer.engines._vllm_stores import KEYED_BY_INPUTS, ExternalStore
from kvwitness.gpu_tracer.engines.base import CLOCK_VARIABLE, ENGINE_VARIABLE, REMEMBERED, SHARING_VARIABLE
from kvwitness.gpu_tracer.engines.identity import ATTESTED, Identity
from kvwitness.gpu_tracer.shadow import Watched, tracer_from_environment

_SUFFIX = 9
"""`-` and the eight hex digits that vLLM appends to the id under which the client's side knows a request."""
_DIGEST_BYTES = 8
"""Of a fingerprint."""
_DEPTH = 16
"""How many calls lie at most between the pool and the method that asks it for a request."""
_GROUP_BYTES = 4
"""A page's hash ends with the number of its cache group."""


@dataclass(slots=True, eq=False)
class Load:
    """Positions [first, upto) of a request that a connector, not a step, has to fill."""

    transfer: str
    first: int
    upto: int
    pages: list[int]
    """The pages of those positions."""
    asynchronous: bool
    """Whether it goes on beside the steps, and the request waits for it."""
    stored: list[int] = field(default_factory=list)
    """Pages of the connector's store that they come from, where those are known."""
    prior: list[bool] = field(default_factory=list)
    """Per page, whether it held the very same content before."""


@dataclass(slots=True, eq=False)
class Seen:
    """A live request."""

    id: str
    name: str
    """As it stands in the record."""
    prompt: int
    """Tokens of the prompt."""
    tenant: str | None = None
    salt: str | None = None
    """Keyed hash of it."""
    adapter: str | None = None
    table: list[int] = field(default_factory=list)
    read_to: int = 0
    """Positions below it are under an open read."""
    request: Any = None
    """The engine's own object for it."""
    computed: int = 0
    """Positions below it were written or adopted, as long as it does not decode."""
    wrote_to: int = 0
    """Of what it wrote, positions below it stand in the record; the rest is on its last page."""
    decoding: bool = False
    preempted: bool = False
    attached: int = 0
    """Tokens of the prompt that came from the prefix cache or a connector at first admission."""
    digests: list[str] = field(default_factory=list)
    """Fingerprint of the inputs up to the end of each page, as far as they were asked for ..."""
    inputs: Any = None
    """... and the hash that goes on from there."""
    load: Load | None = None
    loads: int = 0
    popped: set[int] = field(default_factory=set)
    """Pages that have left the request's table and go back to the pool later."""
    over: bool = False
    """Whether the engine has answered; its pages may be held all the same."""
    until: float = 0.0
    """Until when its pages are held for a fetch, by the Unix clock; 0 where they are not."""
    reason: str = "finish"


class View:
    """One engine."""

    def __init__(self, scheduler: Any, identity: Identity, version: str) -> None:
        config = scheduler.vllm_config
        self.scheduler, self.identity = scheduler, identity
        self.engine = os.environ.get(ENGINE_VARIABLE) or f"vllm-{secrets.token_hex(4)}"
        rank = int(getattr(config.parallel_config, "data_parallel_rank", 0) or 0)
        self.tracer = tracer_from_environment(f"{self.engine}/{rank}", refuses=True)
        transfer = getattr(config, "kv_transfer_config", None)
        self.watched = isinstance(self.tracer, Watched)
        """Whether there is a live shadow."""
        self.transfers = transfer is not None and getattr(scheduler, "connector", None) is not None
        self.plain = not (self.watched or self.transfers)
        """Whether nothing has to be looked at when a step has ended."""
        # The other side of a transfer knows an engine by this id alone.
        named = str(transfer.engine_id) if transfer is not None and self.transfers else f"{self.engine}/{rank}"
        self.pool = f"{named}/kv"
        self.cache = CacheRecorder(self.tracer, self.pool)
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.page_tokens = int(groups[0].kv_cache_spec.block_size) if groups else int(scheduler.block_size)
        self._packed = struct.Struct(f"<{self.page_tokens}q").pack
        self.key = identity.hasher("key")
        """Under which key a page can be found, made from vLLM's hash of it so that nobody can try out prompts on it."""
        self.blind: str | None = None if len(groups) == 1 else "the model has several KV cache groups"
        """Why nothing can be said about pages of this engine; None where it can."""
        self.model = _model_name(config)
        self.unseen: tuple[str, ...] = ()
        self.live: dict[str, Seen] = {}
        self.prompts: set[str] = set()
        """Requests in the running batch that do not decode yet."""
        self.asking_code: CodeType | None = None
        """The code of the engine's method in which pages are asked for on behalf of a request."""
        self.allocating: set[CodeType] = set()
        """The code of the engine's methods that ask the pool itself, for the id of a request."""
        self.names: dict[str, str] = {}
        """Names in use -> id of the request, and of the latest that ended."""
        self.owner: dict[int, Seen] = {}
        """Page -> the request that was given it."""
        self.cached: set[int] = set()
        """Pages that the prefix cache keeps on its own account."""
        self.content: dict[int, bytes] = {}
        """Page -> fingerprint of the inputs whose content it last held; kept where connectors fill pages."""
        self.handing_out = False
        """Whether the pool is giving out pages ..."""
        self.evicted: list[int] = []
        """... and which it has dropped from the cache for that."""
        self.request: Any = None
        """The request, as the engine has it, for which the page pool is being asked; None where nobody knows."""
        self.reason: str | None = None
        """Why pages go back: `preempt`, `end`, or None while more are asked for, where only a window can be why."""
        self.targets: dict[str, list[int]] = {}
        """Request -> pages that a connector is going to fill, until the next step's plan takes it along."""
        self.policy: bool | None = None
        """Whether the engine computes anew what was not loaded, while it is kept from doing so; else None."""
        self.step = 0
        self.waiting: dict[int, list[tuple[Seen, int, int, list[int]]]] = {}
        """By id of a step's plan: reads and writes that can only be put down when it is known what was loaded."""
        self._describe(config, version)
        connector = str(getattr(transfer, "kv_connector", None))
        self.store = ExternalStore(self) if self.transfers and connector in KEYED_BY_INPUTS else None

    def _describe(self, config: Any, version: str) -> None:
        tracer, total = self.tracer, int(self.scheduler.kv_cache_config.num_blocks)
        tracer.engine_pool(
            self.pool, page_tokens=self.page_tokens, pages_total=total, kind="kv", reserved=[0], scrub="never",
            sharing=os.environ.get(SHARING_VARIABLE) or "global", reason="start",
        )  # fmt: skip
        length = int(config.model_config.max_model_len)
        roles = {"kv_producer": "prefill", "kv_consumer": "decode"}
        role = roles.get(str(getattr(getattr(config, "kv_transfer_config", None), "kv_role", None)), "unified")
        tracer.engine_limits(
            self.engine, role=role, advertised_tokens=length, input_limit_tokens=length - 1,
            pool_tokens=(total - 1) * self.page_tokens, version=version, model=self.model,
        )  # fmt: skip
        if uncertainty := os.environ.get(CLOCK_VARIABLE):
            tracer.engine_clock(self.engine, offset_s=0.0, uncertainty_s=float(uncertainty))

    # -- requests ---------------------------------------------------------------------------------------

    def admit(self, request: Any) -> Seen:
        """A request arrived."""
        rid = request.request_id
        seen = self.live.get(rid)
        if seen is not None:
            return seen
        seen = self.live[rid] = Seen(rid, self._name(rid), int(request.num_prompt_tokens), request=request)
        salt, sampling = request.cache_salt, request.sampling_params
        extra = (getattr(sampling, "extra_args", None) or {}) if sampling is not None else {}
        who = self.identity.tenant(
            attested=extra.get(ATTESTED), salt=salt, session=getattr(request, "session_id", None)
        )
        adapter = getattr(getattr(request, "lora_request", None), "lora_name", None)
        seen.salt = None if not salt else self.identity.hashed("salt", salt)
        seen.adapter = adapter
        if who is not None:  # without a tenant there is nothing to be said that the format has a place for
            seen.tenant = who[0]
            self.tracer.request_received(
                seen.name, who[0], prompt_tokens=seen.prompt, max_new_tokens=request.max_tokens, salt_hmac=seen.salt,
                adapter=adapter, model=self.model, tenant_source=who[1],
            )  # fmt: skip
        if self.blind or self.unseen:
            self.gap(self.blind or f"not seen in this engine: {', '.join(self.unseen)}")
        return seen

    def _name(self, rid: str) -> str:
        """The id under which the outside knows a request, as long as nobody else has or had it here."""
        outer = rid[:-_SUFFIX]
        known = len(rid) > _SUFFIX and rid[-_SUFFIX] == "-" and not outer.isdigit() and outer not in self.names
        name = outer if known else rid
        if len(self.names) >= REMEMBERED:
            del self.names[next(iter(self.names))]
        self.names[name] = rid
        return name

    def gap(self, reason: str) -> None:
        """Put down that something was not seen: no request that lives across it can be called clean."""
        self.tracer.gap(dropped=1, reason=reason)

    # -- pages ------------------------------------------------------------------------------------------

    def allocated(self, pages: list[int], rid: str | None = None) -> None:
        """Pages were handed out, for a request if its id is given, after the cache has let go of them."""
        if self.evicted:
            # That the cache lets go of them need not be said: they are taken in the same breath.
            dropped, self.evicted = self.evicted, []
            self.cached.difference_update(dropped)
            if len(dropped) == 1:
                self.cache.unpublish(dropped[0], "evict")
            else:
                self.tracer.unpublish(self.pool, dropped, reason="evict")
        if not pages:
            return
        seen = self._asking() if rid is None else self.live.get(rid)
        if seen is None:
            self.tracer.alloc(self.pool, pages, holder="engine")
        elif len(pages) == 1:
            self.owner[page := pages[0]] = seen
            self.tracer.alloc(self.pool, page, seen.name, tenant=seen.tenant)
        else:
            self.owner.update(dict.fromkeys(pages, seen))
            self.tracer.alloc(self.pool, pages, seen.name, tenant=seen.tenant)

    def forget(self, pages: list[int]) -> None:
        """Pages can no longer be found in the prefix cache; if only it kept them, they are free now."""
        self.tracer.unpublish(self.pool, pages, reason="evict")
        kept = [page for page in pages if page in self.cached]
        if kept:
            self.cached.difference_update(kept)
            self.tracer.free(self.pool, kept, reason="evict", holder="cache")

    def released(self, blocks: Sequence[Any]) -> None:
        """Blocks go back to the pool, seen just before they do."""
        whom = self._asking()
        if whom is not None:
            gone, kept = self._let_go(whom, blocks)
            self._gave_back(whom, gone, kept, self.reason or "window" if self.reason != "end" else whom.reason)
            return
        by: dict[int, tuple[Seen | None, list[Any]]] = {}
        for block in blocks:
            if not block.is_null:
                seen = self._leaving(block.block_id)
                by.setdefault(id(seen), (seen, []))[1].append(block)
        for seen, given in by.values():
            if seen is None:
                self.tracer.free(self.pool, [block.block_id for block in given], holder="engine")
                continue
            self._gave_back(seen, *self._let_go(seen, given), seen.reason)

    def _let_go(self, seen: Seen, blocks: Sequence[Any]) -> tuple[list[int], list[int]]:
        """A request lets go of blocks: the pages that nobody keeps, and those that the cache keeps."""
        owner = self.owner
        gone: list[int] = []
        kept: list[int] = []
        for block in blocks:
            if block.is_null:
                continue
            page = block.block_id
            if owner.get(page) is not seen:
                gone.append(page)
                continue
            del owner[page]
            (gone if block.block_hash is None else kept).append(page)
        self.cached.update(kept)
        return gone, kept

    def _gave_back(self, seen: Seen, gone: list[int], kept: list[int], reason: str) -> None:
        if seen.over and not seen.popped and seen.id not in self.scheduler.requests:
            self.leave(seen)
        if reason == "window":
            self._vacate(seen, {*gone, *kept})
        if gone:
            self.tracer.free(self.pool, gone, seen.name, reason=reason)
        if kept:
            self.tracer.free(self.pool, kept, seen.name, reason=reason, to="cache")

    def leave(self, seen: Seen) -> None:
        """The engine is done with a request."""
        self.live.pop(seen.id, None)
        self.prompts.discard(seen.id)

    def _asking(self) -> Seen | None:
        request = self.asking()
        return None if request is None else self.live.get(request.request_id)

    def asking(self) -> Any:
        """The request for which the page pool is being asked, as the engine has it; None where nobody knows.

        The engine asks through a method that it calls for each request at each step, and which seldom gets as far as
        the pool. To wrap it costs more than all the rest together; so who calls is looked up when it matters: here, and
        in the hook of `get_new_blocks`, whose caller is nearly always one that has the request's id at hand.
        """
        if self.request is not None:
            return self.request
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_DEPTH):
            if frame is None:
                return None
            if frame.f_code is self.asking_code:
                return frame.f_locals.get("request")
            frame = frame.f_back
        return None

    def _leaving(self, page: int) -> Seen | None:
        owner = self.owner.get(page)
        if owner is not None and page in owner.popped:
            owner.popped.discard(page)
            return owner
        for seen in self.live.values():
            if page in seen.popped:
                seen.popped.discard(page)
                return seen
        return owner

    @staticmethod
    def _vacate(seen: Seen, pages: set[int]) -> None:
        """A sliding window has passed these pages; the null page stands in their place."""
        seen.table = [0 if page in pages else page for page in seen.table]

    def hit(self, blocks: Sequence[Any]) -> None:
        """The request in scope attaches to pages that the prefix cache found."""
        request = self.asking()
        seen = None if request is None else self.live.get(request.request_id)
        if seen is None:
            self.gap("pages were attached to outside a request")
            return
        place, size = _place(blocks, request.block_hashes), self.page_tokens
        for n, block in enumerate(blocks, place):
            if not block.is_null:
                self.cache.share(
                    block.block_id, seen.name, seen.tenant, self.key(block.block_hash), self.digest(seen, request, n),
                    (n * size, (n + 1) * size),
                )  # fmt: skip

    def published(self, request: Any, blocks: Sequence[Any], first: int, end: int) -> None:
        """Pages of a request became findable."""
        seen = self.live.get(request.request_id)
        if seen is None:
            return
        for n in range(first, end):
            block = blocks[n]
            if not block.is_null and (found_by := block.block_hash) is not None:
                self.cache.publish(block.block_id, seen.name, self.key(found_by), self.digest(seen, request, n))

    def digest(self, seen: Seen, request: Any, page: int) -> str | None:
        """Fingerprint of the inputs of a request up to the end of a page, whatever its salt; None where tokens alone
        do not say what the inputs were."""
        digests = seen.digests
        if page < len(digests):
            return digests[page]
        inputs = seen.inputs
        if inputs is None:
            if request.mm_features or getattr(request, "prompt_embeds", None) is not None:
                return None
            # keyed, or prompts could be tried out on it; an adapter is an input as well
            secret = bytes.fromhex(self.identity.hashed("inputs", str(seen.adapter)))
            inputs = seen.inputs = hashlib.blake2b(key=secret, digest_size=_DIGEST_BYTES)
        size = self.page_tokens
        while (n := len(digests)) <= page:
            tokens = request.all_token_ids[n * size : (n + 1) * size]
            if len(tokens) < size:
                return None
            inputs.update(self._packed(*tokens))
            digests.append(inputs.hexdigest())
        return digests[page]

    # -- reads --------------------------------------------------------------------------------------------

    def finish_writing(self, seen: Seen, end: int | None = None) -> None:
        """Put down what decoding has written since the last full page, up to position `end` (None: all of it)."""
        upto, size = self._computed(seen) if end is None else end, self.page_tokens
        first = seen.wrote_to
        if first < upto and (pages := seen.table[first // size : -(-upto // size)]):
            self.tracer.write(self.pool, one_or_all(pages), seen.name, tok=(first, upto), op="forward", step=self.step)
            seen.wrote_to = upto

    def finish_reading(self, seen: Seen, end: int | None = None) -> None:
        """Put down what decoding has written and read since the last full page, as far as `end` (None: all of it)."""
        if not seen.decoding:
            return
        upto, size = self._computed(seen) if end is None else end, self.page_tokens
        first = seen.read_to
        if first == seen.wrote_to < upto and (upto - 1) // size == first // size < len(seen.table):
            page = seen.table[first // size]
            self.tracer.decoded(self.pool, page, seen.name, tok=(first, upto), step=self.step)
            seen.wrote_to = seen.read_to = upto
            return
        self.finish_writing(seen, upto)
        if first < upto and (pages := seen.table[first // size : -(-upto // size)]):
            self.tracer.read(self.pool, one_or_all(pages), seen.name, tok=(first, upto), op="decode", step=self.step)
            seen.read_to = upto

    @staticmethod
    def _computed(seen: Seen) -> int:
        """Positions below it are computed, or are in a step that has been planned."""
        return int(seen.request.num_computed_tokens) if seen.decoding else seen.computed

    def refused(self) -> list[tuple[Seen, set[int]]]:
        """Requests whose reads are not to be answered from, and the pages that are why; each time anew."""
        if not isinstance(self.tracer, Watched) or not (found := self.tracer.taken()):
            return []
        names = {one.request for one in found}
        out = []
        for seen in self.live.values():
            if seen.name in names and not seen.over:
                out.append((seen, {one.page for one in found if one.request == seen.name}))
        return out

    def start_over(self, seen: Seen) -> None:
        """The request has let go of all its pages."""
        seen.table, seen.read_to, seen.computed, seen.wrote_to, seen.decoding = [], 0, 0, 0, False
        self.prompts.discard(seen.id)


def one_or_all(pages: list[int]) -> int | list[int]:
    """Pages as the tracer records them soonest."""
    return pages[0] if len(pages) == 1 else pages


def _place(blocks: Sequence[Any], hashes: Sequence[Any]) -> int:
    """Which page of the request the first of these blocks is, told by the hash of the first real one."""
    for n, block in enumerate(blocks):
        if block.is_null or block.block_hash is None:
            continue
        bare = block.block_hash[:-_GROUP_BYTES]
        for at, one in enumerate(hashes):
            if one == bare:
                return at - n
        break
    return 0


def _model_name(config: Any) -> str:
    """The name under which a model is served; never its path."""
    named = getattr(config.model_config, "served_model_name", None) or config.model_config.model
    return os.path.basename(str(named[0] if isinstance(named, list | tuple) else named).rstrip("/"))


def ids(blocks: Iterable[Any]) -> list[int]:
    """Page numbers of blocks, without the null block."""
    return [block.block_id for block in blocks if not block.is_null]


def lease_end(seconds: float) -> float:
    """A time so many seconds from now, by the Unix clock."""
    return time.time() + seconds
