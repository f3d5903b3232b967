"""Written extents of a page: newest first, each with its writer, its generation and the event that wrote it.

The newest layer stands in the page's own line of `S`, older ones hang below it in `L`. A position belongs to the
newest layer that covers it, so a write pushes and never splits; layers that a new one covers are dropped, which
bounds a page's depth by its number of positions.
"""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel


@kernel
def drop_below(S: Any, L: Any, CT: Any, g: int, lo: int, hi: int) -> None:
    """Release the layers under the newest that [lo, hi) covers entirely."""
    state = S[g]
    previous = -1
    node = state.next
    depth = 2
    while node >= 0:
        below = L[node].next
        if L[node].lo >= lo and L[node].hi <= hi:
            if previous < 0:
                state.next = below
            else:
                L[previous].next = below
            L[node].next = CT.layer_free
            CT.layer_free = node
        else:
            previous = node
            depth += 1
        node = below
    if depth > CT.depth:
        CT.depth = depth


@kernel
def clear_layers(S: Any, L: Any, CT: Any, g: int) -> None:
    """Forget all content of a page, as after a scrub."""
    state = S[g]
    drop_below(S, L, CT, g, -(1 << 30), 1 << 30)
    state.lo = 0
    state.hi = 0
    state.writer = -1
    state.lgen = -1
    state.lflags = 0
    state.origin = -1


@kernel
def push_layer(
    S: Any, L: Any, CT: Any, g: int, lo: int, hi: int, writer: int, gen: int, ev: int, flags: int, origin: int
) -> None:
    """Record that [lo, hi) of page g now holds what `writer` wrote at event `ev` in generation `gen`."""
    state = S[g]
    if state.hi > state.lo:
        same = state.writer == writer and state.lgen == gen and state.lflags == flags and state.origin == origin
        if same and lo <= state.hi and hi >= state.lo:
            lo = min(lo, state.lo)
            hi = max(hi, state.hi)
        elif not (lo <= state.lo and hi >= state.hi):
            node = CT.layer_free
            if node >= 0:
                CT.layer_free = L[node].next
            else:
                node = CT.layers
                CT.layers += 1
            L[node].lo = state.lo
            L[node].hi = state.hi
            L[node].writer = state.writer
            L[node].gen = state.lgen
            L[node].ev = state.lev
            L[node].flags = state.lflags
            L[node].origin = state.origin
            L[node].next = state.next
            state.next = node
    state.lo = lo
    state.hi = hi
    state.writer = writer
    state.lgen = gen
    state.lev = ev
    state.lflags = flags
    state.origin = origin
    if state.next >= 0:
        drop_below(S, L, CT, g, lo, hi)


# Pieces of a page stand in SCR; a writer of -2 marks "never written".
NEVER = -2


@kernel
def resolve(S: Any, L: Any, SCR: Any, g: int, lo: int, hi: int) -> int:
    """Cut [lo, hi) of a page into pieces of one writer each; returns how many stand in SCR."""
    state = S[g]
    half = len(SCR) // 2  # the second half holds what is not resolved yet
    open_n = 1
    SCR[half].lo = lo
    SCR[half].hi = hi
    n = 0
    node = -1
    while open_n > 0:
        if node == -1:
            llo, lhi, w, gen, ev = state.lo, state.hi, state.writer, state.lgen, state.lev
            flags, origin, below = state.lflags, state.origin, state.next
        else:
            llo, lhi, w, gen, ev = L[node].lo, L[node].hi, L[node].writer, L[node].gen, L[node].ev
            flags, origin, below = L[node].flags, L[node].origin, L[node].next
        k = 0
        while k < open_n and lhi > llo:
            a, b = SCR[half + k].lo, SCR[half + k].hi
            x, y = max(a, llo), min(b, lhi)
            if x >= y:
                k += 1
                continue
            SCR[n].lo, SCR[n].hi, SCR[n].writer, SCR[n].gen = x, y, w, gen
            SCR[n].ev, SCR[n].flags, SCR[n].origin = ev, flags, origin
            n += 1
            if a < x and y < b:
                SCR[half + k].hi = x
                SCR[half + open_n].lo = y
                SCR[half + open_n].hi = b
                open_n += 1
                k += 1
            elif a < x:
                SCR[half + k].hi = x
                k += 1
            elif y < b:
                SCR[half + k].lo = y
                k += 1
            else:
                open_n -= 1
                SCR[half + k].lo = SCR[half + open_n].lo
                SCR[half + k].hi = SCR[half + open_n].hi
        if below < 0:
            break
        node = below
    for k in range(open_n):
        SCR[n].lo, SCR[n].hi, SCR[n].writer, SCR[n].gen = SCR[half + k].lo, SCR[half + k].hi, NEVER, -1
        SCR[n].ev, SCR[n].flags, SCR[n].origin = -1, 0, -1
        n += 1
    return n


@kernel
def foreign_after(S: Any, L: Any, SCR: Any, g: int, lo: int, hi: int, actor: int, ev: int) -> int:
    """Index in SCR of a piece of [lo, hi) that another wrote after event `ev`, or -1. SCR is filled anew."""
    n = resolve(S, L, SCR, g, lo, hi)
    for k in range(n):
        if SCR[k].writer != NEVER and SCR[k].writer != actor and SCR[k].ev > ev:
            return k
    return -1


@kernel
def was_written_by(S: Any, L: Any, g: int, actor: int) -> bool:
    """Whether any extent that is still visible on the page, of whatever generation, came from this actor."""
    state = S[g]
    if state.hi > state.lo and state.writer == actor:
        return True
    node = state.next
    while node >= 0:
        if L[node].writer == actor:
            return True
        node = L[node].next
    return False
