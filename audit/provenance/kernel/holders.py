"""Who holds a page: allocation, release, sharing, publication."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layout import (
    N_STEPS,
    PF_CO,
    PF_KNOWN,
    PF_PUBLISHED,
    PF_RESERVED,
    T_CACHE,
    T_REQUEST,
    T_SESSION,
    T_SNAPSHOT,
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
    share = R[rp].share
    while share >= 0:
        off, n = SH[share].off, SH[share].n
        k = ordinal - SH[share].ord
        if ordinal >= 0 and 0 <= k < n and SP[off + k].page == page and SP[off + k].gen == gen:
            return int(off + k)
        share = SH[share].next
    share = R[rp].share
    while share >= 0:
        off, n = SH[share].off, SH[share].n
        for j in range(off, off + n):
            if SP[j].page == page and SP[j].gen == gen:
                return int(j)
        share = SH[share].next
    return -1


@kernel
def share_record(R: Any, SH: Any, rp: int, entry: int) -> int:
    """The share record that holds an entry of SP found by `share_of`."""
    share = R[rp].share
    while share >= 0:
        if SH[share].off <= entry < SH[share].off + SH[share].n:
            return int(share)
        share = SH[share].next
    return -1


@kernel
def live_sharer(A: Any, SH: Any, SP: Any, CT: Any, pool: int, page: int, gen: int, time: int) -> int:
    """An actor that is attached to the page and has not ended, or -1. Slow: only asked when a fault is suspected."""
    for share in range(CT.shares - 1, -1, -1):
        if SH[share].pool != pool:
            continue
        actor = SH[share].actor
        if 0 <= A[actor].end < time:
            continue
        for j in range(SH[share].off, SH[share].off + SH[share].n):
            if SP[j].page == page and SP[j].gen == gen:
                return int(actor)
    return -1


@kernel
def alloc_page(
    S: Any, C: Any, A: Any, R: Any, P: Any, SH: Any, SP: Any, ST: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, actor: int, rp: int, gen: int, time: int,
) -> None:  # fmt: skip
    """A page becomes owned; `gen` is the generation that the trace states, or -1 to count."""
    state = S[g]
    cold = C[g]
    flags = state.flags
    owner = state.owner
    if flags & PF_RESERVED:
        emit(FR, FG, CT, X_RESERVED_ALLOC, ev, actor, -1, -1, cold.alloc_ev, pool, page, state.gen, 0, 0, 0)
    second = -1
    if (owner >= 0 or state.sharers > 0) and flags & PF_KNOWN:
        other = owner
        if owner >= 0 and A[owner].type == T_CACHE and not flags & PF_PUBLISHED and state.sharers == 0:
            other = -1  # the index had already forgotten it: an eviction of which only the unlisting is on record
        elif owner < 0:
            other = live_sharer(A, SH, SP, CT, pool, page, state.gen, time)
        if other >= 0:
            emit(
                FR, FG, CT, X_DOUBLE_ALLOC, ev, actor, other, cold.alloc_ev, cold.alloc_ev, pool, page, state.gen,
                0, 0, 0,
            )  # fmt: skip
            if A[other].type == T_REQUEST and other != actor:
                second = other
    slot = state.step
    if slot >= 0 and ST[slot % N_STEPS].open == slot + 1 and cold.freed_step == slot:
        since = ST[slot % N_STEPS].ev
        emit(FR, FG, CT, X_STEP_REALLOC, ev, cold.previous, actor, cold.free_ev, since, pool, page, state.gen, 0, 0, 0)
    state.gen = gen if gen >= 0 else state.gen + 1
    if owner >= 0:
        cold.previous = owner
    cold.co_owner = second
    state.owner = actor
    state.sharers = 0
    state.rd_lo = 0
    state.rd_hi = 0
    keep = flags & ~(PF_CO | PF_PUBLISHED)
    state.flags = keep | PF_KNOWN | (PF_CO if second >= 0 else 0)
    cold.alloc_ev = ev
    cold.reported = -1
    state.ord = -1
    if rp >= 0:
        state.ord = R[rp].next if not R[rp].blind else -1
        R[rp].next += 1
        R[rp].held += 1


@kernel
def let_go(
    S: Any, C: Any, ST: Any, FR: Any, FG: Any, CT: Any, ev: int, g: int, page: int, pool: int, actor: int
) -> None:
    """The last holder is gone; if a running step names the page, that is a fact."""
    state = S[g]
    cold = C[g]
    slot = state.step
    if slot >= 0 and ST[slot % N_STEPS].open == slot + 1:
        cold.freed_step = slot
        since = ST[slot % N_STEPS].ev
        emit(FR, FG, CT, X_STEP_FREE, ev, actor, -1, since, since, pool, page, state.gen, 0, 0, 0)


@kernel
def holds_as(A: Any, actor: int, owner: int, anyone: bool) -> bool:
    """Whether a free by `actor` releases what `owner` holds: itself, the same kind of holder, or (unnamed) anyone."""
    if owner < 0:
        return False
    if owner == actor or anyone:
        return True
    return bool(A[actor].type != T_REQUEST and A[actor].type == A[owner].type)


@kernel
def free_page(
    S: Any, C: Any, A: Any, R: Any, SH: Any, SP: Any, ST: Any, FR: Any, FG: Any, CT: Any,
    ev: int, g: int, page: int, pool: int, actor: int, rp: int, to: int, anyone: bool,
) -> bool:  # fmt: skip
    """One holder lets a page go, or passes it to the holder `to`; returns whether it held anything."""
    state = S[g]
    cold = C[g]
    owner = state.owner
    if holds_as(A, actor, owner, anyone):
        loser = owner
        if A[owner].type != T_REQUEST and cold.previous >= 0:
            loser = cold.previous  # the index had it from a request, which may be reading it still
        cold.previous = owner
        cold.free_ev = ev
        state.rd_lo = 0
        state.rd_hi = 0
        state.owner = to
        if to < 0:
            if state.flags & PF_CO:
                state.owner = cold.co_owner
                state.flags &= ~PF_CO
            elif state.sharers == 0:
                let_go(S, C, ST, FR, FG, CT, ev, g, page, pool, loser)
        return True
    if state.flags & PF_CO and cold.co_owner == actor:
        state.flags &= ~PF_CO
        return True
    if state.sharers > 0:
        entry = CT.scratch
        if not (rp >= 0 and 0 <= entry < CT.share_pages and SP[entry].page == page and SP[entry].gen == state.gen):
            entry = -1
        elif share_record(R, SH, rp, entry) < 0:
            entry = -1
        if entry < 0:
            entry = share_of(R, SH, SP, rp, page, state.gen, -1)
        CT.scratch = entry + 1  # a table is released in its own order: the next page stands beside this one
        if entry >= 0:
            SP[entry].gen = -1
            state.sharers -= 1
            if state.sharers == 0 and owner < 0:
                cold.previous = actor
                cold.free_ev = ev
                state.owner = to
                if to < 0:
                    let_go(S, C, ST, FR, FG, CT, ev, g, page, pool, actor)
            return True
    if not state.flags & PF_KNOWN:
        return True  # held since before the record began; others may hold it still, so it stays unknown
    if not state.flags & PF_RESERVED:
        when = cold.free_ev if owner < 0 else cold.alloc_ev
        emit(FR, FG, CT, X_DOUBLE_FREE, ev, actor, owner, when, cold.alloc_ev, pool, page, state.gen, 0, 0, 0)
    return False


@kernel
def after_free(R: Any, rp: int, released: int, preempted: bool, window: bool) -> None:
    """A request's table starts over after a preemption, or when nothing is left in it; window frees keep places."""
    if rp < 0:
        return
    R[rp].held -= released
    if preempted or (R[rp].held <= 0 and not window):
        R[rp].next = 0
        R[rp].cover = 0
        R[rp].pending0 = -1
        R[rp].pending1 = -1
        if R[rp].held < 0:
            R[rp].held = 0


