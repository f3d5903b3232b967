"""Written extents of a page: newest first, each with its writer, its generation and the event that wrote it.

The newest layer stands in the page's own line of `S`, older ones hang below it in `L`. A position belongs to the
newest layer that covers it, so a write pushes and never splits; layers that a new one covers are dropped, which
bounds a page's depth by its number of positions.
"""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.jit import kernel
from kvwitness.audit.provenance.kernel.layout import (
    CT_DEPTH,
    CT_LAYER_FREE,
    CT_LAYERS,
    HI,
    L_EV,
    L_FLAGS,
    L_GEN,
    L_HI,
    L_LO,
    L_NEXT,
    L_ORIGIN,
    L_WRITER,
    LEV,
    LFLAGS,
    LGEN,
    LO,
    NEXT,
    ORIGIN,
    WRITER,
)


@kernel
def drop_below(S: Any, L: Any, CT: Any, g: int, lo: int, hi: int) -> None:
    """Release the layers under the newest that [lo, hi) covers entirely."""
    previous = -1
    node = S[g, NEXT]
    depth = 2
    while node >= 0:
        below = L[node, L_NEXT]
        if L[node, L_LO] >= lo and L[node, L_HI] <= hi:
            if previous < 0:
                S[g, NEXT] = below
            else:
                L[previous, L_NEXT] = below
            L[node, L_NEXT] = CT[CT_LAYER_FREE]
            CT[CT_LAYER_FREE] = node
        else:
            previous = node
            depth += 1
        node = below
    if depth > CT[CT_DEPTH]:
        CT[CT_DEPTH] = depth


@kernel
def clear_layers(S: Any, L: Any, CT: Any, g: int) -> None:
    """Forget all content of a page, as after a scrub."""
    drop_below(S, L, CT, g, -(1 << 30), 1 << 30)
    S[g, LO] = 0
    S[g, HI] = 0
    S[g, WRITER] = -1
    S[g, LGEN] = -1
    S[g, LFLAGS] = 0
    S[g, ORIGIN] = -1


@kernel
def push_layer(
    S: Any, L: Any, CT: Any, g: int, lo: int, hi: int, writer: int, gen: int, ev: int, flags: int, origin: int
) -> None:
    """Record that [lo, hi) of page g now holds what `writer` wrote at event `ev` in generation `gen`."""
    if S[g, HI] > S[g, LO]:
        same = (
            S[g, WRITER] == writer and S[g, LGEN] == gen and S[g, LFLAGS] == flags and S[g, ORIGIN] == origin
        )
        if same and lo <= S[g, HI] and hi >= S[g, LO]:
            lo = min(lo, S[g, LO])
            hi = max(hi, S[g, HI])
        elif not (lo <= S[g, LO] and hi >= S[g, HI]):
            node = CT[CT_LAYER_FREE]
            if node >= 0:
                CT[CT_LAYER_FREE] = L[node, L_NEXT]
            else:
                node = CT[CT_LAYERS]
                CT[CT_LAYERS] += 1
            L[node, L_LO] = S[g, LO]
            L[node, L_HI] = S[g, HI]
            L[node, L_WRITER] = S[g, WRITER]
            L[node, L_GEN] = S[g, LGEN]
            L[node, L_EV] = S[g, LEV]
            L[node, L_FLAGS] = S[g, LFLAGS]
            L[node, L_ORIGIN] = S[g, ORIGIN]
            L[node, L_NEXT] = S[g, NEXT]
            S[g, NEXT] = node
    S[g, LO] = lo
    S[g, HI] = hi
    S[g, WRITER] = writer
    S[g, LGEN] = gen
    S[g, LEV] = ev
    S[g, LFLAGS] = flags
    S[g, ORIGIN] = origin
    if S[g, NEXT] >= 0:
        drop_below(S, L, CT, g, lo, hi)


# Pieces: SCR[n, 8] int32 = lo, hi, writer, generation, event, flags, origin; writer -2 marks "never written".
NEVER = -2


@kernel
def resolve(S: Any, L: Any, SCR: Any, g: int, lo: int, hi: int) -> int:
    """Cut [lo, hi) of a page into pieces of one writer each; returns how many stand in SCR."""
    half = SCR.shape[0] // 2  # the second half holds what is not resolved yet
    open_n = 1
    SCR[half, 0] = lo
    SCR[half, 1] = hi
    n = 0
    node = -1
    while open_n > 0:
        if node == -1:
            llo, lhi, w, gen, ev = S[g, LO], S[g, HI], S[g, WRITER], S[g, LGEN], S[g, LEV]
            flags, origin, below = S[g, LFLAGS], S[g, ORIGIN], S[g, NEXT]
        else:
            llo, lhi, w, gen, ev = L[node, L_LO], L[node, L_HI], L[node, L_WRITER], L[node, L_GEN], L[node, L_EV]
            flags, origin, below = L[node, L_FLAGS], L[node, L_ORIGIN], L[node, L_NEXT]
        k = 0
        while k < open_n and lhi > llo:
            a, b = SCR[half + k, 0], SCR[half + k, 1]
            x, y = max(a, llo), min(b, lhi)
            if x >= y:
                k += 1
                continue
            SCR[n, 0], SCR[n, 1], SCR[n, 2], SCR[n, 3] = x, y, w, gen
            SCR[n, 4], SCR[n, 5], SCR[n, 6] = ev, flags, origin
            n += 1
            if a < x and y < b:
                SCR[half + k, 1] = x
                SCR[half + open_n, 0] = y
                SCR[half + open_n, 1] = b
                open_n += 1
                k += 1
            elif a < x:
                SCR[half + k, 1] = x
                k += 1
            elif y < b:
                SCR[half + k, 0] = y
                k += 1
            else:
                open_n -= 1
                SCR[half + k, 0] = SCR[half + open_n, 0]
                SCR[half + k, 1] = SCR[half + open_n, 1]
        if below < 0:
            break
        node = below
    for k in range(open_n):
        SCR[n, 0], SCR[n, 1], SCR[n, 2], SCR[n, 3] = SCR[half + k, 0], SCR[half + k, 1], NEVER, -1
        SCR[n, 4], SCR[n, 5], SCR[n, 6] = -1, 0, -1
        n += 1
    return n


@kernel
def foreign_after(S: Any, L: Any, SCR: Any, g: int, lo: int, hi: int, actor: int, ev: int) -> int:
    """Index in SCR of a piece of [lo, hi) that another wrote after event `ev`, or -1. SCR is filled anew."""
    n = resolve(S, L, SCR, g, lo, hi)
    for k in range(n):
        if SCR[k, 2] != NEVER and SCR[k, 2] != actor and SCR[k, 4] > ev:
            return k
    return -1


@kernel
def was_written_by(S: Any, L: Any, g: int, actor: int) -> bool:
    """Whether any extent that is still visible on the page, of whatever generation, came from this actor."""
    if S[g, HI] > S[g, LO] and S[g, WRITER] == actor:
        return True
    node = S[g, NEXT]
    while node >= 0:
        if L[node, L_WRITER] == actor:
            return True
        node = L[node, L_NEXT]
    return False
