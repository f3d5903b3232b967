"""Written extents of a page: newest first, each with its writer, its generation and the event that wrote it.

The newest layer stands in the page's own line of `pages`, older ones hang below in `layers`. A position belongs to the
newest layer that covers it, so a write pushes and never splits; layers that a new one covers are dropped, which
bounds a page's depth by its number of positions.
"""

from __future__ import annotations

from typing import Any


def drop_below(w: Any, g: int, lo: int, hi: int) -> None:
    """Release the layers under the newest that [lo, hi) covers entirely."""
    state = w.pages[g]
    previous = -1
    node = state.next
    depth = 2
    while node >= 0:
        below = w.layers[node].next
        if w.layers[node].lo >= lo and w.layers[node].hi <= hi:
            if previous < 0:
                state.next = below
            else:
                w.layers[previous].next = below
            w.layers[node].next = w.count.layer_free
            w.count.layer_free = node
        else:
            previous = node
            depth += 1
        node = below
    if depth > w.count.depth:
        w.count.depth = depth


def clear_layers(w: Any, g: int) -> None:
    """Forget all content of a page, as after a scrub."""
    state = w.pages[g]
    drop_below(w, g, -(1 << 30), 1 << 30)
    state.lo = 0
    state.hi = 0
    state.writer = -1
    state.lgen = -1
    state.lflags = 0
    state.origin = -1


def push_layer(w: Any, g: int, lo: int, hi: int, writer: int, gen: int, ev: int, flags: int, origin: int) -> None:
    """Record that [lo, hi) of page g now holds what `writer` wrote at event `ev` in generation `gen`."""
    state = w.pages[g]
    if state.hi > state.lo:
        same = state.writer == writer and state.lgen == gen and state.lflags == flags and state.origin == origin
        if same and lo <= state.hi and hi >= state.lo:
            lo = min(lo, state.lo)
            hi = max(hi, state.hi)
        elif not (lo <= state.lo and hi >= state.hi):
            node = w.count.layer_free
            if node >= 0:
                w.count.layer_free = w.layers[node].next
            else:
                node = w.count.layers
                w.count.layers += 1
            w.layers[node].lo = state.lo
            w.layers[node].hi = state.hi
            w.layers[node].writer = state.writer
            w.layers[node].gen = state.lgen
            w.layers[node].ev = state.lev
            w.layers[node].flags = state.lflags
            w.layers[node].origin = state.origin
            w.layers[node].next = state.next
            state.next = node
    state.lo = lo
    state.hi = hi
    state.writer = writer
    state.lgen = gen
    state.lev = ev
    state.lflags = flags
    state.origin = origin
    if state.next >= 0:
        drop_below(w, g, lo, hi)


# Pieces of a page stand in `scratch`; a writer of -2 marks "never written".
NEVER = -2


def resolve(w: Any, g: int, lo: int, hi: int) -> int:
    """Cut [lo, hi) of a page into pieces of one writer each; returns how many stand in `scratch`."""
    state = w.pages[g]
    half = len(w.scratch) // 2  # the second half holds what is not resolved yet
    open_n = 1
    w.scratch[half].lo = lo
    w.scratch[half].hi = hi
    n = 0
    node = -1
    while open_n > 0:
        if node == -1:
            llo, lhi, writer, gen, ev = state.lo, state.hi, state.writer, state.lgen, state.lev
            flags, origin, below = state.lflags, state.origin, state.next
        else:
            llo, lhi, writer, gen, ev = (
                w.layers[node].lo,
                w.layers[node].hi,
                w.layers[node].writer,
                w.layers[node].gen,
                w.layers[node].ev,
            )
            flags, origin, below = w.layers[node].flags, w.layers[node].origin, w.layers[node].next
        k = 0
        while k < open_n and lhi > llo:
            a, b = w.scratch[half + k].lo, w.scratch[half + k].hi
            x, y = max(a, llo), min(b, lhi)
            if x >= y:
                k += 1
                continue
            w.scratch[n].lo, w.scratch[n].hi, w.scratch[n].writer, w.scratch[n].gen = x, y, writer, gen
            w.scratch[n].ev, w.scratch[n].flags, w.scratch[n].origin = ev, flags, origin
            n += 1
            if a < x and y < b:
                w.scratch[half + k].hi = x
                w.scratch[half + open_n].lo = y
                w.scratch[half + open_n].hi = b
                open_n += 1
                k += 1
            elif a < x:
                w.scratch[half + k].hi = x
                k += 1
            elif y < b:
                w.scratch[half + k].lo = y
                k += 1
            else:
                open_n -= 1
                w.scratch[half + k].lo = w.scratch[half + open_n].lo
                w.scratch[half + k].hi = w.scratch[half + open_n].hi
        if below < 0:
            break
        node = below
    for k in range(open_n):
        w.scratch[n].lo, w.scratch[n].hi, w.scratch[n].writer, w.scratch[n].gen = (
            w.scratch[half + k].lo,
            w.scratch[half + k].hi,
            NEVER,
            -1,
        )
        w.scratch[n].ev, w.scratch[n].flags, w.scratch[n].origin = -1, 0, -1
        n += 1
    return n


def foreign_after(w: Any, g: int, lo: int, hi: int, actor: int, ev: int) -> int:
    """Index in `scratch` of a piece of [lo, hi) that another wrote after event `ev`, or -1. It is filled anew."""
    n = resolve(w, g, lo, hi)
    for k in range(n):
        if w.scratch[k].writer != NEVER and w.scratch[k].writer != actor and w.scratch[k].ev > ev:
            return k
    return -1


def was_written_by(w: Any, g: int, actor: int) -> bool:
    """Whether any extent that is still visible on the page, of whatever generation, came from this actor."""
    state = w.pages[g]
    if state.hi > state.lo and state.writer == actor:
        return True
    node = state.next
    while node >= 0:
        if w.layers[node].writer == actor:
            return True
        node = w.layers[node].next
    return False
