"""A small serving engine, simulated: its pools, its reuse index, and what its requests do to pages.

`Sim` is what both kinds of deployment share. Requests are coroutines, so that their events interleave.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Life = Iterator[None]

WRITER_OPEN = ("late-write-after-abort", "timeout-with-writer-open", "hanging-transfer")
HOST_FAULTS = ("host-page-recycled-during-load", "read-before-load-end")


@dataclass(eq=False)
class Pool:
    name: str
    source: str
    size: int
    tokens: int
    kind: str = "kv"
    sharing: str = "tenant"
    free: list[int] = field(default_factory=list)
    held: dict[int, set[Any]] = field(default_factory=lambda: defaultdict(set))

    def take(self, n: int, who: Any) -> list[int]:
        out = [self.free.pop() for _ in range(n)]
        for p in out:
            self.held[p].add(who)
        return out

    def release(self, page: int, who: Any) -> None:
        self.held[page].discard(who)
        if not self.held[page] and page not in self.free and page:
            self.free.append(page)


@dataclass(eq=False)
class Entry:
    """A run of pages in the reuse index."""

    keys: list[str]
    ns: dict[str, str]
    digests: list[str | None]
    pool: Pool
    pages: list[int]
    tenant: str
    prefix: str
    ready: bool = False
    cached: bool = False
    owner: Request | None = None
    users: set[Any] = field(default_factory=set)


@dataclass(eq=False)
class Request:
    id: str
    tenant: str
    salt: str | None
    prompt: int
    output: int
    prefix: str
    prefix_pages: int
    traffic: str = "user"
    length: int = 0
    tables: dict[Pool, list[int]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[Pool, dict[int, Entry]] = field(default_factory=lambda: defaultdict(dict))
    entries: list[Entry] = field(default_factory=list)
    aborted: bool = False
    over: bool = False

    @property
    def ns(self) -> dict[str, str]:
        return {"salt_hmac": self.salt} if self.salt else {}


@dataclass
class Trace:
    events: list[dict[str, Any]]
    fault: str | None
    fired: int

    def write(self, path: str) -> None:
        with open(path, "w") as f:
            f.writelines(json.dumps(e) + "\n" for e in self.events)


def squeeze(pages: list[int]) -> list[Any]:
    """Page list with inclusive ranges."""
    out: list[Any] = []
    for p in pages:
        if out and isinstance(out[-1], list) and out[-1][1] + 1 == p:
            out[-1][1] = p
        elif out and isinstance(out[-1], int) and out[-1] + 1 == p:
            out[-1] = [out[-1], p]
        else:
            out.append(p)
    return out


class Stuck(Exception):
    """No page to be had now."""


class Sim:
    """One simulated deployment. Subclasses say how a request lives."""

    def __init__(self, rng: random.Random, fault: str | None):
        self.rng, self.fault, self.fired = rng, fault, 0
        self.now = 1_790_000_000.0 + rng.randrange(1000)
        self.seq: dict[str, int] = defaultdict(int)
        self.events: list[dict[str, Any]] = []
        self.index: list[Entry] = []
        self.steps = 0
        self.not_before = rng.choice((0, 4, 8))
        self.xfers = 0
        self.salts = {f"t-{n}": (f"s:{n}" if rng.random() < 0.4 else None) for n in ("ash", "birch", "cedar")}
        self.with_digest = rng.random() < 0.8
        self.with_ns = rng.random() < 0.5
        self.per_page = fault != "write-into-shared-page" and rng.random() < 0.4
        self.with_steps = fault == "free-in-step" or rng.random() < 0.7
        self.with_gen = rng.random() < 0.3
        self.gens: dict[tuple[Pool, int], int] = defaultdict(int)
        self.waiting_writes: list[Callable[[], None]] = []
        self.pages = rng.randint(12, 32)
        self.tokens = rng.choice((4, 8, 16))

    # ------------------------------------------------------------------- events

    def emit(self, source: str, event: str, **fields: Any) -> dict[str, Any]:
        self.now += self.rng.uniform(0.002, 0.02)
        self.seq[source] += 1
        e = {"t": round(self.now, 6), "seq": self.seq[source], "source": source, "event": event}
        for name, value in fields.items():
            if value is not None:
                squeezed = name.endswith("pages") or name in ("reserved", "dst_announced")
                e[name] = squeeze(value) if squeezed and isinstance(value, list) else value
        self.events.append(e)
        return e

    def hit(self, name: str, chance: float = 0.7, most: int = 2) -> bool:
        """True if this is the fault asked for, and now is the time."""
        if self.fault != name or self.fired >= most or self.seq["gateway"] < self.not_before:
            return False
        if self.rng.random() > chance:
            return False
        self.fired += 1
        return True

    def due(self) -> bool:
        """For faults that take a course of their own: not too early, not too often."""
        return self.fired < 2 and self.seq["gateway"] >= self.not_before

    def pool(self, name: str, size: int, tokens: int, kind: str = "kv", sharing: str = "tenant") -> Pool:
        source = "/".join(name.split("/")[:2])
        pool = Pool(name, source, size, tokens, kind, sharing)
        pool.free = list(range(1, size))
        if self.rng.random() < 0.5:
            self.rng.shuffle(pool.free)
        reserved = [] if kind == "host" else [0]
        self.emit(
            source,
            "engine.pool",
            pool=name,
            page_tokens=tokens,
            pages_total=size,
            kind=kind,
            scrub="never",
            sharing=sharing,
            reserved=reserved,
        )
        return pool

    def clocks(self, *sources: str) -> None:
        for source in sources:
            self.emit(source, "engine.clock", engine=source.split("/")[0], offset_s=0.0, uncertainty_s=0.0004)

    # ---------------------------------------------------------------- ownership

    def alloc(self, q: Request, pool: Pool, n: int) -> list[int]:
        """Pages for a request; evicts what nobody uses. Raises Stuck."""
        if n <= 0:
            return []
        while len(pool.free) < n:
            idle = [x for x in self.index if x.pool is pool and x.cached and not x.users]
            if not idle:
                raise Stuck
            self.evict(self.rng.choice(idle))
        live = [p for p, h in pool.held.items() if h and p and not any(r in (q, "cache") for r in h)]
        mine = pool.take(n, q)
        if live and self.hit("double-alloc", 0.5):
            pool.release(mine[0], q)
            mine[0] = self.rng.choice(live)
            pool.held[mine[0]].add(q)
        if self.hit("reserved-page-handed-out", 0.5):
            pool.release(mine[-1], q)
            mine[-1] = 0
        self.hand_out(pool, mine, request=q.id, tenant=q.tenant)
        q.tables[pool].extend(mine)
        return mine

    def hand_out(self, pool: Pool, pages: list[int], **who: Any) -> None:
        for p in pages:
            self.gens[(pool, p)] += 1
        same = {self.gens[(pool, p)] for p in pages}
        gen = same.pop() if self.with_gen and len(same) == 1 else None
        if gen is not None and any(self.gens[(pool, p)] != gen for p in pages):
            gen = None
        self.emit(pool.source, "page.alloc", pool=pool.name, pages=pages, gen=gen, **who)

    def drop(self, q: Request, pool: Pool, pages: list[int], reason: str, to: str | None = None) -> None:
        """The request lets go of pages, own or shared."""
        if not pages:
            return
        self.emit(pool.source, "page.free", pool=pool.name, pages=pages, request=q.id, reason=reason, to=to)
        for p in pages:
            if to:
                pool.held[p].add("cache")
            pool.release(p, q)
            q.shared[pool].pop(p, None)

    def let_go(self, q: Request, reason: str) -> None:
        """Everything back: what is published and complete passes to the cache."""
        for pool in list(q.tables):
            pages = [p for p in q.tables[pool] if p]
            kept: list[int] = []
            for entry in [x for x in q.entries if x.pool is pool]:
                if entry.ready and entry in self.index:
                    kept += [p for p in entry.pages if p in pages and p not in q.shared[pool]]
                    entry.cached = True
                elif entry in self.index:
                    self.unpublish(entry)
            if self.hit("pages-never-freed", 0.6) and pages:
                q.tables[pool] = []
                continue
            self.drop(q, pool, kept, reason, to="cache")
            rest = [p for p in pages if p not in kept]
            self.drop(q, pool, rest, reason)
            if rest and self.hit("double-free", 0.6):
                self.emit(pool.source, "page.free", pool=pool.name, pages=rest[:2], request=q.id, reason="finish")
            q.tables[pool] = []
        for x in self.index:
            if x.pool in q.tables:
                x.users.discard(q)
        q.entries = [x for x in q.entries if x.pool not in q.tables]

    def evict(self, x: Entry) -> None:
        self.unpublish(x)
        self.emit(x.pool.source, "page.free", pool=x.pool.name, pages=x.pages, holder="cache", reason="evict")
        for p in x.pages:
            x.pool.release(p, "cache")

    def unpublish(self, x: Entry) -> None:
        self.index.remove(x)
        for key, pages in self.runs(x):
            self.emit(x.pool.source, "page.unpublish", pool=x.pool.name, pages=pages, key=key)

    def runs(self, x: Entry) -> list[tuple[str, list[int]]]:
        return [(k, [p]) for k, p in zip(x.keys, x.pages, strict=True)] if len(x.keys) > 1 else [(x.keys[0], x.pages)]

    # ------------------------------------------------------------------ content

    def cut(self, q: Request, pool: Pool, a: int, b: int) -> list[int]:
        return q.tables[pool][a // pool.tokens : -(-b // pool.tokens)]

    def write(self, q: Request, pool: Pool, a: int, b: int, op: str = "forward", **more: Any) -> None:
        pages = more.pop("pages", None) or self.cut(q, pool, a, b)
        source = more.pop("source", pool.source)
        self.emit(source, "page.write", pool=pool.name, pages=pages, request=q.id, op=op, tok=[a, b], **more)

    def read(self, q: Request, pool: Pool, a: int, b: int, op: str, **more: Any) -> None:
        pages = more.pop("pages", None) or self.cut(q, pool, a, b)
        source = more.pop("source", pool.source)
        self.emit(source, "page.read", pool=pool.name, pages=pages, request=q.id, op=op, tok=[a, b], **more)

    def compute(self, q: Request, pools: list[Pool], a: int, b: int, op: str) -> Life:
        """One device step: positions [a, b) written, [0, b) read."""
        self.steps += 1
        step = self.steps
        if self.with_steps:
            for pool in pools:
                self.emit(
                    pool.source,
                    "step.begin",
                    step=step,
                    pool=pool.name,
                    pages=[p for p in q.tables[pool] if p],
                )
        yield
        for pool in pools:
            self.forward(q, pool, a, b)
        if self.rng.random() < 0.3:
            yield
        for pool in pools:
            self.attend(q, pool, b, op, step)
        if self.with_steps and op == "decode" and self.hit("free-in-step", 0.5):
            q.aborted = True
            self.emit(pools[0].source, "request.aborted", request=q.id, by="client", reason="disconnect")
            self.let_go(q, "abort")
        if self.with_steps:
            yield
            for pool in pools:
                self.emit(pool.source, "step.end", step=step, pool=pool.name)

    def forward(self, q: Request, pool: Pool, a: int, b: int) -> None:
        own = [p for p in self.cut(q, pool, a, b) if p]
        if self.hit("dropped-write", 0.4) and own:
            return
        if a >= pool.tokens and b - a > 1 and self.hit("chunk-table-too-short", 0.8):
            n = -(-b // pool.tokens) - a // pool.tokens
            self.write(q, pool, a, b, pages=q.tables[pool][:n])
            return
        self.write(q, pool, a, b)

    def attend(self, q: Request, pool: Pool, b: int, op: str, step: int) -> None:
        pages = list(self.cut(q, pool, 0, b))
        if op == "decode" and self.fault == "stale-reference-read":
            strange = [p for p, h in pool.held.items() if p and h and q not in h and "cache" not in h]
            if strange and len(pages) > 1 and self.hit("stale-reference-read", 0.6):
                pages[0] = self.rng.choice(strange)
        self.read(q, pool, 0, b, op, pages=pages, step=step if self.with_steps else None)

    # -------------------------------------------------------------------- index

    def key(self, q: Request, n: int) -> str:
        return f"k:{q.prefix}:{q.salt or '-'}:{n}"

    def publish(self, q: Request, pool: Pool) -> Entry | None:
        """The common prefix of a prompt becomes findable, possibly before it is written."""
        n = q.prefix_pages
        have = q.tables[pool][:n]
        if not n or len(have) < n or 0 in have or any(p in q.shared[pool] for p in have):
            return None
        if any(x.prefix == q.prefix and x.ns == q.ns and x.pool is pool for x in self.index):
            return None
        count = range(1, n + 1) if self.per_page else [n]
        keys = [self.key(q, i) for i in count]
        digests = [f"d:{q.prefix}:{i}" if self.with_digest else None for i in count]
        entry = Entry(keys, q.ns, digests, pool, list(have), q.tenant, q.prefix, owner=q)
        for (key, pages), digest in zip(self.runs(entry), digests, strict=True):
            self.emit(
                pool.source,
                "page.publish",
                pool=pool.name,
                pages=pages,
                key=key,
                ns=q.ns,
                digest=digest,
                request=q.id,
            )
        self.index.append(entry)
        q.entries.append(entry)
        return entry

    def visible(self, q: Request, x: Entry, pool: Pool) -> bool:
        if x.pool is not pool or not x.ready or x.prefix != q.prefix:
            return False
        if x.tenant == q.tenant:
            return x.ns == q.ns
        return pool.sharing == "global" and x.ns == q.ns

    def lookup(self, q: Request, pool: Pool) -> int:
        """Attach to the longest run of the index; returns the matched length."""
        found = [x for x in self.index if self.visible(q, x, pool)]
        if not found or q.prompt <= len(found[0].pages) * pool.tokens:
            return 0
        x = found[0]
        whole = len(x.pages) * pool.tokens
        partial = not self.per_page and self.rng.random() < (0.9 if self.fault == "write-into-shared-page" else 0.4)
        matched = whole - self.rng.randrange(1, pool.tokens) if partial else whole
        self.attach(q, x, matched)
        return matched

    def attach(
        self, q: Request, x: Entry, matched: int, ns: dict[str, str] | None = None, digest: str | None = None
    ) -> None:
        pool, first = x.pool, 0
        for (key, pages), own in zip(self.runs(x), x.digests, strict=True):
            end = min(first + len(pages) * pool.tokens, matched)
            space = (ns if ns is not None else q.ns) if self.with_ns else None
            self.emit(
                pool.source,
                "page.share",
                pool=pool.name,
                pages=pages,
                request=q.id,
                tenant=q.tenant,
                key=key,
                ns=space,
                tok=[first, end],
                digest=digest or own,
            )
            first = end
        for p in x.pages:
            pool.held[p].add(q)
            q.shared[pool][p] = x
        q.tables[pool].extend(x.pages)
        x.users.add(q)

    def own_last_page(self, q: Request, pool: Pool, matched: int) -> None:
        """Copy-on-write of a partly matched page before the first own row goes into it."""
        if matched % pool.tokens == 0:
            return
        old = q.tables[pool][-1]
        if self.hit("write-into-shared-page", 1.0):
            return
        self.alloc(q, pool, 1)
        new = q.tables[pool].pop()
        q.tables[pool][matched // pool.tokens] = new
        if not new:
            return
        self.emit(
            pool.source,
            "page.copy",
            pool=pool.name,
            pages=[old],
            to_pool=pool.name,
            to_pages=[new],
            request=q.id,
            cause="cow",
        )
        self.drop(q, pool, [old], "finish")

    # ------------------------------------------------------------------ requests

    def request(self, i: int) -> Request:
        tenant = self.rng.choice(list(self.salts))
        prefix = "sys" if self.fault in HOST_FAULTS else self.rng.choice(("sys", "sys", "doc", f"own{i}"))
        n = 2 if prefix == "sys" else self.rng.randint(1, 3)
        prompt = n * self.tokens + self.rng.randint(1, 3 * self.tokens)
        traffic = "health" if self.fault is None and self.rng.random() < 0.05 else "user"
        salt = self.salts[tenant]
        output = self.rng.randint(2, 2 * self.tokens)
        return Request(f"r{i:03d}", tenant, salt, prompt, output, prefix, n, traffic)

    def receive(self, q: Request) -> None:
        self.emit(
            "gateway",
            "request.received",
            request=q.id,
            tenant=q.tenant,
            tenant_source="gateway_auth",
            prompt_tokens=q.prompt,
            max_new_tokens=q.output,
            salt_hmac=q.salt,
            traffic=q.traffic if q.traffic != "user" else None,
        )

    def answer(self, q: Request, status: int, reason: str) -> None:
        q.over = True
        self.emit(
            "gateway",
            "request.finished",
            request=q.id,
            status=status,
            finish_reason=reason,
            prompt_tokens=q.prompt,
            cached_tokens=0,
            completion_tokens=max(0, q.length - q.prompt),
        )

    def abort(self, q: Request, source: str) -> None:
        self.emit(source, "request.aborted", request=q.id, by="client", reason="disconnect")

    def life(self, q: Request) -> Life:
        raise NotImplementedError

    def until(self, act: Callable[[], Any], tries: int = 60) -> Life:
        """Repeat an action that may be Stuck, letting others go on between tries."""
        for _ in range(tries):
            try:
                act()
                return
            except Stuck:
                yield
        raise Stuck

    def decode(self, q: Request, pools: list[Pool]) -> Life:
        """Tokens one by one, with pages as they are needed; may be preempted, may be aborted."""
        for _ in range(q.output):
            if self.rng.random() < 0.01:
                self.abort(q, pools[0].source)
                q.aborted = True
            if q.aborted:
                return
            try:
                for pool in pools:
                    if q.length >= len(q.tables[pool]) * pool.tokens:
                        self.alloc(q, pool, 1)
            except Stuck:
                yield from self.preempt(q, pools)
                continue
            q.length += 1
            yield from self.compute(q, pools, q.length - 1, q.length, "decode")
            if q.aborted:
                return
            self.window(q, pools)
            yield

    def preempt(self, q: Request, pools: list[Pool]) -> Life:
        self.emit(pools[0].source, "request.preempted", request=q.id)
        self.let_go(q, "preempt")
        for _ in range(self.rng.randint(1, 10)):
            yield
        self.emit(pools[0].source, "request.resumed", request=q.id)
        need = {pool: -(-(q.length + 1) // pool.tokens) for pool in pools}
        for pool in pools:
            yield from self.until(lambda pool=pool: self.alloc(q, pool, need[pool]))
        yield from self.compute(q, pools, 0, q.length, "prefill")

    def window(self, q: Request, pools: list[Pool]) -> None:
        """A sliding-window group lets go of what lies behind the window."""
        for pool in pools:
            if not pool.name.endswith("swa"):
                continue
            behind = (q.length - 2 * pool.tokens) // pool.tokens
            old = [i for i in range(max(0, behind)) if q.tables[pool][i]]
            if not old or self.rng.random() < 0.5:
                continue
            pages = [q.tables[pool][i] for i in old]
            self.drop(q, pool, pages, "window")
            if self.fault == "window-freed-too-early" and self.due():
                self.fired += 1
                taker = self.request(900 + self.fired)
                self.receive(taker)
                got = pool.take(min(len(pool.free), len(pages) + 1), taker)
                self.hand_out(pool, got, request=taker.id, tenant=taker.tenant)
                taker.tables[pool] = got
                self.write(taker, pool, 0, len(got) * pool.tokens)
                self.read(q, pool, 0, q.length, "decode")
                self.let_go(taker, "finish")
                self.answer(taker, 200, "stop")
            for i in old:
                q.tables[pool][i] = 0

    def run(self, n: int) -> None:
        lives: list[tuple[Request, Life]] = []
        todo = [self.request(i) for i in range(n)]
        while todo or lives:
            if todo and (len(lives) < 3 or self.rng.random() < 0.05) and len(lives) < 6:
                q = todo.pop(0)
                lives.append((q, self.whole(q)))
            i = self.rng.randrange(len(lives))
            try:
                next(lives[i][1])
            except StopIteration:
                lives.pop(i)
            if self.waiting_writes and self.rng.random() < 0.1:
                self.waiting_writes.pop(0)()
        for late in self.waiting_writes:
            late()

    def whole(self, q: Request) -> Life:
        self.receive(q)
        yield
        try:
            yield from self.life(q)
        except Stuck:
            self.let_go(q, "abort")
            self.answer(q, 503, "error")
            return
        if q.over:
            return
        if q.aborted:
            self.let_go(q, "abort")
            self.answer(q, 499, "abort")
            return
        self.let_go(q, "finish")
        self.answer(q, 200, "stop")
