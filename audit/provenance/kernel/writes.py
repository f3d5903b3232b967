"""Bytes that land: by whoever holds the page, or by somebody who should not."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import alloc_page, share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, clear_layers, push_layer, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_INTRUDER,
    LF_TAINT,
    LF_UNKNOWN,
    NOBODY,
    OP_COPY,
    OP_DUMMY,
    OP_FORWARD,
    OP_LOAD,
    OP_OPEN_READ,
    OP_SCRUB,
    OP_TRANSFER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_PUBLISHED,
    PF_RESERVED,
    T_REQUEST,
    T_SESSION,
    X_DOUBLE_WRITE,
    X_LATE_WRITE,
    X_OPEN_READ_HIT,
    X_STRAY_WRITE,
)
from kvwitness.audit.provenance.kernel.reads import SHARED, SOUND, attachment, split_by_share, standing


@kernel
def issue(S: Any, C: Any, N: Any, CT: Any, g: int, actor: int, ev: int, gen: int, lo: int, hi: int, op: int) -> None:
    """A write was issued and has not landed."""
    state = S[g]
    cold = C[g]
    node = CT.node_free
    if node >= 0:
        CT.node_free = N[node].next
    else:
        node = CT.nodes
        CT.nodes += 1
    N[node].actor = actor
    N[node].ev = ev
    N[node].gen = gen if gen >= 0 else state.gen
    N[node].lo = lo
    N[node].hi = hi
    N[node].op = op
    N[node].next = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    cold.open_writes = node
    state.flags |= PF_OPEN_WRITE


@kernel
def take_issued(S: Any, C: Any, N: Any, CT: Any, g: int, actor: int, lo: int, hi: int, op: int) -> int:
    """Remove the latest matching open write of a page; returns the generation it was issued on, or -1."""
    state = S[g]
    cold = C[g]
    if not state.flags & PF_OPEN_WRITE:
        return -1
    previous = -1
    node = cold.open_writes
    while node >= 0:
        below = N[node].next
        if N[node].actor == actor and N[node].op == op and N[node].lo == lo and N[node].hi == hi:
            gen = N[node].gen
            if previous < 0:
                cold.open_writes = below
                if below < 0:
                    state.flags &= ~PF_OPEN_WRITE
            else:
                N[previous].next = below
            N[node].next = CT.node_free
            CT.node_free = node
            return int(gen)
        previous = node
        node = below
    return -1


@kernel
def may_write(
    S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, g: int, page: int, pool: int, actor: int, rp: int,
    op: int, lo: int, hi: int,
) -> bool:  # fmt: skip
    """Whether the page is this writer's to fill."""
    state = S[g]
    cold = C[g]
    owner = state.owner
    if owner == actor or (state.flags & PF_CO and cold.co_owner == actor):
        return True
    if not state.flags & PF_KNOWN or not P[pool].allocs:
        return True  # who holds it was never on record
    kin = owner >= 0 and (A[owner].tenant == A[actor].tenant or A[owner].tenant < 0 or A[actor].tenant < 0)
    if kin and A[owner].type != T_REQUEST:
        if A[owner].type == T_SESSION or op == OP_COPY or op == OP_TRANSFER or op == OP_LOAD:
            return True
    if state.sharers > 0 and (owner < 0 or A[owner].type != T_REQUEST):
        entry = share_of(R, SH, SP, rp, page, state.gen, -1)
        if entry >= 0:
            record = share_record(R, SH, rp, entry)
            base = (SH[record].ord + entry - SH[record].off) * P[pool].tokens
            return bool(SH[record].tok1 >= 0 and base + lo >= SH[record].tok1)
    return False


