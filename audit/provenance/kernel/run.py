"""The loop over events. The usual outcome of each page is decided here, everything else in the other modules."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import after_free, alloc_page, free_page, publish, share
from kvwitness.audit.provenance.kernel.layers import drop_below, push_layer
from kvwitness.audit.provenance.kernel.layout import (
    F_ANYONE,
    F_DUMMY,
    F_LOSS,
    F_PREEMPT,
    F_RECORD,
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
    N_STEPS,
    NOBODY,
    OP_COPY,
    OP_DECODE,
    OP_DUMMY,
    OP_FORWARD,
    OP_LOAD,
    OP_OFFLOAD,
    OP_TRANSFER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_PUBLISHED,
    PF_RESERVED,
    PH_BEGIN,
    PH_END,
    REPORTERS,
    T_REQUEST,
    TS_DONE,
    TS_DRAINED,
    TS_FAILED,
    X_ORPHAN,
    X_POSITION,
    X_TIMEOUT_FREE,
    X_UNCOVERED,
)
from kvwitness.audit.provenance.kernel.reads import end_read, find_read, read_page, remember_read
from kvwitness.audit.provenance.kernel.transfers import (
    begin_transfer,
    check_done,
    origin_of,
    record_for,
    settle_source,
)
from kvwitness.audit.provenance.kernel.writes import copy_page, issue, land, move_page, take_issued


@kernel
def cover(R: Any, rp: int, lo: int, hi: int) -> None:
    """Note that the request has positions [lo, hi) in this pool: transferred, shared or written."""
    if lo < 0 or hi <= lo:
        return
    pair = R[rp]
    if lo > pair.cover:
        if pair.pending0 < 0:
            pair.pending0 = lo
            pair.pending1 = hi
        elif lo <= pair.pending1 and hi >= pair.pending0:
            pair.pending0 = min(lo, pair.pending0)
            pair.pending1 = max(hi, pair.pending1)
        else:
            pair.blind = 1  # more than two separate pieces: coverage is not judged for this request
        return
    if hi > pair.cover:
        pair.cover = hi
    if 0 <= pair.pending0 <= pair.cover:
        pair.cover = max(pair.cover, pair.pending1)
        pair.pending0 = -1
        pair.pending1 = -1


@kernel
def end_of_read(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, RR: Any,
    RG: Any, TR: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> bool:  # fmt: skip
    """page.read with phase end; returns whether a read of that shape was open."""
    actor, rp, base = E[e].actor, E[e].rp, P[E[e].pool].base
    off, n = E[e].p_off, E[e].p_n
    record = find_read(R, RR, RG, G1, off, n, rp, E[e].tok0, E[e].tok1, E[e].op)
    if record >= 0 and not A[actor].exempt:
        transfer = R[rp].source
        lease = 1 if transfer >= 0 and 0 <= TR[transfer].lease < E[e].time else 0
        end_read(S, C, L, A, R, P, SH, SP, RR, RG, SCR, FR, FG, CT, ev, record, lease, rp)
    for i in range(n):
        page = S[base + G1[off + i]]
        if page.owner == actor:
            page.rd_lo = 0
            page.rd_hi = 0
    return record >= 0


@kernel
def uncovered(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, R: Any, P: Any, TR: Any, FR: Any, FG: Any, CT: Any
) -> None:  # fmt: skip
    """A decode read past what the request has: once for each extent that it has."""
    pair, pool = R[E[e].rp], E[e].pool
    base, tokens, tok0, tok1 = P[pool].base, P[pool].tokens, E[e].tok0, E[e].tok1
    lower = max(tok0, pair.cover)
    if pair.reported == lower + 1:
        return
    pair.reported = lower + 1
    first = tok0 // tokens
    for i in range(max(0, lower // tokens - first), E[e].p_n):
        number = G1[E[e].p_off + i]
        page = S[base + number]
        if not page.flags & PF_RESERVED:
            start = (first + i) * tokens
            emit(
                FR, FG, CT, X_UNCOVERED, ev, E[e].actor, -1, TR[pair.transfer].ev, pair.began, pool,
                number, page.gen, max(0, lower - start), min(tokens, tok1 - start), pair.cover,
            )  # fmt: skip


@kernel
def read_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    RR: Any, RG: Any, TR: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.read"""
    actor, rp, pool = E[e].actor, E[e].rp, E[e].pool
    off, n, tok0, tok1, op = E[e].p_off, E[e].p_n, E[e].tok0, E[e].tok1, E[e].op
    base, tokens = P[pool].base, P[pool].tokens
    if E[e].phase == PH_END and end_of_read(
        E, e, ev, G1, S, C, L, A, R, P, SH, SP, RR, RG, TR, SCR, FR, FG, CT
    ):  # fmt: skip
        return
    if E[e].flags & F_RECORD:
        remember_read(S, R, P, RR, RG, CT, G1, ev, pool, off, n, actor, rp, tok0, tok1, op, E[e].gen_given)
    if A[actor].exempt:
        return
    positions = tok0 >= 0
    first = tok0 // tokens if positions else 0
    lo = tok0 - first * tokens if positions else 0
    left = tok1 - first * tokens if positions else n * tokens
    placed = positions and P[pool].ordinals and op != OP_TRANSFER and op != OP_OFFLOAD and op != OP_COPY
    shared = R[rp].share
    for i in range(n):
        number = G1[off + i]
        g = base + number
        page = S[g]
        hi = min(left, tokens)
        left -= tokens
        if hi <= lo:
            break
        place = first + i if positions else -1
        if page.owner == actor:
            if placed and page.ord != place and page.ord >= 0 and not page.flags & PF_RESERVED:
                since = R[rp].began
                emit(FR, FG, CT, X_POSITION, ev, actor, -1, since, since, pool, number, page.gen, lo, hi, 0)
            if page.rd_hi == 0:
                page.rd_lo = lo
                page.rd_hi = hi
            else:
                if lo < page.rd_lo:
                    page.rd_lo = lo
                if hi > page.rd_hi:
                    page.rd_hi = hi
            plain = page.writer == actor and page.lgen == page.gen and page.lo <= lo and page.hi >= hi
            if plain and page.lflags & (LF_FOREIGN_ORIGIN | LF_BLANK | LF_TAINT) == 0:
                lo = 0
                continue
            C[g].read_ev = ev
        elif positions and shared >= 0:
            k = place - SH[shared].ord
            if 0 <= k < SH[shared].n:
                entry = SP[SH[shared].off + k]
                if (
                    entry.page == number
                    and entry.gen == page.gen
                    and entry.flags & 2
                    and (SH[shared].tok1 < 0 or place * tokens + hi <= SH[shared].tok1)
                    and page.lgen == page.gen
                    and page.lo <= lo
                    and page.hi >= hi
                    and page.lflags == 0
                ):
                    lo = 0
                    continue  # judged sound before, and nothing newer lies on it
        read_page(
            S, C, L, N, A, R, SH, SP, SCR, FR, FG, CT, ev, g, number, pool, lo, hi, actor, rp, place, op, tokens
        )  # fmt: skip
        lo = 0
    while shared >= 0:
        SH[shared].read = 1
        shared = SH[shared].next
    if op == OP_DECODE and R[rp].transfer >= 0 and not R[rp].blind and tok1 > R[rp].cover and positions:
        uncovered(E, e, ev, G1, S, C, R, P, TR, FR, FG, CT)


