"""Judging what a read met: own content, admitted content, or somebody else's."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, foreign_after, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    A_TAINTED,
    A_TENANT,
    A_TYPE,
    ALLOC_EV,
    B_BASE,
    B_TOKENS,
    CO_OWNER,
    CT_READ_PAGES,
    CT_READS,
    FREE_EV,
    GEN,
    HI,
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_INTRUDER,
    LF_TAINT,
    N_GEN,
    N_HI,
    N_LO,
    N_NEXT,
    NOBODY,
    OP_COPY,
    OP_OFFLOAD,
    OP_TRANSFER,
    OPEN_WRITES,
    OWNER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_RESERVED,
    PFLAGS,
    PREVIOUS,
    R_READ,
    RR_ACTOR,
    RR_EV,
    RR_N,
    RR_OFF,
    RR_OLDER,
    RR_OP,
    RR_OPEN,
    RR_POOL,
    RR_TOK0,
    RR_TOK1,
    REPORTED,
    SH_OFF,
    SH_ORD,
    SH_TOK0,
    SH_TOK1,
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
    owner = S[g, OWNER]
    if owner >= 0 and (A[owner, A_TYPE] == T_SESSION or A[owner, A_TYPE] == T_SNAPSHOT):
        if A[owner, A_TENANT] == A[actor, A_TENANT]:
            return 1, 0, tokens
    entry = share_of(R, SH, SP, rp, page, S[g, GEN], ordinal)
    if entry < 0:
        return 0, 0, 0
    record = share_record(R, SH, rp, entry)
    lo, hi = 0, tokens
    if SH[record, SH_TOK0] >= 0:
        base = (SH[record, SH_ORD] + entry - SH[record, SH_OFF]) * tokens
        lo = max(0, SH[record, SH_TOK0] - base)
        hi = max(lo, min(tokens, SH[record, SH_TOK1] - base))
    return (1 if SP[entry, 2] & 1 else 2), lo, hi


@kernel
def standing(S: Any, g: int, actor: int, writer: int, gen: int, flags: int, share: int) -> int:
    """How a piece written by `writer` in generation `gen` stands to `actor`, given its share of these rows."""
    if writer == NEVER or flags & LF_BLANK:
        return UNWRITTEN if S[g, PFLAGS] & PF_KNOWN or writer != NEVER else UNKNOWN
    live = gen == S[g, GEN]
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
    if not S[g, PFLAGS] & PF_OPEN_WRITE:
        return False
    node = C[g, OPEN_WRITES]
    while node >= 0:
        if N[node, N_GEN] == S[g, GEN] and N[node, N_LO] < hi and N[node, N_HI] > lo:
            return True
        node = N[node, N_NEXT]
    return False


@kernel
def is_holder(S: Any, C: Any, R: Any, SH: Any, SP: Any, g: int, page: int, actor: int, rp: int, ordinal: int) -> bool:
    """Whether the request owns the page, is its second owner, or is attached to it."""
    if S[g, OWNER] == actor or (S[g, PFLAGS] & PF_CO and C[g, CO_OWNER] == actor):
        return True
    return bool(share_of(R, SH, SP, rp, page, S[g, GEN], ordinal) >= 0)


@kernel
def split_by_share(S: Any, SCR: Any, g: int, n: int, lo: int, hi: int) -> int:
    """Cut the n pieces in SCR where the rows of a share begin and end; returns how many there are then."""
    gen = S[g, GEN]
    for k in range(n):
        if SCR[k, 3] != gen:
            continue
        for cut in (lo, hi):
            if SCR[k, 0] < cut < SCR[k, 1]:
                for c in range(8):
                    SCR[n, c] = SCR[k, c]
                SCR[n, 0] = cut
                SCR[k, 1] = cut
                n += 1
    return n


@kernel
def report(
    S: Any, C: Any, N: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, k: int, how: int, actor: int, rp: int, ordinal: int, share: int,
    remote: bool, holder: bool,
) -> None:  # fmt: skip
    """Write down one piece of a read that is not plainly sound."""
    x, y, w, wev, flags, origin = SCR[k, 0], SCR[k, 1], SCR[k, 2], SCR[k, 4], SCR[k, 5], SCR[k, 6]
    gen, since = S[g, GEN], C[g, ALLOC_EV]
    if how == SOUND or how == SHARED:
        if flags & LF_FOREIGN_ORIGIN:
            emit(FR, FG, CT, X_FOREIGN, ev, actor, origin, wev, since, pool, page, gen, x, y, 1)
        elif flags & LF_TAINT and origin != actor and (how == SHARED or origin >= 0):
            source = origin if origin >= 0 else w
            emit(FR, FG, CT, X_TAINTED, ev, actor, source, wev, since, pool, page, gen, x, y, 0)
        if how == SHARED:
            entry = share_of(R, SH, SP, rp, page, gen, ordinal)
            if entry >= 0 and not SP[entry, 2] & 2 and A[w, A_TENANT] != A[actor, A_TENANT]:
                emit(FR, FG, CT, X_SHARED, ev, actor, w, wev, since, pool, page, gen, x, y, 0)
        elif not holder and not remote and S[g, PFLAGS] & PF_KNOWN:
            emit(FR, FG, CT, X_LATE_READ, ev, actor, -1, C[g, FREE_EV], since, pool, page, gen, x, y, 0)
    elif how == UNKNOWN:
        emit(FR, FG, CT, X_UNKNOWN, ev, actor, -1, -1, -1, pool, page, gen, x, y, 0)
    elif how == STALE_OWN and S[g, OWNER] != actor:
        if not remote:
            emit(FR, FG, CT, X_LATE_READ, ev, actor, S[g, OWNER], since, since, pool, page, gen, x, y, 0)
    elif how == FOREIGN:
        emit(FR, FG, CT, X_FOREIGN, ev, actor, w, wev, since, pool, page, gen, x, y, 0)
    else:
        b = -1 if w == NEVER or flags & LF_BLANK else w
        emit(FR, FG, CT, X_UNWRITTEN, ev, actor, b, wev, since, pool, page, gen, x, y, 0)
        if share > 0 or open_write_covers(C, N, S, g, x, y):
            emit(FR, FG, CT, X_NOT_READY, ev, actor, b, wev, since, pool, page, gen, x, y, 0)


@kernel
def read_page(
    S: Any, C: Any, L: Any, N: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, ordinal: int, op: int,
    tokens: int,
) -> None:  # fmt: skip
    """Judge a read of rows [lo, hi) that is not plainly a read of the reader's own complete writes."""
    if S[g, PFLAGS] & PF_RESERVED:
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
        part = share if SCR[k, 0] >= s_lo and SCR[k, 1] <= s_hi else 0
        how = standing(S, g, actor, SCR[k, 2], SCR[k, 3], SCR[k, 5], part)
        SCR[k, 7] = how
        seen = (seen * 31 + SCR[k, 4] * 64 + SCR[k, 0] * 8 + how) & 0x3FFFFFFF
        sound = sound and (how == SOUND or how == SHARED) and SCR[k, 5] == 0
        tainted = tainted or how == FOREIGN or how == UNWRITTEN or (how == STALE_OWN and S[g, OWNER] == actor)
        if how <= SHARED and SCR[k, 5] & (LF_FOREIGN_ORIGIN | LF_TAINT) and SCR[k, 6] != actor:
            tainted = tainted or SCR[k, 6] >= 0 or how == SHARED
    if tainted:
        A[actor, A_TAINTED] = 1
    if S[g, OWNER] == actor:
        if C[g, REPORTED] == seen:
            return  # the same rows in the same state as at its last read: that was written down then
        C[g, REPORTED] = seen
    for k in range(n):
        part = share if SCR[k, 0] >= s_lo and SCR[k, 1] <= s_hi else 0
        if SCR[k, 7] != SOUND or SCR[k, 5] != 0 or not holder:
            report(
                S, C, N, A, R, SH, SP, SCR, FR, FG, CT, ev, g, page, pool, k, SCR[k, 7], actor, rp, ordinal,
                max(part, share) if SCR[k, 7] == UNWRITTEN else part, remote, holder,
            )  # fmt: skip
    if sound and n == 1 and share == 1:
        entry = share_of(R, SH, SP, rp, page, S[g, GEN], ordinal)
        if entry >= 0:
            SP[entry, 2] |= 2


