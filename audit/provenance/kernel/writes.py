"""Bytes that land: by whoever holds the page, or by somebody who should not."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import alloc_page, share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, push_layer, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_GUEST,
    LF_INTRUDER,
    LF_TAINT,
    LF_UNKNOWN,
    LF_ZEROED,
    NOBODY,
    OP_COPY,
    OP_DUMMY,
    OP_FORWARD,
    OP_LOAD,
    OP_OPEN_READ,
    OP_SCRUB,
    OP_TRANSFER,
    PF_CO,
    PF_KEY_OF_CO,
    PF_KEYED,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_PUBLISHED,
    PF_RESERVED,
    STRANGE_PAGES,
    T_REQUEST,
    T_SESSION,
    X_DOUBLE_WRITE,
    X_LATE_WRITE,
    X_OPEN_READ_HIT,
    X_STRAY_WRITE,
)
from kvwitness.audit.provenance.kernel.reads import SHARED, SOUND, across, attachment, goes_on, split_by_share, standing
from kvwitness.audit.provenance.kernel.watching import add_open


def issue(w: Any, g: int, actor: int, ev: int, gen: int, lo: int, hi: int, op: int) -> None:
    """A write was issued and has not landed."""
    add_open(w, g, actor, ev, gen if gen >= 0 else w.pages[g].gen, lo, hi, op)


def take_issued(w: Any, g: int, actor: int, lo: int, hi: int, op: int) -> int:
    """Remove the latest matching open write of a page; returns the generation it was issued on, or -1."""
    state = w.pages[g]
    cold = w.cold[g]
    if not state.flags & PF_OPEN_WRITE:
        return -1
    previous = -1
    node = cold.open_writes
    while node >= 0:
        below = w.open_writes[node].next
        if (
            w.open_writes[node].actor == actor
            and w.open_writes[node].op == op
            and w.open_writes[node].lo == lo
            and w.open_writes[node].hi == hi
        ):
            gen = w.open_writes[node].gen
            if previous < 0:
                cold.open_writes = below
                if below < 0:
                    state.flags &= ~PF_OPEN_WRITE
            else:
                w.open_writes[previous].next = below
            w.open_writes[node].next = w.count.open_write_free
            w.count.open_write_free = node
            return int(gen)
        previous = node
        node = below
    return -1


def may_write(w: Any, ev: int, g: int, page: int, pool: int, actor: int, rp: int, op: int, lo: int, hi: int) -> int:
    """Whether the page is this writer's to fill: 1, or 2 of one who is attached to it, behind its match; 0 if not."""
    state = w.pages[g]
    cold = w.cold[g]
    owner = state.owner
    if owner == actor or (state.flags & PF_CO and cold.co_owner == actor):
        return 1
    if not state.flags & PF_KNOWN or not w.pools[pool].allocs:
        if rp >= 0:
            w.pairs[rp].blind |= STRANGE_PAGES
        return 1  # who holds it was never on record
    kin = owner >= 0 and (
        w.actors[owner].tenant == w.actors[actor].tenant or w.actors[owner].tenant < 0 or w.actors[actor].tenant < 0
    )
    if kin and w.actors[owner].type != T_REQUEST:
        if w.actors[owner].type == T_SESSION or op == OP_COPY or op == OP_TRANSFER or op == OP_LOAD:
            if w.actors[owner].type == T_SESSION:
                goes_on(w, ev, g, page, pool, actor, rp)
            return 1
    if state.sharers > 0 and (owner < 0 or w.actors[owner].type != T_REQUEST):
        entry = share_of(w, rp, page, state.gen, -1)
        if entry >= 0:
            record = share_record(w, rp, entry)
            base = (w.shares[record].ord + entry - w.shares[record].off) * w.pools[pool].tokens
            return 2 if w.shares[record].tok1 >= 0 and base + lo >= w.shares[record].tok1 else 0
    if rp >= 0:
        w.pairs[rp].blind |= STRANGE_PAGES
    return 0


