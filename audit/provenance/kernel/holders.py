"""Who holds a page: allocation, release, sharing, publication."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layout import (
    A_END,
    A_TENANT,
    A_TYPE,
    ALLOC_EV,
    B_BASE,
    B_KNOWN,
    B_TOKENS,
    CO_OWNER,
    CT_PUB_PAGES,
    CT_PUBS,
    CT_SCRATCH,
    CT_SHARE_PAGES,
    CT_SHARES,
    FREE_EV,
    FREED_STEP,
    GEN,
    N_STEPS,
    ORD,
    OWNER,
    PB_ACTOR,
    PB_DIGEST,
    PB_EV,
    PB_N,
    PB_OFF,
    PB_OLDER,
    PB_POOL,
    PF_CO,
    PF_KNOWN,
    PF_PUBLISHED,
    PF_RESERVED,
    PFLAGS,
    PREVIOUS,
    R_COVER,
    R_HELD,
    R_NEXT,
    R_PENDING0,
    R_PENDING1,
    R_SHARE,
    RD_HI,
    RD_LO,
    REPORTED,
    SH_ACTOR,
    SH_EV,
    SH_N,
    SH_NEXT,
    SH_OFF,
    SH_ORD,
    SH_POOL,
    SH_TOK0,
    SH_TOK1,
    SHARERS,
    ST_EV,
    ST_OPEN,
    STEP,
    T_CACHE,
    T_REQUEST,
    T_SESSION,
    T_SNAPSHOT,
    WRITER,
    X_DOUBLE_ALLOC,
    X_DOUBLE_FREE,
    X_RESERVED_ALLOC,
    X_STEP_FREE,
    X_STEP_REALLOC,
)


@kernel
def share_of(R: Any, SH: Any, SP: Any, rp: int, page: int, gen: int, ordinal: int) -> int:
    """The entry of SP through which a request is attached to a page in this generation, or -1.

    `ordinal` (the page's place in the request's table) finds it at once; -1, or a table that names the page
    elsewhere, costs a search.
    """
    if rp < 0:
        return -1
    share = R[rp, R_SHARE]
    while share >= 0:
        off, n = SH[share, SH_OFF], SH[share, SH_N]
        k = ordinal - SH[share, SH_ORD]
        if ordinal >= 0 and 0 <= k < n and SP[off + k, 0] == page and SP[off + k, 1] == gen:
            return int(off + k)
        share = SH[share, SH_NEXT]
    share = R[rp, R_SHARE]
    while share >= 0:
        off, n = SH[share, SH_OFF], SH[share, SH_N]
        for j in range(off, off + n):
            if SP[j, 0] == page and SP[j, 1] == gen:
                return int(j)
        share = SH[share, SH_NEXT]
    return -1


@kernel
def share_record(R: Any, SH: Any, rp: int, entry: int) -> int:
    """The share record that holds an entry of SP found by `share_of`."""
    share = R[rp, R_SHARE]
    while share >= 0:
        if SH[share, SH_OFF] <= entry < SH[share, SH_OFF] + SH[share, SH_N]:
            return int(share)
        share = SH[share, SH_NEXT]
    return -1


@kernel
def live_sharer(A: Any, SH: Any, SP: Any, CT: Any, pool: int, page: int, gen: int, time: int) -> int:
    """An actor that is attached to the page and has not ended, or -1. Slow: only asked when a fault is suspected."""
    for share in range(CT[CT_SHARES] - 1, -1, -1):
        if SH[share, SH_POOL] != pool:
            continue
        actor = SH[share, SH_ACTOR]
        if 0 <= A[actor, A_END] < time:
            continue
        for j in range(SH[share, SH_OFF], SH[share, SH_OFF] + SH[share, SH_N]):
            if SP[j, 0] == page and SP[j, 1] == gen:
                return int(actor)
    return -1


@kernel
def alloc_page(
    S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, ST: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, actor: int, rp: int, gen: int, time: int,
) -> None:  # fmt: skip
    """A page becomes owned; `gen` is the generation that the trace states, or -1 to count."""
    flags = S[g, PFLAGS]
    owner = S[g, OWNER]
    if flags & PF_RESERVED:
        emit(FR, FG, CT, X_RESERVED_ALLOC, ev, actor, -1, -1, C[g, ALLOC_EV], pool, page, S[g, GEN], 0, 0, 0)
    second = -1
    if (owner >= 0 or S[g, SHARERS] > 0) and flags & PF_KNOWN:
        other = owner
        if owner >= 0 and A[owner, A_TYPE] == T_CACHE and not flags & PF_PUBLISHED and S[g, SHARERS] == 0:
            other = -1  # the index had already forgotten it: an eviction of which only the unlisting is on record
        elif owner < 0:
            other = live_sharer(A, SH, SP, CT, pool, page, S[g, GEN], time)
        if other >= 0:
            emit(
                FR, FG, CT, X_DOUBLE_ALLOC, ev, actor, other, C[g, ALLOC_EV], C[g, ALLOC_EV], pool, page, S[g, GEN],
                0, 0, 0,
            )  # fmt: skip
            if A[other, A_TYPE] == T_REQUEST and other != actor:
                second = other
    slot = S[g, STEP]
    if slot >= 0 and ST[slot % N_STEPS, ST_OPEN] == slot + 1 and C[g, FREED_STEP] == slot:
        since = ST[slot % N_STEPS, ST_EV]
        emit(FR, FG, CT, X_STEP_REALLOC, ev, C[g, PREVIOUS], actor, C[g, FREE_EV], since, pool, page, S[g, GEN], 0, 0, 0)
    S[g, GEN] = gen if gen >= 0 else S[g, GEN] + 1
    if owner >= 0:
        C[g, PREVIOUS] = owner
    C[g, CO_OWNER] = second
    S[g, OWNER] = actor
    S[g, SHARERS] = 0
    S[g, RD_LO] = 0
    S[g, RD_HI] = 0
    keep = flags & ~(PF_CO | PF_PUBLISHED)
    S[g, PFLAGS] = keep | PF_KNOWN | (PF_CO if second >= 0 else 0)
    C[g, ALLOC_EV] = ev
    C[g, REPORTED] = -1
    S[g, ORD] = -1
    if rp >= 0:
        S[g, ORD] = R[rp, R_NEXT]
        R[rp, R_NEXT] += 1
        R[rp, R_HELD] += 1


@kernel
def let_go(S: Any, C: Any, ST: Any, FR: Any, FG: Any, CT: Any, ev: int, g: int, page: int, pool: int, actor: int) -> None:
    """The last holder is gone; if a running step names the page, that is a fact."""
    slot = S[g, STEP]
    if slot >= 0 and ST[slot % N_STEPS, ST_OPEN] == slot + 1:
        C[g, FREED_STEP] = slot
        since = ST[slot % N_STEPS, ST_EV]
        emit(FR, FG, CT, X_STEP_FREE, ev, actor, -1, since, since, pool, page, S[g, GEN], 0, 0, 0)


@kernel
def holds_as(A: Any, actor: int, owner: int, anyone: bool) -> bool:
    """Whether a free by `actor` releases what `owner` holds: itself, the same kind of holder, or (unnamed) anyone."""
    if owner < 0:
        return False
    if owner == actor or anyone:
        return True
    return bool(A[actor, A_TYPE] != T_REQUEST and A[actor, A_TYPE] == A[owner, A_TYPE])


@kernel
def free_page(
    S: Any, C: Any, A: Any, R: Any, SH: Any, SP: Any, ST: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, actor: int, rp: int, to: int, anyone: bool,
) -> bool:  # fmt: skip
    """One holder lets a page go, or passes it to the holder `to`; returns whether it held anything."""
    owner = S[g, OWNER]
    if holds_as(A, actor, owner, anyone):
        C[g, PREVIOUS] = owner
        C[g, FREE_EV] = ev
        S[g, RD_LO] = 0
        S[g, RD_HI] = 0
        S[g, OWNER] = to
        if to < 0:
            if S[g, PFLAGS] & PF_CO:
                S[g, OWNER] = C[g, CO_OWNER]
                S[g, PFLAGS] &= ~PF_CO
            elif S[g, SHARERS] == 0:
                let_go(S, C, ST, FR, FG, CT, ev, g, page, pool, owner)
        return True
    if S[g, PFLAGS] & PF_CO and C[g, CO_OWNER] == actor:
        S[g, PFLAGS] &= ~PF_CO
        return True
    if S[g, SHARERS] > 0:
        entry = CT[CT_SCRATCH]
        if not (rp >= 0 and 0 <= entry < CT[CT_SHARE_PAGES] and SP[entry, 0] == page and SP[entry, 1] == S[g, GEN]):
            entry = -1
        elif share_record(R, SH, rp, entry) < 0:
            entry = -1
        if entry < 0:
            entry = share_of(R, SH, SP, rp, page, S[g, GEN], -1)
        CT[CT_SCRATCH] = entry + 1  # a table is released in its own order: the next page stands beside this one
        if entry >= 0:
            SP[entry, 1] = -1
            S[g, SHARERS] -= 1
            if S[g, SHARERS] == 0 and owner < 0:
                C[g, PREVIOUS] = actor
                C[g, FREE_EV] = ev
                S[g, OWNER] = to
                if to < 0:
                    let_go(S, C, ST, FR, FG, CT, ev, g, page, pool, actor)
            return True
    if not S[g, PFLAGS] & PF_KNOWN:
        S[g, PFLAGS] |= PF_KNOWN  # held since before the record began, free from here on
        S[g, OWNER] = to
        C[g, PREVIOUS] = actor
        C[g, FREE_EV] = ev
        C[g, ALLOC_EV] = ev
        return True
    if not S[g, PFLAGS] & PF_RESERVED:
        when = C[g, FREE_EV] if owner < 0 else C[g, ALLOC_EV]
        emit(FR, FG, CT, X_DOUBLE_FREE, ev, actor, owner, when, C[g, ALLOC_EV], pool, page, S[g, GEN], 0, 0, 0)
    return False


@kernel
def after_free(R: Any, rp: int, released: int, preempted: bool, window: bool) -> None:
    """A request's table starts over after a preemption, or when nothing is left in it; window frees keep places."""
    if rp < 0:
        return
    R[rp, R_HELD] -= released
    if preempted or (R[rp, R_HELD] <= 0 and not window):
        R[rp, R_NEXT] = 0
        R[rp, R_COVER] = 0
        R[rp, R_PENDING0] = -1
        R[rp, R_PENDING1] = -1
        if R[rp, R_HELD] < 0:
            R[rp, R_HELD] = 0