@kernel
def hit_open_reads(
    S: Any, C: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, writer: int,
) -> None:  # fmt: skip
    """A write lands on rows that others are reading: their reads are still open, so they see it."""
    state = S[g]
    cold = C[g]
    gen, since = state.gen, cold.alloc_ev
    owner, now = state.owner, CT.time
    reading = owner >= 0 and owner != writer and not 0 <= A[owner].end < now
    if reading and state.rd_lo < hi and state.rd_hi > lo:
        x, y = max(lo, state.rd_lo), min(hi, state.rd_hi)
        emit(FR, FG, CT, X_OPEN_READ_HIT, ev, owner, writer, cold.read_ev, since, pool, page, gen, x, y, 0)
        A[owner].tainted = 1
    node = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    while node >= 0:
        reader = N[node].actor
        other = N[node].op == OP_OPEN_READ and reader != writer and not 0 <= A[reader].end < now
        if other and N[node].lo < hi and N[node].hi > lo:
            x, y = max(lo, N[node].lo), min(hi, N[node].hi)
            emit(FR, FG, CT, X_OPEN_READ_HIT, ev, reader, writer, N[node].ev, since, pool, page, gen, x, y, 0)
        node = N[node].next
    if state.sharers <= 0:
        return
    tokens = P[pool].tokens
    for share in range(CT.shares):
        a = SH[share].actor
        if SH[share].pool != pool or a == writer or SH[share].read == 0 or 0 <= A[a].end < now:
            continue
        for j in range(SH[share].off, SH[share].off + SH[share].n):
            if SP[j].page == page and SP[j].gen == gen:
                base = (SH[share].ord + j - SH[share].off) * tokens
                x, y = lo, hi
                if SH[share].tok1 >= 0:
                    x, y = max(lo, SH[share].tok0 - base), min(hi, SH[share].tok1 - base)
                if x < y:
                    emit(FR, FG, CT, X_OPEN_READ_HIT, ev, a, writer, SH[share].ev, since, pool, page, gen, x, y, 0)
                    A[a].tainted = 1


@kernel
def targets(S: Any, R: Any, g: int, rp: int, op: int) -> bool:
    """A transfer may fill pages that nobody holds on record: the destination's owner may not be traced."""
    state = S[g]
    return bool(op == OP_TRANSFER and rp >= 0 and R[rp].transfer >= 0 and state.owner < 0)


@kernel
def first_sharer(SH: Any, SP: Any, CT: Any, pool: int, page: int, gen: int) -> int:
    """Somebody who is attached to the page, or -1."""
    for share in range(CT.shares - 1, -1, -1):
        if SH[share].pool == pool:
            for j in range(SH[share].off, SH[share].off + SH[share].n):
                if SP[j].page == page and SP[j].gen == gen:
                    return int(SH[share].actor)
    return -1


@kernel
def land(
    S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, op: int, issued: int,
    flags: int, origin: int,
) -> None:  # fmt: skip
    """Rows [lo, hi) of a page now hold what `actor` wrote; `issued` is the generation it was meant for, or -1."""
    state = S[g]
    cold = C[g]
    if state.flags & PF_RESERVED or hi <= lo:
        return
    if op == OP_SCRUB:
        if lo == 0 and hi >= P[pool].tokens:
            clear_layers(S, L, CT, g)
        else:
            push_layer(S, L, CT, g, lo, hi, -1, -1, ev, LF_BLANK, -1)
        return
    gen, owner, since = state.gen, state.owner, cold.alloc_ev
    if actor == NOBODY and op != OP_DUMMY and owner >= 0 and A[owner].type != T_REQUEST:
        actor = owner  # the engine fills a tier page in its holder's name
    moved_on = issued >= 0 and issued != gen
    legitimate = (
        not moved_on
        and (actor != NOBODY or owner == NOBODY)
        and may_write(S, C, A, R, P, SH, SP, g, page, pool, actor, rp, op, lo, hi)
    )
    if legitimate:
        if (state.sharers > 0 and state.writer != actor) or state.flags & (PF_OPEN_WRITE | PF_CO):
            hit_open_reads(S, C, N, A, R, P, SH, SP, FR, FG, CT, ev, g, page, pool, lo, hi, actor)
    else:
        flags |= LF_INTRUDER
        held = moved_on or cold.previous == actor or was_written_by(S, L, g, actor)
        victim = owner
        if owner < 0 and state.sharers > 0:
            victim = first_sharer(SH, SP, CT, pool, page, gen)
        if actor == NOBODY or not (held or owner >= 0 or victim >= 0):
            if P[pool].allocs and state.flags & PF_KNOWN and not (actor != NOBODY and targets(S, R, g, rp, op)):
                emit(FR, FG, CT, X_STRAY_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, op)
        elif held:
            a = victim if victim >= 0 else actor
            when = since if victim >= 0 else cold.free_ev
            emit(FR, FG, CT, X_LATE_WRITE, ev, a, actor, when, since, pool, page, gen, lo, hi, 0 if victim >= 0 else 1)
        else:
            emit(FR, FG, CT, X_DOUBLE_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, 0)
        hit_open_reads(S, C, N, A, R, P, SH, SP, FR, FG, CT, ev, g, page, pool, lo, hi, actor)
    if op == OP_FORWARD and A[actor].tainted:
        flags |= LF_TAINT
    push_layer(S, L, CT, g, lo, hi, actor, gen, ev, flags, origin)


