"""Content that moves between pools: what is announced, what is read at the source, what is said to have arrived."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layers import NEVER, resolve
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_TAINT,
    LF_UNKNOWN,
    PF_KNOWN,
    PF_RESERVED,
    X_FALSE_DONE,
)
from kvwitness.audit.provenance.kernel.reads import (
    FOREIGN,
    SHARED,
    SOUND,
    STALE_OWN,
    UNWRITTEN,
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
    record = CT.transfers
    CT.transfers += 1
    older = TX[transfer].head
    start = CT.transfer_pages
    CT.transfer_pages += s_n + d_n
    TR[record].actor = actor
    TR[record].src_pool = src_pool
    TR[record].s_off = start
    TR[record].s_n = s_n
    TR[record].dst_pool = dst_pool
    TR[record].d_off = start + s_n
    TR[record].d_n = d_n
    TR[record].s_first = first_page(s_n, tok0, tok1, P[src_pool].tokens) if src_pool >= 0 else 0
    TR[record].d_first = first_page(d_n, tok0, tok1, P[dst_pool].tokens) if dst_pool >= 0 else 0
    TR[record].tok0 = tok0
    TR[record].tok1 = tok1
    TR[record].ev = ev
    TR[record].state = 0
    TR[record].id = transfer
    TR[record].older = older
    TR[record].lease = -1
    same_offer = (
        older >= 0
        and TR[older].dst_pool < 0
        and TR[older].actor == actor
        and TR[older].s_n == s_n
        and TR[older].src_pool == src_pool
    )
    if same_offer:
        TR[record].ev = TR[older].ev
    for i in range(s_n):
        page = G1[s_off + i]
        gen = S[P[src_pool].base + page].gen
        if gen_n == 1:
            gen = GS[gen_off]
        elif i < gen_n:
            gen = GS[gen_off + i]
        elif same_offer and TP[TR[older].s_off + i].page == page:
            gen = TP[TR[older].s_off + i].gen
        TP[start + i].page = page
        TP[start + i].gen = gen
        TP[start + i].origin = -1
        TP[start + i].flags = 0
    for i in range(d_n):
        TP[start + s_n + i].page = G2[d_off + i]
    TX[transfer].head = record
    if rp2 >= 0:
        R[rp2].transfer = record


@kernel
def source_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, i: int, lo: int, hi: int, rp1: int, expired: int,
) -> None:  # fmt: skip
    """The read of source page i is complete: late or not, and whose content left with it (kept in TP)."""
    j = TR[record].s_off + i
    if TP[j].flags & 1:
        return
    TP[j].flags |= 1
    pool = TR[record].src_pool
    page, gen = TP[j].page, TP[j].gen
    g = P[pool].base + page
    actor = TR[record].actor
    first_place = TR[record].s_first
    if S[g].flags & PF_RESERVED:
        return
    other = late_read_page(
        S, C, L, A, R, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, lo, hi, actor, rp1, TR[record].ev, gen, expired
    )  # fmt: skip
    if other >= 0:
        TP[j].origin = other
        TP[j].flags |= 16 if P[pool].gap_ev >= C[g].alloc_ev and P[pool].gap_ev >= 0 else 2
        return
    if S[g].gen == 0 and S[g].owner < 0 and S[g].hi == 0:
        return  # a store of which nothing is on record gives no origin
    n = resolve(S, L, SCR, g, lo, hi)
    share, s_lo, s_hi = attachment(S, A, R, SH, SP, g, page, actor, rp1, first_place + i, P[pool].tokens)
    if share:
        n = split_by_share(S, SCR, g, n, s_lo, s_hi)
    lost = P[pool].gap_ev >= C[g].alloc_ev and P[pool].gap_ev >= 0
    for k in range(n):
        w, wgen, flags, origin = SCR[k].writer, SCR[k].gen, SCR[k].flags, SCR[k].origin
        if w == NEVER or w < 0:
            unknown = flags & LF_UNKNOWN or not S[g].flags & PF_KNOWN or lost
            TP[j].flags |= 16 if unknown else 8
            continue
        part = share if SCR[k].lo >= s_lo and SCR[k].hi <= s_hi else 0
        how = standing(S, g, actor, w, wgen, flags, part)
        if how == FOREIGN or how == UNWRITTEN:
            TP[j].origin = w
            TP[j].flags |= 16 if lost else 2
        elif how == SOUND or how == SHARED or how == STALE_OWN:
            if flags & LF_FOREIGN_ORIGIN:
                TP[j].origin = origin
                TP[j].flags |= 2
            elif flags & LF_TAINT and not TP[j].flags & 2:
                TP[j].origin = origin if origin >= 0 else w
                TP[j].flags |= 4


@kernel
def settle_source(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, pos0: int, pos1: int, rp1: int, time: int,
) -> int:  # fmt: skip
    """The source pages that hold positions [pos0, pos1) of a transfer have been read; how many were not plain."""
    if TR[record].s_n == 0:
        return 0
    dirty = 0
    tokens = P[TR[record].src_pool].tokens
    actor, lease = TR[record].actor, TR[record].lease
    expired = 1 if 0 <= lease < time else 0
    first = TR[record].s_first
    end = TR[record].tok1
    for i in range(max(0, pos0 // tokens - first), min(TR[record].s_n, (pos1 - 1) // tokens - first + 1)):
        start = (first + i) * tokens
        hi = tokens if end < 0 else max(0, min(tokens, end - start))
        entry = TP[TR[record].s_off + i]
        page = S[P[TR[record].src_pool].base + entry.page]
        own = page.owner == actor and page.writer == actor and page.lflags == 0 and page.origin < 0
        if own and page.gen == entry.gen and page.lgen == page.gen and page.lo == 0 and page.hi >= hi and not expired:
            entry.flags |= 1  # its own complete content, still held: nothing to travel with it
            continue
        source_page(
            S, C, L, A, R, P, SH, SP, SCR, FR, FG, CT, TR, TP, ev, record, i, 0, hi, rp1, expired
        )  # fmt: skip
        if entry.flags & ~1:
            dirty += 1
    return dirty


@kernel
def origin_of(P: Any, TR: Any, TP: Any, record: int, pos0: int, pos1: int) -> tuple[int, int]:
    """Origin actor and layer flags of what arrived for positions [pos0, pos1): (-1, 0) when it is the request's own."""
    if TR[record].s_n == 0:
        return -1, 0
    tokens = P[TR[record].src_pool].tokens
    first = TR[record].s_first
    taint = -1
    blank = 0
    for i in range(max(0, pos0 // tokens - first), min(TR[record].s_n, (pos1 - 1) // tokens - first + 1)):
        j = TR[record].s_off + i
        if TP[j].flags & 2:
            return int(TP[j].origin), LF_FOREIGN_ORIGIN
        if TP[j].flags & 24:
            blank = LF_UNKNOWN if TP[j].flags & 16 else LF_BLANK
        if TP[j].flags & 4:
            taint = int(TP[j].origin)
    if blank:
        return -1, blank
    if taint >= 0:
        return taint, LF_TAINT
    return -1, 0


@kernel
def record_for(TR: Any, TP: Any, R: Any, rp: int, page: int, actor: int, place: int) -> int:
    """The latest transfer of this request that names the destination page, or -1; `place` is where to look first."""
    record = R[rp].transfer if rp >= 0 else -1
    if record >= 0 and TR[record].actor == actor:
        k = place - TR[record].d_first
        if 0 <= k < TR[record].d_n and TP[TR[record].d_off + k].page == page:
            return int(record)
    while record >= 0:
        if TR[record].actor == actor:
            for j in range(TR[record].d_off, TR[record].d_off + TR[record].d_n):
                if TP[j].page == page:
                    return int(record)
        record = TR[record].older
    return -1


@kernel
def check_done(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any, TR: Any,
    TP: Any, ev: int, record: int, tokens_claimed: int, rp2: int,
) -> None:  # fmt: skip
    """`done` claims positions up to `tokens_claimed`: each destination page must hold complete writes of them."""
    pool = TR[record].dst_pool
    if pool < 0:
        return
    tokens = P[pool].tokens
    lower = max(0, TR[record].tok0)
    for i in range(TR[record].d_n):
        page = TP[TR[record].d_off + i].page
        g = P[pool].base + page
        if S[g].flags & PF_RESERVED:
            continue
        place = TR[record].d_first + i
        lo, hi = rows_of(place, 0, tokens_claimed, tokens)
        lo = max(lo, lower - place * tokens)
        if hi <= lo or place * tokens >= tokens_claimed:
            continue
        actor = TR[record].actor
        share, s_lo, s_hi = attachment(S, A, R, SH, SP, g, page, actor, rp2, place, tokens)
        n = resolve(S, L, SCR, g, lo, hi)
        if share:
            n = split_by_share(S, SCR, g, n, s_lo, s_hi)
        for k in range(n):
            part = share if SCR[k].lo >= s_lo and SCR[k].hi <= s_hi else 0
            if SCR[k].writer == actor and SCR[k].gen == S[g].gen:
                continue  # it arrived; what arrived is another question
            how = standing(S, g, actor, SCR[k].writer, SCR[k].gen, SCR[k].flags, part)
            if how != SOUND and how != SHARED:
                emit(
                    FR, FG, CT, X_FALSE_DONE, ev, actor, -1, TR[record].ev, C[g].alloc_ev, pool, page, S[g].gen,
                    SCR[k].lo, SCR[k].hi, 0,
                )  # fmt: skip
                break
