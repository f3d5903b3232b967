"""The pool simulation, compiled: its state, and the life of one request, one visit at a time.

A slot is visited at random, so the lives of the requests in flight interleave and the order in which pages
return to the queues loses its runs: the pool ages. All of it stands in one file because the compiler's cache
looks at one file only when it decides whether its machine code is still good.

The whole state is a tuple of arrays, so that it survives between compiled calls and nothing grows with the
length of the trace. Columns of the integer tables are named by the constants below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Row kinds. Everything from ALLOC to UNPUBLISH carries one list of pages; BEGIN carries two of equal length.
RECEIVED, FINISHED, ALLOC, FREE, FREE_TO_CACHE, EVICT = 0, 1, 2, 3, 4, 5
WRITE, LAND, READ, SHARE, PUBLISH, UNPUBLISH, BEGIN, DONE = 6, 7, 8, 9, 10, 11, 12, 13

# Columns of State.globals; from SEQS on, the last seq of each source (the gateway is the last source).
(
    RNG,
    TIME,
    REQUESTS,
    PROMISED_EVENTS,
    TARGET,
    PAGE_EVENTS,
    ROWS,
    PLANTED,
    TO_PLANT,
    SHARE_PPM,
    TRANSFER_PPM,
    TENANTS,
    PAGE_TOKENS,
    KEYS,
    DECODE_PPM,
    OUT_ROWS,
    OUT_PAGES,
    SEQS,
) = range(18)

# Columns of State.rows, which hold one chunk of events. A, B and C depend on the kind (see `emit`'s callers).
KIND, SOURCE, SEQ, TIME_NS, REQUEST, TENANT_CODE, POOL_CODE, A, B, C, END = range(11)

# Columns of State.slots: one request in flight each.
(
    PHASE,
    REQ,
    TENANT,
    POOL,
    SRC_POOL,
    PROMPT_PAGES,
    DECODE_PAGES,
    PROMPT_TOKENS,
    DECODED,
    POS,
    SHARED,
    KEPT,
    ENTRY,
    TOTAL,
) = range(14)

# Columns of State.pools.
HEAD, COUNT, PROMISED = range(3)

# Columns of State.entries: published prefixes of one pool.
STATE, LENGTH, HOLDERS, KEY = range(4)
EMPTY, CLAIMED, LIVE = 0, 1, 2

# Phases of a slot.
IDLE, ALLOCATING, WRITING, BEGINNING, LANDING, ENDING, RELEASING, READING = 0, 1, 2, 3, 4, 5, 6, 7
GROWING, EXTENDING, DECODING, FREEING, FINISHING = 8, 9, 10, 11, 12

UNWRITTEN, FOREIGN = 0, 1  # kinds of planted violation

ENTRIES = 32  # published prefixes that one pool keeps at most
PREFIX_PAGES = 64  # longest published prefix

# Typed constants: a plain literal as an argument would be compiled as a type of its own.
ABSENT, ZERO, ONE, ODDS, MILLION = np.int64(-1), np.int64(0), np.int64(1), np.int64(16), np.int64(1_000_000)

compiled = njit(cache=True)


class State(NamedTuple):
    """Everything the simulation remembers, and the chunk that it is filling."""

    globals: NDArray[np.int64]
    sizes: NDArray[np.int64]  # requests' total pages, to draw from
    slots: NDArray[np.int64]
    tables: NDArray[np.uint32]  # pages of each slot in position order; then, per slot, the prefill side
    pools: NDArray[np.int64]
    rings: NDArray[np.uint32]  # free pages of each pool, first in first out
    entries: NDArray[np.int64]  # ENTRIES rows per pool
    entry_pages: NDArray[np.uint32]
    planted: NDArray[np.int64]
    rows: NDArray[np.int64]
    pages: NDArray[np.uint32]


@compiled
def draw(g: NDArray[np.int64], below: int) -> int:
    """A whole number in [0, below), from splitmix64 over State.globals."""
    g[RNG] += -7046029254386353131
    z = g[RNG]
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    return ((z >> 11) & 0x1FFFFFFFFFFFFF) % below


@compiled
def put(st: State, table: NDArray[np.uint32], first: int, end: int) -> None:
    """Append table[first:end] to the page list of the row that is emitted next."""
    n = st.globals[OUT_PAGES]
    for i in range(first, end):
        st.pages[n] = table[i]
        n += 1
    st.globals[OUT_PAGES] = n


@compiled
def emit(st: State, kind: int, source: int, s: int, pool: int, a: int, b: int, c: int) -> None:
    """Close the row whose pages were just put: time and the source's seq move on by one."""
    g = st.globals
    row = st.rows[g[OUT_ROWS]]
    start = st.rows[g[OUT_ROWS] - 1, END] if g[OUT_ROWS] > 0 else 0
    g[TIME] += 500 + draw(g, np.int64(19_001))
    g[SEQS + source] += 1
    named = kind in (RECEIVED, ALLOC, SHARE)
    row[KIND] = kind
    row[SOURCE] = source
    row[SEQ] = g[SEQS + source]
    row[TIME_NS] = g[TIME]
    row[REQUEST] = st.slots[s, REQ] if s >= 0 else -1
    row[TENANT_CODE] = st.slots[s, TENANT] if named else -1
    row[POOL_CODE] = pool
    row[A] = a
    row[B] = b
    row[C] = c
    row[END] = g[OUT_PAGES]
    if kind != BEGIN:  # a transfer touches no page by itself; its reads and landings do
        g[PAGE_EVENTS] += g[OUT_PAGES] - start
    g[ROWS] += 1
    g[OUT_ROWS] += 1


