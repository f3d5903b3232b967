"""Content that moves between pools: what is announced, what is read at the source, what is said to have arrived."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layers import NEVER, resolve
from kvwitness.audit.provenance.kernel.layout import (
    ALLOC_EV,
    B_BASE,
    B_TOKENS,
    CT_TRANSFER_PAGES,
    CT_TRANSFERS,
    GEN,
    LF_FOREIGN_ORIGIN,
    LF_TAINT,
    PF_RESERVED,
    PFLAGS,
    R_TRANSFER,
    TR_ACTOR,
    TR_D_FIRST,
    TR_D_N,
    TR_D_OFF,
    TR_DST_POOL,
    TR_EV,
    TR_ID,
    TR_LEASE,
    TR_OLDER,
    TR_READ_DONE,
    TR_S_FIRST,
    TR_S_N,
    TR_S_OFF,
    TR_SRC_POOL,
    TR_STATE,
    TR_TOK0,
    TR_TOK1,
    X_FALSE_DONE,
)
from kvwitness.audit.provenance.kernel.reads import (
    FOREIGN,
    SHARED,
    SOUND,
    STALE_OWN,
    attachment,
    late_read_page,
    rows_of,
    split_by_share,
    standing,
)


@kernel
def first_page(n: int, tok0: int, tok1: int, tokens: int) -> int:
    """The table place of the first of n pages of a movement: 0, unless they are too few to start there."""
    if tok0 <= 0 or n * tokens >= tok1:
        return 0
    return tok0 // tokens


@kernel
def begin_transfer(
    S: Any, R: Any, P: Any, TR: Any, TP: Any, TX: Any, CT: Any, G1: Any, G2: Any, GS: Any,
    ev: int, transfer: int, actor: int, src_pool: int, s_off: int, s_n: int, dst_pool: int, d_off: int, d_n: int,
    rp2: int, tok0: int, tok1: int, gen_off: int, gen_n: int,
) -> None:  # fmt: skip
    """A transfer is announced or begins. A begin after an offer keeps the generations of the offer."""
    record = CT[CT_TRANSFERS]
    CT[CT_TRANSFERS] += 1
    older = TX[transfer, 0]
    start = CT[CT_TRANSFER_PAGES]
    CT[CT_TRANSFER_PAGES] += s_n + d_n
    TR[record, TR_ACTOR] = actor
    TR[record, TR_SRC_POOL] = src_pool
    TR[record, TR_S_OFF] = start
    TR[record, TR_S_N] = s_n
    TR[record, TR_DST_POOL] = dst_pool
    TR[record, TR_D_OFF] = start + s_n
    TR[record, TR_D_N] = d_n
    TR[record, TR_S_FIRST] = first_page(s_n, tok0, tok1, P[src_pool, B_TOKENS]) if src_pool >= 0 else 0
    TR[record, TR_D_FIRST] = first_page(d_n, tok0, tok1, P[dst_pool, B_TOKENS]) if dst_pool >= 0 else 0
    TR[record, TR_TOK0] = tok0
    TR[record, TR_TOK1] = tok1
    TR[record, TR_EV] = ev
    TR[record, TR_STATE] = 0
    TR[record, TR_ID] = transfer
    TR[record, TR_OLDER] = older
    TR[record, TR_LEASE] = -1
    TR[record, TR_READ_DONE] = 0
    same_offer = (
        older >= 0
        and TR[older, TR_DST_POOL] < 0
        and TR[older, TR_ACTOR] == actor
        and TR[older, TR_S_N] == s_n
        and TR[older, TR_SRC_POOL] == src_pool
    )
    if same_offer:
        TR[record, TR_EV] = TR[older, TR_EV]
    for i in range(s_n):
        page = G1[s_off + i]
        gen = S[P[src_pool, B_BASE] + page, GEN]
        if gen_n == 1:
            gen = GS[gen_off]
        elif i < gen_n:
            gen = GS[gen_off + i]
        elif same_offer and TP[TR[older, TR_S_OFF] + i, 0] == page:
            gen = TP[TR[older, TR_S_OFF] + i, 1]
        TP[start + i, 0] = page
        TP[start + i, 1] = gen
        TP[start + i, 2] = -1
        TP[start + i, 3] = 0
    for i in range(d_n):
        TP[start + s_n + i, 0] = G2[d_off + i]
    TX[transfer, 0] = record
    if rp2 >= 0:
        R[rp2, R_TRANSFER] = record


@kernel
def source_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, i: int, lo: int, hi: int, rp1: int, expired: int,
) -> None:  # fmt: skip
    """The read of source page i is complete: late or not, and whose content left with it (kept in TP)."""
    j = TR[record, TR_S_OFF] + i
    if TP[j, 3] & 1:
        return
    TP[j, 3] |= 1
    pool = TR[record, TR_SRC_POOL]
    page, gen = TP[j, 0], TP[j, 1]
    g = P[pool, B_BASE] + page
    actor = TR[record, TR_ACTOR]
    first_place = TR[record, TR_S_FIRST]
    if S[g, PFLAGS] & PF_RESERVED:
        return
    other = late_read_page(
        S, C, L, A, R, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, lo, hi, actor, rp1, TR[record, TR_EV], gen, expired
    )  # fmt: skip
    if other >= 0:
        TP[j, 2] = other
        TP[j, 3] |= 2
        return
    n = resolve(S, L, SCR, g, lo, hi)
    share, s_lo, s_hi = attachment(S, A, R, SH, SP, g, page, actor, rp1, first_place + i, P[pool, B_TOKENS])
    if share:
        n = split_by_share(S, SCR, g, n, s_lo, s_hi)
    for k in range(n):
        w, wgen, flags, origin = SCR[k, 2], SCR[k, 3], SCR[k, 5], SCR[k, 6]
        if w == NEVER or w < 0:
            continue
        part = share if SCR[k, 0] >= s_lo and SCR[k, 1] <= s_hi else 0
        how = standing(S, g, actor, w, wgen, flags, part)
        if how == FOREIGN:
            TP[j, 2] = w
            TP[j, 3] |= 2
        elif how == SOUND or how == SHARED or how == STALE_OWN:
            if flags & LF_FOREIGN_ORIGIN:
                TP[j, 2] = origin
                TP[j, 3] |= 2
            elif flags & LF_TAINT and not TP[j, 3] & 2:
                TP[j, 2] = origin if origin >= 0 else w
                TP[j, 3] |= 4


@kernel
def settle_source(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, pos0: int, pos1: int, rp1: int, time: int,
) -> None:  # fmt: skip
    """The source pages that hold positions [pos0, pos1) of a transfer have been read."""
    if TR[record, TR_S_N] == 0:
        return
    tokens = P[TR[record, TR_SRC_POOL], B_TOKENS]
    lease = TR[record, TR_LEASE]
    expired = 1 if 0 <= lease < time else 0
    first = TR[record, TR_S_FIRST]
    end = TR[record, TR_TOK1]
    for i in range(max(0, pos0 // tokens - first), min(TR[record, TR_S_N], (pos1 - 1) // tokens - first + 1)):
        start = (first + i) * tokens
        hi = tokens if end < 0 else max(0, min(tokens, end - start))
        source_page(
            S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, i, 0, hi, rp1, expired
        )  # fmt: skip


@kernel
def origin_of(P: Any, TR: Any, TP: Any, record: int, pos0: int, pos1: int) -> tuple[int, int]:
    """Origin actor and layer flags of what arrived for positions [pos0, pos1): (-1, 0) when it is the request's own."""
    if TR[record, TR_S_N] == 0:
        return -1, 0
    tokens = P[TR[record, TR_SRC_POOL], B_TOKENS]
    first = TR[record, TR_S_FIRST]
    taint = -1
    for i in range(max(0, pos0 // tokens - first), min(TR[record, TR_S_N], (pos1 - 1) // tokens - first + 1)):
        j = TR[record, TR_S_OFF] + i
        if TP[j, 3] & 2:
            return int(TP[j, 2]), LF_FOREIGN_ORIGIN
        if TP[j, 3] & 4:
            taint = int(TP[j, 2])
    if taint >= 0:
        return taint, LF_TAINT
    return -1, 0


@kernel
def record_for(TR: Any, TP: Any, R: Any, rp: int, page: int, actor: int, place: int) -> int:
    """The latest transfer of this request that names the destination page, or -1; `place` is where to look first."""
    record = R[rp, R_TRANSFER] if rp >= 0 else -1
    if record >= 0 and TR[record, TR_ACTOR] == actor:
        k = place - TR[record, TR_D_FIRST]
        if 0 <= k < TR[record, TR_D_N] and TP[TR[record, TR_D_OFF] + k, 0] == page:
            return int(record)
    while record >= 0:
        if TR[record, TR_ACTOR] == actor:
            for j in range(TR[record, TR_D_OFF], TR[record, TR_D_OFF] + TR[record, TR_D_N]):
                if TP[j, 0] == page:
                    return int(record)
        record = TR[record, TR_OLDER]
    return -1


@kernel
def check_done(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, tokens_claimed: int, rp2: int,
) -> None:  # fmt: skip
    """`done` claims positions up to `tokens_claimed`: each destination page must hold complete writes of them."""
    pool = TR[record, TR_DST_POOL]
    if pool < 0:
        return
    tokens = P[pool, B_TOKENS]
    lower = max(0, TR[record, TR_TOK0])
    for i in range(TR[record, TR_D_N]):
        page = TP[TR[record, TR_D_OFF] + i, 0]
        g = P[pool, B_BASE] + page
        if S[g, PFLAGS] & PF_RESERVED:
            continue
        place = TR[record, TR_D_FIRST] + i
        lo, hi = rows_of(place, 0, tokens_claimed, tokens)
        lo = max(lo, lower - place * tokens)
        if hi <= lo or place * tokens >= tokens_claimed:
            continue
        actor = TR[record, TR_ACTOR]
        share, s_lo, s_hi = attachment(S, A, R, SH, SP, g, page, actor, rp2, place, tokens)
        n = resolve(S, L, SCR, g, lo, hi)
        if share:
            n = split_by_share(S, SCR, g, n, s_lo, s_hi)
        for k in range(n):
            part = share if SCR[k, 0] >= s_lo and SCR[k, 1] <= s_hi else 0
            how = standing(S, g, actor, SCR[k, 2], SCR[k, 3], SCR[k, 5], part)
            if how != SOUND and how != SHARED:
                emit(
                    FR, FG, CT, X_FALSE_DONE, ev, actor, -1, TR[record, TR_EV], C[g, ALLOC_EV], pool, page, S[g, GEN],
                    SCR[k, 0], SCR[k, 1], 0,
                )  # fmt: skip
                break
