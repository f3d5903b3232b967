"""The loop over events. The usual outcome of each page is decided here, everything else in the other modules."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.ahead import AHEAD, EVENTS_AHEAD, soon
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import after_free, alloc_page, free_page, publish, share
from kvwitness.audit.provenance.kernel.layers import clear_layers, drop_below, push_layer
from kvwitness.audit.provenance.kernel.layout import (
    F_ANYONE,
    F_DUMMY,
    F_LOSS,
    F_PREEMPT,
    F_RECORD,
    F_START,
    F_TIMEOUT,
    F_WINDOW,
    K_ALLOC,
    K_BEGIN,
    K_COPY,
    K_DONE,
    K_DRAINED,
    K_FAILED,
    K_FREE,
    K_LEASE,
    K_MOVE,
    K_NONE,
    K_OFFER,
    K_POOL,
    K_PUBLISH,
    K_READ,
    K_SHARE,
    K_STEP_BEGIN,
    K_STEP_END,
    K_UNPUBLISH,
    K_WRITE,
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_TAINT,
    LF_UNKNOWN,
    N_STEPS,
    NO_COVER,
    NO_PLACES,
    NOBODY,
    OP_COPY,
    OP_DECODE,
    OP_DUMMY,
    OP_FORWARD,
    OP_LOAD,
    OP_OFFLOAD,
    OP_TRANSFER,
    PF_CO,
    PF_KEYED,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_PUBLISHED,
    PF_RESERVED,
    PH_BEGIN,
    PH_END,
    REPORTERS,
    STRANGE_PAGES,
    T_REQUEST,
    TS_DONE,
    TS_DRAINED,
    TS_FAILED,
    X_ORPHAN,
    X_POSITION,
    X_TIMEOUT_FREE,
    X_UNCOVERED,
)
from kvwitness.audit.provenance.kernel.reads import find_read, read_page, remember_read
from kvwitness.audit.provenance.kernel.transfers import (
    begin_transfer,
    bringer_of,
    check_done,
    end_read,
    join_sides,
    meant_for,
    next_reported,
    origin_of,
    reported_on,
    settle_source,
    target_index,
)
from kvwitness.audit.provenance.kernel.watching import close_open
from kvwitness.audit.provenance.kernel.writes import copy_page, issue, land, move_page, take_issued


def cover(w: Any, rp: int, lo: int, hi: int) -> None:
    """Note that the request has positions [lo, hi) in this pool: transferred, shared or written."""
    if lo < 0 or hi <= lo:
        return
    pair = w.pairs[rp]
    if lo > pair.cover:
        if pair.pending0 < 0:
            pair.pending0 = lo
            pair.pending1 = hi
        elif lo <= pair.pending1 and hi >= pair.pending0:
            pair.pending0 = min(lo, pair.pending0)
            pair.pending1 = max(hi, pair.pending1)
        else:
            pair.blind |= NO_COVER  # more than two separate pieces: coverage is not judged for this request
        return
    if hi > pair.cover:
        pair.cover = hi
    if 0 <= pair.pending0 <= pair.cover:
        pair.cover = max(pair.cover, pair.pending1)
        pair.pending0 = -1
        pair.pending1 = -1


def table_since(w: Any, rp: int) -> int:
    """From which event on a loss may have hidden a part of the request's page table; -1: from the beginning."""
    return -1 if w.pairs[rp].blind & STRANGE_PAGES else int(w.pairs[rp].began)


def end_of_read(w: Any, e: int, ev: int) -> bool:
    """page.read with phase end; returns whether a read of that shape was open."""
    actor, rp, base = w.events[e].actor, w.events[e].rp, w.pools[w.events[e].pool].base
    off, n = w.events[e].p_off, w.events[e].p_n
    record = find_read(w, off, n, rp, w.events[e].tok0, w.events[e].tok1, w.events[e].op)
    if record >= 0 and not w.actors[actor].exempt:
        transfer = w.pairs[rp].source
        lease = 1 if transfer >= 0 and 0 <= w.transfers[transfer].lease < w.events[e].time else 0
        end_read(w, ev, record, lease, rp, w.events[e].time)
    for i in range(n):
        page = w.pages[base + w.listed[off + i]]
        if page.owner == actor:
            page.rd_lo = 0
            page.rd_hi = 0
        close_open(w, base + w.listed[off + i], actor)
    return record >= 0


