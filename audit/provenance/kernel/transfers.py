"""Content that moves between pools: what is announced, what is read at the source, what is said to have arrived."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.emit import emit
from kvwitness.audit.provenance.kernel.layers import NEVER, resolve
from kvwitness.audit.provenance.kernel.layout import (
    LF_BLANK,
    LF_FOREIGN_ORIGIN,
    LF_TAINT,
    LF_UNKNOWN,
    LF_ZEROED,
    OP_LOAD,
    OP_TRANSFER,
    PF_KNOWN,
    PF_RESERVED,
    TS_CLAIMED,
    TS_FAILED,
    X_FALSE_DONE,
)
from kvwitness.audit.provenance.kernel.reads import (
    FOREIGN,
    SHARED,
    SOUND,
    STALE_OWN,
    UNWRITTEN,
    across,
    attachment,
    late_read_page,
    rows_of,
    split_by_share,
    standing,
)


def first_page(n: int, tok0: int, tok1: int, tokens: int) -> int:
    """The table place of the first of n pages of a movement: 0, unless they are too few to start there."""
    if tok0 <= 0 or n * tokens >= tok1:
        return 0
    return tok0 // tokens


def begin_transfer(
    w: Any,
    ev: int,
    transfer: int,
    actor: int,
    src_pool: int,
    s_off: int,
    s_n: int,
    dst_pool: int,
    d_off: int,
    d_n: int,
    rp2: int,
    tok0: int,
    tok1: int,
    gen_off: int,
    gen_n: int,
) -> None:
    """A transfer is announced or begins. A begin after an offer keeps the generations of the offer."""
    record = w.count.transfers
    w.count.transfers += 1
    older = w.transfer_ids[transfer].head
    start = w.count.transfer_pages
    w.count.transfer_pages += s_n + d_n
    w.transfers[record].actor = actor
    w.transfers[record].src_pool = src_pool
    w.transfers[record].s_off = start
    w.transfers[record].s_n = s_n
    w.transfers[record].dst_pool = dst_pool
    w.transfers[record].d_off = start + s_n
    w.transfers[record].d_n = d_n
    w.transfers[record].s_first = first_page(s_n, tok0, tok1, w.pools[src_pool].tokens) if src_pool >= 0 else 0
    w.transfers[record].d_first = first_page(d_n, tok0, tok1, w.pools[dst_pool].tokens) if dst_pool >= 0 else 0
    w.transfers[record].tok0 = tok0
    w.transfers[record].tok1 = tok1
    w.transfers[record].ev = ev
    w.transfers[record].state = 0
    w.transfers[record].id = transfer
    w.transfers[record].older = older
    # After an end the id is used again by another request, or after a failure for another attempt; a start of the same
    # request after a completion is its next piece.
    fresh = older < 0 or (
        w.transfers[older].state != 0
        and (w.transfers[older].actor != actor or w.transfers[older].state & TS_FAILED != 0)
    )
    w.transfers[record].life = ev if fresh else w.transfers[older].life
    if older >= 0 and fresh and w.transfers[older].actor != actor:
        w.transfer_ids[transfer].lease = -1  # it was of the source pages of the other request
    w.transfers[record].lease = w.transfer_ids[transfer].lease
    same_offer = (
        older >= 0
        and w.transfers[older].dst_pool < 0
        and w.transfers[older].actor == actor
        and w.transfers[older].s_n == s_n
        and w.transfers[older].src_pool == src_pool
    )
    if same_offer:
        w.transfers[record].ev = w.transfers[older].ev
    for i in range(s_n):
        page = w.listed_too[s_off + i]
        gen = w.pages[w.pools[src_pool].base + page].gen
        if gen_n == 1:
            gen = w.generations[gen_off]
        elif i < gen_n:
            gen = w.generations[gen_off + i]
        elif same_offer and w.transfer_pages[w.transfers[older].s_off + i].page == page:
            gen = w.transfer_pages[w.transfers[older].s_off + i].gen
        w.transfer_pages[start + i].page = page
        w.transfer_pages[start + i].gen = gen
        w.transfer_pages[start + i].origin = -1
        w.transfer_pages[start + i].flags = 0
    for i in range(d_n):
        page = w.listed_too[d_off + i]
        w.transfer_pages[start + s_n + i].page = page
        w.transfer_pages[start + s_n + i].gen = -1
        if dst_pool >= 0 and w.pages[w.pools[dst_pool].base + page].owner == actor:
            w.transfer_pages[start + s_n + i].gen = w.pages[w.pools[dst_pool].base + page].gen
    w.transfer_ids[transfer].head = record
    if rp2 >= 0:
        w.pairs[rp2].transfer = record


def join_sides(w: Any, transfer: int) -> None:
    """Where one side named the source pages of a transfer and the other its targets, they are one movement.

    The fetch after an offer need not repeat what was offered, and sender and receiver may each begin with their own.
    """
    record = w.transfer_ids[transfer].head
    older = next_reported(w, record)
    if older < 0 or w.transfers[older].actor != w.transfers[record].actor:
        return
    if w.transfers[record].s_n == 0 and w.transfers[older].s_n > 0 and w.transfers[older].d_n == 0:
        if w.transfers[record].src_pool < 0 or w.transfers[record].src_pool == w.transfers[older].src_pool:
            take_source(w, older, record)
            w.transfers[record].ev = w.transfers[older].ev
    elif w.transfers[record].d_n == 0 and w.transfers[older].d_n > 0 and w.transfers[older].s_n == 0:
        if w.transfers[older].src_pool < 0 or w.transfers[record].src_pool == w.transfers[older].src_pool:
            take_source(w, record, older)


def take_source(w: Any, giver: int, taker: int) -> None:
    """The source pages of one record, and what is found out about them, are another's as well."""
    w.transfers[taker].src_pool = w.transfers[giver].src_pool
    w.transfers[taker].s_off = w.transfers[giver].s_off
    w.transfers[taker].s_n = w.transfers[giver].s_n
    w.transfers[taker].s_first = w.transfers[giver].s_first
    w.transfers[taker].rp1 = w.transfers[giver].rp1