@kernel
def remember_read(
    S: Any, R: Any, P: Any, RR: Any, RG: Any, CT: Any, G1: Any,
    ev: int, pool: int, off: int, n: int, actor: int, rp: int, tok0: int, tok1: int, op: int, gen: int,
) -> None:  # fmt: skip
    """Keep a read that an explicit end may close later, with the generations that it began on."""
    record = CT[CT_READS]
    CT[CT_READS] += 1
    start = CT[CT_READ_PAGES]
    CT[CT_READ_PAGES] += n
    RR[record, RR_ACTOR] = actor
    RR[record, RR_POOL] = pool
    RR[record, RR_EV] = ev
    RR[record, RR_OFF] = start
    RR[record, RR_N] = n
    RR[record, RR_TOK0] = tok0
    RR[record, RR_TOK1] = tok1
    RR[record, RR_OP] = op
    RR[record, RR_OPEN] = 1
    RR[record, RR_OLDER] = R[rp, R_READ]
    R[rp, R_READ] = record
    base = P[pool, B_BASE]
    for i in range(n):
        page = G1[off + i]
        RG[start + i, 0] = page
        RG[start + i, 1] = gen if gen >= 0 else S[base + page, GEN]


@kernel
def find_read(R: Any, RR: Any, RG: Any, G1: Any, off: int, n: int, rp: int, tok0: int, tok1: int, op: int) -> int:
    """The latest open read of the same request, pool, operation, pages and positions, or -1."""
    record = R[rp, R_READ]
    while record >= 0:
        if (
            RR[record, RR_OPEN]
            and RR[record, RR_OP] == op
            and RR[record, RR_N] == n
            and RR[record, RR_TOK0] == tok0
            and RR[record, RR_TOK1] == tok1
        ):
            same = True
            for i in range(n):
                if RG[RR[record, RR_OFF] + i, 0] != G1[off + i]:
                    same = False
                    break
            if same:
                return int(record)
        record = RR[record, RR_OLDER]
    return -1


