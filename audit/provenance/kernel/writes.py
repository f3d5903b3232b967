"""Bytes that land: by whoever holds the page, or by somebody who should not."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import alloc_page, share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, clear_layers, push_layer, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    A_END,
    A_TAINTED,
    A_TENANT,
    A_TYPE,
    ALLOC_EV,
    B_ALLOCS,
    B_ORDINALS,
    B_TOKENS,
    CO_OWNER,
    CT_NODE_FREE,
    CT_NODES,
    CT_PUB_PAGES,
    CT_SHARES,
    CT_TIME,
    FREE_EV,
    GEN,
    LF_BLANK,
    LF_INTRUDER,
    LF_TAINT,
    N_ACTOR,
    N_EV,
    N_GEN,
    N_HI,
    N_LO,
    N_NEXT,
    N_OP,
    NOBODY,
    OP_COPY,
    OP_DUMMY,
    OP_FORWARD,
    OP_LOAD,
    OP_SCRUB,
    OP_TRANSFER,
    OPEN_WRITES,
    ORD,
    OWNER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_PUBLISHED,
    PF_RESERVED,
    PFLAGS,
    PREVIOUS,
    R_NEXT,
    R_TRANSFER,
    RD_HI,
    RD_LO,
    READ_EV,
    SH_ACTOR,
    SH_EV,
    SH_N,
    SH_OFF,
    SH_ORD,
    SH_POOL,
    SH_READ,
    SH_TOK0,
    SH_TOK1,
    SHARERS,
    T_REQUEST,
    T_SESSION,
    WRITER,
    X_DOUBLE_WRITE,
    X_LATE_WRITE,
    X_OPEN_READ_HIT,
    X_STRAY_WRITE,
)
from kvwitness.audit.provenance.kernel.reads import SHARED, SOUND, attachment, split_by_share, standing


@kernel
def issue(S: Any, C: Any, N: Any, CT: Any, g: int, actor: int, ev: int, gen: int, lo: int, hi: int, op: int) -> None:
    """A write was issued and has not landed."""
    node = CT[CT_NODE_FREE]
    if node >= 0:
        CT[CT_NODE_FREE] = N[node, N_NEXT]
    else:
        node = CT[CT_NODES]
        CT[CT_NODES] += 1
    N[node, N_ACTOR] = actor
    N[node, N_EV] = ev
    N[node, N_GEN] = gen if gen >= 0 else S[g, GEN]
    N[node, N_LO] = lo
    N[node, N_HI] = hi
    N[node, N_OP] = op
    N[node, N_NEXT] = C[g, OPEN_WRITES] if S[g, PFLAGS] & PF_OPEN_WRITE else -1
    C[g, OPEN_WRITES] = node
    S[g, PFLAGS] |= PF_OPEN_WRITE


@kernel
def take_issued(S: Any, C: Any, N: Any, CT: Any, g: int, actor: int, lo: int, hi: int, op: int) -> int:
    """Remove the latest matching open write of a page; returns the generation it was issued on, or -1."""
    if not S[g, PFLAGS] & PF_OPEN_WRITE:
        return -1
    previous = -1
    node = C[g, OPEN_WRITES]
    while node >= 0:
        below = N[node, N_NEXT]
        if N[node, N_ACTOR] == actor and N[node, N_OP] == op and N[node, N_LO] == lo and N[node, N_HI] == hi:
            gen = N[node, N_GEN]
            if previous < 0:
                C[g, OPEN_WRITES] = below
                if below < 0:
                    S[g, PFLAGS] &= ~PF_OPEN_WRITE
            else:
                N[previous, N_NEXT] = below
            N[node, N_NEXT] = CT[CT_NODE_FREE]
            CT[CT_NODE_FREE] = node
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
    owner = S[g, OWNER]
    if owner == actor or (S[g, PFLAGS] & PF_CO and C[g, CO_OWNER] == actor):
        return True
    if not S[g, PFLAGS] & PF_KNOWN or not P[pool, B_ALLOCS]:
        return True  # who holds it was never on record
    if owner >= 0 and A[owner, A_TYPE] != T_REQUEST and A[owner, A_TENANT] == A[actor, A_TENANT]:
        if A[owner, A_TYPE] == T_SESSION or op == OP_COPY or op == OP_TRANSFER or op == OP_LOAD:
            return True
    if S[g, SHARERS] > 0 and (owner < 0 or A[owner, A_TYPE] != T_REQUEST):
        entry = share_of(R, SH, SP, rp, page, S[g, GEN], -1)
        if entry >= 0:
            record = share_record(R, SH, rp, entry)
            base = (SH[record, SH_ORD] + entry - SH[record, SH_OFF]) * P[pool, B_TOKENS]
            return bool(SH[record, SH_TOK1] >= 0 and base + lo >= SH[record, SH_TOK1])
    return False


@kernel
def hit_open_reads(
    S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, writer: int,
) -> None:  # fmt: skip
    """A write lands on rows that others are reading: their reads are still open, so they see it."""
    gen, since = S[g, GEN], C[g, ALLOC_EV]
    owner, now = S[g, OWNER], CT[CT_TIME]
    reading = owner >= 0 and owner != writer and not 0 <= A[owner, A_END] < now
    if reading and S[g, RD_LO] < hi and S[g, RD_HI] > lo:
        x, y = max(lo, S[g, RD_LO]), min(hi, S[g, RD_HI])
        emit(FR, FG, CT, X_OPEN_READ_HIT, ev, owner, writer, C[g, READ_EV], since, pool, page, gen, x, y, 0)
        A[owner, A_TAINTED] = 1
    if S[g, SHARERS] <= 0:
        return
    tokens = P[pool, B_TOKENS]
    for share in range(CT[CT_SHARES]):
        a = SH[share, SH_ACTOR]
        if SH[share, SH_POOL] != pool or a == writer or SH[share, SH_READ] == 0 or 0 <= A[a, A_END] < now:
            continue
        for j in range(SH[share, SH_OFF], SH[share, SH_OFF] + SH[share, SH_N]):
            if SP[j, 0] == page and SP[j, 1] == gen:
                base = (SH[share, SH_ORD] + j - SH[share, SH_OFF]) * tokens
                x, y = lo, hi
                if SH[share, SH_TOK1] >= 0:
                    x, y = max(lo, SH[share, SH_TOK0] - base), min(hi, SH[share, SH_TOK1] - base)
                if x < y:
                    emit(FR, FG, CT, X_OPEN_READ_HIT, ev, a, writer, SH[share, SH_EV], since, pool, page, gen, x, y, 0)
                    A[a, A_TAINTED] = 1


@kernel
def targets(S: Any, R: Any, g: int, rp: int, op: int) -> bool:
    """A transfer may fill pages that nobody holds on record: the destination's owner may not be traced."""
    return bool(op == OP_TRANSFER and rp >= 0 and R[rp, R_TRANSFER] >= 0 and S[g, OWNER] < 0)