def hit_open_reads(w: Any, ev: int, g: int, page: int, pool: int, lo: int, hi: int, writer: int) -> None:
    """A write lands on rows that others are reading: their reads are still open, so they see it."""
    state = w.pages[g]
    cold = w.cold[g]
    gen, since = state.gen, cold.alloc_ev
    owner, now = state.owner, w.count.time
    reading = owner >= 0 and owner != writer and not 0 <= w.actors[owner].end < now
    if reading and state.rd_lo < hi and state.rd_hi > lo:
        x, y = max(lo, state.rd_lo), min(hi, state.rd_hi)
        emit(w, X_OPEN_READ_HIT, ev, owner, writer, cold.read_ev, since, pool, page, gen, x, y, 0)
        w.actors[owner].tainted = 1
    node = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    while node >= 0:
        reader = w.open_writes[node].actor
        other = w.open_writes[node].op == OP_OPEN_READ and reader != writer and not 0 <= w.actors[reader].end < now
        if other and w.open_writes[node].lo < hi and w.open_writes[node].hi > lo:
            x, y = max(lo, w.open_writes[node].lo), min(hi, w.open_writes[node].hi)
            emit(w, X_OPEN_READ_HIT, ev, reader, writer, w.open_writes[node].ev, since, pool, page, gen, x, y, 0)
        node = w.open_writes[node].next
    if state.sharers <= 0:
        return
    tokens = w.pools[pool].tokens
    # What the owner of a published page fills in is what the share stands for: too late, and not somebody else's.
    promised = owner == writer and not state.flags & PF_CO
    for share in range(w.count.shares):
        a = w.shares[share].actor
        if w.shares[share].pool != pool or a == writer or w.shares[share].read == 0 or 0 <= w.actors[a].end < now:
            continue
        for j in range(w.shares[share].off, w.shares[share].off + w.shares[share].n):
            if w.share_pages[j].page == page and w.share_pages[j].gen == gen:
                if promised and w.share_pages[j].flags & 1:
                    continue
                base = (w.shares[share].ord + j - w.shares[share].off) * tokens
                x, y = lo, hi
                if w.shares[share].tok1 >= 0:
                    x, y = max(lo, w.shares[share].tok0 - base), min(hi, w.shares[share].tok1 - base)
                if x < y:
                    emit(w, X_OPEN_READ_HIT, ev, a, writer, w.shares[share].ev, since, pool, page, gen, x, y, 0)
                    w.actors[a].tainted = 1


def targets(w: Any, g: int, rp: int, op: int) -> bool:
    """A transfer may fill pages that nobody holds on record: the destination's owner may not be traced."""
    state = w.pages[g]
    return bool(op == OP_TRANSFER and rp >= 0 and w.pairs[rp].transfer >= 0 and state.owner < 0)


def first_sharer(w: Any, pool: int, page: int, gen: int) -> int:
    """Somebody who is attached to the page, or -1."""
    for share in range(w.count.shares - 1, -1, -1):
        if w.shares[share].pool == pool:
            for j in range(w.shares[share].off, w.shares[share].off + w.shares[share].n):
                if w.share_pages[j].page == page and w.share_pages[j].gen == gen:
                    return int(w.shares[share].actor)
    return -1


def land(
    w: Any,
    ev: int,
    g: int,
    page: int,
    pool: int,
    lo: int,
    hi: int,
    actor: int,
    rp: int,
    op: int,
    issued: int,
    flags: int,
    origin: int,
) -> None:
    """Rows [lo, hi) of a page now hold what `actor` wrote; `issued` is the generation it was meant for, or -1."""
    state = w.pages[g]
    cold = w.cold[g]
    if state.flags & PF_RESERVED or hi <= lo:
        return
    if op == OP_SCRUB:
        holds = state.owner == actor or (state.flags & PF_CO and cold.co_owner == actor)
        if holds and w.actors[actor].type == T_REQUEST and (issued < 0 or issued == state.gen):
            push_layer(w, g, lo, hi, actor, state.gen, ev, LF_ZEROED, -1)
        else:
            push_layer(w, g, lo, hi, -1, -1, ev, LF_BLANK, -1)
        return
    gen, owner, since = state.gen, state.owner, cold.alloc_ev
    if actor == NOBODY and op != OP_DUMMY and owner >= 0 and w.actors[owner].type != T_REQUEST:
        actor = owner  # the engine fills a tier page in its holder's name
    moved_on = issued >= 0 and issued != gen
    may = 0
    if not moved_on and (actor != NOBODY or owner == NOBODY):
        may = may_write(w, ev, g, page, pool, actor, rp, op, lo, hi)
    if may:
        if may == 2:
            flags |= LF_GUEST
        if state.flags & PF_KEYED and w.actors[actor].type == T_REQUEST:
            earlier = actor == cold.co_owner
            if (earlier or actor == owner) and earlier != (state.flags & PF_KEY_OF_CO != 0):
                flags |= LF_INTRUDER
        if (state.sharers > 0 and state.writer != actor) or state.flags & (PF_OPEN_WRITE | PF_CO):
            hit_open_reads(w, ev, g, page, pool, lo, hi, actor)
    else:
        flags |= LF_INTRUDER
        held = moved_on or cold.previous == actor or was_written_by(w, g, actor)
        victim = owner
        if owner < 0 and state.sharers > 0:
            victim = first_sharer(w, pool, page, gen)
        if actor == NOBODY or not (held or owner >= 0 or victim >= 0):
            if w.pools[pool].allocs and state.flags & PF_KNOWN and not (actor != NOBODY and targets(w, g, rp, op)):
                emit(w, X_STRAY_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, op)
        elif held:
            a = victim if victim >= 0 else actor
            when = since if victim >= 0 else cold.free_ev
            emit(w, X_LATE_WRITE, ev, a, actor, when, since, pool, page, gen, lo, hi, 0 if victim >= 0 else 1)
        else:
            emit(w, X_DOUBLE_WRITE, ev, victim, actor, since, since, pool, page, gen, lo, hi, 0)
        hit_open_reads(w, ev, g, page, pool, lo, hi, actor)
    if op == OP_FORWARD and w.actors[actor].tainted:
        flags |= LF_TAINT
    push_layer(w, g, lo, hi, actor, gen, ev, flags, origin)