@compiled
def copy(source: NDArray[np.uint32], target: NDArray[np.uint32], count: int) -> None:
    """source[:count] -> target[:count]"""
    for i in range(count):
        target[i] = source[i]


@compiled
def take(st: State, pool: int, table: NDArray[np.uint32], first: int, count: int) -> None:
    """Move `count` promised pages from the head of a pool's queue into a table."""
    size = st.rings.shape[1]
    head = st.pools[pool, HEAD]
    for i in range(count):
        table[first + i] = st.rings[pool, head]
        head += 1
        if head == size:
            head = 0
    st.pools[pool, HEAD] = head
    st.pools[pool, COUNT] -= count
    st.pools[pool, PROMISED] -= count


@compiled
def give(st: State, pool: int, table: NDArray[np.uint32], first: int, end: int) -> None:
    """Return table[first:end] to the tail of a pool's queue, the last page first."""
    size = st.rings.shape[1]
    tail = (st.pools[pool, HEAD] + st.pools[pool, COUNT]) % size
    for i in range(end - 1, first - 1, -1):
        st.rings[pool, tail] = table[i]
        tail += 1
        if tail == size:
            tail = 0
    st.pools[pool, COUNT] += end - first


@compiled
def room(st: State, pool: int, pages: int) -> bool:
    """Whether a pool can promise that many pages."""
    return st.pools[pool, COUNT] - st.pools[pool, PROMISED] >= pages


@compiled
def find_pool(st: State, pages: int, other_than: int) -> int:
    """A pool with room, from a random start; -1 when there is none."""
    n = st.pools.shape[0]
    start = draw(st.globals, n)
    for i in range(n):
        pool = (start + i) % n
        if pool != other_than and room(st, pool, pages):
            return pool
    return -1


@compiled
def evict(st: State, pool: int, e: int) -> None:
    """Drop a published prefix that nobody holds any more."""
    length, key = st.entries[e, LENGTH], st.entries[e, KEY]
    put(st, st.entry_pages[e], ZERO, length)
    emit(st, UNPUBLISH, pool, ABSENT, pool, ABSENT, ABSENT, key)
    put(st, st.entry_pages[e], ZERO, length)
    emit(st, EVICT, pool, ABSENT, pool, ABSENT, ABSENT, ABSENT)
    give(st, pool, st.entry_pages[e], ZERO, length)
    st.entries[e, STATE] = EMPTY


