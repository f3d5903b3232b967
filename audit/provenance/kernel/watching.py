"""What is open on a page: writes that have not landed, and reads of those who are not its owner, or not its only one,
under whose eyes later writes happen."""

from __future__ import annotations

from typing import Any

from kvwitness.audit.provenance.kernel.layout import OP_OPEN_READ, PF_OPEN_WRITE


def add_open(w: Any, g: int, actor: int, ev: int, gen: int, lo: int, hi: int, op: int) -> None:
    """Something begins on rows [lo, hi) of a page that may end later."""
    state = w.pages[g]
    cold = w.cold[g]
    node = w.count.open_write_free
    if node >= 0:
        w.count.open_write_free = w.open_writes[node].next
    else:
        node = w.count.open_writes
        w.count.open_writes += 1
    w.open_writes[node].actor = actor
    w.open_writes[node].ev = ev
    w.open_writes[node].gen = gen
    w.open_writes[node].lo = lo
    w.open_writes[node].hi = hi
    w.open_writes[node].op = op
    w.open_writes[node].next = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    cold.open_writes = node
    state.flags |= PF_OPEN_WRITE


def keep_open(w: Any, g: int, actor: int, ev: int, lo: int, hi: int) -> None:
    """Remember the read of one who does not hold the page: later writes there happen under its eyes."""
    state = w.pages[g]
    cold = w.cold[g]
    node = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    while node >= 0:
        if w.open_writes[node].actor == actor and w.open_writes[node].op == OP_OPEN_READ:
            w.open_writes[node].lo = min(w.open_writes[node].lo, lo)
            w.open_writes[node].hi = max(w.open_writes[node].hi, hi)
            return
        node = w.open_writes[node].next
    add_open(w, g, actor, ev, state.gen, lo, hi, OP_OPEN_READ)


def close_open(w: Any, g: int, actor: int) -> None:
    """The reads of a request on this page are over: it let the page go, or said so."""
    state = w.pages[g]
    cold = w.cold[g]
    previous = -1
    node = cold.open_writes if state.flags & PF_OPEN_WRITE else -1
    while node >= 0:
        below = w.open_writes[node].next
        if w.open_writes[node].actor == actor and w.open_writes[node].op == OP_OPEN_READ:
            if previous < 0:
                cold.open_writes = below
                if below < 0:
                    state.flags &= ~PF_OPEN_WRITE
            else:
                w.open_writes[previous].next = below
            w.open_writes[node].next = w.count.open_write_free
            w.count.open_write_free = node
        else:
            previous = node
        node = below