@kernel
def write_page(
    S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, TR: Any, TP: Any, SCR: Any, FR: Any,
    FG: Any, CT: Any, ev: int, g: int, number: int, pool: int, lo: int, hi: int, actor: int, rp: int, op: int,
    phase: int, stated: int, place: int, time: int,
) -> None:  # fmt: skip
    """One page of a write that is not plainly its owner's own."""
    if phase == PH_BEGIN:
        issue(S, C, N, CT, g, actor, ev, stated, lo, hi, op)
        return
    issued = stated
    if phase == PH_END:
        found = take_issued(S, C, N, CT, g, actor, lo, hi, op)
        if found >= 0:
            issued = found
    origin, flags = -1, 0
    if op == OP_TRANSFER and rp >= 0:
        record = record_for(TR, TP, R, rp, number, actor, place)
        if record >= 0:
            p0 = place * P[pool].tokens + lo
            p1 = place * P[pool].tokens + hi
            settle_source(
                S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, p0, p1, TR[record].rp1, time
            )  # fmt: skip
            origin, flags = origin_of(P, TR, TP, record, p0, p1)
    page = S[g]
    held = page.owner == actor and page.sharers == 0 and page.flags & (PF_RESERVED | PF_CO | PF_OPEN_WRITE) == 0
    if held and (issued < 0 or issued == page.gen) and op == OP_TRANSFER:
        push_layer(S, L, CT, g, lo, hi, actor, page.gen, ev, flags, origin)
        return
    land(
        S, C, L, N, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g, number, pool, lo, hi, actor, rp, op, issued, flags, origin
    )  # fmt: skip