@kernel
def find_publication(S: Any, P: Any, PB: Any, PP: Any, K: Any, key: int, pool: int, page: int) -> int:
    """The oldest publication of a key that still describes this page's live generation, or -1.

    Returns the entry of PP that names the page; the oldest counts, because it was made by whoever wrote the page.
    """
    best = -1
    if key < 0:
        return best
    record = K[key]
    gen = S[P[pool, B_BASE] + page, GEN]
    for _ in range(64):
        if record < 0:
            break
        for j in range(PB[record, PB_OFF], PB[record, PB_OFF] + PB[record, PB_N]):
            if PP[j, 0] == page and PP[j, 1] == gen and PP[j, 2] == pool:
                best = int(j)
                break
        record = PB[record, PB_OLDER]
    return best


@kernel
def publication_of(PB: Any, K: Any, key: int, entry: int) -> int:
    """The publication under this key that an entry of PP belongs to, or -1."""
    record = K[key] if key >= 0 else -1
    while record >= 0:
        if PB[record, PB_OFF] <= entry < PB[record, PB_OFF] + PB[record, PB_N]:
            return int(record)
        record = PB[record, PB_OLDER]
    return -1


@kernel
def publish(
    S: Any, P: Any, PB: Any, PP: Any, K: Any, CT: Any, G1: Any,
    ev: int, pool: int, off: int, n: int, actor: int, key: int, digest: int,
) -> None:  # fmt: skip
    """Pages become findable under a key; the generations that they had are kept with it."""
    record = CT[CT_PUBS]
    CT[CT_PUBS] += 1
    start = CT[CT_PUB_PAGES]
    CT[CT_PUB_PAGES] += n
    PB[record, PB_EV] = ev
    PB[record, PB_POOL] = pool
    PB[record, PB_OFF] = start
    PB[record, PB_N] = n
    PB[record, PB_ACTOR] = actor
    PB[record, PB_DIGEST] = digest
    PB[record, PB_OLDER] = K[key]
    K[key] = record
    base = P[pool, B_BASE]
    for i in range(n):
        page = G1[off + i]
        PP[start + i, 0] = page
        PP[start + i, 1] = S[base + page, GEN]
        PP[start + i, 2] = pool
        S[base + page, PFLAGS] |= PF_PUBLISHED