@kernel
def find_publication(S: Any, P: Any, PB: Any, PP: Any, K: Any, key: int, pool: int, page: int) -> int:
    """The oldest publication of a key that still describes this page's live generation, or -1.

    Returns the entry of PP that names the page; the oldest counts, because it was made by whoever wrote the page.
    """
    best = -1
    if key < 0:
        return best
    record = K[key]
    gen = S[P[pool].base + page].gen
    for _ in range(64):
        if record < 0:
            break
        for j in range(PB[record].off, PB[record].off + PB[record].n):
            if PP[j].page == page and PP[j].gen == gen and PP[j].pool == pool:
                best = int(j)
                break
        record = PB[record].older
    return best


@kernel
def publication_of(PB: Any, K: Any, key: int, entry: int) -> int:
    """The publication under this key that an entry of PP belongs to, or -1."""
    record = K[key] if key >= 0 else -1
    while record >= 0:
        if PB[record].off <= entry < PB[record].off + PB[record].n:
            return int(record)
        record = PB[record].older
    return -1


@kernel
def publish(
    S: Any, P: Any, PB: Any, PP: Any, K: Any, CT: Any, G1: Any,
    ev: int, pool: int, off: int, n: int, actor: int, key: int, digest: int,
) -> None:  # fmt: skip
    """Pages become findable under a key; the generations that they had are kept with it."""
    record = CT.pubs
    CT.pubs += 1
    start = CT.pub_pages
    CT.pub_pages += n
    PB[record].ev = ev
    PB[record].pool = pool
    PB[record].off = start
    PB[record].n = n
    PB[record].actor = actor
    PB[record].digest = digest
    PB[record].older = K[key]
    K[key] = record
    base = P[pool].base
    for i in range(n):
        page = G1[off + i]
        PP[start + i].page = page
        PP[start + i].gen = S[base + page].gen
        PP[start + i].pool = pool
        S[base + page].flags |= PF_PUBLISHED