@kernel
def arrives_plain(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, rp: int, actor: int, page0: int, page1: int, first: int, n: int, tok0: int, tok1: int, time: int,
) -> bool:  # fmt: skip
    """Whether a transfer write brings nothing but the request's own complete content, all of it from one transfer."""
    record = record_for(TR, TP, R, rp, page0, actor, first)
    if record != record_for(TR, TP, R, rp, page1, actor, first + n - 1):
        return False
    if record < 0:
        return True
    rp1 = TR[record].rp1
    return bool(
        settle_source(S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, tok0, tok1, rp1, time) == 0
    )


@kernel
def write_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    TR: Any, TP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.write"""
    actor, rp, pool = E[e].actor, E[e].rp, E[e].pool
    off, n, tok0, tok1, op = E[e].p_off, E[e].p_n, E[e].tok0, E[e].tok1, E[e].op
    base, tokens, phase, stated = P[pool].base, P[pool].tokens, E[e].phase, E[e].gen_given
    positions = tok0 >= 0
    first = tok0 // tokens if positions else 0
    lo = tok0 - first * tokens if positions else 0
    left = tok1 - first * tokens if positions else n * tokens
    taint = LF_TAINT if op == OP_FORWARD and A[actor].tainted else 0
    placed = positions and P[pool].ordinals and actor != NOBODY
    simple = phase != PH_BEGIN and (op == OP_FORWARD or op == OP_LOAD)
    if phase != PH_BEGIN and op == OP_TRANSFER and n > 0 and rp >= 0 and positions:
        simple = arrives_plain(
            S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, rp, actor, G1[off], G1[off + n - 1], first, n, tok0,
            tok1, E[e].time,
        )  # fmt: skip
    if phase != PH_BEGIN and op != OP_DUMMY and actor != NOBODY and rp >= 0:
        cover(R, rp, tok0, tok1)
    for i in range(n):
        number = G1[off + i]
        g = base + number
        page = S[g]
        hi = min(left, tokens)
        left -= tokens
        if hi <= lo:
            break
        if placed and page.owner == actor and page.ord != first + i and page.ord >= 0 and phase != PH_BEGIN:
            if not page.flags & PF_RESERVED:
                since = R[rp].began
                emit(FR, FG, CT, X_POSITION, ev, actor, -1, since, since, pool, number, page.gen, lo, hi, 0)
        if (
            simple
            and page.owner == actor
            and page.flags & (PF_RESERVED | PF_CO | PF_OPEN_WRITE) == 0
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
                        drop_below(S, L, CT, g, page.lo, page.hi)
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
        write_page(
            S, C, L, N, A, R, P, SH, SP, TR, TP, SCR, FR, FG, CT, ev, g, number, pool, lo, hi, actor, rp, op, phase,
            stated, first + i, E[e].time,
        )  # fmt: skip
        lo = 0


@kernel
def transfer_event(
    E: Any, e: int, ev: int, G1: Any, G2: Any, GS: Any, S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any,
    SP: Any, TR: Any, TP: Any, TX: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """transfer.offer, begin, done, failed, drained, lease"""
    kind, x = E[e].kind, E[e].ref
    if kind == K_OFFER or kind == K_BEGIN:
        begin_transfer(
            S, R, P, TR, TP, TX, CT, G1, G2, GS, ev, x, E[e].actor, E[e].pool, E[e].p_off, E[e].p_n, E[e].pool2,
            E[e].q_off, E[e].q_n, E[e].rp2, E[e].tok0, E[e].tok1, E[e].v_off, E[e].v_n,
        )  # fmt: skip
        record = TX[x].head
        TR[record].rp1 = E[e].rp
        TR[record].rp2 = E[e].rp2
        TR[record].lease = TX[x].lease
        TR[record].writers = E[e].key
        TR[record].drained = 0
        if E[e].rp >= 0:
            R[E[e].rp].source = record
        return
    record = TX[x].head
    if kind == K_LEASE:
        TX[x].lease = E[e].tokens
        while record >= 0:
            TR[record].lease = E[e].tokens
            record = TR[record].older
        return
    bit = TS_DONE if kind == K_DONE else (TS_FAILED if kind == K_FAILED else TS_DRAINED)
    tokens = E[e].tokens
    while record >= 0:
        moved = TR[record]
        if kind == K_DRAINED:
            moved.drained |= E[e].key
            if moved.writers & ~moved.drained and E[e].key:
                record = moved.older
                continue  # other ranks may still be writing
        moved.state |= bit
        if kind == K_DONE and moved.src_pool >= 0 and moved.dst_pool >= 0:
            if E[e].source == P[moved.src_pool].source:
                settle_source(
                    S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, max(0, moved.tok0),
                    moved.tok1 if moved.tok1 > 0 else 1 << 40, moved.rp1, E[e].time,
                )  # fmt: skip
            if tokens > 0 and (E[e].source == P[moved.dst_pool].source or E[e].flags & F_RECORD):
                check_done(S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, tokens, moved.rp2)
            if tokens > 0 and moved.rp2 >= 0:
                cover(R, moved.rp2, max(0, moved.tok0), tokens)
        record = moved.older


@kernel
def stepping(ST: Any, slot: int) -> bool:
    """Whether the step that last named a page is still running."""
    return bool(slot >= 0 and ST[slot % N_STEPS].open == slot + 1)


@kernel
def alloc_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, ST: Any, FR: Any,
    FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.alloc"""
    actor, rp, pool, off, stated = E[e].actor, E[e].rp, E[e].pool, E[e].p_off, E[e].gen_given
    base = P[pool].base
    if rp >= 0 and R[rp].held == 0:
        R[rp].began = ev
    if rp >= 0 and not P[pool].known and not A[actor].born:
        R[rp].blind = 1  # it lived before the record did: its table has pages that nobody wrote down
    placed = rp >= 0 and not R[rp].blind
    for i in range(E[e].p_n):
        number = G1[off + i]
        g = base + number
        page = S[g]
        idle = page.owner < 0 and page.sharers == 0 and rp >= 0 and not stepping(ST, page.step)
        if idle and page.flags & ~PF_PUBLISHED == PF_KNOWN:
            page.gen = stated if stated >= 0 else page.gen + 1
            page.owner = actor
            page.flags = PF_KNOWN
            page.ord = R[rp].next if placed else -1
            cold = C[g]
            cold.alloc_ev = ev
            cold.reported = -1
            R[rp].next += 1
            R[rp].held += 1
        else:
            alloc_page(
                S, C, A, R, P, SH, SP, ST, FR, FG, CT, ev, g, number, pool, actor, rp, stated, E[e].time
            )  # fmt: skip