@kernel
def admits(
    S: Any, C: Any, A: Any, P: Any, PB: Any, PP: Any, K: Any,
    pool: int, page: int, actor: int, key: int, digest: int, has_key: bool, previous: int,
) -> int:  # fmt: skip
    """Entry of PP (>= 0) or -2 when a share admits reads of this page, -1 when it does not.

    `previous` is the entry of the page before it in the same share, which makes the usual run a single step.
    """
    g = P[pool, B_BASE] + page
    owner = S[g, OWNER]
    if owner >= 0 and (A[owner, A_TYPE] == T_SESSION or A[owner, A_TYPE] == T_SNAPSHOT):
        return -2 if A[owner, A_TENANT] == A[actor, A_TENANT] else -1
    if not has_key:
        writer = S[g, WRITER]
        return -2 if writer >= 0 and A[writer, A_TENANT] == A[actor, A_TENANT] else -1
    entry = -1
    record = -1
    if previous >= 0 and PP[previous + 1, 0] == page and PP[previous + 1, 1] == S[g, GEN] and PP[previous + 1, 2] == pool:
        entry = previous + 1
        record = publication_of(PB, K, key, entry)
    if record < 0:
        entry = find_publication(S, P, PB, PP, K, key, pool, page)
        record = publication_of(PB, K, key, entry)
    if record < 0:
        return -2 if not P[pool, B_KNOWN] and C[g, ALLOC_EV] < 0 else -1
    published = PB[record, PB_DIGEST]
    if digest >= 0 and published >= 0 and digest != published:
        return -1
    return entry