def uncovered(w: Any, e: int, ev: int) -> None:
    """A decode read past what the request has: once for each extent that it has."""
    pair, pool = w.pairs[w.events[e].rp], w.events[e].pool
    base, tokens, tok0, tok1 = w.pools[pool].base, w.pools[pool].tokens, w.events[e].tok0, w.events[e].tok1
    lower = max(tok0, pair.cover)
    if pair.reported == lower + 1:
        return
    pair.reported = lower + 1
    first = tok0 // tokens
    for i in range(max(0, lower // tokens - first), w.events[e].p_n):
        number = w.listed[w.events[e].p_off + i]
        page = w.pages[base + number]
        if not page.flags & PF_RESERVED:
            start = (first + i) * tokens
            emit(
                w,
                X_UNCOVERED,
                ev,
                w.events[e].actor,
                -1,
                w.transfers[pair.transfer].ev,
                pair.began,
                pool,
                number,
                page.gen,
                max(0, lower - start),
                min(tokens, tok1 - start),
                pair.cover,
            )


def read_event(w: Any, e: int, ev: int) -> None:
    """page.read"""
    actor, rp, pool = w.events[e].actor, w.events[e].rp, w.events[e].pool
    off, n, tok0, tok1, op = w.events[e].p_off, w.events[e].p_n, w.events[e].tok0, w.events[e].tok1, w.events[e].op
    base, tokens = w.pools[pool].base, w.pools[pool].tokens
    if w.events[e].phase == PH_END and end_of_read(w, e, ev):
        return
    if w.events[e].flags & F_RECORD:
        remember_read(w, ev, pool, off, n, actor, rp, tok0, tok1, op, w.events[e].gen_given)
    if w.actors[actor].exempt:
        return
    positions = tok0 >= 0
    first = tok0 // tokens if positions else 0
    lo = tok0 - first * tokens if positions else 0
    left = tok1 - first * tokens if positions else n * tokens
    placed = positions and w.pools[pool].ordinals and op != OP_TRANSFER and op != OP_OFFLOAD and op != OP_COPY
    shared = w.pairs[rp].share
    for i in range(n):
        if i + AHEAD < n:
            soon(w.pages[base + w.listed[off + i + AHEAD]])
        number = w.listed[off + i]
        g = base + number
        page = w.pages[g]
        hi = min(left, tokens)
        left -= tokens
        if hi <= lo:
            break
        place = first + i if positions else -1
        if page.owner == actor:
            elsewhere = placed and page.ord != place and page.ord >= 0
            if elsewhere and not page.flags & PF_RESERVED and not w.pairs[rp].blind & NO_PLACES:
                since = table_since(w, rp)
                emit(w, X_POSITION, ev, actor, -1, since, since, pool, number, page.gen, lo, hi, 0)
            if page.rd_hi == 0:
                page.rd_lo = lo
                page.rd_hi = hi
            else:
                if lo < page.rd_lo:
                    page.rd_lo = lo
                if hi > page.rd_hi:
                    page.rd_hi = hi
            plain = page.writer == actor and page.lgen == page.gen and page.lo <= lo and page.hi >= hi
            if plain and page.lflags & (LF_FOREIGN_ORIGIN | LF_BLANK | LF_TAINT | LF_UNKNOWN) == 0:
                lo = 0
                continue
            w.cold[g].read_ev = ev
        elif positions and shared >= 0:
            k = place - w.shares[shared].ord
            if 0 <= k < w.shares[shared].n:
                entry = w.share_pages[w.shares[shared].off + k]
                if (
                    entry.page == number
                    and entry.gen == page.gen
                    and entry.flags & 2
                    and (w.shares[shared].tok1 < 0 or place * tokens + hi <= w.shares[shared].tok1)
                    and page.lgen == page.gen
                    and page.lo <= lo
                    and page.hi >= hi
                    and page.lflags == 0
                ):
                    lo = 0
                    continue  # judged sound before, and nothing newer lies on it
        read_page(w, ev, g, number, pool, lo, hi, actor, rp, place, op, tokens)
        lo = 0
    while shared >= 0:
        w.shares[shared].read = 1
        shared = w.shares[shared].next
    if (
        op == OP_DECODE
        and w.pairs[rp].transfer >= 0
        and not w.pairs[rp].blind & NO_COVER
        and tok1 > w.pairs[rp].cover
        and positions
    ):
        uncovered(w, e, ev)


def write_page(
    w: Any,
    ev: int,
    g: int,
    number: int,
    pool: int,
    lo: int,
    hi: int,
    actor: int,
    rp: int,
    op: int,
    phase: int,
    stated: int,
    place: int,
    time: int,
) -> None:
    """One page of a write that is not plainly its owner's own; `place` in the request's table, -1 if none is named."""
    if phase == PH_BEGIN:
        issue(w, g, actor, ev, stated, lo, hi, op)
        return
    issued = stated
    if phase == PH_END:
        found = take_issued(w, g, actor, lo, hi, op)
        if found >= 0:
            issued = found
    origin, flags = -1, 0
    if (op == OP_TRANSFER or op == OP_LOAD) and rp >= 0:
        record = bringer_of(w, rp, number, actor, place, op)
        if record >= 0:
            if place < 0:
                place = w.transfers[record].d_first + target_index(w, record, number, place)
            p0 = place * w.pools[pool].tokens + lo
            p1 = place * w.pools[pool].tokens + hi
            settle_source(w, ev, record, p0, p1, w.transfers[record].rp1, time)
            origin, flags = origin_of(w, record, p0, p1)
            if issued < 0 and w.pages[g].owner != actor:
                issued = meant_for(w, record, number, place)
    page = w.pages[g]
    held = (
        page.owner == actor and page.sharers == 0 and page.flags & (PF_RESERVED | PF_CO | PF_KEYED | PF_OPEN_WRITE) == 0
    )
    if held and (issued < 0 or issued == page.gen) and op == OP_TRANSFER:
        push_layer(w, g, lo, hi, actor, page.gen, ev, flags, origin)
        return
    land(w, ev, g, number, pool, lo, hi, actor, rp, op, issued, flags, origin)


def arrives_plain(
    w: Any,
    ev: int,
    rp: int,
    actor: int,
    page0: int,
    page1: int,
    first: int,
    n: int,
    tok0: int,
    tok1: int,
    time: int,
    op: int,
) -> bool:
    """Whether a landing brings nothing but the request's own complete content, all of it from one transfer."""
    record = bringer_of(w, rp, page0, actor, first, op)
    if record != bringer_of(w, rp, page1, actor, first + n - 1, op):
        return False
    if record < 0:
        return True
    rp1 = w.transfers[record].rp1
    return bool(settle_source(w, ev, record, tok0, tok1, rp1, time) == 0)


def misplaced(w: Any, ev: int, record: int, tok0: int, tok1: int) -> None:
    """Positions [tok0, tok1) have landed: the source pages that they came from are held against their own places."""
    pool, rp, actor = w.transfers[record].src_pool, w.transfers[record].rp1, w.transfers[record].actor
    if pool < 0 or rp < 0 or not w.pools[pool].ordinals or w.pairs[rp].blind & NO_PLACES or w.actors[actor].exempt:
        return
    tokens, first, since = w.pools[pool].tokens, w.transfers[record].s_first, table_since(w, rp)
    for place in range(max(first, tok0 // tokens), min(first + w.transfers[record].s_n, (tok1 - 1) // tokens + 1)):
        number = w.transfer_pages[w.transfers[record].s_off + place - first].page
        page = w.pages[w.pools[pool].base + number]
        if page.owner == actor and page.ord >= 0 and page.ord != place and not page.flags & PF_RESERVED:
            emit(w, X_POSITION, ev, actor, -1, since, since, pool, number, page.gen, 0, tokens, 0)


def write_event(w: Any, e: int, ev: int) -> None:
    """page.write"""
    actor, rp, pool = w.events[e].actor, w.events[e].rp, w.events[e].pool
    off, n, tok0, tok1, op = w.events[e].p_off, w.events[e].p_n, w.events[e].tok0, w.events[e].tok1, w.events[e].op
    base, tokens, phase, stated = w.pools[pool].base, w.pools[pool].tokens, w.events[e].phase, w.events[e].gen_given
    positions = tok0 >= 0
    first = tok0 // tokens if positions else 0
    lo = tok0 - first * tokens if positions else 0
    left = tok1 - first * tokens if positions else n * tokens
    taint = LF_TAINT if op == OP_FORWARD and w.actors[actor].tainted else 0
    placed = positions and w.pools[pool].ordinals and actor != NOBODY
    fetched = op == OP_TRANSFER or (op == OP_LOAD and rp >= 0 and w.pairs[rp].transfer >= 0)
    simple = phase != PH_BEGIN and (op == OP_FORWARD or (op == OP_LOAD and not fetched))
    if phase != PH_BEGIN and fetched and n > 0 and rp >= 0 and positions:
        page0, page1 = w.listed[off], w.listed[off + n - 1]
        record = bringer_of(w, rp, page0, actor, first, op)
        if record >= 0:
            misplaced(w, ev, record, tok0, tok1)
        simple = arrives_plain(w, ev, rp, actor, page0, page1, first, n, tok0, tok1, w.events[e].time, op)
    if phase != PH_BEGIN and op != OP_DUMMY and actor != NOBODY and rp >= 0:
        cover(w, rp, tok0, tok1)
    for i in range(n):
        if i + AHEAD < n:
            soon(w.pages[base + w.listed[off + i + AHEAD]])
        number = w.listed[off + i]
        g = base + number
        page = w.pages[g]
        hi = min(left, tokens)
        left -= tokens
        if hi <= lo:
            break
        if placed and page.owner == actor and page.ord != first + i and page.ord >= 0 and phase != PH_BEGIN:
            if not page.flags & PF_RESERVED and not w.pairs[rp].blind & NO_PLACES:
                since = table_since(w, rp)
                emit(w, X_POSITION, ev, actor, -1, since, since, pool, number, page.gen, lo, hi, 0)
        if (
            simple
            and page.owner == actor
            and page.flags & (PF_RESERVED | PF_CO | PF_KEYED | PF_OPEN_WRITE) == 0
            and page.sharers == 0
            and (stated < 0 or stated == page.gen)
        ):
            if page.writer == actor and page.lgen == page.gen and page.lflags == taint and page.origin < 0:
                if lo <= page.hi and hi >= page.lo:
                    if lo < page.lo:
                        page.lo = lo
                    if hi > page.hi:
                        page.hi = hi
                    page.lev = ev
                    if page.next >= 0:
                        drop_below(w, g, page.lo, page.hi)
                    lo = 0
                    continue
            elif page.next < 0 and lo <= page.lo and hi >= page.hi:
                page.lo = lo
                page.hi = hi
                page.writer = actor
                page.lgen = page.gen
                page.lev = ev
                page.lflags = taint
                page.origin = -1
                lo = 0
                continue
        place = first + i if positions else -1
        write_page(w, ev, g, number, pool, lo, hi, actor, rp, op, phase, stated, place, w.events[e].time)
        lo = 0


def transfer_event(w: Any, e: int, ev: int) -> None:
    """transfer.offer, begin, done, failed, drained, lease"""
    kind, x = w.events[e].kind, w.events[e].ref
    if kind == K_OFFER or kind == K_BEGIN:
        begin_transfer(
            w,
            ev,
            x,
            w.events[e].actor,
            w.events[e].pool,
            w.events[e].p_off,
            w.events[e].p_n,
            w.events[e].pool2,
            w.events[e].q_off,
            w.events[e].q_n,
            w.events[e].rp2,
            w.events[e].tok0,
            w.events[e].tok1,
            w.events[e].v_off,
            w.events[e].v_n,
        )
        record = w.transfer_ids[x].head
        w.transfers[record].rp1 = w.events[e].rp
        w.transfers[record].rp2 = w.events[e].rp2
        w.transfers[record].writers = w.events[e].key
        w.transfers[record].drained = 0
        if w.events[e].rp >= 0:
            w.pairs[w.events[e].rp].source = record
        join_sides(w, x)
        return
    record = reported_on(w, x, w.events[e].actor)
    if kind == K_LEASE:
        w.transfer_ids[x].lease = w.events[e].tokens
        while record >= 0:
            w.transfers[record].lease = w.events[e].tokens
            record = next_reported(w, record)
        return
    bit = TS_DONE if kind == K_DONE else (TS_FAILED if kind == K_FAILED else TS_DRAINED)
    tokens = w.events[e].tokens
    while record >= 0:
        moved = w.transfers[record]
        if kind == K_DRAINED:
            moved.drained |= w.events[e].key
            if moved.writers & ~moved.drained and w.events[e].key:
                record = next_reported(w, record)
                continue  # other ranks may still be writing
        moved.state |= bit
        if kind == K_DONE and moved.src_pool >= 0 and moved.dst_pool >= 0:
            if w.events[e].source == w.pools[moved.src_pool].source:
                settle_source(
                    w,
                    ev,
                    record,
                    max(0, moved.tok0),
                    moved.tok1 if moved.tok1 > 0 else 1 << 40,
                    moved.rp1,
                    w.events[e].time,
                )
            if tokens > 0 and (w.events[e].source == w.pools[moved.dst_pool].source or w.events[e].flags & F_RECORD):
                check_done(w, ev, record, tokens, moved.rp2)
            if tokens > 0 and moved.rp2 >= 0:
                cover(w, moved.rp2, max(0, moved.tok0), tokens)
        record = next_reported(w, record)


def stepping(w: Any, slot: int) -> bool:
    """Whether the step that last named a page is still running."""
    return bool(slot >= 0 and w.steps[slot % N_STEPS].open == slot + 1)


def alloc_event(w: Any, e: int, ev: int) -> None:
    """page.alloc"""
    actor, rp, pool, off, stated = (
        w.events[e].actor,
        w.events[e].rp,
        w.events[e].pool,
        w.events[e].p_off,
        w.events[e].gen_given,
    )
    base = w.pools[pool].base
    if rp >= 0 and w.pairs[rp].held == 0:
        w.pairs[rp].began = ev
    if rp >= 0 and not w.pools[pool].known and not w.actors[actor].born:
        w.pairs[rp].blind |= NO_COVER  # it lived before the record did: its table has pages that nobody wrote down
    placed = rp >= 0 and not w.pairs[rp].blind & NO_COVER
    n = w.events[e].p_n
    for i in range(n):
        if i + AHEAD < n:
            soon(w.pages[base + w.listed[off + i + AHEAD]])
            soon(w.cold[base + w.listed[off + i + AHEAD]])
        number = w.listed[off + i]
        g = base + number
        page = w.pages[g]
        idle = page.owner < 0 and page.sharers == 0 and rp >= 0 and not stepping(w, page.step)
        if idle and page.flags & ~PF_PUBLISHED == PF_KNOWN:
            page.gen = stated if stated >= 0 else page.gen + 1
            page.owner = actor
            page.flags = PF_KNOWN
            page.ord = w.pairs[rp].next if placed else -1
            cold = w.cold[g]
            cold.alloc_ev = ev
            cold.reported = -1
            w.pairs[rp].next += 1
            w.pairs[rp].held += 1
        else:
            alloc_page(w, ev, g, number, pool, actor, rp, stated, w.events[e].time)


def free_event(w: Any, e: int, ev: int) -> None:
    """page.free"""
    actor, rp, pool, off, n, to = (
        w.events[e].actor,
        w.events[e].rp,
        w.events[e].pool,
        w.events[e].p_off,
        w.events[e].p_n,
        w.events[e].ref,
    )
    base = w.pools[pool].base
    anyone = w.events[e].flags & F_ANYONE != 0
    late = (
        w.actors[actor].type == T_REQUEST
        and w.actors[actor].end >= 0
        and w.events[e].time - w.actors[actor].end > w.count.orphan_ns
    )
    timeout = False
    if w.events[e].flags & F_TIMEOUT and rp >= 0:
        record = w.pairs[rp].transfer
        timeout = record >= 0 and w.transfers[record].state == 0
    released = 0
    for i in range(n):
        if i + AHEAD < n:
            soon(w.pages[base + w.listed[off + i + AHEAD]])
            soon(w.cold[base + w.listed[off + i + AHEAD]])
        number = w.listed[off + i]
        g = base + number
        page = w.pages[g]
        if page.owner == actor and not late and not timeout and not page.flags & PF_CO and not stepping(w, page.step):
            close_open(w, g, actor)
            page.owner = to
            page.rd_lo = 0
            page.rd_hi = 0
            cold = w.cold[g]
            cold.previous = actor
            cold.free_ev = ev
            released += 1
            continue
        if page.owner == actor and late:
            since = w.cold[g].alloc_ev
            emit(w, X_ORPHAN, ev, actor, -1, since, since, pool, number, page.gen, 0, 0, 0)
        if page.owner == actor and timeout:
            begun = w.transfers[w.pairs[rp].transfer].ev
            emit(w, X_TIMEOUT_FREE, ev, actor, -1, begun, w.cold[g].alloc_ev, pool, number, page.gen, 0, 0, 0)
        if free_page(w, ev, g, number, pool, actor, rp, to, anyone):
            released += 1
    after_free(w, rp, released, w.events[e].flags & F_PREEMPT != 0, w.events[e].flags & F_WINDOW != 0)


def step_event(w: Any, e: int, ev: int) -> None:
    """step.begin marks its pages; step.end closes the newest open step of that number in the pool."""
    pool, number, base = w.events[e].pool, w.events[e].ref, w.pools[w.events[e].pool].base
    if w.events[e].kind == K_STEP_BEGIN:
        if w.events[e].flags & F_DUMMY:
            return
        slot = w.count.steps
        w.count.steps += 1
        step = w.steps[slot % N_STEPS]
        step.pool = pool
        step.step = number
        step.open = slot + 1
        step.ev = ev
        for i in range(w.events[e].p_n):
            w.pages[base + w.listed[w.events[e].p_off + i]].step = slot
        return
    newest = w.count.steps
    for slot in range(newest - 1, max(-1, newest - 1 - N_STEPS), -1):
        step = w.steps[slot % N_STEPS]
        if step.open and step.pool == pool and step.step == number:
            step.open = 0
            return


def pair_event(w: Any, e: int, ev: int) -> None:
    """page.copy and page.move, page by page."""
    pool1, pool2 = w.events[e].pool, w.events[e].pool2
    n = min(w.events[e].p_n, w.events[e].q_n)
    for k in range(n):
        # From the end: pages that were got for a copy give back their places one after the other.
        i = n - 1 - k if w.events[e].kind == K_COPY else k
        page1, page2 = w.listed[w.events[e].p_off + i], w.listed_too[w.events[e].q_off + i]
        g1, g2 = w.pools[pool1].base + page1, w.pools[pool2].base + page2
        if w.events[e].kind == K_COPY:
            copy_page(w, ev, g1, page1, pool1, w.events[e].rp, g2, page2, pool2, w.events[e].rp2, w.events[e].actor)
        else:
            move_page(w, ev, g1, page1, pool1, g2, page2, pool2, w.events[e].rp2, w.events[e].time)


def new_life(w: Any, g: int) -> None:
    """A page of a pool that was made anew. What was read, written or shared in its earlier life is over."""
    page, cold = w.pages[g], w.cold[g]
    if page.owner >= 0 or page.sharers > 0 or page.hi > page.lo:
        page.gen += 1
    clear_layers(w, g)
    page.owner = -1
    page.sharers = 0
    page.flags = PF_KNOWN
    page.rd_lo = 0
    page.rd_hi = 0
    page.step = -1
    page.ord = -1
    cold.open_writes = -1
    cold.previous = -1
    cold.co_owner = -1
    cold.alloc_ev = -1
    cold.free_ev = -1
    cold.freed_step = -1
    cold.read_ev = -1
    cold.reported = -1


def pool_event(w: Any, e: int) -> None:
    """engine.pool: which pages are reserved; and of a pool that was made anew, that nobody holds any."""
    base = w.pools[w.events[e].pool].base
    if w.events[e].flags & F_START:
        for g in range(base, base + w.pools[w.events[e].pool].size):
            new_life(w, g)
    for g in range(base, base + w.pools[w.events[e].pool].size):
        w.pages[g].flags &= ~PF_RESERVED
    for i in range(w.events[e].p_n):
        w.pages[base + w.listed_too[w.events[e].p_off + i]].flags |= PF_RESERVED


def note_loss(w: Any, source: int, ev: int) -> None:
    """Events of a source were lost before this one: pools that it reports on may have changed unseen."""
    bit = 1 << min(source, REPORTERS - 1)
    for pool in range(len(w.pools)):
        if w.pools[pool].reporters & bit:
            w.pools[pool].gap_ev = ev


def look_ahead(w: Any, e: int) -> None:
    """The first page of an event that comes soon."""
    if K_ALLOC <= w.events[e].kind <= K_READ and w.events[e].p_n > 0 and w.events[e].pool >= 0:
        g = w.pools[w.events[e].pool].base + w.listed[w.events[e].p_off]
        soon(w.pages[g])
        soon(w.cold[g])


def run(w: Any, e0: int, e1: int) -> int:
    """Replay events [e0, e1); returns the first that was not, because a table must grow first."""
    count = w.count
    for e in range(e0, e1):
        kind = w.events[e].kind
        if w.events[e].flags & F_LOSS:
            note_loss(w, w.events[e].source, count.ev0 + e)
        if kind == K_NONE:
            continue
        if e + EVENTS_AHEAD < e1:
            look_ahead(w, e + EVENTS_AHEAD)
        n = w.events[e].p_n + w.events[e].q_n
        depth = count.depth + 2
        if (
            count.facts + 4 * n + 64 > len(w.facts)
            or count.fact_pages + 3 * n * depth + 64 > len(w.fact_pages)
            or count.layers + n * depth + 64 > len(w.layers)
            or count.open_writes + n > len(w.open_writes)
        ):
            return e
        ev = count.ev0 + e
        count.facts0 = count.facts
        count.time = w.events[e].time
        count.page_events += w.events[e].p_n
        if kind == K_READ:
            read_event(w, e, ev)
        elif kind == K_WRITE:
            write_event(w, e, ev)
        elif kind == K_ALLOC:
            alloc_event(w, e, ev)
        elif kind == K_FREE:
            free_event(w, e, ev)
        elif kind == K_SHARE:
            share(
                w,
                ev,
                w.events[e].pool,
                w.events[e].p_off,
                w.events[e].p_n,
                w.events[e].actor,
                w.events[e].rp,
                w.events[e].key,
                w.events[e].digest,
                w.events[e].tok0,
                w.events[e].tok1,
                w.events[e].flags & F_RECORD != 0,
            )
            cover(w, w.events[e].rp, w.events[e].tok0, w.events[e].tok1)
        elif kind == K_PUBLISH:
            publish(
                w,
                ev,
                w.events[e].pool,
                w.events[e].p_off,
                w.events[e].p_n,
                w.events[e].actor,
                w.events[e].key,
                w.events[e].digest,
            )
        elif kind == K_UNPUBLISH:
            for i in range(w.events[e].p_n):
                w.pages[w.pools[w.events[e].pool].base + w.listed[w.events[e].p_off + i]].flags &= ~PF_PUBLISHED
        elif kind == K_STEP_BEGIN or kind == K_STEP_END:
            step_event(w, e, ev)
        elif kind == K_COPY or kind == K_MOVE:
            pair_event(w, e, ev)
        elif kind >= K_OFFER:
            transfer_event(w, e, ev)
        elif kind == K_POOL:
            pool_event(w, e)
    return e1