@kernel
def free_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, ST: Any, TR: Any,
    FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.free"""
    actor, rp, pool, off, n, to = E[e].actor, E[e].rp, E[e].pool, E[e].p_off, E[e].p_n, E[e].ref
    base = P[pool].base
    anyone = E[e].flags & F_ANYONE != 0
    late = A[actor].type == T_REQUEST and A[actor].end >= 0 and E[e].time - A[actor].end > CT.orphan_ns
    timeout = False
    if E[e].flags & F_TIMEOUT and rp >= 0:
        record = R[rp].transfer
        timeout = record >= 0 and TR[record].state == 0
    released = 0
    for i in range(n):
        number = G1[off + i]
        g = base + number
        page = S[g]
        if page.owner == actor and not late and not timeout and not page.flags & PF_CO and not stepping(ST, page.step):
            page.owner = to
            page.rd_lo = 0
            page.rd_hi = 0
            cold = C[g]
            cold.previous = actor
            cold.free_ev = ev
            released += 1
            continue
        if page.owner == actor and late:
            since = C[g].alloc_ev
            emit(FR, FG, CT, X_ORPHAN, ev, actor, -1, since, since, pool, number, page.gen, 0, 0, 0)
        if page.owner == actor and timeout:
            begun = TR[R[rp].transfer].ev
            emit(FR, FG, CT, X_TIMEOUT_FREE, ev, actor, -1, begun, C[g].alloc_ev, pool, number, page.gen, 0, 0, 0)
        if free_page(S, C, A, R, SH, SP, ST, FR, FG, CT, ev, g, number, pool, actor, rp, to, anyone):
            released += 1
    after_free(R, rp, released, E[e].flags & F_PREEMPT != 0, E[e].flags & F_WINDOW != 0)


@kernel
def step_event(E: Any, e: int, ev: int, G1: Any, S: Any, P: Any, ST: Any, CT: Any) -> None:
    """step.begin marks its pages; step.end closes the newest open step of that number in the pool."""
    pool, number, base = E[e].pool, E[e].ref, P[E[e].pool].base
    if E[e].kind == K_STEP_BEGIN:
        if E[e].flags & F_DUMMY:
            return
        slot = CT.steps
        CT.steps += 1
        step = ST[slot % N_STEPS]
        step.pool = pool
        step.step = number
        step.open = slot + 1
        step.ev = ev
        for i in range(E[e].p_n):
            S[base + G1[E[e].p_off + i]].step = slot
        return
    newest = CT.steps
    for slot in range(newest - 1, max(-1, newest - 1 - N_STEPS), -1):
        step = ST[slot % N_STEPS]
        if step.open and step.pool == pool and step.step == number:
            step.open = 0
            return


@kernel
def pair_event(
    E: Any, e: int, ev: int, G1: Any, G2: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    PP: Any, ST: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.copy and page.move, page by page."""
    pool1, pool2 = E[e].pool, E[e].pool2
    for i in range(min(E[e].p_n, E[e].q_n)):
        page1, page2 = G1[E[e].p_off + i], G2[E[e].q_off + i]
        g1, g2 = P[pool1].base + page1, P[pool2].base + page2
        if E[e].kind == K_COPY:
            copy_page(
                S, C, L, N, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g1, page1, pool1, E[e].rp, g2, page2, pool2, E[e].rp2,
                E[e].actor,
            )  # fmt: skip
        else:
            move_page(
                S, C, L, A, R, P, SH, SP, PP, ST, SCR, FR, FG, CT, ev, g1, page1, pool1, g2, page2, pool2, E[e].rp2,
                E[e].time,
            )  # fmt: skip


