"""Who holds a page: allocation, release, sharing, publication."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layout import (
    LF_GUEST,
    LF_INTRUDER,
    N_STEPS,
    NO_COVER,
    PF_CO,
    PF_KEY_OF_CO,
    PF_KEYED,
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
from kvwitness.audit.provenance.kernel.watching import close_open, keep_open


def share_of(w: Any, rp: int, page: int, gen: int, ordinal: int) -> int:
    """The entry of `share_pages` through which a request is attached to a page in this generation, or -1.

    `ordinal` (the page's place in the request's table) finds it at once; -1, or a table that names the page
    elsewhere, costs a search.
    """
    if rp < 0:
        return -1
    share = w.pairs[rp].share
    while share >= 0:
        off, n = w.shares[share].off, w.shares[share].n
        k = ordinal - w.shares[share].ord
        if ordinal >= 0 and 0 <= k < n and w.share_pages[off + k].page == page and w.share_pages[off + k].gen == gen:
            return int(off + k)
        share = w.shares[share].next
    share = w.pairs[rp].share
    while share >= 0:
        off, n = w.shares[share].off, w.shares[share].n
        for j in range(off, off + n):
            if w.share_pages[j].page == page and w.share_pages[j].gen == gen:
                return int(j)
        share = w.shares[share].next
    return -1


def share_record(w: Any, rp: int, entry: int) -> int:
    """The share record that holds an entry of `share_pages` found by `share_of`."""
    share = w.pairs[rp].share
    while share >= 0:
        if w.shares[share].off <= entry < w.shares[share].off + w.shares[share].n:
            return int(share)
        share = w.shares[share].next
    return -1


def live_sharer(w: Any, pool: int, page: int, gen: int, time: int) -> int:
    """An actor that is attached to the page and has not ended, or -1. Slow: only asked when a fault is suspected."""
    for share in range(w.count.shares - 1, -1, -1):
        if w.shares[share].pool != pool:
            continue
        actor = w.shares[share].actor
        if 0 <= w.actors[actor].end < time:
            continue
        for j in range(w.shares[share].off, w.shares[share].off + w.shares[share].n):
            if w.share_pages[j].page == page and w.share_pages[j].gen == gen:
                return int(actor)
    return -1


def alloc_page(w: Any, ev: int, g: int, page: int, pool: int, actor: int, rp: int, gen: int, time: int) -> None:
    """A page becomes owned; `gen` is the generation that the trace states, or -1 to count."""
    state = w.pages[g]
    cold = w.cold[g]
    flags = state.flags
    owner = state.owner
    if flags & PF_RESERVED:
        emit(w, X_RESERVED_ALLOC, ev, actor, -1, -1, cold.alloc_ev, pool, page, state.gen, 0, 0, 0)
    second = -1
    if (owner >= 0 or state.sharers > 0) and flags & PF_KNOWN:
        other = owner
        if owner >= 0 and w.actors[owner].type == T_CACHE and not flags & PF_PUBLISHED and state.sharers == 0:
            other = -1  # the index had already forgotten it: an eviction of which only the unlisting is on record
        elif owner < 0:
            other = live_sharer(w, pool, page, state.gen, time)
        if other >= 0:
            emit(w, X_DOUBLE_ALLOC, ev, actor, other, cold.alloc_ev, cold.alloc_ev, pool, page, state.gen, 0, 0, 0)
            if w.actors[other].type == T_REQUEST and other != actor:
                second = other
                if other == owner and state.rd_hi > state.rd_lo:
                    seen = cold.read_ev if cold.read_ev >= cold.alloc_ev else -1
                    keep_open(w, g, other, seen, state.rd_lo, state.rd_hi)
    slot = state.step
    running = slot >= 0 and w.steps[slot % N_STEPS].open == slot + 1 and cold.freed_step == slot
    if running and cold.alloc_ev < w.steps[slot % N_STEPS].ev:
        since = w.steps[slot % N_STEPS].ev
        emit(w, X_STEP_REALLOC, ev, cold.previous, actor, cold.free_ev, since, pool, page, state.gen, 0, 0, 0)
    state.gen = gen if gen >= 0 else state.gen + 1
    if owner >= 0:
        cold.previous = owner
    cold.co_owner = second
    state.owner = actor
    state.sharers = 0
    state.rd_lo = 0
    state.rd_hi = 0
    keep = state.flags & ~(PF_CO | PF_PUBLISHED | PF_KEYED | PF_KEY_OF_CO)
    state.flags = keep | PF_KNOWN | (PF_CO if second >= 0 else 0)
    cold.alloc_ev = ev
    cold.reported = -1
    state.ord = -1
    if rp >= 0:
        state.ord = w.pairs[rp].next if not w.pairs[rp].blind & NO_COVER else -1
        w.pairs[rp].next += 1
        w.pairs[rp].held += 1


def let_go(w: Any, ev: int, g: int, page: int, pool: int, actor: int) -> None:
    """The last holder is gone; if a running step names the page, for one who held it then, that is a fact."""
    state = w.pages[g]
    cold = w.cold[g]
    slot = state.step
    if slot >= 0 and w.steps[slot % N_STEPS].open == slot + 1 and cold.alloc_ev < w.steps[slot % N_STEPS].ev:
        cold.freed_step = slot
        cold.previous = actor  # whoever gets the page next gets it from the one who was in the step
        since = w.steps[slot % N_STEPS].ev
        emit(w, X_STEP_FREE, ev, actor, -1, since, since, pool, page, state.gen, 0, 0, 0)


def holds_as(w: Any, actor: int, owner: int, anyone: bool) -> bool:
    """Whether a free by `actor` releases what `owner` holds: itself, the same kind of holder, or (unnamed) anyone."""
    if owner < 0:
        return False
    if owner == actor or anyone:
        return True
    return bool(w.actors[actor].type != T_REQUEST and w.actors[actor].type == w.actors[owner].type)


def free_page(w: Any, ev: int, g: int, page: int, pool: int, actor: int, rp: int, to: int, anyone: bool) -> bool:
    """One holder lets a page go, or passes it to the holder `to`; returns whether it held anything."""
    state = w.pages[g]
    cold = w.cold[g]
    close_open(w, g, actor)
    owner = state.owner
    if holds_as(w, actor, owner, anyone):
        loser = owner
        if w.actors[owner].type != T_REQUEST and cold.previous >= 0:
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
                let_go(w, ev, g, page, pool, loser)
        return True
    if state.flags & PF_CO and cold.co_owner == actor:
        state.flags &= ~PF_CO
        return True
    if state.sharers > 0:
        entry = w.count.scratch
        if not (
            rp >= 0
            and 0 <= entry < w.count.share_pages
            and w.share_pages[entry].page == page
            and w.share_pages[entry].gen == state.gen
        ):
            entry = -1
        elif share_record(w, rp, entry) < 0:
            entry = -1
        if entry < 0:
            entry = share_of(w, rp, page, state.gen, -1)
        w.count.scratch = entry + 1  # a table is released in its own order: the next page stands beside this one
        if entry >= 0:
            w.share_pages[entry].gen = -1
            state.sharers -= 1
            if state.sharers == 0 and owner < 0:
                cold.previous = actor
                cold.free_ev = ev
                state.owner = to
                if to < 0:
                    let_go(w, ev, g, page, pool, actor)
            return True
    if not state.flags & PF_KNOWN:
        return True  # held since before the record began; others may hold it still, so it stays unknown
    if not state.flags & PF_RESERVED:
        when = cold.free_ev if owner < 0 else cold.alloc_ev
        emit(w, X_DOUBLE_FREE, ev, actor, owner, when, cold.alloc_ev, pool, page, state.gen, 0, 0, 0)
    return False


def after_free(w: Any, rp: int, released: int, preempted: bool, window: bool) -> None:
    """A request's table starts over after a preemption, or when nothing is left in it; window frees keep places."""
    if rp < 0:
        return
    w.pairs[rp].held -= released
    if preempted or (w.pairs[rp].held <= 0 and not window):
        w.pairs[rp].next = 0
        w.pairs[rp].cover = 0
        w.pairs[rp].pending0 = -1
        w.pairs[rp].pending1 = -1
        if w.pairs[rp].held < 0:
            w.pairs[rp].held = 0