def place_of(w: Any, g: int, page: int, actor: int, rp: int) -> int:
    """The ordinal of a page in a request's table, or -1."""
    state = w.pages[g]
    if state.owner == actor:
        return int(state.ord)
    entry = share_of(w, rp, page, state.gen, -1)
    if entry < 0:
        return -1
    record = share_record(w, rp, entry)
    return int(w.shares[record].ord + entry - w.shares[record].off)


def copy_layers(
    w: Any, ev: int, g1: int, page1: int, pool1: int, g2: int, actor: int, rp1: int, tokens: int, intruder: int
) -> None:
    """Give the target page the content of the source; what the request could soundly read becomes its own."""
    gen = w.pages[g2].gen
    n = resolve(w, g1, 0, tokens)
    share, s_lo, s_hi = attachment(w, ev, g1, page1, pool1, actor, rp1, -1, tokens)
    if share:
        n = split_by_share(w, g1, n, s_lo, s_hi)
    owner = w.pages[g1].owner
    lost = w.pools[pool1].gap_ev >= 0 and w.pools[pool1].gap_ev >= w.cold[g1].alloc_ev
    for k in range(n):
        lo, hi, writer, wgen, flags, origin = (
            w.scratch[k].lo,
            w.scratch[k].hi,
            w.scratch[k].writer,
            w.scratch[k].gen,
            w.scratch[k].flags,
            w.scratch[k].origin,
        )
        if writer == NEVER or flags & (LF_BLANK | LF_UNKNOWN):
            known = w.pages[g1].flags & PF_KNOWN and not flags & LF_UNKNOWN and not lost
            push_layer(w, g2, lo, hi, -1, -1, ev, LF_BLANK if known else LF_UNKNOWN, -1)
            continue
        part = share if lo >= s_lo and hi <= s_hi else 0
        if owner == actor and w.actors[owner].type != T_REQUEST:
            part = 1  # a holder moves content between tiers in its own name
        how = standing(w, g1, actor, writer, wgen, flags, part)
        keep = flags & ~(LF_INTRUDER | LF_GUEST)
        if how == SOUND or how == SHARED:
            if how == SHARED:
                across(w, ev, pool1, page1, w.pages[g1].gen, k, actor)
                if keep & LF_TAINT and origin < 0:
                    origin = writer
            author = writer if w.actors[actor].type != T_REQUEST else actor  # a holder makes nobody's content its own
            push_layer(w, g2, lo, hi, author, gen, ev, keep | intruder, origin)
        elif lost:
            push_layer(w, g2, lo, hi, -1, -1, ev, LF_UNKNOWN, -1)
        else:
            live = wgen == w.pages[g1].gen
            push_layer(w, g2, lo, hi, writer, gen if live else gen - 1, ev, keep | intruder, origin)