@kernel
def admits(
    S: Any, C: Any, A: Any, P: Any, PB: Any, PP: Any, K: Any,
    pool: int, page: int, actor: int, key: int, digest: int, has_key: bool, previous: int,
) -> int:  # fmt: skip
    """Entry of PP (>= 0) or -2 when a share admits reads of this page, -1 when it does not.

    `previous` is the entry of the page before it in the same share, which makes the usual run a single step.
    """
    g = P[pool].base + page
    owner = S[g].owner
    if owner >= 0 and (A[owner].type == T_SESSION or A[owner].type == T_SNAPSHOT):
        return -2 if A[owner].tenant == A[actor].tenant else -1
    if not has_key:
        writer = S[g].writer
        return -2 if writer >= 0 and A[writer].tenant == A[actor].tenant else -1
    entry = -1
    record = -1
    if (
        previous >= 0
        and PP[previous + 1].page == page
        and PP[previous + 1].gen == S[g].gen
        and PP[previous + 1].pool == pool
    ):
        entry = previous + 1
        record = publication_of(PB, K, key, entry)
    if record < 0:
        entry = find_publication(S, P, PB, PP, K, key, pool, page)
        record = publication_of(PB, K, key, entry)
    if record < 0:
        return -2 if not P[pool].known and C[g].alloc_ev < 0 else -1
    published = PB[record].digest
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
    base = P[pool].base
    record = CT.shares
    CT.shares += 1
    start = CT.share_pages
    CT.share_pages += n
    if R[rp].held == 0:
        R[rp].began = ev
    first = R[rp].next if tok0 < 0 else tok0 // P[pool].tokens
    earlier = R[rp].share >= 0
    previous = -1
    for i in range(n):
        page = G1[off + i]
        g = base + page
        gen = S[g].gen
        entry = admits(S, C, A, P, PB, PP, K, pool, page, actor, key, digest, has_key, previous)
        previous = entry if entry >= 0 else -1
        SP[start + i].page = page
        SP[start + i].gen = gen
        SP[start + i].flags = 1 if entry != -1 else 0
        if S[g].owner == actor or (earlier and share_of(R, SH, SP, rp, page, gen, first + i) >= 0):
            SP[start + i].gen = -1  # it holds the page already; one hold is released by one free
            if S[g].owner != actor:
                old = share_of(R, SH, SP, rp, page, gen, first + i)
                SP[old].flags |= SP[start + i].flags
        else:
            S[g].sharers += 1
            R[rp].held += 1
    SH[record].actor = actor
    SH[record].pool = pool
    SH[record].off = start
    SH[record].n = n
    SH[record].tok0 = tok0
    SH[record].tok1 = tok1
    SH[record].ev = ev
    SH[record].ord = first
    SH[record].next = R[rp].share
    R[rp].share = record
    if first + n > R[rp].next:
        R[rp].next = first + n
