"""Bytes: reads, writes, copies and transfers, and the rules that look at what was in a row.

Rules here: foreign-page-read, unwritten-page-read, read-before-ready, uncovered-read, late-write, late-read,
false-transfer-complete, tainted-content, position-mismatch, and, where a write is at fault, reserved-page-use
and double-ownership.
"""

from __future__ import annotations

from typing import Any

from .state import (
    Cell,
    Movement,
    OpenRead,
    OpenWrite,
    Page,
    Req,
    Transfer,
    World,
    page_list,
    req_of,
    spans,
)
from .timeline import Event, Timeline, seconds

COPIERS = ("transfer", "offload", "copy")
ORDINAL_KINDS = ("kv", "draft", "index")
Rows = list[tuple[Page, int, int, int | None]]


def rows_of(w: World, d: dict[str, Any], name: str = "pages", pool: str = "pool") -> Rows:
    """The rows an event names. A pool that was never declared has no page size: its rows cannot be told."""
    p = w.pool(d[pool])
    if p.tokens is None:
        return []
    return [(p.page(n), lo, hi, pos) for n, lo, hi, pos in spans(page_list(d, name), d.get("tok"), p.tokens)]


def generations(d: dict[str, Any], rows: Rows) -> dict[Page, int]:
    """The generation each page is meant in: the one the event names, else the live one."""
    tagged, out = d.get("gen"), {}
    for i, (page, _, _, _) in enumerate(rows):
        one = (tagged[i] if i < len(tagged) else None) if isinstance(tagged, list) else tagged
        out[page] = page.gen if one is None else one
    return out


