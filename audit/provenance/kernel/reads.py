"""Judging what a read met: own content, admitted content, or somebody else's."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, foreign_after, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_INTRUDER,
    LF_TAINT,
    LF_UNKNOWN,
    NOBODY,
    OP_COPY,
    OP_OFFLOAD,
    OP_OPEN_READ,
    OP_TRANSFER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_RESERVED,
    T_REQUEST,
    T_SESSION,
    T_SNAPSHOT,
    X_FOREIGN,
    X_LATE_READ,
    X_NOT_READY,
    X_SHARED,
    X_TAINTED,
    X_UNKNOWN,
    X_UNWRITTEN,
)

# how a piece of a page stands to a reader
SOUND, SHARED, FOREIGN, UNWRITTEN, STALE_OWN, UNKNOWN = range(6)


@kernel
def rows_of(i: int, tok0: int, tok1: int, tokens: int) -> tuple[int, int]:
    """Rows [lo, hi) of the i-th page of an event that covers positions [tok0, tok1); whole pages without them."""
    if tok0 < 0:
        return 0, tokens
    start = (tok0 // tokens + i) * tokens
    lo = max(0, tok0 - start)
    hi = min(tokens, tok1 - start)
    return lo, max(lo, hi)


@kernel
def attachment(
    S: Any, A: Any, R: Any, SH: Any, SP: Any, g: int, page: int, actor: int, rp: int, ordinal: int, tokens: int
) -> tuple[int, int, int]:  # fmt: skip
    """How a request is attached to a page: 1 admitted, 2 attached but not admitted, 0 not; and the rows it covers.

    Pages that a session or a snapshot of the reader's own tenant keeps count as admitted.
    """
    state = S[g]
    owner = state.owner
    if owner >= 0 and (A[owner].type == T_SESSION or A[owner].type == T_SNAPSHOT):
        if A[owner].tenant == A[actor].tenant:
            return 1, 0, tokens
    entry = share_of(R, SH, SP, rp, page, state.gen, ordinal)
    if entry < 0:
        return 0, 0, 0
    record = share_record(R, SH, rp, entry)
    lo, hi = 0, tokens
    if SH[record].tok0 >= 0:
        base = (SH[record].ord + entry - SH[record].off) * tokens
        lo = max(0, SH[record].tok0 - base)
        hi = max(lo, min(tokens, SH[record].tok1 - base))
    return (1 if SP[entry].flags & 1 else 2), lo, hi


@kernel
def standing(S: Any, g: int, actor: int, writer: int, gen: int, flags: int, share: int) -> int:
    """How a piece written by `writer` in generation `gen` stands to `actor`, given its share of these rows."""
    state = S[g]
    if flags & LF_UNKNOWN:
        return UNKNOWN
    if writer == NEVER or flags & LF_BLANK:
        return UNWRITTEN if state.flags & PF_KNOWN or writer != NEVER else UNKNOWN
    live = gen == state.gen
    if writer == actor:
        return SOUND if live else STALE_OWN
    if not live:
        return UNWRITTEN
    if share == 1 and writer != NOBODY and not flags & LF_INTRUDER:
        return SHARED
    return FOREIGN


@kernel
def open_write_covers(C: Any, N: Any, S: Any, g: int, lo: int, hi: int) -> bool:
    """Whether a write that was issued in the live generation and has not ended would fill some of [lo, hi)."""
    state = S[g]
    cold = C[g]
    if not state.flags & PF_OPEN_WRITE:
        return False
    node = cold.open_writes
    while node >= 0:
        if N[node].gen == state.gen and N[node].lo < hi and N[node].hi > lo and N[node].op != OP_OPEN_READ:
            return True
        node = N[node].next
    return False


@kernel
def is_holder(S: Any, C: Any, R: Any, SH: Any, SP: Any, g: int, page: int, actor: int, rp: int, ordinal: int) -> bool:
    """Whether the request owns the page, is its second owner, or is attached to it."""
    state = S[g]
    cold = C[g]
    if state.owner == actor or (state.flags & PF_CO and cold.co_owner == actor):
        return True
    return bool(share_of(R, SH, SP, rp, page, state.gen, ordinal) >= 0)


@kernel
def split_by_share(S: Any, SCR: Any, g: int, n: int, lo: int, hi: int) -> int:
    """Cut the n pieces in SCR where the rows of a share begin and end; returns how many there are then."""
    state = S[g]
    gen = state.gen
    for k in range(n):
        if SCR[k].gen != gen:
            continue
        for cut in (lo, hi):
            if SCR[k].lo < cut < SCR[k].hi:
                SCR[n].lo = cut
                SCR[n].hi = SCR[k].hi
                SCR[n].writer = SCR[k].writer
                SCR[n].gen = SCR[k].gen
                SCR[n].ev = SCR[k].ev
                SCR[n].flags = SCR[k].flags
                SCR[n].origin = SCR[k].origin
                SCR[k].hi = cut
                n += 1
    return n


@kernel
def report(
    S: Any, C: Any, N: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, k: int, how: int, actor: int, rp: int, ordinal: int, share: int,
    remote: bool,
) -> None:  # fmt: skip
    """Write down one piece of a read that is not plainly sound."""
    state = S[g]
    cold = C[g]
    x, y, w, wev, flags, origin = SCR[k].lo, SCR[k].hi, SCR[k].writer, SCR[k].ev, SCR[k].flags, SCR[k].origin
    gen, since = state.gen, cold.alloc_ev
    if how == SOUND or how == SHARED:
        if flags & LF_FOREIGN_ORIGIN:
            emit(FR, FG, CT, X_FOREIGN, ev, actor, origin, wev, since, pool, page, gen, x, y, 1)
        elif flags & LF_TAINT and origin != actor and (how == SHARED or origin >= 0):
            source = origin if origin >= 0 else w
            emit(FR, FG, CT, X_TAINTED, ev, actor, source, wev, since, pool, page, gen, x, y, 0)
        if how == SHARED:
            entry = share_of(R, SH, SP, rp, page, gen, ordinal)
            if entry >= 0 and not SP[entry].flags & 2 and A[w].tenant != A[actor].tenant:
                emit(FR, FG, CT, X_SHARED, ev, actor, w, wev, since, pool, page, gen, x, y, 0)
    elif how == UNKNOWN:
        emit(FR, FG, CT, X_UNKNOWN, ev, actor, -1, -1, -1, pool, page, gen, x, y, 0)
    elif how == STALE_OWN and state.owner != actor and remote:
        pass  # a former holder's copy of its own old bytes: whether it came too late is judged when it ends
    elif how == FOREIGN:
        emit(FR, FG, CT, X_FOREIGN, ev, actor, w, wev, since, pool, page, gen, x, y, 0)
    else:
        b = -1 if w == NEVER or w == actor or flags & LF_BLANK else w
        arrived = (
            1 if w == actor and flags & LF_BLANK else 0
        )  # it came with the reader's own transfer, from where nobody had written
        emit(FR, FG, CT, X_UNWRITTEN, ev, actor, b, wev, since, pool, page, gen, x, y, arrived)
        if share > 0 or open_write_covers(C, N, S, g, x, y):
            emit(FR, FG, CT, X_NOT_READY, ev, actor, b, wev, since, pool, page, gen, x, y, 0)


@kernel
def keep_open(S: Any, C: Any, N: Any, CT: Any, g: int, actor: int, ev: int, lo: int, hi: int) -> None:
    """Remember the read of one who does not hold the page: later writes there happen under its eyes."""
    state = S[g]
    cold = C[g]
    node = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    while node >= 0:
        if N[node].actor == actor and N[node].op == OP_OPEN_READ:
            N[node].lo = min(N[node].lo, lo)
            N[node].hi = max(N[node].hi, hi)
            return
        node = N[node].next
    node = CT.node_free
    if node >= 0:
        CT.node_free = N[node].next
    else:
        node = CT.nodes
        CT.nodes += 1
    N[node].actor = actor
    N[node].ev = ev
    N[node].gen = state.gen
    N[node].lo = lo
    N[node].hi = hi
    N[node].op = OP_OPEN_READ
    N[node].next = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    cold.open_writes = node
    state.flags |= PF_OPEN_WRITE


@kernel
def read_page(
    S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, ordinal: int, op: int,
    tokens: int,
) -> None:  # fmt: skip
    """Judge a read of rows [lo, hi) that is not plainly a read of the reader's own complete writes."""
    state = S[g]
    cold = C[g]
    if state.flags & PF_RESERVED:
        return
    share, s_lo, s_hi = attachment(S, A, R, SH, SP, g, page, actor, rp, ordinal, tokens)
    holder = is_holder(S, C, R, SH, SP, g, page, actor, rp, ordinal)
    remote = op == OP_TRANSFER or op == OP_OFFLOAD or op == OP_COPY
    n = resolve(S, L, SCR, g, lo, hi)
    if share:
        n = split_by_share(S, SCR, g, n, s_lo, s_hi)
    seen = 17
    tainted = False
    sound = True
    for k in range(n):
        part = share if SCR[k].lo >= s_lo and SCR[k].hi <= s_hi else 0
        how = standing(S, g, actor, SCR[k].writer, SCR[k].gen, SCR[k].flags, part)
        SCR[k].how = how
        seen = (seen * 31 + SCR[k].ev * 64 + SCR[k].lo * 8 + how) & 0x3FFFFFFF
        sound = sound and (how == SOUND or how == SHARED) and SCR[k].flags == 0
        tainted = tainted or how == FOREIGN or how == UNWRITTEN or (how == STALE_OWN and not remote)
        if how <= SHARED and SCR[k].flags & (LF_FOREIGN_ORIGIN | LF_TAINT) and SCR[k].origin != actor:
            tainted = tainted or SCR[k].origin >= 0 or how == SHARED
    if tainted:
        A[actor].tainted = 1
        if not holder:
            keep_open(S, C, N, CT, g, actor, ev, lo, hi)
    if state.owner == actor:
        if cold.reported == seen:
            return  # the same rows in the same state as at its last read: that was written down then
        cold.reported = seen
    for k in range(n):
        part = share if SCR[k].lo >= s_lo and SCR[k].hi <= s_hi else 0
        if SCR[k].how != SOUND or SCR[k].flags != 0:
            report(
                S, C, N, A, R, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, k, SCR[k].how, actor, rp, ordinal,
                max(part, share) if SCR[k].how == UNWRITTEN else part, remote,
            )  # fmt: skip
    if sound and n == 1 and share == 1:
        entry = share_of(R, SH, SP, rp, page, state.gen, ordinal)
        if entry >= 0:
            SP[entry].flags |= 2