@compiled
def choose_prefix(st: State, s: int, pool: int) -> None:
    """Let a request attach to a published prefix, or become the one that publishes it."""
    slot = st.slots[s]
    e = pool * ENTRIES + draw(st.globals, np.int64(ENTRIES))
    entry = st.entries[e]
    longest = min(slot[PROMPT_PAGES] - 1, PREFIX_PAGES)
    if entry[STATE] == LIVE and entry[HOLDERS] == 0 and draw(st.globals, ODDS) == 0:
        evict(st, pool, e)
    if entry[STATE] == LIVE:
        slot[SHARED] = min(longest, entry[LENGTH])
        entry[HOLDERS] += 1
        slot[ENTRY] = e
    elif entry[STATE] == EMPTY:
        slot[KEPT] = min(longest, 8 + draw(st.globals, PREFIX_PAGES - 7))
        st.globals[KEYS] += 1
        entry[STATE] = CLAIMED
        entry[LENGTH] = slot[KEPT]
        entry[HOLDERS] = 1
        entry[KEY] = st.globals[KEYS]
        slot[ENTRY] = e


@compiled
def admit(st: State, s: int, gateway: int) -> bool:
    """Draw a request for an idle slot; False when no pool has room for it now."""
    g = st.globals
    n = st.sizes[draw(st.globals, st.sizes.shape[0])]
    decode = 1 + draw(st.globals, max(1, (2 * n * g[DECODE_PPM]) // 1_000_000))
    prompt = n - decode
    pool = find_pool(st, n, ABSENT)
    if pool < 0:
        return False
    src = -1
    if draw(st.globals, MILLION) < g[TRANSFER_PPM]:
        src = find_pool(st, prompt, pool)
    slot = st.slots[s]
    slot[:] = 0
    slot[REQ] = g[REQUESTS]
    slot[TENANT] = draw(st.globals, g[TENANTS])
    slot[POOL] = pool
    slot[SRC_POOL] = src
    slot[PROMPT_PAGES] = prompt
    slot[DECODE_PAGES] = decode
    slot[TOTAL] = n
    slot[PROMPT_TOKENS] = prompt * g[PAGE_TOKENS] - draw(st.globals, g[PAGE_TOKENS])
    slot[ENTRY] = -1
    slot[PHASE] = ALLOCATING
    g[REQUESTS] += 1
    if src >= 0:
        st.pools[src, PROMISED] += prompt
    elif draw(st.globals, MILLION) < g[SHARE_PPM]:
        choose_prefix(st, s, pool)
    st.pools[pool, PROMISED] += n - slot[SHARED]
    g[PROMISED_EVENTS] += 4 * n + (3 * prompt if src >= 0 else slot[KEPT] - slot[SHARED])
    reply = (decode + 1) * g[PAGE_TOKENS]
    emit(st, RECEIVED, gateway, s, ABSENT, slot[PROMPT_TOKENS], reply, ABSENT)
    return True


@compiled
def allocate(st: State, s: int) -> None:
    """Attach to the shared prefix and take the rest of the prompt in one piece."""
    slot = st.slots[s]
    pool, src, prompt, shared = slot[POOL], slot[SRC_POOL], slot[PROMPT_PAGES], slot[SHARED]
    if shared > 0:
        e = slot[ENTRY]
        copy(st.entry_pages[e], st.tables[s], shared)
        put(st, st.tables[s], ZERO, shared)
        tokens = shared * st.globals[PAGE_TOKENS]
        emit(st, SHARE, pool, s, pool, ZERO, tokens, st.entries[e, KEY])
    if src >= 0:
        take(st, src, st.tables[s + len(st.slots)], ZERO, prompt)
        put(st, st.tables[s + len(st.slots)], ZERO, prompt)
        emit(st, ALLOC, src, s, src, ABSENT, ABSENT, ABSENT)
    take(st, pool, st.tables[s], shared, prompt - shared)
    put(st, st.tables[s], shared, prompt)
    emit(st, ALLOC, pool, s, pool, ABSENT, ABSENT, ABSENT)


@compiled
def prefill(st: State, s: int) -> None:
    """Write the prompt where it is computed, and publish the prefix that this request gives away."""
    slot = st.slots[s]
    pool, src, prompt, shared = slot[POOL], slot[SRC_POOL], slot[PROMPT_PAGES], slot[SHARED]
    tokens = slot[PROMPT_TOKENS]
    if src >= 0:
        put(st, st.tables[s + len(st.slots)], ZERO, prompt)
        emit(st, WRITE, src, s, src, ZERO, tokens, ABSENT)
        return
    put(st, st.tables[s], shared, prompt)
    emit(st, WRITE, pool, s, pool, shared * st.globals[PAGE_TOKENS], tokens, ABSENT)
    kept = slot[KEPT]
    if kept > 0:
        e = slot[ENTRY]
        copy(st.tables[s], st.entry_pages[e], kept)
        st.entries[e, STATE] = LIVE
        put(st, st.tables[s], ZERO, kept)
        emit(st, PUBLISH, pool, s, pool, ABSENT, ABSENT, st.entries[e, KEY])


@compiled
def move(st: State, s: int, phase: int) -> None:
    """One step of the way from the prefill pool to the decode pool."""
    slot = st.slots[s]
    pool, src, prompt = slot[POOL], slot[SRC_POOL], slot[PROMPT_PAGES]
    tokens = slot[PROMPT_TOKENS]
    if phase == BEGINNING:
        put(st, st.tables[s + len(st.slots)], ZERO, prompt)
        put(st, st.tables[s], ZERO, prompt)
        emit(st, BEGIN, src, s, src, tokens, ABSENT, pool)
    elif phase == LANDING:
        put(st, st.tables[s], ZERO, prompt)
        emit(st, LAND, pool, s, pool, ZERO, tokens, ABSENT)
    elif phase == ENDING:
        emit(st, DONE, pool, s, ABSENT, tokens, prompt, ABSENT)
    else:
        put(st, st.tables[s + len(st.slots)], ZERO, prompt)
        emit(st, FREE, src, s, src, ABSENT, ABSENT, ABSENT)
        give(st, src, st.tables[s + len(st.slots)], ZERO, prompt)


@compiled
def note(st: State, kind: int, s: int, victim: int, page: int) -> None:
    """Write down the planted read that was just emitted."""
    n = st.globals[PLANTED]
    row = st.rows[st.globals[OUT_ROWS] - 1]
    st.planted[n, 0] = kind
    st.planted[n, 1] = st.globals[ROWS] - 1
    st.planted[n, 2] = row[SOURCE]
    st.planted[n, 3] = row[SEQ]
    st.planted[n, 4] = st.slots[s, POOL]
    st.planted[n, 5] = page
    st.planted[n, 6] = st.slots[s, REQ]
    st.planted[n, 7] = st.slots[s, TENANT]
    st.planted[n, 8] = st.slots[victim, REQ] if victim >= 0 else -1
    st.planted[n, 9] = st.slots[victim, TENANT] if victim >= 0 else -1
    st.globals[PLANTED] = n + 1


@compiled
def due(st: State) -> bool:
    """Whether the next violation should be planted now; they are spread evenly over the trace."""
    g = st.globals
    return g[PLANTED] < g[TO_PLANT] and g[PAGE_EVENTS] * (g[TO_PLANT] + 1) > (g[PLANTED] + 1) * g[TARGET]


@compiled
def find_victim(st: State, s: int) -> int:
    """Another tenant's request in the same pool whose prompt is written; -1 when there is none."""
    n = st.slots.shape[0]
    for i in range(1, n):
        v = (s + i) % n
        other = st.slots[v]
        if (
            READING <= other[PHASE] <= FREEING
            and other[POOL] == st.slots[s, POOL]
            and other[TENANT] != st.slots[s, TENANT]
        ):
            return v
    return -1


@compiled
def span(st: State, s: int) -> tuple[int, int, int]:
    """First page index, first token and end token of the decode extent in progress."""
    slot = st.slots[s]
    size = st.globals[PAGE_TOKENS]
    first = slot[POS]
    end = (slot[PROMPT_PAGES] + slot[DECODED]) * size
    return first // size, first, end


@compiled
def decode_read(st: State, s: int) -> None:
    """Read the extent that decode has just grown into."""
    pool = st.slots[s, POOL]
    index, first, end = span(st, s)
    last = st.slots[s, PROMPT_PAGES] + st.slots[s, DECODED]
    put(st, st.tables[s], index, last)
    emit(st, READ, pool, s, pool, first, end, ABSENT)


@compiled
def extend(st: State, s: int) -> None:
    """Write the new extent; a planted fault reads it first."""
    pool = st.slots[s, POOL]
    index, first, end = span(st, s)
    last = st.slots[s, PROMPT_PAGES] + st.slots[s, DECODED]
    if last - index == 1 and st.globals[PLANTED] % 2 == UNWRITTEN and due(st):
        decode_read(st, s)
        note(st, UNWRITTEN, s, ABSENT, st.tables[s, index])
    put(st, st.tables[s], index, last)
    emit(st, WRITE, pool, s, pool, first, end, ABSENT)


@compiled
def decode(st: State, s: int) -> None:
    """Read the new extent, perhaps with a planted read of a stranger's page, and move on."""
    slot = st.slots[s]
    decode_read(st, s)
    _, first, end = span(st, s)
    if end - first == st.globals[PAGE_TOKENS] and st.globals[PLANTED] % 2 == FOREIGN and due(st):
        v = find_victim(st, s)
        if v >= 0:
            at = st.slots[v, PROMPT_PAGES] - 1  # never part of a published prefix
            put(st, st.tables[v], at, at + 1)
            emit(st, READ, slot[POOL], s, slot[POOL], first, first + 1, ABSENT)
            note(st, FOREIGN, s, v, st.tables[v, at])
    slot[POS] = end
    slot[PHASE] = FREEING if slot[DECODED] == slot[DECODE_PAGES] else GROWING


@compiled
def release(st: State, s: int) -> None:
    """Let go of all pages: a published prefix passes to the cache, a shared one is only detached from."""
    slot = st.slots[s]
    pool, shared, kept, total = slot[POOL], slot[SHARED], slot[KEPT], slot[TOTAL]
    if kept > 0:
        put(st, st.tables[s], ZERO, kept)
        emit(st, FREE_TO_CACHE, pool, s, pool, ABSENT, ABSENT, ABSENT)
    put(st, st.tables[s], kept, total)
    emit(st, FREE, pool, s, pool, ABSENT, ABSENT, ABSENT)
    give(st, pool, st.tables[s], shared + kept, total)
    if slot[ENTRY] >= 0:
        st.entries[slot[ENTRY], HOLDERS] -= 1


@compiled
def advance(st: State, s: int, gateway: int) -> None:
    """The next step in the life of a busy slot."""
    slot = st.slots[s]
    phase, pool = slot[PHASE], slot[POOL]
    slot[PHASE] = phase + 1
    if phase == ALLOCATING:
        allocate(st, s)
    elif phase == WRITING:
        prefill(st, s)
        if slot[SRC_POOL] < 0:
            slot[PHASE] = READING
    elif phase < READING:
        move(st, s, phase)
    elif phase == READING:
        put(st, st.tables[s], 0, slot[PROMPT_PAGES])
        emit(st, READ, pool, s, pool, ZERO, slot[PROMPT_TOKENS], ABSENT)
        slot[POS] = slot[PROMPT_TOKENS]
    elif phase == GROWING:
        at = slot[PROMPT_PAGES] + slot[DECODED]
        take(st, pool, st.tables[s], at, ONE)
        put(st, st.tables[s], at, at + 1)
        emit(st, ALLOC, pool, s, pool, ABSENT, ABSENT, ABSENT)
        slot[DECODED] += 1
    elif phase == EXTENDING:
        extend(st, s)
    elif phase == DECODING:
        decode(st, s)
    elif phase == FREEING:
        release(st, s)
    else:
        cached = slot[SHARED] * st.globals[PAGE_TOKENS]
        made = slot[POS] - slot[PROMPT_TOKENS]
        emit(st, FINISHED, gateway, s, ABSENT, slot[PROMPT_TOKENS], made, cached)
        slot[PHASE] = IDLE


@compiled
def run(st: State, max_rows: int, max_pages: int) -> bool:
    """Fill one chunk; False when the trace has ended and every request in it has finished."""
    n = st.slots.shape[0]
    gateway = st.pools.shape[0]
    g = st.globals
    g[OUT_ROWS] = 0
    g[OUT_PAGES] = 0
    while g[OUT_ROWS] < max_rows and g[OUT_PAGES] < max_pages:
        s = draw(st.globals, n)
        if st.slots[s, PHASE] == IDLE:
            if g[PROMISED_EVENTS] < g[TARGET]:
                admit(st, s, gateway)
                continue
            tries = 0
            while st.slots[s, PHASE] == IDLE and tries < n:
                s = (s + 1) % n
                tries += 1
            if tries == n:
                return False
        advance(st, s, gateway)
    return True