class Content:
    """The part of the replay that deals with bytes."""

    def __init__(self, w: World, tl: Timeline):
        self.w, self.tl = w, tl

    # ------------------------------------------------------------------ reads

    def read(self, e: Event) -> None:
        d, r = e.d, req_of(e.d)
        assert r is not None
        key = (r, d["pool"], d.get("op"), str(d["pages"]), str(d.get("tok")))
        if d.get("phase") == "end":
            for rec in reversed(self.w.reads):
                if rec.key == key:
                    self.w.reads.remove(rec)
                    self.finish_read(rec, e)
                    return
        rows = rows_of(self.w, d)
        if not rows and d["pages"]:
            self.unproven(r, None)
        gens = generations(d, rows)
        self.offered(r, gens)
        ranges = {p: (lo, hi) for p, lo, hi, _ in rows}
        rec = OpenRead(r, d.get("op") or "decode", e, ranges, gens, set(gens), key)
        self.positions(e, r, rows)
        if not self.w.request(r).exempt:
            for page, lo, hi, _ in rows:
                self.look(r, page, lo, hi, e, rec.op in COPIERS)
            if rec.op == "decode" and d.get("tok"):
                self.uncovered(e, r)
        if d.get("phase") == "end":
            self.finish_read(rec, e)
        else:
            self.w.reads.append(rec)

    def offered(self, r: Req, gens: dict[Page, int]) -> None:
        """An offer dates the read: meant is the generation at the offer, or the one that the fetch names."""
        for t in self.w.transfers:
            if t.request == r and not t.failed:
                for page in gens:
                    meant = t.offer_gen.get((page.pool.name, page.id))
                    for m in t.moves:
                        if m.src_pool == page.pool.name and page.id in m.src_gen:
                            meant = m.src_gen[page.id]
                    if meant is not None:
                        gens[page] = min(meant, gens[page])

    def look(self, r: Req, page: Page, lo: int, hi: int, e: Event, copier: bool) -> None:
        """Judge every row that r sees."""
        done: set[tuple[str, int]] = set()
        seen: set[int] = set()
        for row in range(lo, hi):
            cell = page.rows.get(row)
            if id(cell) in seen and r not in page.sharers:
                continue  # the same bytes, judged already; only shares differ from row to row
            seen.add(id(cell))
            how = self.w.judge(r, page, row, copier)
            if (how, id(cell)) in done:
                continue
            done.add((how, id(cell)))
            if how == "unknown":
                self.unproven(r, page)
            elif how == "foreign" and cell is not None:
                self.foreign(r, page, cell)
            elif how == "unwritten":
                self.unwritten(r, page, row, cell, e)
            elif how == "sound" and cell is not None:
                self.tainted(r, page, cell)

    def unproven(self, r: Req, page: Page | None) -> None:
        self.w.report("telemetry-gap", "unproven", r, page)

    def whose(self, r: Req, cell: Cell, admitted: bool = False) -> set[str]:
        """Tenants whose content this row shows to r, if r may not see it."""
        if cell.zero:
            return set()
        if cell.foreign:  # brought from elsewhere by a request that had no right to it
            mine = cell.writer == r or admitted
            return self.w.tenants(cell.foreign | (frozenset() if mine else {cell.writer}))
        return self.w.tenants({cell.writer} | set(cell.authors))

    def foreign(self, r: Req, page: Page, cell: Cell) -> None:
        shares = page.sharers.get(r, [])
        tenants = self.whose(r, cell, any(self.w.admits(s, page, s.lo, cell, r) for s in shares))
        verdict, others = self.w.against(r, tenants)
        if cell.writer == r and cell.foreign == {None}:
            # its own transfer brought bytes that nobody wrote
            self.w.report("unwritten-page-read", "integrity", r, page)
        elif self.w.doubtful(r, page):
            self.w.report("foreign-page-read", "unproven", r, page)
            return
        else:
            self.w.report("foreign-page-read", verdict, r, page, others)
        self.taint(r, cell, tenants)

    def taint(self, r: Req, cell: Cell | None, tenants: set[str]) -> None:
        """What r computes from now on derives from this unsound read and from that content's own origin."""
        older = {t for _, ts in cell.taint for t in ts} if cell else set()
        self.w.request(r).taint.add((r, frozenset(tenants | older)))

    def unwritten(self, r: Req, page: Page, row: int, cell: Cell | None, e: Event) -> None:
        tenants = self.whose(r, cell) if cell else set()
        verdict, others = self.w.against(r, tenants)
        if self.coming(r, page, e) or self.w.doubtful(r, page):
            verdict, others = "unproven", set()  # its own write may have come first, or be lost
        self.w.report("unwritten-page-read", verdict, r, page, others)
        if self.awaited(r, page, row):
            self.w.report("read-before-ready", verdict, r, page, others)
        if verdict != "unproven":
            self.taint(r, cell, tenants)

    def coming(self, r: Req, page: Page, e: Event) -> bool:
        """A write of r's own from another source that cannot be put in order with e."""
        return any(
            t.kind == "page.write" and t.source != e.source and req_of(t.d) == r and self.tl.concurrent(t, e)
            for t in page.touches
        )

    def awaited(self, r: Req, page: Page, row: int) -> bool:
        """A load or transfer into this row is under way, or r found the page through the index."""
        for o in self.w.writes:
            if o.event.d.get("op") in ("load", "transfer") and any(
                p is page and lo <= row < hi for p, lo, hi, _ in o.rows
            ):
                return True
        for t in self.w.transfers:
            if t.request == r and not t.terminal:
                for m in t.moves:
                    if m.dst_pool == page.pool.name and page.id in m.place:
                        return True
        return any(s.lo <= row < s.hi for s in page.sharers.get(r, []))

    def tainted(self, r: Req, page: Page, cell: Cell) -> None:
        """A row that looks sound, computed by somebody after an unsound read of theirs."""
        if cell.authors == {r}:
            return  # what it computed itself: the read that tainted it has its own finding
        for victim, tenants in cell.taint:
            if victim != r:
                verdict, others = self.w.against(r, set(tenants))
                self.w.report("tainted-content", verdict, r, page, others)
        self.w.request(r).taint |= {x for x in cell.taint if x[0] != r}

    def uncovered(self, e: Event, r: Req) -> None:
        """A consumer's decode read against the union of what was transferred, shared and written locally."""
        pool, (first, end) = e.d["pool"], e.d["tok"]
        mine = [t for t in self.w.transfers if t.request == r and any(m.dst_pool == pool for m in t.moves)]
        if not mine:
            return
        size = self.w.pool(pool).tokens or 1
        covered = set()
        for a, b in self.w.local[(r, pool)] + self.w.moved[(r, pool)]:
            covered.update(range(max(a, first), min(b, end)))
        listed = {
            pos: p
            for p, lo, hi, start in rows_of(self.w, e.d)
            if start is not None
            for pos in range(start, start + hi - lo)
        }
        missing = [x for x in range(first, end) if x not in covered]
        missing = [x for x in missing if x in listed and listed[x].id not in listed[x].pool.reserved]
        if not missing:
            return
        gap = self.w.request(r).doubt()
        for x in missing[::size] + missing[-1:]:
            self.w.report("uncovered-read", "unproven" if gap else "integrity", r, listed[x])
        claims = [d.d["tokens"] for t in mine for d in t.done if d.d.get("tokens") is not None]
        if claims and max(claims) < end:
            verdict = "unproven" if gap else "integrity"
            self.w.report("false-transfer-complete", verdict, r, listed[missing[0]])

    # ------------------------------------------------------- end of a read: late-read

    def finish_read(self, rec: OpenRead, e: Event) -> None:
        if rec.op not in COPIERS:
            return
        for page, (lo, hi) in rec.rows.items():
            self.late_read(rec.request, page, lo, hi, rec.gens[page], e)
            held = page.owned_by(rec.request) or rec.request in page.sharers
            kept = page.gen == rec.gens[page] and page.live and not held and not any(h.request for h in page.owners)
            for row in range(lo, hi):
                cell = page.rows.get(row)
                if kept and cell is not None and cell.by not in (None, rec.request) and cell.stamp > rec.event.at:
                    self.foreign(rec.request, page, cell)  # refilled while it was being read
                self.w.snapshots[(rec.request, page.pool.name, page.id, row)] = (
                    e.at,
                    self.w.judge(rec.request, page, row, True),
                    page.rows.get(row),
                )
        for t in self.w.transfers:
            for m in t.moves:
                mine = {p for p in rec.rows if p.pool.name == m.src_pool and p.id in m.src}
                if t.request == rec.request and mine:
                    self.lease(t, mine, e)

    def late_read(self, r: Req, page: Page, lo: int, hi: int, gen: int, e: Event) -> None:
        """A copier's read completes at e: had the page been let go since the generation it meant?"""
        if page.id in page.pool.reserved or self.w.request(r).exempt:
            return
        if not page.known or page.gen == 0 or (page.gen == gen and (page.live or not page.freed)):
            return
        if self.order_open(page, e, r):
            self.w.report("late-read", "unproven", r, page)
            return
        if page.dirty or self.w.request(r).doubt():
            self.unproven(r, page)
            return
        died = page.deaths.get(gen, -1)
        worst, others = "exposure", set()
        for row in range(lo, hi):
            cell = page.rows.get(row)
            if cell is None or cell.stamp < died or cell.by == r:
                continue
            tenants = set() if cell.zero else self.w.tenants({cell.by or cell.writer})
            verdict, other = self.w.against(r, tenants)
            others |= other
            worst = "leak" if "leak" in (worst, verdict) else "integrity"
        self.w.report("late-read", worst, r, page, others)
        if worst != "exposure":
            self.w.request(r).taint.add((r, frozenset(others)))

    def order_open(self, page: Page, e: Event, r: Req) -> bool:
        """A free or a new allocation of the page that cannot be put in order with e."""
        return any(self.unordered(t, e, r) and not t.d.get("to") for t in page.touches)

    def unordered(self, t: Event, e: Event, r: Req | None) -> bool:
        """t changes the hands of a page, stands before e in the replay, and nothing certain puts it there."""
        if t.source == e.source or t.at >= e.at or not self.tl.concurrent(t, e):
            return False
        return t.kind in ("page.free", "page.move") or (t.kind == "page.alloc" and req_of(t.d) != r)

    def lease(self, t: Transfer, pages: set[Page], e: Event) -> None:
        if t.lease is None or self.w.request(t.request).exempt:
            return
        until, by = t.lease
        sure = by.source == e.source or (by.slack is not None and e.slack is not None)
        width = 0.0 if by.source == e.source else (by.slack or 0) + (e.slack or 0)
        for page in pages:
            if not sure or abs(e.ref - until) <= width:
                self.w.report("late-read", "unproven", t.request, page)
            elif e.ref > until:
                self.w.report("late-read", "exposure", t.request, page)

    def close_reads(self, r: Req, page: Page | None = None) -> None:
        """The request ended, or it freed this page: its reads no longer see later writes."""
        for rec in self.w.reads:
            if rec.request == r:
                rec.open -= {page} if page else set(rec.open)

    # ----------------------------------------------------------------- writes

    def write(self, e: Event) -> None:
        d, r = e.d, req_of(e.d)
        rows = rows_of(self.w, d)
        key = (r, d["pool"], d.get("op"), str(d["pages"]), str(d.get("tok")))
        gens = generations(d, rows)
        if d.get("phase") == "begin":
            self.w.writes.append(OpenWrite(e, key, gens, rows))
            return
        if d.get("phase") == "end":
            for o in reversed(self.w.writes):
                if o.key == key:
                    self.w.writes.remove(o)
                    gens = o.gens
                    break
        if r is not None:
            self.positions(e, r, rows)
        for page, lo, hi, pos in rows:
            self.land(e, r, page, lo, hi, pos, gens[page])
        if r is not None and d.get("tok") and d.get("op") not in ("scrub", "dummy"):
            self.w.local[(r, d["pool"])].append(tuple(d["tok"]))

    def land(self, e: Event, r: Req | None, page: Page, lo: int, hi: int, pos: int | None, gen: int) -> None:
        """One page of a completed write."""
        if page.id in page.pool.reserved:
            return
        if e.d.get("op") == "scrub":
            own = r is not None and page.owned_by(r) and gen == page.gen
            authors = frozenset({r}) if own and r is not None else frozenset()
            blank = Cell(r if own else None, r, page.gen if own else -1, e.at, authors, zero=True)
            page.rows.update(dict.fromkeys(range(lo, hi), blank))
            return
        move = self.movement(r, page, e) if r is not None and e.d.get("op") in ("transfer", "load") else None
        if move is not None and pos is None:
            size = page.pool.tokens or 1
            pos = move.dst_base + move.place[page.id] * size + lo if page.id in move.place else None
        if move is not None:
            if e.d.get("tok") and pos is not None:
                self.misplaced(move, pos, pos + hi - lo)
            self.landing_reads(move, page, lo, hi, pos, e)
            if pos is not None and r is not None:
                self.w.moved[(r, page.pool.name)].append((pos, pos + hi - lo))
        if r is not None and "gen" not in e.d and self.ambiguous(e, r, page):
            return
        legit = self.may_write(e, r, page, gen, move)
        fresh: dict[Any, Cell] = {}
        for row in range(lo, hi):
            cell = self.cell(e, r, page, row, None if pos is None else pos + row - lo, move, legit)
            same = (cell.authors, cell.foreign, cell.taint)
            page.rows[row] = fresh.setdefault(same, cell)
        self.seen_by_open_reads(page, lo, hi, r)

    def ambiguous(self, e: Event, r: Req, page: Page) -> bool:
        """A landing after the page changed hands, by clocks that cannot put the two in order."""
        changes = [t for t in page.touches if self.unordered(t, e, r)]
        if not changes:
            return False
        others = {req_of(t.d) for t in changes if t.kind == "page.alloc"} - {r, None}
        for q in others or {r}:
            self.w.report("late-write", "unproven", q, page)
        return True

    def may_write(self, e: Event, r: Req | None, page: Page, gen: int, move: Movement | None) -> bool:
        """Whether the writer holds the page; reports the finding if it does not."""
        op = e.d.get("op")
        held = page.requests()
        if not page.known:
            if r is not None:
                self.unproven(r, page)
            return True
        if r is None:
            return self.ownerless(op, page, held)
        if page.gen == gen and (page.owned_by(r) or self.filling(r, page, op)):
            return True
        if page.dirty:
            self.unproven(r, page)
            return True
        if page.gen != gen or r in page.former:
            self.late_write(r, page, held)
        elif move is not None and not page.owned_by(r):
            return True  # a transfer target
        elif page.live:
            tenants = {h.tenant for h in page.owners if h.tenant} | self.w.tenants(set(page.sharers))
            verdict, others = self.w.against(r, tenants)
            self.w.report("double-ownership", verdict, r, page, others)
        else:
            self.w.report("reserved-page-use", "integrity", None, page)
        return False

    def ownerless(self, op: str | None, page: Page, held: list[Req]) -> bool:
        if op in ("copy", "transfer", "load") and page.owners and not any(h.request for h in page.owners):
            return True  # the engine fills its own tier
        for q in held or [None]:
            self.w.report("reserved-page-use", "integrity", q, page)
        return False

    def filling(self, r: Req, page: Page, op: str | None) -> bool:
        """Sole sharer, a session of the tenant, or the tenant's cache, snapshot or tier pages filled."""
        mine = self.w.tenant(r)
        if not page.owners and list(page.sharers) == [r]:
            return True
        return any(
            h.request is None
            and (mine is None or h.tenant in (None, mine))
            and (h.kind == "session" or op in ("copy", "transfer", "load"))
            for h in page.owners
        )

    def late_write(self, r: Req, page: Page, held: list[Req]) -> None:
        owners = [q for q in held if q != r]
        if not owners:
            self.w.report("late-write", "integrity", r, page)
        for q in owners:
            verdict, others = self.w.against(q, self.w.tenants({r}))
            self.w.report("late-write", verdict, q, page, others)

    def movement(self, r: Req, page: Page, e: Event) -> Movement | None:
        """The transfer of r into this page: the newest live one, else the newest, of those that move its positions."""
        found = [
            m
            for t in self.w.transfers
            if t.request == r
            for m in t.moves
            if m.dst_pool == page.pool.name and (page.id in m.place or page.id in m.announced)
        ]
        size = page.pool.tokens or 1
        start = {id(m): m.dst_base + m.place.get(page.id, 0) * size for m in found}
        found = [m for m in found if start[id(m)] + size > m.first and (m.end is None or start[id(m)] < m.end)] or found
        live = [m for m in found if not m.transfer.terminal]
        return (live or found or [None])[-1]

    def cell(
        self,
        e: Event,
        r: Req | None,
        page: Page,
        row: int,
        pos: int | None,
        move: Movement | None,
        legit: bool,
    ) -> Cell:
        """What a row holds after this write."""
        at, me = e.at, frozenset({r} if r else ())
        if e.d.get("op") in (None, "forward") and r is not None:
            return Cell(r, r, page.gen, at, me, taint=frozenset(self.w.request(r).taint), legit=legit)
        source = self.source_cell(r, move, pos) if r is not None else None
        if source is None:
            return Cell(r, r, page.gen, at, me, legit=legit)
        how, cell = source
        if cell is not None and cell.zero:
            cell = None  # nobody's
        authors = frozenset(cell.authors | ({cell.writer} if cell.writer else set())) if cell else frozenset()
        taint = cell.taint if cell else frozenset()
        bad: frozenset[Req | None] = frozenset()
        if how in ("foreign", "unwritten"):
            bad = (cell.foreign if cell else frozenset()) or authors or frozenset({None})
        lost = how == "unknown"
        return Cell(r, r, page.gen, at, authors or me, bad, taint, legit, unknown=lost)

    def source_cell(self, r: Req, move: Movement | None, pos: int | None) -> tuple[str, Cell | None] | None:
        """Judgement and content of the row that a position comes from; None where it is not mapped."""
        if move is None or pos is None or move.src_pool not in self.w.pools:
            return None
        pool = self.w.pools[move.src_pool]
        if pool.tokens is None or pos < move.src_base:
            return None
        i, row = (pos - move.src_base) // pool.tokens, pos % pool.tokens
        if i >= len(move.src):
            return None
        page = pool.page(move.src[i])
        if page.id in pool.reserved or (page.gen == 0 and not page.rows):
            return None  # nothing on record about it
        seen = self.w.snapshots.get((r, pool.name, page.id, row))
        if seen and seen[0] >= move.event.at:
            return seen[1], seen[2]
        return self.w.judge(r, page, row, True), page.rows.get(row)

    def landing_reads(self, m: Movement, page: Page, lo: int, hi: int, pos: int | None, e: Event) -> None:
        """Landing completes the read of the source page, unless that read is on record itself."""
        pool = self.w.pools.get(m.src_pool or "")
        r = m.transfer.request
        if pool is None or pool.tokens is None or pos is None:
            return
        explicit = {p for rec in self.w.reads if rec.request == r and rec.op in COPIERS for p in rec.rows}
        touched: dict[Page, set[int]] = {}
        for x in range(pos, pos + hi - lo):
            i = (x - m.src_base) // pool.tokens
            if 0 <= i < len(m.src):
                touched.setdefault(pool.page(m.src[i]), set()).add(x % pool.tokens)
        for src, rows in touched.items():
            seen = [self.w.snapshots.get((r, pool.name, src.id, row)) for row in rows]
            if src in explicit or any(s and s[0] >= m.transfer.start.at for s in seen):
                continue
            gens = {src: m.src_gen.get(src.id, src.gen)}
            self.offered(r, gens)
            self.late_read(r, src, min(rows), max(rows) + 1, gens[src], e)
            self.lease(m.transfer, {src}, e)

    def seen_by_open_reads(self, page: Page, lo: int, hi: int, writer: Req | None) -> None:
        """A write by somebody else lands under a read that is still open."""
        for rec in self.w.reads:
            if rec.request == writer or page not in rec.open or self.w.request(rec.request).exempt:
                continue
            a, b = rec.rows[page]
            if rec.op in COPIERS and not (page.owned_by(rec.request) or rec.request in page.sharers):
                continue  # dated by its completion: late-read
            for row in range(max(a, lo), min(b, hi)):
                cell = page.rows.get(row)
                if cell is not None and self.w.judge(rec.request, page, row) == "foreign":
                    self.foreign(rec.request, page, cell)

    # ---------------------------------------------------------- copies and moves

    def copy_rows(self, e: Event, r: Req | None, src: Page, dst: Page, legit: bool, moved: bool) -> None:
        """Content with its provenance. What r could soundly read becomes its own on the target."""
        fresh: dict[int, Cell] = {}
        for row in range(dst.pool.tokens or 0):
            cell = src.rows.get(row)
            if self.w.lost(src, row) or (cell is not None and cell.unknown):
                dst.rows[row] = Cell(r, r, dst.gen, e.at, legit=legit, unknown=True)
                continue
            if cell is None:
                dst.rows.pop(row, None)
                continue
            if id(cell) not in fresh or r is not None:
                own = r is not None and not moved and self.w.judge(r, src, row, True) == "sound"
                gen = dst.gen
                if cell.gen != src.gen:
                    gen = dst.gen - 1  # old bytes stay old
                copied = Cell(
                    r if own else cell.writer,
                    r or cell.by,
                    gen,
                    e.at,
                    cell.authors,
                    cell.foreign,
                    cell.taint,
                    legit,
                    zero=cell.zero,
                )
                fresh[id(cell)] = copied
                dst.rows[row] = copied
            else:
                dst.rows[row] = fresh[id(cell)]
        self.seen_by_open_reads(dst, 0, dst.pool.tokens or 0, r)

    # ------------------------------------------------------------------ ordinals

    def positions(self, e: Event, r: Req, rows: Rows) -> None:
        """Positions against the place of the page in the request."""
        if e.kind == "page.read" and self.w.request(r).exempt:
            return
        place = self.w.places.get((r, e.d["pool"]), {})
        for page, _, _, pos in rows:
            if page.id in page.pool.reserved or page.pool.kind not in ORDINAL_KINDS or pos is None:
                continue
            if (not page.known and page.id not in place) or self.w.kept_for(r, page):
                self.w.unreliable.add((r, e.d["pool"]))
                if self.w.kept_for(r, page):  # those pages have begun its table all along
                    for verdict in ("integrity", "unproven"):
                        self.w.findings.pop(("position-mismatch", verdict, r, e.d["pool"]), None)
            if page.id not in place or (r, e.d["pool"]) in self.w.unreliable:
                continue
            if place[page.id] != pos // (page.pool.tokens or 1):
                verdict = "unproven" if self.w.request(r).doubt() else "integrity"
                self.w.report("position-mismatch", verdict, r, page)

    def misplaced(self, m: Movement, pos: int, end: int) -> None:
        """Source pages of positions that have landed against the places that they have."""
        r = m.transfer.request
        if m.src_pool not in self.w.pools or self.w.request(r).exempt:
            return
        pool = self.w.pools[m.src_pool]
        place, size = self.w.places.get((r, pool.name), {}), pool.tokens or 1
        if pool.kind not in ORDINAL_KINDS or (r, pool.name) in self.w.unreliable:
            return
        for x in range(max(pos, m.src_base), end):
            i = (x - m.src_base) // size
            if i < len(m.src) and m.src[i] in place and m.src[i] not in pool.reserved:
                page = pool.page(m.src[i])
                if page.owned_by(r) and place[page.id] != x // size:
                    verdict = "unproven" if self.w.request(r).doubt() else "integrity"
                    self.w.report("position-mismatch", verdict, r, page)

    def time_of(self, t: float, e: Event) -> float:
        """A stated time in the terms of reference time, by the offset of the source that stated it."""
        raw = seconds(e.d.get("t", e.d.get("time_unix_nano", 0)))
        return seconds(t) + (e.ref - raw)