def find_publication(w: Any, key: int, pool: int, page: int) -> int:
    """The oldest publication of a key that still describes this page's live generation, or -1.

    Returns the entry of `publication_pages` that names the page; the oldest counts, because it was made by whoever
    wrote the page.
    """
    best = -1
    if key < 0:
        return best
    record = w.keys[key]
    gen = w.pages[w.pools[pool].base + page].gen
    for _ in range(64):
        if record < 0:
            break
        for j in range(w.publications[record].off, w.publications[record].off + w.publications[record].n):
            if (
                w.publication_pages[j].page == page
                and w.publication_pages[j].gen == gen
                and w.publication_pages[j].pool == pool
            ):
                best = int(j)
                break
        record = w.publications[record].older
    return best


def publication_of(w: Any, key: int, entry: int) -> int:
    """The publication under this key that an entry of `publication_pages` belongs to, or -1."""
    record = w.keys[key] if key >= 0 else -1
    while record >= 0:
        if w.publications[record].off <= entry < w.publications[record].off + w.publications[record].n:
            return int(record)
        record = w.publications[record].older
    return -1


def publish(w: Any, ev: int, pool: int, off: int, n: int, actor: int, key: int, digest: int) -> None:
    """Pages become findable under a key; the generations that they had are kept with it."""
    record = w.count.publications
    w.count.publications += 1
    start = w.count.publication_pages
    w.count.publication_pages += n
    w.publications[record].ev = ev
    w.publications[record].pool = pool
    w.publications[record].off = start
    w.publications[record].n = n
    w.publications[record].actor = actor
    w.publications[record].digest = digest
    w.publications[record].older = w.keys[key]
    w.keys[key] = record
    base = w.pools[pool].base
    for i in range(n):
        page = w.listed[off + i]
        w.publication_pages[start + i].page = page
        w.publication_pages[start + i].gen = w.pages[base + page].gen
        w.publication_pages[start + i].pool = pool
        w.pages[base + page].flags |= PF_PUBLISHED
        welcome(w, base + page, actor)
        if w.cold[base + page].co_owner >= 0:
            published_by_one_of_two(w, base + page, actor)
        own = w.pages[base + page].lgen == w.pages[base + page].gen and not w.pages[base + page].lflags & LF_INTRUDER
        w.publication_pages[start + i].writer = w.pages[base + page].writer if own else -1


