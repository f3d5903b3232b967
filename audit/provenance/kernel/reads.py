"""Judging what a read met: own content, admitted content, or somebody else's."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.holders import share_of, share_record
from kvwitness.audit.provenance.kernel.layers import NEVER, foreign_after, resolve, was_written_by
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_GUEST,
    LF_INTRUDER,
    LF_TAINT,
    LF_UNKNOWN,
    LF_ZEROED,
    NO_PLACES,
    NOBODY,
    OP_COPY,
    OP_OFFLOAD,
    OP_OPEN_READ,
    OP_TRANSFER,
    PF_CO,
    PF_KNOWN,
    PF_OPEN_WRITE,
    PF_RESERVED,
    STRANGE_PAGES,
    T_REQUEST,
    T_SESSION,
    T_SNAPSHOT,
    X_ACROSS,
    X_FOREIGN,
    X_LATE_READ,
    X_NOT_READY,
    X_SESSION,
    X_SHARED,
    X_TAINTED,
    X_UNKNOWN,
    X_UNWRITTEN,
)
from kvwitness.audit.provenance.kernel.watching import keep_open

# how a piece of a page stands to a reader
SOUND, SHARED, FOREIGN, UNWRITTEN, STALE_OWN, UNKNOWN = range(6)


def rows_of(i: int, tok0: int, tok1: int, tokens: int) -> tuple[int, int]:
    """Rows [lo, hi) of the i-th page of an event that covers positions [tok0, tok1); whole pages without them."""
    if tok0 < 0:
        return 0, tokens
    start = (tok0 // tokens + i) * tokens
    lo = max(0, tok0 - start)
    hi = min(tokens, tok1 - start)
    return lo, max(lo, hi)


def goes_on(w: Any, ev: int, g: int, page: int, pool: int, actor: int, rp: int) -> None:
    """A request uses pages that a session keeps: they begin its table, so that no place in it is judged, ever."""
    if rp >= 0 and not w.pairs[rp].blind & NO_PLACES:
        w.pairs[rp].blind |= NO_PLACES
        emit(w, X_SESSION, ev, actor, -1, -1, -1, pool, page, w.pages[g].gen, 0, 0, 0)


def attachment(
    w: Any, ev: int, g: int, page: int, pool: int, actor: int, rp: int, ordinal: int, tokens: int
) -> tuple[int, int, int]:
    """How a request is attached to a page: 1 admitted, 2 attached but not admitted, 0 not; and the rows it covers.

    Pages that a session or a snapshot of the reader's own tenant keeps count as admitted.
    """
    state = w.pages[g]
    owner = state.owner
    if owner >= 0 and (w.actors[owner].type == T_SESSION or w.actors[owner].type == T_SNAPSHOT):
        if w.actors[owner].tenant == w.actors[actor].tenant:
            goes_on(w, ev, g, page, pool, actor, rp)
            return 1, 0, tokens
    entry = share_of(w, rp, page, state.gen, ordinal)
    if entry < 0:
        return 0, 0, 0
    record = share_record(w, rp, entry)
    lo, hi = 0, tokens
    if w.shares[record].tok0 >= 0:
        base = (w.shares[record].ord + entry - w.shares[record].off) * tokens
        lo = max(0, w.shares[record].tok0 - base)
        hi = max(lo, min(tokens, w.shares[record].tok1 - base))
    return (1 if w.share_pages[entry].flags & 1 else 2), lo, hi


def standing(w: Any, g: int, actor: int, writer: int, gen: int, flags: int, share: int) -> int:
    """How a piece written by `writer` in generation `gen` stands to `actor`, given its share of these rows."""
    state = w.pages[g]
    if flags & LF_UNKNOWN:
        return UNKNOWN
    if flags & LF_ZEROED and writer != actor:
        return UNWRITTEN
    if writer == NEVER or flags & LF_BLANK:
        return UNWRITTEN if state.flags & PF_KNOWN or writer != NEVER else UNKNOWN
    live = gen == state.gen
    if writer == actor:
        return SOUND if live else STALE_OWN
    if not live:
        return UNWRITTEN
    if share == 1 and writer != NOBODY and not flags & (LF_INTRUDER | LF_GUEST):
        return SHARED
    return FOREIGN


def open_write_covers(w: Any, g: int, lo: int, hi: int) -> bool:
    """Whether a write that was issued in the live generation and has not ended would fill some of [lo, hi)."""
    state = w.pages[g]
    cold = w.cold[g]
    if not state.flags & PF_OPEN_WRITE:
        return False
    node = cold.open_writes
    while node >= 0:
        if (
            w.open_writes[node].gen == state.gen
            and w.open_writes[node].lo < hi
            and w.open_writes[node].hi > lo
            and w.open_writes[node].op != OP_OPEN_READ
        ):
            return True
        node = w.open_writes[node].next
    return False


def is_holder(w: Any, g: int, page: int, actor: int, rp: int, ordinal: int) -> bool:
    """Whether the request owns the page, is its second owner, or is attached to it."""
    state = w.pages[g]
    cold = w.cold[g]
    if state.owner == actor or (state.flags & PF_CO and cold.co_owner == actor):
        return True
    return bool(share_of(w, rp, page, state.gen, ordinal) >= 0)


def split_by_share(w: Any, g: int, n: int, lo: int, hi: int) -> int:
    """Cut the n pieces in `scratch` where the rows of a share begin and end; returns how many there are then."""
    state = w.pages[g]
    gen = state.gen
    for k in range(n):
        if w.scratch[k].gen != gen:
            continue
        for side in range(2):
            cut = lo if side == 0 else hi
            if w.scratch[k].lo < cut < w.scratch[k].hi:
                w.scratch[n].lo = cut
                w.scratch[n].hi = w.scratch[k].hi
                w.scratch[n].writer = w.scratch[k].writer
                w.scratch[n].gen = w.scratch[k].gen
                w.scratch[n].ev = w.scratch[k].ev
                w.scratch[n].flags = w.scratch[k].flags
                w.scratch[n].origin = w.scratch[k].origin
                w.scratch[k].hi = cut
                n += 1
    return n


def across(w: Any, ev: int, pool: int, page: int, gen: int, k: int, actor: int) -> None:
    """Write down an admitted read that rests on state from before a loss: who wrote there since may not be on record.

    What a request wrote itself needs no such note: it was alive then.
    """
    if w.pools[pool].gap_ev > w.scratch[k].ev:
        writer, wev = w.scratch[k].writer, w.scratch[k].ev
        emit(w, X_ACROSS, ev, actor, writer, wev, wev, pool, page, gen, w.scratch[k].lo, w.scratch[k].hi, 0)


def report(
    w: Any,
    ev: int,
    g: int,
    page: int,
    pool: int,
    k: int,
    how: int,
    actor: int,
    rp: int,
    ordinal: int,
    share: int,
    remote: bool,
) -> None:
    """Write down one piece of a read that is not plainly sound."""
    state = w.pages[g]
    cold = w.cold[g]
    x, y, writer, wev, flags, origin = (
        w.scratch[k].lo,
        w.scratch[k].hi,
        w.scratch[k].writer,
        w.scratch[k].ev,
        w.scratch[k].flags,
        w.scratch[k].origin,
    )
    gen, since = state.gen, cold.alloc_ev
    if how == SOUND or how == SHARED:
        if flags & LF_FOREIGN_ORIGIN:
            emit(w, X_FOREIGN, ev, actor, origin, wev, since, pool, page, gen, x, y, 1)
        elif flags & LF_TAINT and origin != actor and (how == SHARED or origin >= 0):
            source = origin if origin >= 0 else writer
            emit(w, X_TAINTED, ev, actor, source, wev, since, pool, page, gen, x, y, 0)
        if how == SHARED:
            across(w, ev, pool, page, gen, k, actor)
            entry = share_of(w, rp, page, gen, ordinal)
            if entry >= 0 and not w.share_pages[entry].flags & 2 and w.actors[writer].tenant != w.actors[actor].tenant:
                emit(w, X_SHARED, ev, actor, writer, wev, since, pool, page, gen, x, y, 0)
    elif how == UNKNOWN:
        emit(w, X_UNKNOWN, ev, actor, -1, -1, -1, pool, page, gen, x, y, 0)
    elif how == STALE_OWN and state.owner != actor and remote:
        pass  # a former holder's copy of its own old bytes: whether it came too late is judged when it ends
    elif how == FOREIGN:
        emit(w, X_FOREIGN, ev, actor, writer, wev, since, pool, page, gen, x, y, 2 if share > 0 else 0)
    else:
        b = -1 if writer == NEVER or writer == actor or flags & (LF_BLANK | LF_ZEROED) else writer
        arrived = (
            1 if writer == actor and flags & LF_BLANK else 0
        )  # it came with the reader's own transfer, from where nobody had written
        emit(w, X_UNWRITTEN, ev, actor, b, wev, since, pool, page, gen, x, y, arrived)
        if share > 0 or open_write_covers(w, g, x, y):
            emit(w, X_NOT_READY, ev, actor, b, wev, since, pool, page, gen, x, y, 0)


def read_page(
    w: Any,
    ev: int,
    g: int,
    page: int,
    pool: int,
    lo: int,
    hi: int,
    actor: int,
    rp: int,
    ordinal: int,
    op: int,
    tokens: int,
) -> None:
    """Judge a read of rows [lo, hi) that is not plainly a read of the reader's own complete writes."""
    state = w.pages[g]
    cold = w.cold[g]
    if state.flags & PF_RESERVED:
        return
    share, s_lo, s_hi = attachment(w, ev, g, page, pool, actor, rp, ordinal, tokens)
    holder = is_holder(w, g, page, actor, rp, ordinal)
    if not holder and rp >= 0:
        w.pairs[rp].blind |= STRANGE_PAGES
    remote = op == OP_TRANSFER or op == OP_OFFLOAD or op == OP_COPY
    n = resolve(w, g, lo, hi)
    if share:
        n = split_by_share(w, g, n, s_lo, s_hi)
    seen = 17
    tainted = False
    sound = True
    for k in range(n):
        part = share if w.scratch[k].lo >= s_lo and w.scratch[k].hi <= s_hi else 0
        how = standing(w, g, actor, w.scratch[k].writer, w.scratch[k].gen, w.scratch[k].flags, part)
        w.scratch[k].how = how
        seen = (seen * 31 + w.scratch[k].ev * 64 + w.scratch[k].lo * 8 + how) & 0x3FFFFFFF
        sound = sound and (how == SOUND or how == SHARED) and w.scratch[k].flags == 0
        tainted = tainted or how == FOREIGN or how == UNWRITTEN or (how == STALE_OWN and not remote)
        if how <= SHARED and w.scratch[k].flags & (LF_FOREIGN_ORIGIN | LF_TAINT) and w.scratch[k].origin != actor:
            tainted = tainted or w.scratch[k].origin >= 0 or how == SHARED
    if tainted:
        w.actors[actor].tainted = 1
        if not holder:
            keep_open(w, g, actor, ev, lo, hi)
    if state.owner == actor:
        if cold.reported == seen:
            return  # the same rows in the same state as at its last read: that was written down then
        cold.reported = seen
    for k in range(n):
        part = share if w.scratch[k].lo >= s_lo and w.scratch[k].hi <= s_hi else 0
        if w.scratch[k].how != SOUND or w.scratch[k].flags != 0:
            report(
                w,
                ev,
                g,
                page,
                pool,
                k,
                w.scratch[k].how,
                actor,
                rp,
                ordinal,
                max(part, share) if w.scratch[k].how == UNWRITTEN else part,
                remote,
            )
    if sound and n == 1 and share == 1:
        entry = share_of(w, rp, page, state.gen, ordinal)
        if entry >= 0:
            w.share_pages[entry].flags |= 2