def source_page(w: Any, ev: int, record: int, i: int, lo: int, hi: int, rp1: int, expired: int) -> None:
    """The read of source page i is complete: late or not, and whose content left with it (kept in `transfer_pages`)."""
    j = w.transfers[record].s_off + i
    if w.transfer_pages[j].flags & 1:
        return
    w.transfer_pages[j].flags |= 1
    pool = w.transfers[record].src_pool
    page, gen = w.transfer_pages[j].page, w.transfer_pages[j].gen
    g = w.pools[pool].base + page
    actor = w.transfers[record].actor
    first_place = w.transfers[record].s_first
    if w.pages[g].flags & PF_RESERVED:
        return
    other = late_read_page(w, ev, g, page, pool, lo, hi, actor, rp1, w.transfers[record].ev, gen, expired)
    if other >= 0:
        w.transfer_pages[j].origin = other
        w.transfer_pages[j].flags |= (
            16 if w.pools[pool].gap_ev >= w.cold[g].alloc_ev and w.pools[pool].gap_ev >= 0 else 2
        )
        return
    if w.pages[g].gen == 0 and w.pages[g].owner < 0 and w.pages[g].hi == 0:
        return  # a store of which nothing is on record gives no origin
    n = resolve(w, g, lo, hi)
    share, s_lo, s_hi = attachment(w, ev, g, page, pool, actor, rp1, first_place + i, w.pools[pool].tokens)
    if share:
        n = split_by_share(w, g, n, s_lo, s_hi)
    lost = w.pools[pool].gap_ev >= w.cold[g].alloc_ev and w.pools[pool].gap_ev >= 0
    for k in range(n):
        writer, wgen, flags, origin = w.scratch[k].writer, w.scratch[k].gen, w.scratch[k].flags, w.scratch[k].origin
        if writer == NEVER or writer < 0 or (flags & LF_ZEROED and writer != actor):
            unknown = flags & LF_UNKNOWN or not w.pages[g].flags & PF_KNOWN or lost
            w.transfer_pages[j].flags |= 16 if unknown else 8
            continue
        part = share if w.scratch[k].lo >= s_lo and w.scratch[k].hi <= s_hi else 0
        how = standing(w, g, actor, writer, wgen, flags, part)
        if how == FOREIGN or how == UNWRITTEN:
            w.transfer_pages[j].origin = writer
            w.transfer_pages[j].flags |= 16 if lost else 2
        elif how == SOUND or how == SHARED or how == STALE_OWN:
            if how == SHARED:
                across(w, ev, pool, page, w.pages[g].gen, k, actor)
            if flags & LF_FOREIGN_ORIGIN:
                w.transfer_pages[j].origin = origin
                w.transfer_pages[j].flags |= 2
            elif flags & LF_TAINT and not w.transfer_pages[j].flags & 2:
                w.transfer_pages[j].origin = origin if origin >= 0 else writer
                w.transfer_pages[j].flags |= 4