@kernel
def place_of(S: Any, R: Any, SH: Any, SP: Any, g: int, page: int, actor: int, rp: int) -> int:
    """The ordinal of a page in a request's table, or -1."""
    state = S[g]
    if state.owner == actor:
        return int(state.ord)
    entry = share_of(R, SH, SP, rp, page, state.gen, -1)
    if entry < 0:
        return -1
    record = share_record(R, SH, rp, entry)
    return int(SH[record].ord + entry - SH[record].off)


@kernel
def copy_layers(
    S: Any, C: Any, L: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, CT: Any,
    ev: int, g1: int, page1: int, g2: int, actor: int, rp1: int, tokens: int, intruder: int, lost: bool,
) -> None:  # fmt: skip
    """Give the target page the content of the source; what the request could soundly read becomes its own."""
    gen = S[g2].gen
    n = resolve(S, L, SCR, g1, 0, tokens)
    share, s_lo, s_hi = attachment(S, A, R, SH, SP, g1, page1, actor, rp1, -1, tokens)
    if share:
        n = split_by_share(S, SCR, g1, n, s_lo, s_hi)
    owner = S[g1].owner
    for k in range(n):
        lo, hi, w, wgen, flags, origin = SCR[k].lo, SCR[k].hi, SCR[k].writer, SCR[k].gen, SCR[k].flags, SCR[k].origin
        if w == NEVER or flags & (LF_BLANK | LF_UNKNOWN):
            known = S[g1].flags & PF_KNOWN and not flags & LF_UNKNOWN and not lost
            push_layer(S, L, CT, g2, lo, hi, -1, -1, ev, LF_BLANK if known else LF_UNKNOWN, -1)
            continue
        part = share if lo >= s_lo and hi <= s_hi else 0
        if owner == actor and A[owner].type != T_REQUEST:
            part = 1  # a holder moves content between tiers in its own name
        how = standing(S, g1, actor, w, wgen, flags, part)
        keep = flags & ~LF_INTRUDER
        if how == SOUND or how == SHARED:
            if how == SHARED and keep & LF_TAINT and origin < 0:
                origin = w
            push_layer(S, L, CT, g2, lo, hi, actor, gen, ev, keep | intruder, origin)
        elif lost:
            push_layer(S, L, CT, g2, lo, hi, -1, -1, ev, LF_UNKNOWN, -1)
        else:
            live = wgen == S[g1].gen
            push_layer(S, L, CT, g2, lo, hi, w, gen if live else gen - 1, ev, keep | intruder, origin)