def remember_read(
    w: Any, ev: int, pool: int, off: int, n: int, actor: int, rp: int, tok0: int, tok1: int, op: int, gen: int
) -> None:
    """Keep a read that an explicit end may close later, with the generations that it began on."""
    record = w.count.reads
    w.count.reads += 1
    start = w.count.read_pages
    w.count.read_pages += n
    w.reads[record].actor = actor
    w.reads[record].pool = pool
    w.reads[record].ev = ev
    w.reads[record].off = start
    w.reads[record].n = n
    w.reads[record].tok0 = tok0
    w.reads[record].tok1 = tok1
    w.reads[record].op = op
    w.reads[record].open = 1
    w.reads[record].older = w.pairs[rp].read
    w.pairs[rp].read = record
    base = w.pools[pool].base
    for i in range(n):
        page = w.listed[off + i]
        w.read_pages[start + i].page = page
        w.read_pages[start + i].gen = gen if gen >= 0 else w.pages[base + page].gen


def find_read(w: Any, off: int, n: int, rp: int, tok0: int, tok1: int, op: int) -> int:
    """The latest open read of the same request, pool, operation, pages and positions, or -1."""
    record = w.pairs[rp].read
    while record >= 0:
        if (
            w.reads[record].open
            and w.reads[record].op == op
            and w.reads[record].n == n
            and w.reads[record].tok0 == tok0
            and w.reads[record].tok1 == tok1
        ):
            same = True
            for i in range(n):
                if w.read_pages[w.reads[record].off + i].page != w.listed[off + i]:
                    same = False
                    break
            if same:
                return int(record)
        record = w.reads[record].older
    return -1