def copy_page(
    w: Any, ev: int, g1: int, page1: int, pool1: int, rp1: int, g2: int, page2: int, pool2: int, rp2: int, actor: int
) -> None:
    """Duplicate a page with its provenance; the target must be the request's, or a tier page of its tenant."""
    if w.pages[g1].flags & PF_RESERVED or w.pages[g2].flags & PF_RESERVED:
        return
    tokens = w.pools[pool2].tokens
    who = actor
    if actor == NOBODY and w.pages[g2].owner >= 0:
        who = w.pages[g2].owner
    fine = may_write(w, ev, g2, page2, pool2, who, rp2, OP_COPY, 0, tokens) != 0
    if not fine:
        land(w, ev, g2, page2, pool2, 0, tokens, who, rp2, OP_COPY, -1, 0, -1)
    elif w.pages[g2].sharers > 0 or w.pages[g2].flags & PF_OPEN_WRITE:
        hit_open_reads(w, ev, g2, page2, pool2, 0, tokens, who)
    copy_layers(
        w,
        ev,
        g1,
        page1,
        pool1,
        g2,
        who,
        rp1,
        tokens,
        0 if fine else LF_INTRUDER,
    )
    if rp2 >= 0 and w.pages[g2].owner == actor and w.pools[pool2].ordinals:
        place = place_of(w, g1, page1, actor, rp1)
        if place >= 0:
            if w.pages[g2].ord == w.pairs[rp2].next - 1 and w.pages[g2].ord != place:
                w.pairs[rp2].next -= 1
            w.pages[g2].ord = place
            if place >= w.pairs[rp2].next:
                w.pairs[rp2].next = place + 1


def move_page(
    w: Any, ev: int, g1: int, page1: int, pool1: int, g2: int, page2: int, pool2: int, rp2: int, time: int
) -> None:
    """Relocate a page: holders, publication, place and content go along; the source is free afterwards."""
    owner, sharers = w.pages[g1].owner, w.pages[g1].sharers
    gen1 = w.pages[g1].gen
    place = w.pages[g1].ord
    prepared = w.pages[g2].owner >= 0 and w.pages[g2].owner == owner
    if not prepared:
        alloc_page(w, ev, g2, page2, pool2, owner, -1, -1, time)
    gen2 = w.pages[g2].gen
    twice = w.pages[g2].flags & PF_CO != 0  # somebody else held the target: that one holds it still
    w.pages[g2].owner = owner
    w.pages[g2].rd_lo, w.pages[g2].rd_hi = w.pages[g1].rd_lo, w.pages[g1].rd_hi
    w.pages[g2].ord = place
    w.cold[g2].read_ev = w.cold[g1].read_ev
    # what is said of the page rests on all that befell it, from before it moved
    w.cold[g2].alloc_ev = min(w.cold[g1].alloc_ev, w.cold[g2].alloc_ev)
    w.pages[g2].flags |= w.pages[g1].flags & (PF_PUBLISHED | PF_KNOWN | PF_CO | PF_KEYED | PF_KEY_OF_CO)
    if not twice:
        w.cold[g2].co_owner = w.cold[g1].co_owner
    n = resolve(w, g1, 0, w.pools[pool2].tokens)
    for k in range(n):
        lo, hi, writer, wgen = w.scratch[k].lo, w.scratch[k].hi, w.scratch[k].writer, w.scratch[k].gen
        if writer == NEVER:
            blank = LF_BLANK if w.pages[g1].flags & PF_KNOWN else LF_UNKNOWN
            push_layer(w, g2, lo, hi, -1, -1, ev, blank, -1)
        else:
            gen = gen2 if wgen == gen1 else gen2 - 1
            push_layer(w, g2, lo, hi, writer, gen, w.scratch[k].ev, w.scratch[k].flags, w.scratch[k].origin)
    if w.pages[g1].flags & PF_PUBLISHED:
        for j in range(w.count.publication_pages):
            if (
                w.publication_pages[j].page == page1
                and w.publication_pages[j].gen == gen1
                and w.publication_pages[j].pool == pool1
            ):
                w.publication_pages[j].page, w.publication_pages[j].gen, w.publication_pages[j].pool = (
                    page2,
                    gen2,
                    pool2,
                )
    if sharers > 0 and pool1 == pool2:
        w.pages[g2].sharers = sharers
        for share in range(w.count.shares):
            if w.shares[share].pool == pool1:
                for j in range(w.shares[share].off, w.shares[share].off + w.shares[share].n):
                    if w.share_pages[j].page == page1 and w.share_pages[j].gen == gen1:
                        w.share_pages[j].page, w.share_pages[j].gen = page2, gen2
    w.pages[g1].owner = -1
    w.pages[g1].sharers = 0
    w.pages[g1].rd_lo, w.pages[g1].rd_hi = 0, 0
    w.pages[g1].flags &= ~(PF_PUBLISHED | PF_CO | PF_KEYED | PF_KEY_OF_CO)
    w.cold[g1].previous = owner
    w.cold[g1].free_ev = ev