@kernel
def first_sharer(SH: Any, SP: Any, CT: Any, pool: int, page: int, gen: int) -> int:
    """Somebody who is attached to the page, or -1."""
    for share in range(CT[CT_SHARES] - 1, -1, -1):
        if SH[share, SH_POOL] == pool:
            for j in range(SH[share, SH_OFF], SH[share, SH_OFF] + SH[share, SH_N]):
                if SP[j, 0] == page and SP[j, 1] == gen:
                    return int(SH[share, SH_ACTOR])
    return -1


@kernel
def land(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, op: int, issued: int,
    flags: int, origin: int,
) -> None:  # fmt: skip
    """Rows [lo, hi) of a page now hold what `actor` wrote; `issued` is the generation it was meant for, or -1."""
    if S[g, PFLAGS] & PF_RESERVED or hi <= lo:
        return
    if op == OP_SCRUB:
        if lo == 0 and hi >= P[pool, B_TOKENS]:
            clear_layers(S, L, CT, g)
        else:
            push_layer(S, L, CT, g, lo, hi, -1, -1, ev, LF_BLANK, -1)
        return
    gen, owner, since = S[g, GEN], S[g, OWNER], C[g, ALLOC_EV]
    if actor == NOBODY and op != OP_DUMMY and owner >= 0 and A[owner, A_TYPE] != T_REQUEST:
        actor = owner  # the engine fills a tier page in its holder's name
    moved_on = issued >= 0 and issued != gen
    legitimate = (
        not moved_on
        and (actor != NOBODY or owner == NOBODY)
        and may_write(S, C, A, R, P, SH, SP, g, page, pool, actor, rp, op, lo, hi)
    )
    if legitimate:
        if S[g, SHARERS] > 0 and S[g, WRITER] != actor:
            hit_open_reads(S, C, A, R, P, SH, SP, FR, FG, CT, ev, g, page, pool, lo, hi, actor)
    else:
        flags |= LF_INTRUDER
        held = moved_on or C[g, PREVIOUS] == actor or was_written_by(S, L, g, actor)
        victim = owner
        if owner < 0 and S[g, SHARERS] > 0:
            victim = first_sharer(SH, SP, CT, pool, page, gen)
        if actor == NOBODY or not (held or owner >= 0 or victim >= 0):
            if P[pool, B_ALLOCS] and S[g, PFLAGS] & PF_KNOWN and not (actor != NOBODY and targets(S, R, g, rp, op)):
                emit(FR, FG, CT, X_STRAY_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, op)
        elif held:
            a = victim if victim >= 0 else actor
            when = since if victim >= 0 else C[g, FREE_EV]
            emit(FR, FG, CT, X_LATE_WRITE, ev, a, actor, when, since, pool, page, gen, lo, hi, 0 if victim >= 0 else 1)
        else:
            emit(FR, FG, CT, X_DOUBLE_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, 0)
        hit_open_reads(S, C, A, R, P, SH, SP, FR, FG, CT, ev, g, page, pool, lo, hi, actor)
    if op == OP_FORWARD and A[actor, A_TAINTED]:
        flags |= LF_TAINT
    push_layer(S, L, CT, g, lo, hi, actor, gen, ev, flags, origin)


