"""Random traces of a small serving engine, healthy unless a fault is asked for.

`generate(seed, fault=None)` simulates requests of a few tenants on one unified engine, or on a prefill and a
decode engine with transfers between them, with small pools. Every request is a coroutine, and a scheduler
advances them in random order, so their events interleave. `FAULTS` names what can go wrong, with the rules of
which at least one must then be found. The only randomness is the `random.Random` given; hypothesis can be it.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .simulate import HOST_FAULTS, WRITER_OPEN, Entry, Life, Pool, Request, Sim, Stuck, Trace

UNIFIED, PAIR, EITHER = "unified", "pair", "either"

# fault -> (engines it needs, rules of which at least one must be found)
FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "stub-transfer": (PAIR, ("uncovered-read",)),
    "zero-byte-done": (PAIR, ("false-transfer-complete",)),
    "done-after-failed": (PAIR, ("false-transfer-complete",)),
    "late-write-after-abort": (PAIR, ("late-write",)),
    "timeout-with-writer-open": (PAIR, ("late-write",)),
    "source-freed-early": (PAIR, ("late-read",)),
    "wrong-source-pages": (PAIR, ("foreign-page-read", "unwritten-page-read")),
    "hanging-transfer": (PAIR, ("orphaned-pages",)),
    "dropped-write": (EITHER, ("unwritten-page-read", "tainted-content")),
    "free-in-step": (EITHER, ("freed-in-step",)),
    "double-alloc": (EITHER, ("double-ownership",)),
    "double-free": (EITHER, ("double-ownership",)),
    "stale-reference-read": (EITHER, ("foreign-page-read", "unwritten-page-read")),
    "dummy-write-to-live-page": (EITHER, ("reserved-page-use",)),
    "reserved-page-handed-out": (EITHER, ("reserved-page-use",)),
    "chunk-table-too-short": (EITHER, ("position-mismatch",)),
    "pages-never-freed": (EITHER, ("orphaned-pages",)),
    "seq-hole": (EITHER, ("telemetry-gap",)),
    "mid-life": (EITHER, ("telemetry-gap",)),
    "publish-without-write": (UNIFIED, ("read-before-ready", "unwritten-page-read")),
    "key-collision": (UNIFIED, ("foreign-page-read",)),
    "read-past-share": (UNIFIED, ("foreign-page-read",)),
    "write-into-shared-page": (UNIFIED, ("double-ownership",)),
    "evicted-under-sharer": (UNIFIED, ("foreign-page-read", "double-ownership", "unwritten-page-read")),
    "tainted-publish": (UNIFIED, ("unwritten-page-read", "foreign-page-read")),
    "host-page-recycled-during-load": (UNIFIED, ("late-read",)),
    "read-before-load-end": (UNIFIED, ("read-before-ready",)),
    "snapshot-into-stranger": (UNIFIED, ("foreign-page-read",)),
    "window-freed-too-early": (UNIFIED, ("foreign-page-read", "unwritten-page-read")),
    "salt-ignored": (UNIFIED, ()),  # salt-crossing is no rule of pages: nothing may be found here
}


class Unified(Sim):
    """One engine that prefills and decodes, perhaps with a window group and a host tier."""

    def __init__(self, rng: random.Random, fault: str | None):
        super().__init__(rng, fault)
        sharing = "global" if fault in ("key-collision", "salt-ignored") else rng.choice(("tenant", "global"))
        self.main = self.pool("eng-1/0/full", self.pages, self.tokens, sharing=sharing)
        self.emit(
            "eng-1/0",
            "engine.limits",
            engine="eng-1",
            role="unified",
            advertised_tokens=4096,
            input_limit_tokens=4096,
            pool_tokens=(self.pages - 1) * self.tokens,
        )
        self.groups = [self.main]
        self.prefer_host = fault in HOST_FAULTS or rng.random() < 0.15
        if fault == "window-freed-too-early" or rng.random() < 0.3:
            self.groups.append(self.pool("eng-1/0/swa", self.pages, self.tokens, sharing="none"))
        self.host = self.pool("eng-1/0/host", 40, self.tokens, kind="host", sharing=sharing)
        self.clocks("eng-1/0")

    def life(self, q: Request) -> Life:
        matched = 0
        if len(self.groups) == 1:
            matched = 0 if self.prefer_host else self.lookup(q, self.main)
            matched = matched or (yield from self.load_back(q))
            if not matched:
                yield from self.strange_share(q)
                matched = len(q.tables[self.main]) * self.main.tokens
            yield from self.until(lambda: self.own_last_page(q, self.main, matched))
        q.length = matched
        for pool in self.groups:
            need = -(-q.prompt // pool.tokens) + self.rng.randint(0, 1) - len(q.tables[pool])
            yield from self.until(lambda pool=pool, need=need: self.alloc(q, pool, need))
        entry = self.publish(q, self.main) if self.rng.random() < 0.7 and not matched else None
        if entry and self.hit("publish-without-write", 0.8):
            self.unwritten_entry(q, entry)
            return
        yield
        yield from self.prefill(q)
        if q.aborted:
            return
        if entry is None and not matched:
            entry = self.publish(q, self.main)
        if entry is not None:
            entry.ready = True
            if self.fault == "evicted-under-sharer" and self.due():
                yield from self.recycled_under_sharer(q, entry)
        self.compaction(q)
        yield from self.decode(q, self.groups)
        keep = self.fault in HOST_FAULTS or self.rng.random() < 0.6
        if not q.aborted and entry is not None and keep:
            self.backup(q, entry)

    def prefill(self, q: Request) -> Life:
        while q.length < q.prompt:
            start, end = q.length, min(q.prompt, q.length + self.rng.randint(2, 3 * self.tokens))
            if self.fault == "tainted-publish" and end == q.prompt and start and self.hit("tainted-publish", 0.7):
                self.read(q, self.main, 0, min(end, len(q.tables[self.main]) * self.tokens), "prefill")
            q.length = end
            yield from self.compute(q, self.groups, start, end, "prefill")
            past = [x for x in self.index if q in x.users and x.ready]
            if past and self.fault == "read-past-share" and self.due():
                yield from self.past_share(q, past[0])
            if self.rng.random() < 0.02:
                self.abort(q, "eng-1/0")
                q.aborted = True
                return
            yield

    def compaction(self, q: Request) -> None:
        """A page moves between steps, with all that belongs to it."""
        pool = self.main
        last = q.tables[pool][-1] if q.tables[pool] else 0
        if not pool.free or not last or last in q.shared[pool] or self.rng.random() < 0.8:
            return
        if any(last in x.pages for x in self.index):
            return
        new = pool.take(1, q)[0]
        self.gens[(pool, new)] += 1
        self.emit(
            pool.source,
            "page.move",
            pool=pool.name,
            pages=[last],
            to_pool=pool.name,
            to_pages=[new],
            request=q.id,
            cause="compaction",
        )
        q.tables[pool][-1] = new
        pool.release(last, q)

    # ------------------------------------------------------------ the host tier

    def backup(self, q: Request, x: Entry) -> None:
        """A finished prefix is copied to host memory and found there later."""
        n = len(x.pages)
        if len(self.host.free) < n or any(
            y.prefix == x.prefix and y.pool is self.host and y.ns == x.ns for y in self.index
        ):
            return
        pages = self.host.take(n, "cache")
        self.hand_out(self.host, pages, holder="cache", tenant=q.tenant)
        self.emit(
            self.host.source,
            "page.copy",
            pool=x.pool.name,
            pages=x.pages,
            to_pool=self.host.name,
            to_pages=pages,
            request=q.id,
            cause="backup",
        )
        y = Entry(x.keys, x.ns, x.digests, self.host, pages, q.tenant, x.prefix, ready=True, cached=True)
        for (key, run), digest in zip(self.runs(y), y.digests, strict=True):
            self.emit(
                self.host.source,
                "page.publish",
                pool=self.host.name,
                pages=run,
                key=key,
                ns=x.ns,
                digest=digest,
                request=q.id,
            )
        self.index.append(y)

    def load_back(self, q: Request) -> Iterator[None]:
        """A prefix found in the host tier is loaded into own pages. Returns its length."""
        found = [x for x in self.index if self.visible(q, x, self.host)]
        if not found or q.prompt <= len(found[0].pages) * self.tokens:
            return 0
        x = found[0]
        length = len(x.pages) * self.tokens
        self.attach(q, x, length)
        try:
            yield from self.until(lambda: self.alloc(q, self.main, len(x.pages)), 20)
        except Stuck:
            self.drop(q, self.host, list(x.pages), "finish")
            q.tables[self.host] = []
            x.users.discard(q)
            return 0
        self.read(q, self.host, 0, length, "copy")
        self.write(q, self.main, 0, length, "load", phase="begin")
        alone = all(self.host.held[p] <= {q, "cache"} for p in x.pages)
        if alone and self.hit("host-page-recycled-during-load", 1.0):
            self.recycle_host(q, x)
        yield
        if self.hit("read-before-load-end", 1.0):
            self.read(q, self.main, 0, length, "prefill")
        self.read(q, self.host, 0, length, "copy", phase="end")
        self.write(q, self.main, 0, length, "load", phase="end")
        if q.shared[self.host]:
            self.drop(q, self.host, list(x.pages), "finish")
        q.tables[self.host] = []
        x.users.discard(q)
        return length

    def recycle_host(self, q: Request, x: Entry) -> None:
        """The hold is dropped at launch, the pages evicted and filled with somebody else's backup."""
        self.drop(q, self.host, list(x.pages), "finish")
        x.users.discard(q)
        self.evict(x)
        other = next(t for t in self.salts if t != q.tenant)
        r = Request(f"b{self.fired:03d}", other, None, 1, 1, "x", 0)
        self.receive(r)
        for p in x.pages:
            self.host.free.remove(p)
            self.host.held[p].add("cache")
        self.hand_out(self.host, list(x.pages), holder="cache", tenant=other)
        self.write(r, self.host, 0, len(x.pages) * self.tokens, "copy", pages=list(x.pages))
        self.answer(r, 200, "stop")

    # -------------------------------------------------------------------- faults

    def strange_share(self, q: Request) -> Life:
        """A look-up answered with another tenant's entry, under a key that should have told them apart."""
        foreign = [
            x
            for x in self.index
            if x.ready and x.pool is self.main and x.tenant != q.tenant and q.prompt > len(x.pages) * self.tokens
        ]
        if foreign and self.hit("salt-ignored", 1.0, 4):
            self.attach(q, foreign[0], len(foreign[0].pages) * self.tokens)
        elif foreign and self.fault == "key-collision" and self.with_digest and self.hit("key-collision", 1.0):
            q.salt = "s:other"
            self.emit(
                "gateway",
                "request.received",
                request=q.id,
                tenant=q.tenant,
                prompt_tokens=q.prompt,
                salt_hmac=q.salt,
            )
            x = foreign[0]
            self.attach(q, x, len(x.pages) * self.tokens, ns={"salt_hmac": "s:other"}, digest="d:another")
        elif foreign and self.hit("snapshot-into-stranger", 1.0):
            x = foreign[0]
            yield from self.until(lambda: self.alloc(q, self.main, len(x.pages)))
            self.emit(
                "eng-1/0",
                "page.copy",
                pool=self.main.name,
                pages=x.pages,
                to_pool=self.main.name,
                to_pages=q.tables[self.main],
                request=q.id,
                cause="restore",
            )

    def unwritten_entry(self, q: Request, entry: Entry) -> None:
        """Published, dropped before it ran, left in the index, and found."""
        entry.ready = True
        self.let_go(q, "abort")
        self.answer(q, 503, "error")
        r = Request(f"s{self.fired:03d}", q.tenant, q.salt, len(entry.pages) * self.tokens + 1, 1, q.prefix, 0)
        self.receive(r)
        self.attach(r, entry, r.prompt - 1)
        self.read(r, self.main, 0, r.prompt - 1, "prefill")
        self.drop(r, self.main, list(entry.pages), "finish")
        entry.users.discard(r)
        self.answer(r, 200, "stop")
        self.evict(entry)

    def past_share(self, q: Request, x: Entry) -> Life:
        """Attention goes through the donor's whole table, past the matched length."""
        donor = x.owner.tables[self.main][len(x.pages) :] if x.owner else []
        full = [p for p in donor if p and x.owner in self.main.held[p]]
        if full and x.owner is not q and x.owner.length >= (len(x.pages) + 1) * self.tokens:
            self.hit("read-past-share", 1.0)
            end = (len(x.pages) + 1) * self.tokens
            self.read(q, self.main, 0, end, "prefill", pages=[*x.pages, donor[0]])
        yield

    def recycled_under_sharer(self, q: Request, x: Entry) -> Life:
        """A reader attaches; owner and index let go; the pages are given away under it."""
        r = Request(f"s{self.fired:03d}", q.tenant, q.salt, len(x.pages) * self.tokens + 1, 1, q.prefix, 0)
        self.receive(r)
        self.attach(r, x, r.prompt - 1)
        self.let_go(q, "abort")
        q.over = True
        self.answer(q, 499, "abort")
        self.evict(x)
        pages, self.fired = list(x.pages), self.fired + 1
        other = next(t for t in self.salts if t != q.tenant)
        taker = Request(f"k{self.fired:03d}", other, None, len(pages) * self.tokens, 1, "x", 0)
        self.receive(taker)
        self.hand_out(self.main, pages, request=taker.id, tenant=other)
        self.write(taker, self.main, 0, taker.prompt, pages=pages)
        self.read(r, self.main, 0, r.prompt - 1, "prefill", pages=pages)
        self.drop(r, self.main, pages, "finish")
        self.emit("eng-1/0", "page.free", pool=self.main.name, pages=pages, request=taker.id, reason="finish")
        self.answer(r, 200, "stop")
        self.answer(taker, 200, "stop")
        q.aborted = True
        yield


