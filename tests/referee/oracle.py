"""The referee: replays a trace row by row and says which page-level rules it proves.

`audit(events)` takes a list of event dicts (trace format 1, JSON form) and returns findings as dicts
`{rule, verdict, request, other_tenants, pool, pages}`. Nothing is shared with the product: where the two
disagree, one of them has misread the rules. Readings that the rules leave open are in READINGS.md beside this
file.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

from .content import Content, rows_of
from .state import (
    Holder,
    Movement,
    Page,
    Publication,
    Req,
    Share,
    Transfer,
    World,
    base_of,
    canonical,
    page_list,
    req_of,
)
from .timeline import Event, Timeline, load

ORPHAN_BOUND_S = 600.0
PAGE_RULES = (
    "foreign-page-read",
    "unwritten-page-read",
    "read-before-ready",
    "uncovered-read",
    "late-write",
    "late-read",
    "freed-in-step",
    "double-ownership",
    "false-transfer-complete",
    "reserved-page-use",
    "orphaned-pages",
    "position-mismatch",
    "tainted-content",
    "telemetry-gap",
)
HOLDING = ("page.alloc", "page.free", "page.share", "page.publish", "page.unpublish", "page.move")


class Referee:
    """One replay."""

    def __init__(self, events: list[dict[str, Any]], bound: float = ORPHAN_BOUND_S):
        self.bound = bound
        self.tl = Timeline(events)
        self.w = World()
        self.content = Content(self.w, self.tl)
        self.step_losses: dict[tuple[str, Any], list[tuple[Page, Req | None, set[str]]]] = defaultdict(list)
        self.last_use: dict[tuple[Req, str], Event] = {}
        self.first_use: dict[tuple[Req, str], int] = {}
        self.end = max((e.ref for e in self.tl.events), default=0.0)
        self.survey()

    def survey(self) -> None:
        """Known before the replay: homes of pools, first and last use, who touches which page."""
        for e in self.tl.events:
            r = req_of(e.d)
            if r is not None:
                self.first_use.setdefault((r, e.source), e.k)
                last = self.last_use.get((r, e.source))
                self.last_use[(r, e.source)] = e if last is None or last.k < e.k else last
                request = self.w.request(r)
                if e.d.get("tenant") is not None and e.kind in (
                    "page.alloc",
                    "page.share",
                    "request.received",
                ):
                    request.tenant = request.tenant or e.d["tenant"]
            if not e.valid():
                continue
            for name, pages in (("pool", "pages"), ("to_pool", "to_pages")):
                if e.kind.startswith("page.") and e.d.get(pages) and (e.d.get(name) or e.d.get("pool")):
                    pool = self.w.pool(e.d.get(name) or e.d["pool"])
                    for n in page_list(e.d, pages):
                        pool.page(n).touches.append(e)
            if e.kind == "engine.pool":
                self.w.pool(e.d["pool"]).home = e.source
        for name, pool in self.w.pools.items():
            prefix = "/".join(name.split("/")[:2])
            if prefix in self.tl.by_source:
                pool.home = prefix
            pool.covered = pool.home is not None and pool.home not in self.tl.midlife
            for page in pool.pages.values():
                page.known = pool.covered
        received = {req_of(e.d) for e in self.tl.events if e.kind == "request.received"}
        for r, request in self.w.requests.items():
            if r not in received:
                request.maybe |= self.tl.midlife

    def run(self) -> list[dict[str, Any]]:
        handlers = {
            "engine.pool": self.on_pool,
            "request.received": self.on_received,
            "request.rejected": self.on_end,
            "request.aborted": self.on_end,
            "request.finished": self.on_end,
            "request.preempted": self.on_preempted,
            "page.alloc": self.on_alloc,
            "page.free": self.on_free,
            "page.share": self.on_share,
            "page.publish": self.on_publish,
            "page.unpublish": self.on_unpublish,
            "page.write": self.content.write,
            "page.read": self.content.read,
            "page.copy": self.on_copy,
            "page.move": self.on_copy,
            "transfer.offer": self.on_offer,
            "transfer.begin": self.on_begin,
            "transfer.done": self.on_done,
            "transfer.failed": self.on_terminal,
            "transfer.drained": self.on_terminal,
            "transfer.lease": self.on_lease,
            "step.begin": self.on_step_begin,
            "step.end": self.on_step_end,
        }
        for e in self.tl.events:
            if e.gap:
                self.doubtful(e)
            if e.kind in handlers and e.valid():
                if e.kind in HOLDING:
                    self.guards(e)
                handlers[e.kind](e)
            after = self.tl.by_source[e.source][e.k + 1 : e.k + 2]
            if after and after[0].gap:
                self.on_gap(after[0])
        self.at_end()
        return self.w.result()

    # ------------------------------------------------------- pools, requests, gaps

    def on_pool(self, e: Event) -> None:
        d, pool = e.d, self.w.pool(e.d["pool"])
        pool.tokens = d["page_tokens"]
        pool.kind = d.get("kind") or pool.kind
        pool.sharing = d.get("sharing") or pool.sharing
        pool.reserved = set(page_list(d, "reserved"))

    def on_received(self, e: Event) -> None:
        key = req_of(e.d)
        assert key is not None
        r = self.w.request(key)
        if r.ended is not None and r.received is not None:  # the id begins a new life
            r.ended, r.taint = None, set()
            for place in [k for k in self.w.places if k[0] == key]:
                self.w.places.pop(place)
                self.w.window.pop(place, None)
        if e.d.get("tenant") is not None:
            r.tenant = e.d["tenant"]
        r.received = r.received or e
        r.traffic = e.d.get("traffic") or "user"
        r.salt, r.adapter = e.d.get("salt_hmac"), e.d.get("adapter")

    def on_end(self, e: Event) -> None:
        key = req_of(e.d)
        assert key is not None
        if (
            e.kind == "request.finished"
            and e.d.get("answered_by") is not None
            and any(x.at > e.at and x.kind == e.kind and req_of(x.d) == key for x in self.tl.events)
        ):
            return
        r = self.w.request(key)
        r.ended = r.ended or e
        self.content.close_reads(key)
        for pool in self.w.pools.values():
            for page in pool.pages.values():
                if key in page.sharers:
                    page.guard = e.ref

    def on_preempted(self, e: Event) -> None:
        """Pages already let go no longer keep their places; pages that stay do."""
        r = req_of(e.d)
        for key, place in self.w.places.items():
            if key[0] == r:
                pool = self.w.pool(key[1])
                for n in [n for n in place if not self.holds(r, pool.page(n))]:
                    del place[n]
                self.w.window[key].clear()

    def on_gap(self, e: Event) -> None:
        """Something went unrecorded on this source before e: its pages and requests are uncertain."""
        for pool in self.w.pools.values():
            if pool.home == e.source:
                pool.gaps += 1
                pool.gap_stamp = e.at
        for rec in self.w.reads:
            mine = {p for p in rec.open if e.source in (rec.event.source, p.pool.home)}
            rec.open -= mine  # what would have closed it may be lost
        self.doubtful(e)

    def doubtful(self, e: Event) -> None:
        """Requests that the source of a gap served, or may have served, before the gap ended."""
        for r, request in self.w.requests.items():
            first = self.first_use.get((r, e.source))
            if first is None or first >= e.k:
                come = request.received is not None and request.received.at < e.at
                if request.ended is None and (come or not self.announced(r, e)):
                    request.maybe.add(e.source)  # what the source did first for it may be lost
                continue
            source = e.source
            owns = any(
                self.holds(r, page)
                for pool in self.w.pools.values()
                if pool.home == source
                for page in pool.pages.values()
            )
            last = self.last_use[(r, source)]
            released = last.kind == "page.free" and last.d.get("reason") not in ("window", "preempt")
            if owns or last.k >= e.k or (request.ended is None and not released):
                request.gaps.add(source)
                self.w.report("telemetry-gap", "unproven", r)

    def announced(self, r: Req | None, e: Event) -> bool:
        """The reception of r is on record, after e."""
        return any(x.kind == "request.received" and x.at > e.at and req_of(x.d) == r for x in self.tl.events)

    def holds(self, r: Req | None, page: Page) -> bool:
        return page.owned_by(r) or r in page.sharers

    # ----------------------------------------------------------------- ownership

    def on_alloc(self, e: Event) -> None:
        r = req_of(e.d)
        pool = self.w.pool(e.d["pool"])
        tenant = e.d.get("tenant") or self.w.tenant(r)
        holder = Holder(r, "request" if r else str(e.d.get("holder") or "cache"), tenant)
        gen = e.d.get("gen")
        for i, n in enumerate(page_list(e.d)):
            page = pool.page(n)
            if n in pool.reserved:
                if r is not None:
                    self.w.report("reserved-page-use", "integrity", r, page)
                    self.place(r, page)
                continue
            g = gen[i] if isinstance(gen, list) and i < len(gen) else gen if isinstance(gen, int) else None
            self.take(page, holder, e, g)
            if r is not None:
                self.place(r, page)

    def take(self, page: Page, holder: Holder, e: Event, gen: int | None = None) -> None:
        """A page becomes owned, in a new generation."""
        if page.live and page.dirty:
            self.w.report("double-ownership", "unproven", holder.request, page)
            if holder.request:
                self.content.unproven(holder.request, page)
            page.owners, page.sharers = [], {}
        elif page.live:
            tenants = {h.tenant for h in page.owners if h.tenant} | self.w.tenants(set(page.sharers))
            other = {t for t in tenants if holder.tenant is not None and t != holder.tenant}
            self.w.report("double-ownership", "leak" if other else "integrity", holder.request, page, other)
            page.deaths[page.gen] = e.at
        before = {h.request for h in page.owners if h.request}
        page.rivals = before | {holder.request} if before and holder.request else set()
        for key, losses in self.step_losses.items():
            for lost, _, takers in losses:
                if lost is page and holder.tenant is not None and key in self.w.steps:
                    takers.add(holder.tenant)
        page.gen = gen if gen is not None else page.gen + 1
        page.owners.append(holder)
        page.known, page.freed, page.gap_seen = True, False, page.pool.gaps

    def place(self, r: Req, page: Page) -> None:
        """The next place in the request: allocation order, after what is there already."""
        key = (r, page.pool.name)
        taken = set(self.w.places[key].values()) | self.w.window[key]
        self.w.places[key][page.id] = max(taken, default=-1) + 1

    def on_free(self, e: Event) -> None:
        r, pool = req_of(e.d), self.w.pool(e.d["pool"])
        holder = e.d.get("holder")
        for n in page_list(e.d):
            page = pool.page(n)
            if n in pool.reserved:
                continue
            who, kind = r, holder
            if who is None and kind is None:
                sole = [h.request for h in page.owners if h.request]
                who, kind = (sole[0], None) if len(sole) == 1 else (None, "cache")
            if who is not None:
                self.request_free(e, who, page)
            else:
                self.holder_free(e, str(kind), page)
        if r is not None and e.d.get("reason") == "timeout":
            self.timeout(e, r, pool.name)

    def request_free(self, e: Event, r: Req, page: Page) -> None:
        to = e.d.get("to")
        if page.owned_by(r):
            mine = next(h for h in page.owners if h.request == r)
            page.owners.remove(mine)
            page.sharers.pop(r, None)
            if to and not any(h.kind == to for h in page.owners):
                page.owners.append(Holder(None, str(to), mine.tenant))
        elif r in page.sharers:
            del page.sharers[r]
            if to and not page.live:
                page.owners.append(Holder(None, str(to), self.w.tenant(r)))
        elif not page.known:
            self.content.unproven(r, page)
        elif not page.dirty and not self.w.request(r).gaps and page.pool.home not in self.w.request(r).maybe:
            tenants = {h.tenant for h in page.owners if h.tenant} | self.w.tenants(set(page.sharers))
            verdict, others = self.w.against(r, tenants)
            self.w.report("double-ownership", verdict, r, page, others)
            return
        page.former.add(r)
        page.last_loser = r
        self.content.close_reads(r, page)
        key = (r, page.pool.name)
        old = self.w.places[key].pop(page.id, None)
        if old is not None and e.d.get("reason") == "window":
            self.w.window[key].add(old)
        if not self.w.places[key] and e.d.get("reason") == "preempt":
            self.w.window[key].clear()
        self.died(e, page, r)

    def holder_free(self, e: Event, kind: str, page: Page) -> None:
        mine = [h for h in page.owners if h.request is None and h.kind == kind]
        if mine:
            page.owners.remove(mine[0])
            to = e.d.get("to")
            if to and not any(h.kind == to for h in page.owners):
                page.owners.append(Holder(None, str(to), mine[0].tenant))
            self.died(e, page, page.last_loser)
        elif page.known and not page.dirty:
            self.w.report("double-ownership", "integrity", None, page)

    def died(self, e: Event, page: Page, loser: Req | None) -> None:
        """Nobody holds the page any more."""
        if page.live:
            return
        page.freed = True
        page.deaths[page.gen] = e.at
        for key, gens in self.w.steps.items():
            if key[0] == page.pool.name and gens.get(page.id) == page.gen and page.id not in page.pool.reserved:
                self.step_losses[key].append((page, loser, set()))

    def timeout(self, e: Event, r: Req, pool: str) -> None:
        """Given up on a transfer whose writers have not all said that they are through."""
        freed = set(page_list(e.d))
        for t in self.w.transfers:
            targets = {n for m in t.moves if m.dst_pool == pool for n in (*m.dst, *m.announced)} & freed
            if t.request == r and targets and not self.quiet(t):
                for n in targets:
                    self.w.report("late-write", "unproven", r, self.w.pool(pool).page(n))

    def quiet(self, t: Transfer) -> bool:
        """Every writer is through: a done or failed speaks for all, a drained only for its rank."""
        if any(x.d.get("rank") is None for x in (*t.done, *t.failed, *t.drained)):
            return True
        named = {x for m in t.moves for x in m.event.d.get("writers") or []}
        heard = {x.d.get("rank") for x in (*t.done, *t.failed, *t.drained)}
        return bool(heard) and named <= heard

    # ------------------------------------------------------------------- sharing

    def on_share(self, e: Event) -> None:
        d, r, pool = e.d, req_of(e.d), self.w.pool(e.d["pool"])
        assert r is not None
        for page, lo, hi, pos in rows_of(self.w, d):
            if page.id in pool.reserved:
                continue
            page.sharers.setdefault(r, []).append(self.share_of(d, r, page, lo, hi))
            if pos is not None and page.pool.tokens:
                self.w.places[(r, pool.name)][page.id] = pos // page.pool.tokens
            self.shared_unfinished(r, page, lo, hi, whole=pos is None)
        if d.get("tok"):
            self.w.local[(r, pool.name)].append(tuple(d["tok"]))

    def share_of(self, d: dict[str, Any], r: Req, page: Page, lo: int, hi: int) -> Share:
        """What the policy says about this attachment."""
        here = [p for p in page.pubs if p.key == d.get("key")]
        found = here or self.w.published_keys.get(d.get("key"), [])
        if not found:
            return Share(lo, hi, page.gen, "unknown" if page.dirty or not page.known else "never", False, "absent")
        pub = found[-1]
        if d.get("digest") is None or pub.digest is None:
            digests = "absent"
        else:
            digests = "equal" if d["digest"] == pub.digest else "differ"
        if d.get("ns") is not None:
            same = canonical(d["ns"]) == pub.ns
        else:
            ns = pub.fields
            request = self.w.request(r)
            same = (ns.get("salt_hmac"), ns.get("adapter")) == (request.salt, request.adapter)
        share = Share(lo, hi, page.gen, "yes", same, digests)
        if not here:
            return replace(share, writers={x for p in found for x in (p.by, *p.writers)})
        return replace(share, gen=pub.gen, stamp=pub.stamp, by=pub.by, aliens=pub.aliens)

    def shared_unfinished(self, r: Req, page: Page, lo: int, hi: int, whole: bool) -> None:
        """A published page whose writer ended without completing it is shared."""
        if not page.known or page.dirty:
            return
        whose = {row: page.rows.get(row) for row in range(lo, hi)}
        missing = [row for row, cell in whose.items() if cell is None or cell.gen != page.gen or cell.zero]
        if whole and len(missing) < hi - lo:
            return
        writing = any(h.request and self.w.request(h.request).ended is None for h in page.owners)
        writing = writing or any(p is page for o in self.w.writes for p, *_ in o.rows)
        share = page.sharers[r][-1]
        if not missing or writing or share.gen != page.gen:
            return
        tenants = {t for row in missing if row in page.rows for t in self.content.whose(r, page.rows[row])}
        verdict, others = self.w.against(r, tenants)
        self.w.report("read-before-ready", verdict, r, page, others)

    def on_publish(self, e: Event) -> None:
        d, pool = e.d, self.w.pool(e.d["pool"])
        for n in page_list(d):
            page = pool.page(n)
            ns = d.get("ns") or {}
            owners = page.requests()
            by = req_of(d) or (owners[0] if owners else None)
            pub = Publication(d.get("key"), canonical(ns), d.get("digest"), page.gen, True, ns, e.at, by)
            live = frozenset(cell.writer for cell in page.rows.values() if cell.gen == page.gen)
            if by in page.rivals:
                pub.aliens = frozenset(page.rivals - {by})
            pub.writers = live - pub.aliens
            page.pubs.append(pub)
            self.w.published_keys[d.get("key")].append(pub)

    def on_unpublish(self, e: Event) -> None:
        for n in page_list(e.d):
            for pub in self.w.pool(e.d["pool"]).page(n).pubs:
                if e.d.get("key") in (None, pub.key):
                    pub.live = False

    # ------------------------------------------------------------ copies and moves

    def on_copy(self, e: Event) -> None:
        d, r, moved = e.d, req_of(e.d), e.kind == "page.move"
        src_pool = self.w.pool(d["pool"])
        dst_pool = self.w.pool(d.get("to_pool") or d["pool"])
        for a, b in zip(page_list(d), page_list(d, "to_pages"), strict=False):
            src, dst = src_pool.page(a), dst_pool.page(b)
            if b in dst_pool.reserved or a in src_pool.reserved or dst_pool.tokens is None:
                continue
            if moved:
                self.move(e, r, src, dst)
                continue
            legit = self.copy_allowed(e, r, dst)
            self.content.copy_rows(e, r, src, dst, legit, moved=False)
            if r is not None:
                self.take_place(r, src, dst)

    def copy_allowed(self, e: Event, r: Req | None, dst: Page) -> bool:
        fake = Event({**e.d, "op": "copy"}, e.line, e.source, e.k, e.ref, e.slack, e.at, seen=e.seen)
        return self.content.may_write(fake, r, dst, dst.gen, None)

    def take_place(self, r: Req, src: Page, dst: Page) -> None:
        """A copy or move target takes the place of its source in the request."""
        old = self.w.places[(r, src.pool.name)].get(src.id)
        if old is not None:
            self.w.places[(r, dst.pool.name)][dst.id] = old
            size = dst.pool.tokens or 1
            self.w.local[(r, dst.pool.name)].append((old * size, (old + 1) * size))

    def move(self, e: Event, r: Req | None, src: Page, dst: Page) -> None:
        """The target goes to whoever holds the source, with publication and places; the source is let go."""
        holders = list(src.owners) or ([Holder(r, "request", self.w.tenant(r))] if r else [])
        if not any(dst.owned_by(h.request) for h in holders if h.request):
            self.take(dst, holders[0] if holders else Holder(None, "cache", None), e)
        dst.owners = [h for h in dst.owners if h not in holders] + holders
        self.content.copy_rows(e, r, src, dst, True, moved=True)
        for q, shares in src.sharers.items():
            dst.sharers[q] = [replace(s, gen=dst.gen - (src.gen - s.gen), stamp=e.at) for s in shares]
        for pub in src.pubs:
            if pub.gen == src.gen:
                dst.pubs.append(replace(pub, gen=dst.gen, stamp=e.at))
        dst.known, dst.rivals = src.known and dst.known, set(src.rivals)
        for q in {h.request for h in holders if h.request} | set(src.sharers):
            self.take_place(q, src, dst)
            self.w.places[(q, src.pool.name)].pop(src.id, None)
            src.former.add(q)
            self.content.close_reads(q, src)
        src.owners, src.sharers, src.freed = [], {}, True
        src.deaths[src.gen] = e.at
        for pub in src.pubs:
            pub.live = False

    # ------------------------------------------------------------------ transfers

    def transfer(self, e: Event) -> Transfer:
        """The live transfer of this id and request, or a new one."""
        r = req_of(e.d)
        assert r is not None
        mine = [t for t in self.w.transfers if t.id == e.d["transfer"] and t.request == r and not t.done]
        for t in mine:
            if not t.failed:
                return t
        t = Transfer(e.d["transfer"], r, e)
        if mine:  # another attempt, at what had been offered
            t.offered, t.offer_gen, t.lease = mine[-1].offered, dict(mine[-1].offer_gen), mine[-1].lease
            t.offered_as = mine[-1].offered_as
        self.w.transfers.append(t)
        return t

    def on_offer(self, e: Event) -> None:
        t = self.transfer(e)
        t.offered = e
        if e.d.get("src_pool"):
            pool, gens = self.w.pool(e.d["src_pool"]), e.d.get("src_gen")
            for i, n in enumerate(page_list(e.d, "src_pages")):
                t.offer_gen[(pool.name, n)] = self.meant(gens, i, pool.page(n).gen)
            src, tok = page_list(e.d, "src_pages"), e.d.get("tok")
            meant = {n: t.offer_gen[(pool.name, n)] for n in src}
            end = tok[1] if tok else e.d.get("tokens")
            t.offered_as = Movement(t, e, pool.name, src, None, [], tok[0] if tok else 0, end, meant)
            t.offered_as.src_base = base_of(src, tok, self.size(pool.name))

    @staticmethod
    def meant(gens: Any, i: int, otherwise: int) -> int:
        """The generation named for the i-th page: one number for all, or a list parallel to the pages."""
        if isinstance(gens, list):
            return gens[i] if i < len(gens) else otherwise
        return gens if isinstance(gens, int) else otherwise

    def on_begin(self, e: Event) -> None:
        t, d = self.transfer(e), e.d
        src, dst = page_list(d, "src_pages"), page_list(d, "dst_pages")
        tok, gens = d.get("tok"), d.get("src_gen")
        end = tok[1] if tok else d.get("tokens")
        meant: dict[int, int] = {}
        if d.get("src_pool"):
            pool = self.w.pool(d["src_pool"])
            for i, n in enumerate(src):
                meant[n] = self.meant(gens, i, t.offer_gen.get((pool.name, n), pool.page(n).gen))
        m = Movement(
            t,
            e,
            d.get("src_pool"),
            src,
            d.get("dst_pool"),
            dst,
            tok[0] if tok else 0,
            end,
            meant,
            announced=set(page_list(d, "dst_announced")),
        )
        m.place = {n: i for i, n in reversed(list(enumerate(dst)))}
        m.src_base = base_of(src, tok, self.size(d.get("src_pool")))
        m.dst_base = base_of(dst, tok, self.size(d.get("dst_pool")))
        self.join_sides(t, m)
        t.moves.append(m)

    def join_sides(self, t: Transfer, m: Movement) -> None:
        """One side may have named the source and the other the targets: they are one movement."""
        older = t.moves[-1] if t.moves else t.offered_as
        if older is None:
            return
        if not m.src and older.src and not older.dst and m.src_pool in (None, older.src_pool):
            m.src_pool, m.src, m.src_gen, m.src_base = older.src_pool, older.src, older.src_gen, older.src_base
        elif not m.dst and older.dst and not older.src and older.src_pool in (None, m.src_pool):
            older.src_pool, older.src, older.src_gen, older.src_base = m.src_pool, m.src, m.src_gen, m.src_base

    def size(self, pool: str | None) -> int:
        return (self.w.pools[pool].tokens if pool in self.w.pools else None) or 1

    def named(self, e: Event) -> Transfer | None:
        """The transfer a terminal event speaks of: the oldest live one of that id, else the newest."""
        found = [t for t in self.w.transfers if t.id == e.d["transfer"]]
        live = [t for t in found if not t.terminal]
        return live[0] if live else found[-1] if found else None

    def on_terminal(self, e: Event) -> None:
        t = self.named(e)
        if t is not None:
            (t.failed if e.kind == "transfer.failed" else t.drained).append(e)
            landed = e.d.get("tokens") or 0
            if e.kind == "transfer.failed" and landed:
                self.claim(t, landed)

    def claim(self, t: Transfer, tokens: int) -> None:
        for m in t.moves:
            if m.dst_pool:
                self.w.moved[(t.request, m.dst_pool)].append((m.first, tokens))

    def on_lease(self, e: Event) -> None:
        t = self.named(e)
        if t is not None:
            t.lease = (self.content.time_of(e.d["until"], e), e)

    def on_done(self, e: Event) -> None:
        t = self.named(e)
        if t is None:
            return
        failed = [f for f in t.failed if f.source == e.source or not self.tl.concurrent(f, e)]
        if t.failed:
            verdict = "integrity" if failed else "unproven"
            self.w.report("false-transfer-complete", verdict, t.request, self.some_page(t))
        t.done.append(e)
        tokens = e.d.get("tokens")
        if not tokens:
            return
        missing, late = self.missing(t, tokens, e)
        gap = self.w.request(t.request).doubt()
        for page in missing:
            verdict = "unproven" if gap or page in late else "integrity"
            self.w.report("false-transfer-complete", verdict, t.request, page)
        if e.d.get("bytes") == 0 and not missing and self.landed_since(t):
            self.w.report("false-transfer-complete", "integrity", t.request, self.some_page(t))
        self.claim(t, tokens)

    def landed_since(self, t: Transfer) -> bool:
        """Something is on record as landed by this transfer, which by its own account moved no byte."""
        pages = [self.w.pool(m.dst_pool).page(n) for m in t.moves if m.dst_pool for n in m.dst]
        return any(c.stamp > t.start.at and c.by == t.request for p in pages for c in p.rows.values())

    def some_page(self, t: Transfer) -> Page | None:
        for m in t.moves:
            if m.dst_pool and m.dst:
                return self.w.pool(m.dst_pool).page(m.dst[-1])
        return None

    def missing(self, t: Transfer, tokens: int, e: Event) -> tuple[list[Page], list[Page]]:
        """Destination pages where a claimed position has not arrived.

        Second: those of them whose write may have come first for all that the clocks say.
        """
        out: list[Page] = []
        for m in t.moves:
            if m.dst_pool not in self.w.pools or self.w.pools[m.dst_pool].tokens is None:
                continue
            pool, size = self.w.pools[m.dst_pool], self.size(m.dst_pool)
            for pos in range(m.first, min(tokens, m.end or tokens)):
                i = (pos - m.dst_base) // size
                if not 0 <= i < len(m.dst) or m.dst[i] in pool.reserved:
                    continue
                page = pool.page(m.dst[i])
                if page not in out and not self.landed(t.request, page, pos % size):
                    out.append(page)
        return out, [p for p in out if self.content.coming(t.request, p, e)]

    def landed(self, r: Req, page: Page, row: int) -> bool:
        """The destination row has a completed write for r (whatever content that brought)."""
        cell = page.rows.get(row)
        if cell is not None and cell.gen == page.gen and cell.writer == r:
            return not cell.zero  # made ready for what was to come
        return self.w.judge(r, page, row) in ("sound", "unknown")

    # ---------------------------------------------------------------------- steps

    def on_step_begin(self, e: Event) -> None:
        pool = self.w.pool(e.d["pool"])
        self.w.steps[(e.d["pool"], e.d["step"])] = {n: pool.page(n).gen for n in page_list(e.d)}

    def on_step_end(self, e: Event) -> None:
        key = (e.d["pool"], e.d["step"])
        self.w.steps.pop(key, None)
        self.step_findings(key, ended=True)

    def step_findings(self, key: tuple[str, Any], ended: bool) -> None:
        for page, loser, takers in self.step_losses.pop(key, []):
            mine = self.w.tenant(loser)
            other = {t for t in takers if mine is not None and t != mine}
            verdict = "leak" if other else "integrity"
            if not ended or page.dirty or (loser and self.w.request(loser).doubt()):
                verdict, other = "unproven", set()
            self.w.report("freed-in-step", verdict, loser, page, other)

    # --------------------------------------------------------------- the end: orphans

    def at_end(self) -> None:
        for key in list(self.step_losses):
            self.step_findings(key, ended=False)
        self.hanging_transfers()
        self.without_reads()
        for pool in self.w.pools.values():
            for page in pool.pages.values():
                self.orphaned(page, self.end)

    def without_reads(self) -> None:
        """Answered by engines that put down pages and no read: what was read for the answer never arrived.

        Prefill engines need not read; but if nobody on record reads, the side that decodes is missing, for every
        answer of more tokens than the one that prefill makes.
        """
        roles: dict[str, str] = {}
        had: dict[str, set[Req]] = defaultdict(set)
        readers: set[str] = set()
        tokens: dict[Req, int] = {}
        for e in self.tl.events:
            d, r = e.d, req_of(e.d)
            if e.kind == "engine.limits" and d.get("engine") and d.get("role"):
                roles[d["engine"]] = d["role"]
            elif e.kind in ("page.alloc", "page.write", "page.read") and e.valid():
                engine = d["pool"].split("/")[0]
                if r is not None:
                    had[engine].add(r)
                if e.kind == "page.read":
                    readers.add(engine)
            elif e.kind == "request.finished" and r is not None and 200 <= (d.get("status") or 0) < 300:
                made = d.get("completion_tokens")
                tokens[r] = max(tokens.get(r, 0), 2 if made is None else made)
        for engine, requests in had.items():
            role = roles.get(engine)
            if engine in readers or (role == "prefill" and readers) or role not in ("prefill", "decode", "unified"):
                continue
            for r in requests:
                if tokens.get(r, 0) > (role == "prefill") and not self.w.request(r).exempt:
                    self.w.report("telemetry-gap", "unproven", r)

    def orphaned(self, page: Page, now: float) -> None:
        """Called before a page changes hands: how long has an ended request been its only holder?"""
        if not page.owners or self.guarded(page):
            return
        for h in page.owners:
            ended = self.w.request(h.request).ended if h.request else None
            if h.request and ended and now - max(ended.ref, page.guard) > self.bound:
                self.w.report("orphaned-pages", "unproven" if page.dirty else "exposure", h.request, page)

    def guarded(self, page: Page) -> bool:
        """A live request, an index entry, a session or a snapshot still stands behind the page."""
        if any(h.request is None or self.w.request(h.request).ended is None for h in page.owners):
            return True
        if any(self.w.request(q).ended is None for q in page.sharers):
            return True
        return any(p.live and p.gen == page.gen for p in page.pubs)

    def guards(self, e: Event) -> None:
        """Before an event that names pages: close the account of each; note until when it was guarded."""
        for name, pages in (("pool", "pages"), ("to_pool", "to_pages")):
            if e.d.get(pages):
                pool = self.w.pool(e.d.get(name) or e.d["pool"])
                for n in page_list(e.d, pages):
                    page = pool.page(n)
                    self.orphaned(page, e.ref)
                    if self.guarded(page):
                        page.guard = e.ref

    def hanging_transfers(self) -> None:
        for t in self.w.transfers:
            if t.terminal or not t.moves:
                continue
            ended = self.w.request(t.request).ended
            since = max(t.start.ref, ended.ref if ended else t.start.ref)
            if self.end - since > self.bound:
                gap = self.w.request(t.request).doubt()
                self.w.report("orphaned-pages", "unproven" if gap else "exposure", t.request, self.some_page(t))


def audit(events: list[dict[str, Any]], bound: float = ORPHAN_BOUND_S) -> list[dict[str, Any]]:
    """Findings of the page-level rules."""
    referee = Referee(events, bound)
    return referee.run()


def strongest(findings: list[dict[str, Any]]) -> dict[tuple[str | None, str], str]:
    """(request, rule) -> its strongest verdict."""
    from .state import RANK

    out: dict[tuple[str | None, str], str] = {}
    for f in findings:
        key = (f["request"], f["rule"])
        if RANK[f["verdict"]] > RANK.get(out.get(key, ""), 0):
            out[key] = f["verdict"]
    return out


if __name__ == "__main__":
    for finding in audit(load(sys.argv[1])):
        print(finding)