@kernel
def place_of(S: Any, R: Any, SH: Any, SP: Any, g: int, page: int, actor: int, rp: int) -> int:
    """The ordinal of a page in a request's table, or -1."""
    if S[g, OWNER] == actor:
        return int(S[g, ORD])
    entry = share_of(R, SH, SP, rp, page, S[g, GEN], -1)
    if entry < 0:
        return -1
    record = share_record(R, SH, rp, entry)
    return int(SH[record, SH_ORD] + entry - SH[record, SH_OFF])


@kernel
def copy_layers(
    S: Any, C: Any, L: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, CT: Any,
    ev: int, g1: int, page1: int, g2: int, actor: int, rp1: int, tokens: int, intruder: int,
) -> None:  # fmt: skip
    """Give the target page the content of the source; what the request could soundly read becomes its own."""
    gen = S[g2, GEN]
    n = resolve(S, L, SCR, g1, 0, tokens)
    share, s_lo, s_hi = attachment(S, A, R, SH, SP, g1, page1, actor, rp1, -1, tokens)
    if share:
        n = split_by_share(S, SCR, g1, n, s_lo, s_hi)
    owner = S[g1, OWNER]
    for k in range(n):
        lo, hi, w, wgen, flags, origin = SCR[k, 0], SCR[k, 1], SCR[k, 2], SCR[k, 3], SCR[k, 5], SCR[k, 6]
        if w == NEVER or flags & LF_BLANK:
            push_layer(S, L, CT, g2, lo, hi, -1, -1, ev, LF_BLANK, -1)
            continue
        part = share if lo >= s_lo and hi <= s_hi else 0
        if owner == actor and A[owner, A_TYPE] != T_REQUEST:
            part = 1  # a holder moves content between tiers in its own name
        how = standing(S, g1, actor, w, wgen, flags, part)
        keep = flags & ~LF_INTRUDER
        if how == SOUND or how == SHARED:
            if how == SHARED and keep & LF_TAINT and origin < 0:
                origin = w
            push_layer(S, L, CT, g2, lo, hi, actor, gen, ev, keep | intruder, origin)
        else:
            live = wgen == S[g1, GEN]
            push_layer(S, L, CT, g2, lo, hi, w, gen if live else gen - 1, ev, keep | intruder, origin)