def welcome(w: Any, g: int, actor: int) -> None:
    """What somebody attached to a page wrote into it is part of what its own publication stands for, or nobody's."""
    unnamed = w.actors[actor].type != T_REQUEST
    if unnamed or w.pages[g].writer == actor:
        w.pages[g].lflags &= ~LF_GUEST
    node = w.pages[g].next
    while node >= 0:
        if unnamed or w.layers[node].writer == actor:
            w.layers[node].flags &= ~LF_GUEST
        node = w.layers[node].next


def published_by_one_of_two(w: Any, g: int, actor: int) -> None:
    """A page that was handed out twice got a key from one of its owners: what the other writes there, or wrote before
    it let go, is not what the key stands for."""
    state = w.pages[g]
    earlier, last = w.cold[g].co_owner, w.cold[g].previous
    if actor != state.owner and actor != earlier and actor != last:
        return
    state.flags &= ~PF_KEY_OF_CO
    state.flags |= PF_KEYED | (PF_KEY_OF_CO if actor == earlier else 0)
    if state.writer == actor:
        state.lflags &= ~LF_INTRUDER
    elif rivals(w, state.writer, actor, earlier):
        state.lflags |= LF_INTRUDER
    node = state.next
    while node >= 0:
        if w.layers[node].writer == actor:
            w.layers[node].flags &= ~LF_INTRUDER
        elif rivals(w, w.layers[node].writer, actor, earlier):
            w.layers[node].flags |= LF_INTRUDER
        node = w.layers[node].next


def rivals(w: Any, writer: int, actor: int, earlier: int) -> bool:
    """Whether a writer is the other owner than `actor`, of a page that a request had been given while `earlier` had it.

    Of the two only the earlier is remembered for good: to it, any other request that wrote there is the later.
    """
    if writer < 0 or w.actors[writer].type != T_REQUEST:
        return False
    return actor == earlier or writer == earlier


def stands_for(w: Any, key: int, writer: int) -> bool:
    """Whether a writer's content is what a key was published for: the publisher's, or what its pages held by then."""
    record = w.keys[key]
    for _ in range(64):
        if record < 0:
            return False
        if w.publications[record].actor == writer:
            return True
        for j in range(w.publications[record].off, w.publications[record].off + w.publications[record].n):
            if w.publication_pages[j].writer == writer:
                return True
        record = w.publications[record].older
    return False


