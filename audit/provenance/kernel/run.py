"""The loop over events. The usual outcome of each page is decided here, everything else in the other modules."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import after_free, alloc_page, free_page, publish, share
from kvwitness.audit.provenance.kernel.layers import drop_below
from kvwitness.audit.provenance.kernel.layout import *  # noqa: F403 - the names of the columns are the vocabulary here
from kvwitness.audit.provenance.kernel.reads import end_read, find_read, read_page, remember_read, rows_of
from kvwitness.audit.provenance.kernel.transfers import (
    begin_transfer,
    check_done,
    origin_of,
    record_for,
    settle_source,
)
from kvwitness.audit.provenance.kernel.writes import copy_page, issue, land, move_page, take_issued

# ruff: noqa: F405


@kernel
def cover(R: Any, rp: int, lo: int, hi: int) -> None:
    """Note that the request has positions [lo, hi) in this pool: transferred, shared or written."""
    if lo < 0 or hi <= lo:
        return
    if lo > R[rp, R_COVER]:
        if R[rp, R_PENDING0] < 0:
            R[rp, R_PENDING0], R[rp, R_PENDING1] = lo, hi
        elif lo <= R[rp, R_PENDING1] and hi >= R[rp, R_PENDING0]:
            R[rp, R_PENDING0] = min(lo, R[rp, R_PENDING0])
            R[rp, R_PENDING1] = max(hi, R[rp, R_PENDING1])
        else:
            R[rp, R_BLIND] = 1  # more than two separate pieces: coverage is not judged for this request
        return
    if hi > R[rp, R_COVER]:
        R[rp, R_COVER] = hi
    if 0 <= R[rp, R_PENDING0] <= R[rp, R_COVER]:
        R[rp, R_COVER] = max(R[rp, R_COVER], R[rp, R_PENDING1])
        R[rp, R_PENDING0] = -1
        R[rp, R_PENDING1] = -1


@kernel
def read_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    RR: Any, RG: Any, TR: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.read"""
    actor, rp, pool = E[ACTOR, e], E[RP, e], E[POOL, e]
    off, n, tok0, tok1, op = E[P_OFF, e], E[P_N, e], E[TOK0, e], E[TOK1, e], E[OP, e]
    base, tokens = P[pool, B_BASE], P[pool, B_TOKENS]
    if E[PHASE, e] == PH_END:
        record = find_read(R, RR, RG, G1, off, n, rp, tok0, tok1, op)
        if record >= 0:
            lease = 0
            transfer = R[rp, R_SOURCE]
            if transfer >= 0 and 0 <= TR[transfer, TR_LEASE] < E[TIME, e]:
                lease = 1
            if not A[actor, A_EXEMPT]:
                end_read(S, C, L, A, R, P, SH, SP, RR, RG, SCR, FR, FG, CT, ev, record, lease, rp)
        for i in range(n):
            g = base + G1[off + i]
            if S[g, OWNER] == actor:
                S[g, RD_LO] = 0
                S[g, RD_HI] = 0
        if record >= 0:
            return
    if E[FLAGS, e] & F_RECORD:
        remember_read(S, R, P, RR, RG, CT, G1, ev, pool, off, n, actor, rp, tok0, tok1, op, E[GEN_GIVEN, e])
    if A[actor, A_EXEMPT]:
        return
    first = tok0 // tokens if tok0 >= 0 else -1
    check_place = tok0 >= 0 and P[pool, B_ORDINALS] and op != OP_TRANSFER and op != OP_OFFLOAD and op != OP_COPY
    shared = R[rp, R_SHARE]
    for i in range(n):
        page = G1[off + i]
        g = base + page
        if tok0 < 0:
            lo, hi = 0, tokens
        else:
            start = (first + i) * tokens
            lo = tok0 - start if tok0 > start else 0
            hi = tok1 - start if tok1 - start < tokens else tokens
            if hi <= lo:
                continue
        place = first + i if first >= 0 else -1
        if S[g, OWNER] == actor:
            plain = (
                S[g, WRITER] == actor
                and S[g, LGEN] == S[g, GEN]
                and S[g, LO] <= lo
                and S[g, HI] >= hi
                and S[g, LFLAGS] & (LF_FOREIGN_ORIGIN | LF_BLANK | LF_TAINT) == 0
            )
            if check_place and S[g, ORD] != place and S[g, ORD] >= 0 and not S[g, PFLAGS] & PF_RESERVED:
                emit(
                    FR, FG, CT, X_POSITION, ev, actor, -1, C[g, ALLOC_EV], C[g, ALLOC_EV], pool, page, S[g, GEN],
                    lo, hi, 0,
                )  # fmt: skip
            if S[g, RD_HI] == 0:
                S[g, RD_LO], S[g, RD_HI] = lo, hi
            else:
                if lo < S[g, RD_LO]:
                    S[g, RD_LO] = lo
                if hi > S[g, RD_HI]:
                    S[g, RD_HI] = hi
            if plain:
                continue
            C[g, READ_EV] = ev
        elif place >= 0 and shared >= 0:
            entry = SH[shared, SH_OFF] + place - SH[shared, SH_ORD]
            if (
                0 <= place - SH[shared, SH_ORD] < SH[shared, SH_N]
                and SP[entry, 0] == page
                and SP[entry, 1] == S[g, GEN]
                and SP[entry, 2] & 2
                and (SH[shared, SH_TOK1] < 0 or place * tokens + hi <= SH[shared, SH_TOK1])
                and S[g, LGEN] == S[g, GEN]
                and S[g, LO] <= lo
                and S[g, HI] >= hi
                and S[g, LFLAGS] == 0
            ):
                continue  # judged sound before, and nothing newer lies on it
        read_page(
            S, C, L, N, A, R, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, lo, hi, actor, rp, place, op, tokens
        )  # fmt: skip
    record = R[rp, R_SHARE]
    while record >= 0:
        if SH[record, SH_READ] == 0:
            SH[record, SH_READ] = 1
        record = SH[record, SH_NEXT]
    if op == OP_DECODE and R[rp, R_TRANSFER] >= 0 and not R[rp, R_BLIND] and tok1 > R[rp, R_COVER] and tok0 >= 0:
        lower = max(tok0, R[rp, R_COVER])
        known = R[rp, R_REPORTED] == lower + 1
        R[rp, R_REPORTED] = lower + 1
        for i in range(lower // tokens - first, n):
            page = G1[off + i]
            if i >= 0 and not known and not S[base + page, PFLAGS] & PF_RESERVED:
                start = (first + i) * tokens
                emit(
                    FR, FG, CT, X_UNCOVERED, ev, actor, -1, TR[R[rp, R_TRANSFER], TR_EV], C[base + page, ALLOC_EV],
                    pool, page, S[base + page, GEN], max(0, lower - start), min(tokens, tok1 - start), R[rp, R_COVER],
                )  # fmt: skip


@kernel
def write_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    TR: Any, TP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.write"""
    actor, rp, pool = E[ACTOR, e], E[RP, e], E[POOL, e]
    off, n, tok0, tok1, op = E[P_OFF, e], E[P_N, e], E[TOK0, e], E[TOK1, e], E[OP, e]
    base, tokens, phase, stated = P[pool, B_BASE], P[pool, B_TOKENS], E[PHASE, e], E[GEN_GIVEN, e]
    first = tok0 // tokens if tok0 >= 0 else 0
    taint = LF_TAINT if op == OP_FORWARD and A[actor, A_TAINTED] else 0
    check_place = tok0 >= 0 and P[pool, B_ORDINALS] and actor != NOBODY
    if phase != PH_BEGIN and op != OP_DUMMY and actor != NOBODY and rp >= 0:
        cover(R, rp, tok0, tok1)
    for i in range(n):
        page = G1[off + i]
        g = base + page
        if tok0 < 0:
            lo, hi = 0, tokens
        else:
            start = (first + i) * tokens
            lo = tok0 - start if tok0 > start else 0
            hi = tok1 - start if tok1 - start < tokens else tokens
            if hi <= lo:
                continue
        if phase == PH_BEGIN:
            issue(S, C, N, CT, g, actor, ev, stated, lo, hi, op)
            continue
        issued = stated
        if phase == PH_END:
            found = take_issued(S, C, N, CT, g, actor, lo, hi, op)
            if found >= 0:
                issued = found
        if check_place and S[g, OWNER] == actor and S[g, ORD] >= 0 and S[g, ORD] != first + i:
            if not S[g, PFLAGS] & PF_RESERVED:
                emit(
                    FR, FG, CT, X_POSITION, ev, actor, -1, C[g, ALLOC_EV], C[g, ALLOC_EV], pool, page, S[g, GEN],
                    lo, hi, 0,
                )  # fmt: skip
        if (
            S[g, OWNER] == actor
            and S[g, PFLAGS] & (PF_RESERVED | PF_CO) == 0
            and S[g, SHARERS] == 0
            and (issued < 0 or issued == S[g, GEN])
            and op <= OP_LOAD
            and op != OP_TRANSFER
        ):
            if S[g, WRITER] == actor and S[g, LGEN] == S[g, GEN] and S[g, LFLAGS] == taint and S[g, ORIGIN] < 0:
                if lo <= S[g, HI] and hi >= S[g, LO]:
                    if lo < S[g, LO]:
                        S[g, LO] = lo
                    if hi > S[g, HI]:
                        S[g, HI] = hi
                    S[g, LEV] = ev
                    if S[g, NEXT] >= 0:
                        drop_below(S, L, CT, g, S[g, LO], S[g, HI])
                    continue
            elif S[g, NEXT] < 0 and lo <= S[g, LO] and hi >= S[g, HI]:
                S[g, LO], S[g, HI], S[g, WRITER], S[g, LGEN] = lo, hi, actor, S[g, GEN]
                S[g, LEV], S[g, LFLAGS], S[g, ORIGIN] = ev, taint, -1
                continue
        origin, flags = -1, 0
        if op == OP_TRANSFER and rp >= 0:
            record = record_for(TR, TP, R, rp, page, actor, first + i)
            if record >= 0:
                p0, p1 = (first + i) * tokens + lo, (first + i) * tokens + hi
                rp1 = TR[record, TR_RP1]
                settle_source(
                    S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, p0, p1, rp1, E[TIME, e]
                )  # fmt: skip
                origin, flags = origin_of(P, TR, TP, record, p0, p1)
        land(
            S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, lo, hi, actor, rp, op, issued, flags, origin
        )  # fmt: skip


@kernel
def transfer_event(
    E: Any, e: int, ev: int, G1: Any, G2: Any, GS: Any, S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any,
    SP: Any, TR: Any, TP: Any, TX: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """transfer.offer, begin, done, failed, drained, lease"""
    kind, x = E[KIND, e], E[REF, e]
    if kind == K_OFFER or kind == K_BEGIN:
        begin_transfer(
            S, R, P, TR, TP, TX, CT, G1, G2, GS, ev, x, E[ACTOR, e], E[POOL, e], E[P_OFF, e], E[P_N, e], E[POOL2, e],
            E[Q_OFF, e], E[Q_N, e], E[RP2, e], E[TOK0, e], E[TOK1, e], E[V_OFF, e], E[V_N, e],
        )  # fmt: skip
        record = TX[x, 0]
        TR[record, TR_RP1] = E[RP, e]
        TR[record, TR_RP2] = E[RP2, e]
        TR[record, TR_LEASE] = TX[x, 1]
        if E[RP, e] >= 0:
            R[E[RP, e], R_SOURCE] = record
        return
    record = TX[x, 0]
    if kind == K_LEASE:
        TX[x, 1] = E[TOKENS, e]
        while record >= 0:
            TR[record, TR_LEASE] = E[TOKENS, e]
            record = TR[record, TR_OLDER]
        return
    bit = TS_DONE if kind == K_DONE else (TS_FAILED if kind == K_FAILED else TS_DRAINED)
    tokens = E[TOKENS, e]
    while record >= 0:
        TR[record, TR_STATE] |= bit
        src, dst = TR[record, TR_SRC_POOL], TR[record, TR_DST_POOL]
        if kind == K_DONE and src >= 0 and dst >= 0:
            if E[SOURCE, e] == P[src, B_SOURCE]:
                end = TR[record, TR_TOK1]
                settle_source(
                    S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, max(0, TR[record, TR_TOK0]),
                    end if end > 0 else 1 << 40, TR[record, TR_RP1], E[TIME, e],
                )  # fmt: skip
            if tokens > 0 and (E[SOURCE, e] == P[dst, B_SOURCE] or E[FLAGS, e] & F_RECORD):
                check_done(S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, tokens, TR[record, TR_RP2])
            if tokens > 0 and TR[record, TR_RP2] >= 0:
                cover(R, TR[record, TR_RP2], max(0, TR[record, TR_TOK0]), tokens)
        record = TR[record, TR_OLDER]


@kernel
def free_event(
    E: Any, e: int, ev: int, G1: Any, S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, ST: Any, TR: Any,
    FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.free"""
    actor, rp, pool, off, n = E[ACTOR, e], E[RP, e], E[POOL, e], E[P_OFF, e], E[P_N, e]
    base = P[pool, B_BASE]
    anyone = E[FLAGS, e] & F_ANYONE != 0
    late = A[actor, A_END] >= 0 and E[TIME, e] - A[actor, A_END] > CT[CT_ORPHAN_NS]
    timeout = False
    if E[FLAGS, e] & F_TIMEOUT and rp >= 0:
        record = R[rp, R_TRANSFER]
        timeout = record >= 0 and TR[record, TR_STATE] == 0
    released = 0
    for i in range(n):
        page = G1[off + i]
        g = base + page
        if S[g, OWNER] == actor and late and not A[actor, A_TYPE]:
            emit(
                FR, FG, CT, X_ORPHAN, ev, actor, -1, C[g, ALLOC_EV], C[g, ALLOC_EV], pool, page, S[g, GEN], 0, 0, 0
            )  # fmt: skip
        if timeout and S[g, OWNER] == actor:
            emit(
                FR, FG, CT, X_TIMEOUT_FREE, ev, actor, -1, TR[R[rp, R_TRANSFER], TR_EV], C[g, ALLOC_EV], pool, page,
                S[g, GEN], 0, 0, 0,
            )  # fmt: skip
        if free_page(S, C, A, R, SH, SP, ST, FR, FG, CT, ev, g, page, pool, actor, rp, E[REF, e], anyone):
            released += 1
    after_free(R, rp, released, E[FLAGS, e] & F_PREEMPT != 0, E[FLAGS, e] & F_WINDOW != 0)


@kernel
def step_event(E: Any, e: int, ev: int, G1: Any, S: Any, P: Any, ST: Any, CT: Any) -> None:
    """step.begin marks its pages; step.end closes the oldest open step of that number in the pool."""
    pool, step = E[POOL, e], E[REF, e]
    if E[KIND, e] == K_STEP_BEGIN:
        if E[FLAGS, e] & F_DUMMY:
            return
        slot = CT[CT_STEPS]
        CT[CT_STEPS] += 1
        k = slot % N_STEPS
        ST[k, ST_POOL], ST[k, ST_STEP], ST[k, ST_OPEN], ST[k, ST_EV] = pool, step, slot + 1, ev
        base = P[pool, B_BASE]
        for i in range(E[P_N, e]):
            S[base + G1[E[P_OFF, e] + i], STEP] = slot
        return
    newest = CT[CT_STEPS]
    for slot in range(newest - 1, max(-1, newest - 1 - N_STEPS), -1):
        k = slot % N_STEPS
        if ST[k, ST_OPEN] and ST[k, ST_POOL] == pool and ST[k, ST_STEP] == step:
            ST[k, ST_OPEN] = 0
            return


@kernel
def pair_event(
    E: Any, e: int, ev: int, G1: Any, G2: Any, S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any,
    PP: Any, ST: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
) -> None:  # fmt: skip
    """page.copy and page.move, page by page."""
    pool1, pool2 = E[POOL, e], E[POOL2, e]
    for i in range(min(E[P_N, e], E[Q_N, e])):
        page1, page2 = G1[E[P_OFF, e] + i], G2[E[Q_OFF, e] + i]
        g1, g2 = P[pool1, B_BASE] + page1, P[pool2, B_BASE] + page2
        if E[KIND, e] == K_COPY:
            copy_page(
                S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, ev, g1, page1, pool1, E[RP, e], g2, page2, pool2, E[RP2, e],
                E[ACTOR, e],
            )  # fmt: skip
        else:
            move_page(
                S, C, L, A, R, P, SH, SP, PP, ST, SCR, FR, FG, CT, ev, g1, page1, pool1, g2, page2, pool2, E[RP2, e],
                E[TIME, e],
            )  # fmt: skip


@kernel
def run(
    E: Any, e0: int, e1: int, G1: Any, G2: Any, GS: Any, S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, P: Any,
    SH: Any, SP: Any, PB: Any, PP: Any, K: Any, TR: Any, TP: Any, TX: Any, RR: Any, RG: Any, ST: Any, SCR: Any,
    FR: Any, FG: Any, CT: Any,
) -> int:  # fmt: skip
    """Replay events [e0, e1); returns the first that was not, because an array must grow first."""
    for e in range(e0, e1):
        n = E[P_N, e] + E[Q_N, e]
        depth = CT[CT_DEPTH] + 2
        if (
            CT[CT_FACTS] + 4 * n + 64 > FR.shape[0]
            or CT[CT_PAGES] + 3 * n * depth + 64 > FG.shape[0]
            or CT[CT_LAYERS] + n * depth + 64 > L.shape[0]
            or CT[CT_NODES] + n > N.shape[0]
        ):
            return e
        ev = CT[CT_EV0] + e
        kind, pool = E[KIND, e], E[POOL, e]
        CT[CT_FACTS0] = CT[CT_FACTS]
        CT[CT_TIME] = E[TIME, e]
        CT[CT_PAGE_EVENTS] += E[P_N, e]
        if kind == K_READ:
            read_event(E, e, ev, G1, S, C, L, N, A, R, P, SH, SP, RR, RG, TR, SCR, FR, FG, CT)
        elif kind == K_WRITE:
            write_event(E, e, ev, G1, S, C, L, N, A, R, P, SH, SP, TR, TP, SCR, FR, FG, CT)
        elif kind == K_ALLOC:
            base = P[pool, B_BASE]
            for i in range(E[P_N, e]):
                page = G1[E[P_OFF, e] + i]
                alloc_page(
                    S, C, A, R, P, SH, SP, ST, FR, FG, CT, ev, base + page, page, pool, E[ACTOR, e], E[RP, e],
                    E[GEN_GIVEN, e], E[TIME, e],
                )  # fmt: skip
        elif kind == K_FREE:
            free_event(E, e, ev, G1, S, C, A, R, P, SH, SP, ST, TR, FR, FG, CT)
        elif kind == K_SHARE:
            share(
                S, C, A, R, P, SH, SP, PB, PP, K, CT, G1, ev, pool, E[P_OFF, e], E[P_N, e], E[ACTOR, e], E[RP, e],
                E[KEY, e], E[DIGEST, e], E[TOK0, e], E[TOK1, e], E[FLAGS, e] & F_RECORD != 0,
            )  # fmt: skip
            cover(R, E[RP, e], E[TOK0, e], E[TOK1, e])
        elif kind == K_PUBLISH:
            publish(
                S, P, PB, PP, K, CT, G1, ev, pool, E[P_OFF, e], E[P_N, e], E[ACTOR, e], E[KEY, e], E[DIGEST, e]
            )  # fmt: skip
        elif kind == K_UNPUBLISH:
            for i in range(E[P_N, e]):
                S[P[pool, B_BASE] + G1[E[P_OFF, e] + i], PFLAGS] &= ~PF_PUBLISHED
        elif kind == K_STEP_BEGIN or kind == K_STEP_END:
            step_event(E, e, ev, G1, S, P, ST, CT)
        elif kind == K_COPY or kind == K_MOVE:
            pair_event(E, e, ev, G1, G2, S, C, L, A, R, P, SH, SP, PP, ST, SCR, FR, FG, CT)
        elif kind >= K_OFFER:
            transfer_event(E, e, ev, G1, G2, GS, S, C, L, A, R, P, SH, SP, TR, TP, TX, SCR, FR, FG, CT)
        elif kind == K_POOL:
            base = P[pool, B_BASE]
            for page in range(P[pool, B_SIZE]):
                S[base + page, PFLAGS] &= ~PF_RESERVED
            for i in range(E[P_N, e]):
                S[base + G1[E[P_OFF, e] + i], PFLAGS] |= PF_RESERVED
    return e1