@kernel
def remember_read(
    S: Any, R: Any, P: Any, RR: Any, RG: Any, CT: Any, G1: Any,
    ev: int, pool: int, off: int, n: int, actor: int, rp: int, tok0: int, tok1: int, op: int, gen: int,
) -> None:  # fmt: skip
    """Keep a read that an explicit end may close later, with the generations that it began on."""
    record = CT.reads
    CT.reads += 1
    start = CT.read_pages
    CT.read_pages += n
    RR[record].actor = actor
    RR[record].pool = pool
    RR[record].ev = ev
    RR[record].off = start
    RR[record].n = n
    RR[record].tok0 = tok0
    RR[record].tok1 = tok1
    RR[record].op = op
    RR[record].open = 1
    RR[record].older = R[rp].read
    R[rp].read = record
    base = P[pool].base
    for i in range(n):
        page = G1[off + i]
        RG[start + i].page = page
        RG[start + i].gen = gen if gen >= 0 else S[base + page].gen


@kernel
def find_read(R: Any, RR: Any, RG: Any, G1: Any, off: int, n: int, rp: int, tok0: int, tok1: int, op: int) -> int:
    """The latest open read of the same request, pool, operation, pages and positions, or -1."""
    record = R[rp].read
    while record >= 0:
        if (
            RR[record].open
            and RR[record].op == op
            and RR[record].n == n
            and RR[record].tok0 == tok0
            and RR[record].tok1 == tok1
        ):
            same = True
            for i in range(n):
                if RG[RR[record].off + i].page != G1[off + i]:
                    same = False
                    break
            if same:
                return int(record)
        record = RR[record].older
    return -1