def kept_of(w: Any, pool: int, g: int, actor: int, key: int, digest: int) -> bool:
    """Whether a page is taken to be a tier's copy of what a key stands for, which was published in other pools only.

    Then its content has to be what was published or the reader's own tenant's, or what the tier loaded from out of
    sight.
    """
    record = w.keys[key] if key >= 0 else -1
    if record < 0:
        return False
    published = w.publications[record].digest
    if digest >= 0 and published >= 0 and digest != published:
        return False
    for _ in range(64):
        if record >= 0 and w.publications[record].pool == pool:
            return False
        record = w.publications[record].older if record >= 0 else -1
    writer = w.pages[g].writer
    if writer < 0:
        return False
    tenant = w.actors[writer].tenant
    if tenant < 0:
        return bool(w.actors[writer].type == T_CACHE or w.actors[writer].type == T_SNAPSHOT)
    return bool(tenant == w.actors[actor].tenant or stands_for(w, key, writer))


def admits(w: Any, pool: int, page: int, actor: int, key: int, digest: int, has_key: bool, previous: int) -> int:
    """Entry of `publication_pages` (>= 0) or -2 when a share admits reads of this page, -1 when it does not.

    `previous` is the entry of the page before it in the same share, which makes the usual run a single step.
    """
    g = w.pools[pool].base + page
    owner = w.pages[g].owner
    if owner >= 0 and (w.actors[owner].type == T_SESSION or w.actors[owner].type == T_SNAPSHOT):
        return -2 if w.actors[owner].tenant == w.actors[actor].tenant else -1
    if not has_key:
        writer = w.pages[g].writer
        return -2 if writer >= 0 and w.actors[writer].tenant == w.actors[actor].tenant else -1
    entry = -1
    record = -1
    if (
        previous >= 0
        and w.publication_pages[previous + 1].page == page
        and w.publication_pages[previous + 1].gen == w.pages[g].gen
        and w.publication_pages[previous + 1].pool == pool
    ):
        entry = previous + 1
        record = publication_of(w, key, entry)
    if record < 0:
        entry = find_publication(w, key, pool, page)
        record = publication_of(w, key, entry)
    if record < 0:
        unseen = not w.pools[pool].known and w.cold[g].alloc_ev < 0
        return -2 if unseen or kept_of(w, pool, g, actor, key, digest) else -1
    published = w.publications[record].digest
    if digest >= 0 and published >= 0 and digest != published:
        return -1
    return entry


def share(
    w: Any,
    ev: int,
    pool: int,
    off: int,
    n: int,
    actor: int,
    rp: int,
    key: int,
    digest: int,
    tok0: int,
    tok1: int,
    has_key: bool,
) -> None:
    """A request attaches to pages that exist already."""
    base = w.pools[pool].base
    record = w.count.shares
    w.count.shares += 1
    start = w.count.share_pages
    w.count.share_pages += n
    if w.pairs[rp].held == 0:
        w.pairs[rp].began = ev
    first = w.pairs[rp].next if tok0 < 0 else tok0 // w.pools[pool].tokens
    earlier = w.pairs[rp].share >= 0
    previous = -1
    for i in range(n):
        page = w.listed[off + i]
        g = base + page
        gen = w.pages[g].gen
        entry = admits(w, pool, page, actor, key, digest, has_key, previous)
        previous = entry if entry >= 0 else -1
        w.share_pages[start + i].page = page
        w.share_pages[start + i].gen = gen
        w.share_pages[start + i].flags = 1 if entry != -1 else 0
        if w.pages[g].owner == actor or (earlier and share_of(w, rp, page, gen, first + i) >= 0):
            w.share_pages[start + i].gen = -1  # it holds the page already; one hold is released by one free
            if w.pages[g].owner != actor:
                old = share_of(w, rp, page, gen, first + i)
                w.share_pages[old].flags |= w.share_pages[start + i].flags
        else:
            w.pages[g].sharers += 1
            w.pairs[rp].held += 1
    w.shares[record].actor = actor
    w.shares[record].pool = pool
    w.shares[record].off = start
    w.shares[record].n = n
    w.shares[record].tok0 = tok0
    w.shares[record].tok1 = tok1
    w.shares[record].ev = ev
    w.shares[record].ord = first
    w.shares[record].next = w.pairs[rp].share
    w.pairs[rp].share = record
    if first + n > w.pairs[rp].next:
        w.pairs[rp].next = first + n