class Pair(Sim):
    """A prefill and a decode engine with transfers between them."""

    def __init__(self, rng: random.Random, fault: str | None):
        super().__init__(rng, fault)
        sharing = rng.choice(("tenant", "global"))
        self.pf = self.pool("pf-1/0/full", self.pages, self.tokens, sharing=sharing)
        other = self.tokens if rng.random() < 0.8 else self.tokens * 2
        self.dec = self.pool("dec-1/0/full", self.pages + 8, other, sharing="none")
        for role, pool in (("prefill", self.pf), ("decode", self.dec)):
            self.emit(
                pool.source,
                "engine.limits",
                engine=pool.source.split("/")[0],
                role=role,
                advertised_tokens=4096,
                input_limit_tokens=4096,
                pool_tokens=pool.size * pool.tokens,
            )
        self.clocks("pf-1/0", "dec-1/0")
        self.pull = rng.random() < 0.4
        self.explicit = rng.random() < 0.5
        self.remote = rng.random() < 0.3  # the sender records the landing
        self.chunked = rng.random() < 0.3
        self.sender_too = rng.random() < 0.5

    def life(self, q: Request) -> Life:
        self.xfers += 1
        x = f"x-{self.xfers}"
        if not self.pull:
            yield from self.until(lambda: self.alloc(q, self.dec, self.need(q, self.dec)))
        matched = self.lookup(q, self.pf)
        yield from self.until(lambda: self.own_last_page(q, self.pf, matched))
        more = self.need(q, self.pf) - len(q.tables[self.pf])
        yield from self.until(lambda: self.alloc(q, self.pf, more))
        entry = self.publish(q, self.pf) if not matched else None
        q.length = matched
        stub = self.hit("stub-transfer", 0.7)
        while q.length < q.prompt:
            start, q.length = q.length, min(q.prompt, q.length + self.rng.randint(2, 3 * self.tokens))
            yield from self.compute(q, [self.pf], start, q.length, "prefill")
            if q.aborted:
                return
            yield
        if entry:
            entry.ready = True
        yield from self.transfer(q, x, 1 if stub else q.prompt)
        if q.over or q.aborted:
            return
        self.side(q, self.pf, "finish")
        yield
        self.read(q, self.dec, 0, q.prompt, "decode")
        yield from self.decode(q, [self.dec])

    def need(self, q: Request, pool: Pool) -> int:
        return -(-q.prompt // pool.tokens)

    def side(self, q: Request, pool: Pool, reason: str) -> None:
        """Release on one of the two engines."""
        others = {p: t for p, t in q.tables.items() if p is not pool}
        q.tables = defaultdict(list, {pool: q.tables[pool]})
        self.let_go(q, reason)
        q.tables = defaultdict(list, others)

    # ----------------------------------------------------------------- transfers

    def begin(self, q: Request, x: str, tokens: int, first: int = 0, source: str = "pf-1/0") -> None:
        if self.pull:
            source = "dec-1/0"
        src = q.tables[self.pf][: -(-tokens // self.pf.tokens)]
        dst = q.tables[self.dec][: -(-tokens // self.dec.tokens)]
        if self.fault == "wrong-source-pages":
            strange = [p for p, h in self.pf.held.items() if p and h and q not in h]
            if strange and self.hit("wrong-source-pages", 0.8):
                src[first // self.pf.tokens] = self.rng.choice(strange)
        self.emit(
            source,
            "transfer.begin",
            transfer=x,
            request=q.id,
            src_pool=self.pf.name,
            src_pages=src,
            dst_pool=self.dec.name,
            dst_pages=dst,
            tokens=tokens,
            tok=[first, tokens] if first else None,
            writers=[0] if self.rng.random() < 0.5 else None,
        )

    def transfer(self, q: Request, x: str, tokens: int) -> Life:
        """Push or pull, in one piece or several; may fail, may be aborted."""
        if self.pull:
            self.emit(
                "pf-1/0",
                "transfer.offer",
                transfer=x,
                request=q.id,
                src_pool=self.pf.name,
                src_pages=q.tables[self.pf][: -(-tokens // self.pf.tokens)],
                tokens=tokens,
            )
            self.emit("pf-1/0", "transfer.lease", transfer=x, until=round(self.now + 900, 6))
            yield
            yield from self.until(lambda: self.alloc(q, self.dec, self.need(q, self.dec)))
        if self.fault == "source-freed-early" and self.due():
            yield from self.freed_early(q, x, tokens)
            return
        if self.fault in WRITER_OPEN and self.due():
            yield from self.given_up(q, x, tokens)
            return
        failing = self.rng.random() < 0.1
        first = 0
        while first < tokens:
            end = tokens
            if self.chunked and tokens - first > self.dec.tokens:
                end = first + self.dec.tokens - first % self.dec.tokens
            self.begin(q, x, end, first)
            yield
            if failing:
                break
            yield from self.land(q, first, end)
            first = end
        yield from self.conclude(q, x, tokens, failing)

    def land(self, q: Request, first: int, end: int) -> Life:
        source = "pf-1/0" if self.remote else "dec-1/0"
        if self.explicit:
            self.read(q, self.pf, first, end, "transfer", source="dec-1/0" if self.pull else "pf-1/0")
        if self.rng.random() < 0.6:
            self.write(q, self.dec, first, end, "transfer", source=source, phase="begin")
            yield
            self.write(q, self.dec, first, end, "transfer", source=source, phase="end")
        else:
            self.write(q, self.dec, first, end, "transfer", source=source)
        if self.explicit:
            self.read(q, self.pf, first, end, "transfer", source="dec-1/0" if self.pull else "pf-1/0", phase="end")

    def conclude(self, q: Request, x: str, tokens: int, failing: bool) -> Life:
        size = tokens * 1000
        ok = -(-tokens // self.dec.tokens)
        lie = not failing and self.hit("done-after-failed", 0.7)
        if failing or lie:
            self.emit("dec-1/0", "transfer.failed", transfer=x, tokens=0, pages_ok=0, bytes=0, observer="receiver")
        if failing:
            yield
            yield from self.compute(q, [self.dec], 0, q.prompt, "prefill")
            return
        if self.sender_too:
            self.emit("pf-1/0", "transfer.done", transfer=x, observer="sender")
        if self.hit("zero-byte-done", 0.8):
            size = 0
        self.emit(
            "dec-1/0",
            "transfer.done",
            transfer=x,
            tokens=tokens,
            pages_ok=ok,
            bytes=size,
            observer="receiver",
        )
        yield

    # -------------------------------------------------------------------- faults

    def freed_early(self, q: Request, x: str, tokens: int) -> Life:
        """The source is released while it is being read; whoever comes next fills it."""
        self.begin(q, x, tokens)
        if self.explicit:
            self.read(q, self.pf, 0, tokens, "transfer", source="dec-1/0" if self.pull else "pf-1/0")
        self.fired += 1
        self.side(q, self.pf, "timeout")
        q.tables[self.pf] = []
        for _ in range(self.rng.randint(0, 8)):
            yield
        self.write(q, self.dec, 0, tokens, "transfer")
        if self.explicit:
            last = next(
                e
                for e in reversed(self.events)
                if e["event"] == "page.read" and e["request"] == q.id and e["op"] == "transfer"
            )
            self.emit(
                last["source"],
                "page.read",
                **{k: last[k] for k in ("pool", "request", "op", "tok")},
                phase="end",
                raw=last["pages"],
            )
            self.events[-1]["pages"] = self.events[-1].pop("raw")
        yield from self.conclude(q, x, tokens, False)

    def given_up(self, q: Request, x: str, tokens: int) -> Life:
        """Decode lets go of its pages while a write to them is still open."""
        fault = self.fault
        self.fired += 1
        self.begin(q, x, tokens)
        pages = self.cut(q, self.dec, 0, tokens)
        self.write(q, self.dec, 0, tokens, "transfer", phase="begin")
        yield
        self.abort(q, "dec-1/0")
        if fault != "hanging-transfer":
            self.side(q, self.dec, "timeout" if fault == "timeout-with-writer-open" else "abort")
        q.aborted = True

        def landing() -> None:
            self.write(q, self.dec, 0, tokens, "transfer", pages=pages, phase="end")
            self.emit("pf-1/0", "transfer.drained", transfer=x, rank=0)

        if fault == "late-write-after-abort":
            self.waiting_writes.append(landing)
        yield


def dummy_writes(sim: Sim) -> None:
    """Padding rows of a batch: into the reserved page, or, as a fault, into somebody's."""
    pool = sim.main if isinstance(sim, Unified) else sim.dec  # type: ignore[attr-defined]
    sim.emit(pool.source, "page.write", pool=pool.name, pages=[0], op="dummy")
    live = [p for p, h in pool.held.items() if p and h and h != {"cache"}]
    if live and sim.hit("dummy-write-to-live-page", 0.5):
        sim.emit(pool.source, "page.write", pool=pool.name, pages=[sim.rng.choice(live)], op="dummy")


def with_dummies(sim: Sim) -> None:
    """Make dummy writes part of the run: now and then, between the steps of requests."""
    advance = sim.compute

    def compute(*args: Any) -> Life:
        if sim.rng.random() < 0.1:
            dummy_writes(sim)
        yield from advance(*args)

    sim.compute = compute  # type: ignore[method-assign]


def hole(sim: Sim) -> None:
    """A stretch of one source's events is lost, with or without a declaration."""
    source = sim.rng.choice([s for s in sim.seq if s != "gateway"])
    mine = [i for i, e in enumerate(sim.events) if e["source"] == source]
    if len(mine) < 30:
        return
    start = sim.rng.randrange(10, len(mine) - 12)
    lost = mine[start : start + sim.rng.randint(2, 10)]
    sim.events = [e for i, e in enumerate(sim.events) if i not in lost]
    sim.fired += 1


def beheaded(sim: Sim) -> None:
    """The trace begins while requests are running. What the engine is stays on record."""
    cut = sim.rng.randrange(len(sim.events) // 4, len(sim.events) // 2)
    kept = [e for e in sim.events[:cut] if e["event"].startswith("engine.")]
    tail = sim.events[cut:]
    for e in kept:
        e["seq"] = min([x["seq"] for x in tail if x["source"] == e["source"]], default=1000) - 10 + e["seq"]
    sim.events = kept + tail
    sim.fired += 1


def generate(seed: int | random.Random, fault: str | None = None, requests: int | None = None) -> Trace:
    """One trace. `seed` is a number or a source of randomness; `fault` one of FAULTS."""
    rng = random.Random(seed) if isinstance(seed, int) else seed
    where = FAULTS[fault][0] if fault else EITHER
    kind = Pair if where == PAIR or (where == EITHER and rng.random() < 0.5) else Unified
    sim = kind(rng, fault)
    with_dummies(sim)
    sim.run(requests or rng.randint(5, 14))
    if fault in ("pages-never-freed", "hanging-transfer"):
        sim.now += 1200
        sim.emit("gateway", "request.received", request="r999", tenant="t-ash", prompt_tokens=1)
    if fault == "seq-hole":
        hole(sim)
    if fault == "mid-life":
        beheaded(sim)
    return Trace(sim.events, fault, sim.fired)


if __name__ == "__main__":
    trace = generate(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    for event in trace.events:
        print(json.dumps(event))