@kernel
def late_read_page(
    S: Any, C: Any, L: Any, A: Any, R: Any, SH: Any, SP: Any, SCR: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, began: int, gen: int, lease: int,
) -> int:  # fmt: skip
    """A read that began at `began` on generation `gen` completes: was the page still the reader's to read?

    Returns the other writer whose content arrived before the read was complete, or -1.
    """
    owner = S[g, OWNER]
    if S[g, PFLAGS] & PF_RESERVED or (S[g, GEN] == 0 and owner < 0 and S[g, HI] == 0):
        return -1  # reserved, or a page of which the record knows nothing at all
    kept = S[g, GEN] == gen and (owner >= 0 and A[owner, A_TYPE] != T_REQUEST)
    kept = kept or (S[g, GEN] == gen and is_holder(S, C, R, SH, SP, g, page, actor, rp, -1))
    if kept and not lease:
        return -1
    if S[g, GEN] == gen and not kept and C[g, PREVIOUS] != actor and not was_written_by(S, L, g, actor):
        return -1  # it was never the reader's: what it met there is judged as a read, not as a late one
    k = foreign_after(S, L, SCR, g, lo, hi, actor, began)
    if k < 0 and S[g, GEN] != gen:
        n = resolve(S, L, SCR, g, lo, hi)
        for j in range(n):
            if SCR[j, 2] != NEVER and SCR[j, 2] != actor and SCR[j, 3] > gen:
                k = j
                break
    since = C[g, ALLOC_EV]
    if k >= 0:
        other, when = SCR[k, 2], SCR[k, 4]
        emit(FR, FG, CT, X_LATE_READ, ev, actor, other, when, since, pool, page, S[g, GEN], lo, hi, 2)
        A[actor, A_TAINTED] = 1
        return int(other)
    when = C[g, FREE_EV]
    emit(FR, FG, CT, X_LATE_READ, ev, actor, -1, when, since, pool, page, S[g, GEN], lo, hi, 1 if lease else 0)
    return -1


@kernel
def end_read(
    S: Any, C: Any, L: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, RR: Any, RG: Any, SCR: Any, FR: Any, FG: Any,
    CT: Any, ev: int, record: int, lease: int, rp: int,
) -> None:  # fmt: skip
    """An explicit end closes a read that was remembered."""
    RR[record, RR_OPEN] = 0
    pool = RR[record, RR_POOL]
    tokens = P[pool, B_TOKENS]
    base = P[pool, B_BASE]
    tok0, tok1 = RR[record, RR_TOK0], RR[record, RR_TOK1]
    for i in range(RR[record, RR_N]):
        j = RR[record, RR_OFF] + i
        page = RG[j, 0]
        lo, hi = rows_of(i, tok0, tok1, tokens)
        late_read_page(
            S, C, L, A, R, SH, SP, SCR, FR, FG, CT, ev, base + page, page, pool, lo, hi, RR[record, RR_ACTOR], rp,
            RR[record, RR_EV], RG[j, 1], lease,
        )  # fmt: skip