def refilled(w: Any, ev: int, g: int, page: int, pool: int, lo: int, hi: int, actor: int, rp: int, began: int) -> int:
    """A read completes of a page that no request holds, such as a staging buffer, and another wrote there meanwhile.

    Returns that writer, or -1. Of a page that the reader holds, what others write under its open read is seen at once.
    """
    owner = w.pages[g].owner
    if owner < 0 or w.actors[owner].type == T_REQUEST or is_holder(w, g, page, actor, rp, -1):
        return -1
    k = foreign_after(w, g, lo, hi, actor, began)
    if k < 0 or w.scratch[k].flags & LF_ZEROED or w.actors[w.scratch[k].writer].type != T_REQUEST:
        return -1
    writer, when, x, y = w.scratch[k].writer, w.scratch[k].ev, w.scratch[k].lo, w.scratch[k].hi
    if writer == NOBODY:
        return -1
    emit(w, X_FOREIGN, ev, actor, writer, when, w.cold[g].alloc_ev, pool, page, w.pages[g].gen, x, y, 0)
    w.actors[actor].tainted = 1
    return int(writer)


def late_read_page(
    w: Any,
    ev: int,
    g: int,
    page: int,
    pool: int,
    lo: int,
    hi: int,
    actor: int,
    rp: int,
    began: int,
    gen: int,
    lease: int,
) -> int:
    """A read that began at `began` on generation `gen` completes: was the page still the reader's to read?

    Returns the other writer whose content arrived before the read was complete, or -1.
    """
    state = w.pages[g]
    cold = w.cold[g]
    owner = state.owner
    if not state.flags & PF_KNOWN:
        return -1
    if state.flags & PF_RESERVED or (state.gen == 0 and owner < 0 and state.hi == 0):
        return -1  # reserved, or a page of which the record knows nothing at all
    kept = state.gen == gen and (owner >= 0 and w.actors[owner].type != T_REQUEST)
    kept = kept or (state.gen == gen and is_holder(w, g, page, actor, rp, -1))
    if kept and not lease:
        return refilled(w, ev, g, page, pool, lo, hi, actor, rp, began)
    released = owner < 0 and state.sharers == 0 and cold.free_ev >= 0
    if state.gen == gen and not kept and not released and cold.previous != actor and not was_written_by(w, g, actor):
        return -1  # another's, and never the reader's: what it met there is judged as a read, not as a late one
    k = foreign_after(w, g, lo, hi, actor, began)
    if k < 0 and state.gen != gen:
        n = resolve(w, g, lo, hi)
        for j in range(n):
            if w.scratch[j].writer != NEVER and w.scratch[j].writer != actor and w.scratch[j].gen > gen:
                k = j
                break
    since = cold.alloc_ev
    if k >= 0:
        other, when = w.scratch[k].writer, w.scratch[k].ev
        if w.scratch[k].flags & LF_ZEROED:
            other = -1
        emit(w, X_LATE_READ, ev, actor, other, when, since, pool, page, state.gen, lo, hi, 2)
        w.actors[actor].tainted = 1
        return int(other)
    when = cold.free_ev
    emit(w, X_LATE_READ, ev, actor, -1, when, since, pool, page, state.gen, lo, hi, 1 if lease else 0)
    return -1