@kernel
def late_read_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, began: int, gen: int, lease: int,
) -> int:  # fmt: skip
    """A read that began at `began` on generation `gen` completes: was the page still the reader's to read?

    Returns the other writer whose content arrived before the read was complete, or -1.
    """
    state = S[g]
    cold = C[g]
    owner = state.owner
    if not state.flags & PF_KNOWN:
        return -1
    if state.flags & PF_RESERVED or (state.gen == 0 and owner < 0 and state.hi == 0):
        return -1  # reserved, or a page of which the record knows nothing at all
    kept = state.gen == gen and (owner >= 0 and A[owner].type != T_REQUEST)
    kept = kept or (state.gen == gen and is_holder(S, C, R, SH, SP, g, page, actor, rp, -1))
    if kept and not lease:
        return -1
    if state.gen == gen and not kept and cold.previous != actor and not was_written_by(S, L, g, actor):
        return -1  # it was never the reader's: what it met there is judged as a read, not as a late one
    k = foreign_after(S, L, SCR, g, lo, hi, actor, began)
    if k < 0 and state.gen != gen:
        n = resolve(S, L, SCR, g, lo, hi)
        for j in range(n):
            if SCR[j].writer != NEVER and SCR[j].writer != actor and SCR[j].gen > gen:
                k = j
                break
    since = cold.alloc_ev
    if k >= 0:
        other, when = SCR[k].writer, SCR[k].ev
        emit(FR, FG, CT, X_LATE_READ, ev, actor, other, when, since, pool, page, state.gen, lo, hi, 2)
        A[actor].tainted = 1
        return int(other)
    when = cold.free_ev
    emit(FR, FG, CT, X_LATE_READ, ev, actor, -1, when, since, pool, page, state.gen, lo, hi, 1 if lease else 0)
    return -1


@kernel
def end_read(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, RR: Any, RG: Any, SCR: Any, FR: Any, FG: Any,
    CT: Any, ev: int, record: int, lease: int, rp: int,
) -> None:  # fmt: skip
    """An explicit end closes a read that was remembered."""
    RR[record].open = 0
    pool = RR[record].pool
    tokens = P[pool].tokens
    base = P[pool].base
    tok0, tok1 = RR[record].tok0, RR[record].tok1
    for i in range(RR[record].n):
        j = RR[record].off + i
        page = RG[j].page
        lo, hi = rows_of(i, tok0, tok1, tokens)
        late_read_page(
            S, C, L, A, R, SH, SP, SCR, FR, FG, CT, ev, base + page, page, pool, lo, hi, RR[record].actor, rp,
            RR[record].ev, RG[j].gen, lease,
        )  # fmt: skip
