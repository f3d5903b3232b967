"""The prefill engine: takes in prompts, keeps the prefixes it has seen, and hands pages over."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kvwitness.gpu_tracer.lab.faults import Fault
from kvwitness.gpu_tracer.lab.model import Model
from kvwitness.gpu_tracer.lab.pool import PAGE_TOKENS, Pool, covering, pages_for
from kvwitness.gpu_tracer.lab.text import tokens
from kvwitness.gpu_tracer.tracer import Tracer

PLACEHOLDER = "?"


@dataclass(frozen=True)
class Job:
    """What a client asks."""

    request: str
    tenant: str
    prompt: str
    max_new: int = 8


@dataclass
class Prefilled:
    """A prompt that was taken in: its pages, in order, of which the first were found in the cache."""

    job: Job
    ids: list[int]
    tokens: int
    """Positions that have K and V: all but the last token, which decode takes in."""
    table: list[int] = field(default_factory=list)
    found: int = 0
    keys: list[str] = field(default_factory=list)
    """Of the full pages."""


class Prefill:
    """One prefill server with its pool and its prefix cache, which serves each tenant its own prefixes."""

    def __init__(self, tracer: Tracer, pool: Pool, model: Model, *, limit: int, secret: bytes, fault: Fault) -> None:
        self.tracer, self.pool, self._model = tracer, pool, model
        self._limit, self._secret, self._fault = limit, secret, fault
        self._index: dict[str, int] = {}
        """Key -> page, the oldest first."""
        self._owned: dict[str, int] = {}
        """As `_index`, what is really in the cache."""
        self._users: dict[int, int] = {}

    def take(self, job: Job) -> Prefilled | None:
        """Take in a prompt; None when it is refused."""
        ids = tokens(job.prompt)
        if len(ids) > self._limit:
            self.tracer.request_rejected(job.request, reason="input_too_long", status=400)
            if self._fault is not Fault.PLACEHOLDER:
                return None
            ids = tokens(PLACEHOLDER) * 2
        done = Prefilled(job, ids, len(ids) - 1)
        self._look_up(done)
        self._compute(done)
        return done

    def release(self, done: Prefilled) -> None:
        """The pages have been handed over: those with a key stay in the cache."""
        request, shared, own = done.job.request, done.table[: done.found], done.table[done.found :]
        for page in shared:
            self._users[page] -= 1
        if shared:
            self.tracer.free(self.pool.name, shared, request, reason="finish")
        fresh = len(done.keys) - done.found
        kept, rest = own[:fresh], own[fresh:]
        if kept:
            self.tracer.free(self.pool.name, kept, request, reason="finish", to="cache")
            self._owned |= dict(zip(done.keys[done.found :], kept, strict=True))
        if rest:
            self.tracer.free(self.pool.name, rest, request, reason="finish")
            self.pool.give_back(rest)

    def evict(self, count: int | None = None) -> None:
        """Drop the oldest pages of the cache that nobody uses (absent: all of them)."""
        idle = [key for key, page in self._owned.items() if not self._users.get(page)]
        for key in idle[:count]:
            page = self._owned.pop(key)
            if self._fault is not Fault.STALE_REFERENCE:
                del self._index[key]
                self.tracer.unpublish(self.pool.name, page, key=key)
            self.tracer.free(self.pool.name, page, holder="cache", reason="evict")
            self.pool.give_back([page])

    def _look_up(self, done: Prefilled) -> None:
        done.keys = self._keys(done)
        for at, key in enumerate(done.keys):
            page = self._index.get(key)
            if page is None:
                break
            self.tracer.share(
                self.pool.name,
                page,
                done.job.request,
                key=key,
                ns=self._namespace(done.job),
                tok=(at * PAGE_TOKENS, (at + 1) * PAGE_TOKENS),
                tenant=done.job.tenant,
            )
            self._users[page] = self._users.get(page, 0) + 1
            done.table.append(page)
        done.found = len(done.table)

    def _compute(self, done: Prefilled) -> None:
        job, first, name = done.job, done.found * PAGE_TOKENS, self.pool.name
        needed = pages_for(done.tokens) - done.found
        if needed > len(self.pool.available):
            self.evict(needed - len(self.pool.available))
        done.table += self.pool.alloc(needed, job.request, job.tenant)
        if first:
            self.tracer.read(name, done.table[: done.found], job.request, tok=(0, first), op="prefill")
        if first == done.tokens:
            return
        self._model.forward(
            done.ids[first : done.tokens],
            first,
            lambda layer, q, k, v: self.pool.attend(done.table, first, layer, q, k, v),
        )
        fresh = covering(done.table, first, done.tokens)
        self.tracer.write(name, fresh, job.request, tok=(first, done.tokens), op="forward")
        for key, page in list(zip(done.keys, done.table, strict=False))[done.found :]:
            self._index[key] = page
            self.tracer.publish(name, page, key=key, ns=self._namespace(job), request=job.request)

    def _keys(self, done: Prefilled) -> list[str]:
        """A key for each full page: it stands for the tenant and all tokens up to the page's end."""
        chain, keys = hashlib.blake2b(done.job.tenant.encode(), key=self._secret[:64], digest_size=12), []
        for at in range(done.tokens // PAGE_TOKENS):
            chain.update(bytes(done.ids[at * PAGE_TOKENS : (at + 1) * PAGE_TOKENS]))
            keys.append(f"prefix-{chain.hexdigest()}")
        return keys

    def _namespace(self, job: Job) -> dict[str, str]:
        return {"salt_hmac": hashlib.blake2b(job.tenant.encode(), key=self._secret[:64], digest_size=6).hexdigest()}