@kernel
def pool_event(E: Any, e: int, G1: Any, S: Any, P: Any) -> None:
    """engine.pool: which pages are reserved."""
    base = P[E[e].pool].base
    for g in range(base, base + P[E[e].pool].size):
        S[g].flags &= ~PF_RESERVED
    for i in range(E[e].p_n):
        S[base + G1[E[e].p_off + i]].flags |= PF_RESERVED


@kernel
def note_loss(P: Any, source: int, ev: int) -> None:
    """Events of a source were lost before this one: pools that it reports on may have changed unseen."""
    bit = 1 << min(source, REPORTERS - 1)
    for pool in range(len(P)):
        if P[pool].reporters & bit:
            P[pool].gap_ev = ev


@kernel
def run(
    E: Any, e0: int, e1: int, G1: Any, G2: Any, GS: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any,
    SH: Any, SP: Any, PB: Any, PP: Any, K: Any, TR: Any, TP: Any, TX: Any, RR: Any, RG: Any, ST: Any, SCR: Any,
    FR: Any, FG: Any, CT: Any,
) -> int:  # fmt: skip
    """Replay events [e0, e1); returns the first that was not, because a table must grow first."""
    count = CT[0]
    for e in range(e0, e1):
        kind = E[e].kind
        if E[e].flags & F_LOSS:
            note_loss(P, E[e].source, count.ev0 + e)
        if kind == K_NONE:
            continue
        n = E[e].p_n + E[e].q_n
        depth = count.depth + 2
        if (
            count.facts + 4 * n + 64 > len(FR)
            or count.pages + 3 * n * depth + 64 > len(FG)
            or count.layers + n * depth + 64 > len(L)
            or count.nodes + n > len(N)
        ):
            return e
        ev = count.ev0 + e
        count.facts0 = count.facts
        count.time = E[e].time
        count.page_events += E[e].p_n
        if kind == K_READ:
            read_event(E, e, ev, G1, S, C, L, N, A, R, P, SH, SP, RR, RG, TR, SCR, FR, FG, count)
        elif kind == K_WRITE:
            write_event(E, e, ev, G1, S, C, L, N, A, R, P, SH, SP, TR, TP, SCR, FR, FG, count)
        elif kind == K_ALLOC:
            alloc_event(E, e, ev, G1, S, C, A, R, P, SH, SP, ST, FR, FG, count)
        elif kind == K_FREE:
            free_event(E, e, ev, G1, S, C, A, R, P, SH, SP, ST, TR, FR, FG, count)
        elif kind == K_SHARE:
            share(
                S, C, A, R, P, SH, SP, PB, PP, K, count, G1, ev, E[e].pool, E[e].p_off, E[e].p_n, E[e].actor, E[e].rp,
                E[e].key, E[e].digest, E[e].tok0, E[e].tok1, E[e].flags & F_RECORD != 0,
            )  # fmt: skip
            cover(R, E[e].rp, E[e].tok0, E[e].tok1)
        elif kind == K_PUBLISH:
            publish(
                S, P, PB, PP, K, count, G1, ev, E[e].pool, E[e].p_off, E[e].p_n, E[e].actor, E[e].key, E[e].digest
            )  # fmt: skip
        elif kind == K_UNPUBLISH:
            for i in range(E[e].p_n):
                S[P[E[e].pool].base + G1[E[e].p_off + i]].flags &= ~PF_PUBLISHED
        elif kind == K_STEP_BEGIN or kind == K_STEP_END:
            step_event(E, e, ev, G1, S, P, ST, count)
        elif kind == K_COPY or kind == K_MOVE:
            pair_event(E, e, ev, G1, G2, S, C, L, N, A, R, P, SH, SP, PP, ST, SCR, FR, FG, count)
        elif kind >= K_OFFER:
            transfer_event(E, e, ev, G1, G2, GS, S, C, L, A, R, P, SH, SP, TR, TP, TX, SCR, FR, FG, count)
        elif kind == K_POOL:
            pool_event(E, e, G1, S, P)
    return e1