@kernel
def share(
    S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, PB: Any, PP: Any, K: Any, CT: Any, G1: Any,
    ev: int, pool: int, off: int, n: int, actor: int, rp: int, key: int, digest: int, tok0: int, tok1: int,
    has_key: bool,
) -> None:  # fmt: skip
    """A request attaches to pages that exist already."""
    base = P[pool, B_BASE]
    record = CT[CT_SHARES]
    CT[CT_SHARES] += 1
    start = CT[CT_SHARE_PAGES]
    CT[CT_SHARE_PAGES] += n
    first = R[rp, R_NEXT] if tok0 < 0 else tok0 // P[pool, B_TOKENS]
    earlier = R[rp, R_SHARE] >= 0
    previous = -1
    for i in range(n):
        page = G1[off + i]
        g = base + page
        gen = S[g, GEN]
        entry = admits(S, C, A, P, PB, PP, K, pool, page, actor, key, digest, has_key, previous)
        previous = entry if entry >= 0 else -1
        SP[start + i, 0] = page
        SP[start + i, 1] = gen
        SP[start + i, 2] = 1 if entry != -1 else 0
        if S[g, OWNER] == actor or (earlier and share_of(R, SH, SP, rp, page, gen, first + i) >= 0):
            SP[start + i, 1] = -1  # it holds the page already; one hold is released by one free
            if S[g, OWNER] != actor:
                old = share_of(R, SH, SP, rp, page, gen, first + i)
                SP[old, 2] |= SP[start + i, 2]
        else:
            S[g, SHARERS] += 1
            R[rp, R_HELD] += 1
    SH[record, SH_ACTOR] = actor
    SH[record, SH_POOL] = pool
    SH[record, SH_OFF] = start
    SH[record, SH_N] = n
    SH[record, SH_TOK0] = tok0
    SH[record, SH_TOK1] = tok1
    SH[record, SH_EV] = ev
    SH[record, SH_ORD] = first
    SH[record, SH_NEXT] = R[rp, R_SHARE]
    R[rp, R_SHARE] = record
    if first + n > R[rp, R_NEXT]:
        R[rp, R_NEXT] = first + n