def settle_source(w: Any, ev: int, record: int, pos0: int, pos1: int, rp1: int, time: int) -> int:
    """The source pages that hold positions [pos0, pos1) of a transfer have been read; how many were not plain."""
    if w.transfers[record].s_n == 0:
        return 0
    dirty = 0
    tokens = w.pools[w.transfers[record].src_pool].tokens
    actor, lease = w.transfers[record].actor, w.transfers[record].lease
    expired = 1 if 0 <= lease < time else 0
    first = w.transfers[record].s_first
    end = w.transfers[record].tok1
    for i in range(max(0, pos0 // tokens - first), min(w.transfers[record].s_n, (pos1 - 1) // tokens - first + 1)):
        start = (first + i) * tokens
        hi = tokens if end < 0 else max(0, min(tokens, end - start))
        entry = w.transfer_pages[w.transfers[record].s_off + i]
        page = w.pages[w.pools[w.transfers[record].src_pool].base + entry.page]
        own = page.owner == actor and page.writer == actor and page.lflags == 0 and page.origin < 0
        if own and page.gen == entry.gen and page.lgen == page.gen and page.lo == 0 and page.hi >= hi and not expired:
            entry.flags |= 1  # its own complete content, still held: nothing to travel with it
            continue
        source_page(w, ev, record, i, 0, hi, rp1, expired)
        if entry.flags & ~1:
            dirty += 1
    return dirty


def departs(w: Any, ev: int, read: int, i: int, rp: int, place: int, lo: int, hi: int, time: int) -> bool:
    """The end of a read of its own dates when a source page was read: what lands later brings what was there then.

    `i`: the page's place in the list of the read, `place` in the request's table if the read says so, [lo, hi) the
    rows that were read. Returns whether a transfer of the request was waiting for that page.
    """
    page, n = w.read_pages[w.reads[read].off + i].page, w.reads[read].n
    record = w.pairs[rp].source
    found = False
    while record >= 0:
        if w.transfers[record].actor != w.reads[read].actor or w.transfers[record].src_pool != w.reads[read].pool:
            record = next_reported(w, record)
            continue
        s_n, s_off, first = w.transfers[record].s_n, w.transfers[record].s_off, w.transfers[record].s_first
        k = place - first if place >= 0 else i
        if place < 0 and s_n != n:
            k = 0
            while k < s_n and w.transfer_pages[s_off + k].page != page:
                k += 1
        if 0 <= k < s_n and w.transfer_pages[s_off + k].page == page and not w.transfer_pages[s_off + k].flags & 1:
            tokens = w.pools[w.transfers[record].src_pool].tokens
            start, end = (first + k) * tokens, w.transfers[record].tok1
            low = max(0, w.transfers[record].tok0 - start)
            high = tokens if end < 0 else max(0, min(tokens, end - start))
            if lo <= low and hi >= high:
                lease = w.transfers[record].lease
                source_page(w, ev, record, k, low, high, rp, 1 if 0 <= lease < time else 0)
                found = True
        record = next_reported(w, record)
    return found


def end_read(w: Any, ev: int, record: int, lease: int, rp: int, time: int) -> None:
    """An explicit end closes a read that was remembered."""
    w.reads[record].open = 0
    pool = w.reads[record].pool
    tokens = w.pools[pool].tokens
    base = w.pools[pool].base
    tok0, tok1, n = w.reads[record].tok0, w.reads[record].tok1, w.reads[record].n
    carried = w.reads[record].op == OP_TRANSFER and w.pairs[rp].source >= 0
    for i in range(n):
        j = w.reads[record].off + i
        page, gen = w.read_pages[j].page, w.read_pages[j].gen
        lo, hi = rows_of(i, tok0, tok1, tokens)
        place = tok0 // tokens + i if tok0 >= 0 else -1
        if carried and departs(w, ev, record, i, rp, place, lo, hi, time):
            continue
        actor, began = w.reads[record].actor, w.reads[record].ev
        late_read_page(w, ev, base + page, page, pool, lo, hi, actor, rp, began, gen, lease)


def origin_of(w: Any, record: int, pos0: int, pos1: int) -> tuple[int, int]:
    """Origin actor and layer flags of what arrived for positions [pos0, pos1): (-1, 0) when it is the request's own."""
    if w.transfers[record].s_n == 0:
        return -1, 0
    tokens = w.pools[w.transfers[record].src_pool].tokens
    first = w.transfers[record].s_first
    taint = -1
    blank = 0
    for i in range(max(0, pos0 // tokens - first), min(w.transfers[record].s_n, (pos1 - 1) // tokens - first + 1)):
        j = w.transfers[record].s_off + i
        if w.transfer_pages[j].flags & 2:
            return int(w.transfer_pages[j].origin), LF_FOREIGN_ORIGIN
        if w.transfer_pages[j].flags & 24:
            blank = LF_UNKNOWN if w.transfer_pages[j].flags & 16 else LF_BLANK
        if w.transfer_pages[j].flags & 4:
            taint = int(w.transfer_pages[j].origin)
    if blank:
        return -1, blank
    if taint >= 0:
        return taint, LF_TAINT
    return -1, 0


def target_index(w: Any, record: int, page: int, place: int) -> int:
    """Where a transfer's list of destination pages has a page, or -1; `place`, if not -1, is where to look first."""
    off, n = w.transfers[record].d_off, w.transfers[record].d_n
    k = place - w.transfers[record].d_first
    if place >= 0 and 0 <= k < n and w.transfer_pages[off + k].page == page:
        return int(k)
    k = 0
    while k < n and w.transfer_pages[off + k].page != page:
        k += 1
    return int(k) if k < n else -1


def record_for(w: Any, rp: int, page: int, actor: int, place: int) -> int:
    """The latest transfer of this request that names the destination page, or -1.

    `place` is the page's place in the table, or -1 where the landing names no positions. Of several that name the
    page, as the pieces of a prompt do when each lists the whole table, it is the latest that moves positions there.
    """
    record = w.pairs[rp].transfer if rp >= 0 else -1
    latest = -1
    while record >= 0:
        if w.transfers[record].actor == actor:
            k = target_index(w, record, page, place)
            if k >= 0:
                tokens = w.pools[w.transfers[record].dst_pool].tokens
                start = (place if place >= 0 else w.transfers[record].d_first + k) * tokens
                tok0, tok1 = w.transfers[record].tok0, w.transfers[record].tok1
                if start + tokens > tok0 and (tok1 < 0 or start < tok1):
                    return int(record)
                if latest < 0:
                    latest = record
        record = w.transfers[record].older
    return int(latest)


def bringer_of(w: Any, rp: int, page: int, actor: int, place: int, op: int) -> int:
    """The transfer that a landing on a page belongs to, or -1.

    A load belongs to one that is under way and moves its positions; other loads come from somewhere out of sight.
    """
    record = record_for(w, rp, page, actor, place)
    if record >= 0 and op == OP_LOAD:
        tokens = w.pools[w.transfers[record].dst_pool].tokens
        start = place * tokens
        if place < 0:
            start = (w.transfers[record].d_first + target_index(w, record, page, place)) * tokens
        tok0, tok1 = w.transfers[record].tok0, w.transfers[record].tok1
        if w.transfers[record].state != 0 or start + tokens <= tok0 or 0 <= tok1 <= start:
            return -1
    return record


def meant_for(w: Any, record: int, page: int, place: int) -> int:
    """The generation that a target page had when the transfer began, if it was the request's then; else -1."""
    k = target_index(w, record, page, place)
    return int(w.transfer_pages[w.transfers[record].d_off + k].gen) if k >= 0 else -1


def reported_on(w: Any, transfer: int, actor: int) -> int:
    """The newest record that a report of an end speaks of: of the request that it names, if there is one."""
    head = w.transfer_ids[transfer].head
    record = head
    while actor > 0 and record >= 0:
        if w.transfers[record].actor == actor:
            return int(record)
        record = w.transfers[record].older
    return int(head)


def next_reported(w: Any, record: int) -> int:
    """The next older record in the same use of a transfer id, or -1."""
    older = w.transfers[record].older
    if older >= 0 and w.transfers[older].life == w.transfers[record].life:
        return int(older)
    return -1


def check_done(w: Any, ev: int, record: int, tokens_claimed: int, rp2: int) -> None:
    """`done` claims positions up to `tokens_claimed`: each destination page must hold complete writes of them."""
    pool = w.transfers[record].dst_pool
    if pool < 0 or w.transfers[record].state & TS_CLAIMED:
        return  # what became of the pages since that report is another question
    if 0 < w.transfers[record].tok1 <= tokens_claimed:
        w.transfers[record].state |= TS_CLAIMED
    tokens = w.pools[pool].tokens
    lower = max(0, w.transfers[record].tok0)
    for i in range(w.transfers[record].d_n):
        page = w.transfer_pages[w.transfers[record].d_off + i].page
        g = w.pools[pool].base + page
        if w.pages[g].flags & PF_RESERVED:
            continue
        place = w.transfers[record].d_first + i
        lo, hi = rows_of(place, 0, tokens_claimed, tokens)
        lo = max(lo, lower - place * tokens)
        if hi <= lo or place * tokens >= tokens_claimed:
            continue
        actor = w.transfers[record].actor
        share, s_lo, s_hi = attachment(w, ev, g, page, pool, actor, rp2, place, tokens)
        n = resolve(w, g, lo, hi)
        if share:
            n = split_by_share(w, g, n, s_lo, s_hi)
        for k in range(n):
            part = share if w.scratch[k].lo >= s_lo and w.scratch[k].hi <= s_hi else 0
            zeroed = w.scratch[k].flags & LF_ZEROED != 0  # made ready for what was to come
            if w.scratch[k].writer == actor and w.scratch[k].gen == w.pages[g].gen and not zeroed:
                continue  # it arrived; what arrived is another question
            how = standing(w, g, actor, w.scratch[k].writer, w.scratch[k].gen, w.scratch[k].flags, part)
            if zeroed or (how != SOUND and how != SHARED):
                emit(
                    w,
                    X_FALSE_DONE,
                    ev,
                    actor,
                    -1,
                    w.transfers[record].ev,
                    w.cold[g].alloc_ev,
                    pool,
                    page,
                    w.pages[g].gen,
                    w.scratch[k].lo,
                    w.scratch[k].hi,
                    0,
                )
                break