@kernel
def copy_page(
    S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g1: int, page1: int, pool1: int, rp1: int, g2: int, page2: int, pool2: int, rp2: int, actor: int,
) -> None:  # fmt: skip
    """Duplicate a page with its provenance; the target must be the request's, or a tier page of its tenant."""
    if S[g1].flags & PF_RESERVED or S[g2].flags & PF_RESERVED:
        return
    tokens = P[pool2].tokens
    who = actor
    if actor == NOBODY and S[g2].owner >= 0:
        who = S[g2].owner
    fine = may_write(S, C, A, R, P, SH, SP, g2, page2, pool2, who, rp2, OP_COPY, 0, tokens)
    if not fine:
        land(
            S, C, L, N, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g2, page2, pool2, 0, tokens, who, rp2, OP_COPY, -1, 0, -1
        )  # fmt: skip
    elif S[g2].sharers > 0 or S[g2].flags & PF_OPEN_WRITE:
        hit_open_reads(S, C, N, A, R, P, SH, SP, FR, FG, CT, ev, g2, page2, pool2, 0, tokens, who)
    copy_layers(
        S, C, L, A, R, SH, SP, SCR, CT, ev, g1, page1, g2, who, rp1, tokens, 0 if fine else LF_INTRUDER,
        P[pool1].gap_ev >= 0 and P[pool1].gap_ev >= C[g1].alloc_ev,
    )  # fmt: skip
    if rp2 >= 0 and S[g2].owner == actor and P[pool2].ordinals:
        place = place_of(S, R, SH, SP, g1, page1, actor, rp1)
        if place >= 0:
            if S[g2].ord == R[rp2].next - 1 and S[g2].ord != place:
                R[rp2].next -= 1
            S[g2].ord = place
            if place >= R[rp2].next:
                R[rp2].next = place + 1


@kernel
def move_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, PP: Any, ST: Any, SCR: Any, FR: Any, FG: Any,
    CT: Any, ev: int, g1: int, page1: int, pool1: int, g2: int, page2: int, pool2: int, rp2: int, time: int,
) -> None:  # fmt: skip
    """Relocate a page: holders, publication, place and content go along; the source is free afterwards."""
    owner, sharers = S[g1].owner, S[g1].sharers
    gen1 = S[g1].gen
    place = S[g1].ord
    prepared = S[g2].owner >= 0 and S[g2].owner == owner
    if not prepared:
        alloc_page(S, C, A, R, P, SH, SP, ST, FR, FG, CT, ev, g2, page2, pool2, owner, -1, -1, time)
    gen2 = S[g2].gen
    S[g2].owner = owner
    S[g2].rd_lo, S[g2].rd_hi = S[g1].rd_lo, S[g1].rd_hi
    S[g2].ord = place
    C[g2].read_ev = C[g1].read_ev
    S[g2].flags |= S[g1].flags & (PF_PUBLISHED | PF_KNOWN | PF_CO)
    C[g2].co_owner = C[g1].co_owner
    n = resolve(S, L, SCR, g1, 0, P[pool2].tokens)
    for k in range(n):
        lo, hi, w, wgen = SCR[k].lo, SCR[k].hi, SCR[k].writer, SCR[k].gen
        if w == NEVER:
            blank = LF_BLANK if S[g1].flags & PF_KNOWN else LF_UNKNOWN
            push_layer(S, L, CT, g2, lo, hi, -1, -1, ev, blank, -1)
        else:
            gen = gen2 if wgen == gen1 else gen2 - 1
            push_layer(S, L, CT, g2, lo, hi, w, gen, SCR[k].ev, SCR[k].flags, SCR[k].origin)
    if S[g1].flags & PF_PUBLISHED:
        for j in range(CT.pub_pages):
            if PP[j].page == page1 and PP[j].gen == gen1 and PP[j].pool == pool1:
                PP[j].page, PP[j].gen, PP[j].pool = page2, gen2, pool2
    if sharers > 0 and pool1 == pool2:
        S[g2].sharers = sharers
        for share in range(CT.shares):
            if SH[share].pool == pool1:
                for j in range(SH[share].off, SH[share].off + SH[share].n):
                    if SP[j].page == page1 and SP[j].gen == gen1:
                        SP[j].page, SP[j].gen = page2, gen2
    S[g1].owner = -1
    S[g1].sharers = 0
    S[g1].rd_lo, S[g1].rd_hi = 0, 0
    S[g1].flags &= ~(PF_PUBLISHED | PF_CO)
    C[g1].previous = owner
    C[g1].free_ev = ev