@kernel
def copy_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g1: int, page1: int, pool1: int, rp1: int, g2: int, page2: int, pool2: int, rp2: int, actor: int,
) -> None:  # fmt: skip
    """Duplicate a page with its provenance; the target must be the request's, or a tier page of its tenant."""
    if S[g1, PFLAGS] & PF_RESERVED or S[g2, PFLAGS] & PF_RESERVED:
        return
    tokens = P[pool2, B_TOKENS]
    who = actor
    if actor == NOBODY and S[g2, OWNER] >= 0:
        who = S[g2, OWNER]
    fine = may_write(S, C, A, R, P, SH, SP, g2, page2, pool2, who, rp2, OP_COPY, 0, tokens)
    if not fine:
        land(
            S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g2, page2, pool2, 0, tokens, who, rp2, OP_COPY, -1, 0, -1
        )  # fmt: skip
    elif S[g2, SHARERS] > 0:
        hit_open_reads(S, C, A, R, P, SH, SP, FR, FG, CT, ev, g2, page2, pool2, 0, tokens, who)
    copy_layers(S, C, L, A, R, SH, SP, SCR, CT, ev, g1, page1, g2, who, rp1, tokens, 0 if fine else LF_INTRUDER)
    if rp2 >= 0 and S[g2, OWNER] == actor and P[pool2, B_ORDINALS]:
        place = place_of(S, R, SH, SP, g1, page1, actor, rp1)
        if place >= 0:
            if S[g2, ORD] == R[rp2, R_NEXT] - 1 and S[g2, ORD] != place:
                R[rp2, R_NEXT] -= 1
            S[g2, ORD] = place
            if place >= R[rp2, R_NEXT]:
                R[rp2, R_NEXT] = place + 1


@kernel
def move_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, PP: Any, ST: Any, SCR: Any, FR: Any, FG: Any,
    CT: Any, ev: int, g1: int, page1: int, pool1: int, g2: int, page2: int, pool2: int, rp2: int, time: int,
) -> None:  # fmt: skip
    """Relocate a page: holders, publication, place and content go along; the source is free afterwards."""
    owner, sharers = S[g1, OWNER], S[g1, SHARERS]
    gen1 = S[g1, GEN]
    place = S[g1, ORD]
    prepared = S[g2, OWNER] >= 0 and S[g2, OWNER] == owner
    if not prepared:
        alloc_page(S, C, A, R, P, SH, SP, ST, FR, FG, CT, ev, g2, page2, pool2, owner, -1, -1, time)
    gen2 = S[g2, GEN]
    S[g2, OWNER] = owner
    S[g2, RD_LO], S[g2, RD_HI] = S[g1, RD_LO], S[g1, RD_HI]
    S[g2, ORD] = place
    C[g2, READ_EV] = C[g1, READ_EV]
    S[g2, PFLAGS] |= S[g1, PFLAGS] & (PF_PUBLISHED | PF_KNOWN)
    n = resolve(S, L, SCR, g1, 0, P[pool2, B_TOKENS])
    for k in range(n):
        lo, hi, w, wgen = SCR[k, 0], SCR[k, 1], SCR[k, 2], SCR[k, 3]
        if w == NEVER:
            push_layer(S, L, CT, g2, lo, hi, -1, -1, ev, LF_BLANK, -1)
        else:
            gen = gen2 if wgen == gen1 else gen2 - 1
            push_layer(S, L, CT, g2, lo, hi, w, gen, SCR[k, 4], SCR[k, 5], SCR[k, 6])
    if S[g1, PFLAGS] & PF_PUBLISHED:
        for j in range(CT[CT_PUB_PAGES]):
            if PP[j, 0] == page1 and PP[j, 1] == gen1 and PP[j, 2] == pool1:
                PP[j, 0], PP[j, 1], PP[j, 2] = page2, gen2, pool2
    if sharers > 0 and pool1 == pool2:
        S[g2, SHARERS] = sharers
        for share in range(CT[CT_SHARES]):
            if SH[share, SH_POOL] == pool1:
                for j in range(SH[share, SH_OFF], SH[share, SH_OFF] + SH[share, SH_N]):
                    if SP[j, 0] == page1 and SP[j, 1] == gen1:
                        SP[j, 0], SP[j, 1] = page2, gen2
    S[g1, OWNER] = -1
    S[g1, SHARERS] = 0
    S[g1, RD_LO], S[g1, RD_HI] = 0, 0
    S[g1, PFLAGS] &= ~(PF_PUBLISHED | PF_CO)
    C[g1, PREVIOUS] = owner
    C[g1, FREE_EV] = ev
