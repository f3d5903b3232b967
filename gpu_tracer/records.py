"""The functions that write records: `put` for any event, and a short way for the four kinds an engine records most.

A function of the short way does all in one frame, with its state in variables of closures: a further call would cost
a third of the whole, and an attribute twice what a variable does. What it cannot take (a string that is new, a field
without a slot, a wrong type) goes the general way, which records it, or puts down that it could not.

A signal handler may run after any call that is made here, and record events of its own, or raise. So a number is
taken before the first of those calls and counted after the last, and `settle` looks what has become of it.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvwitness.audit.trace.ring import (
    CODES,
    COUNTERS,
    HEADER_BYTES,
    LOST,
    QUICK,
    RECORD,
    RECORD_BYTES,
    SEQ_OFFSET,
    Flag,
    Sizes,
)
from kvwitness.gpu_tracer.arena import PageIds

General = Callable[[str, dict[str, Any]], None]
"""Records an event of a kind with its fields, and never raises."""
Own = Callable[..., None]
"""As `Tracer.alloc` and `Tracer.free`; takes the fields of both."""
Touch = Callable[..., None]
"""As `Tracer.write` and `Tracer.read`."""

_OURS = (LookupError, TypeError, ValueError, OverflowError, AttributeError, struct.error)
"""What values can make this code raise. Anything else comes from the host, such as a signal handler, and passes."""
_PHASES = {"begin": int(Flag.BEGIN), "end": int(Flag.END)}
_SEQ = struct.Struct("<Q")
_LOST = CODES[LOST]


class Put(Protocol):
    """Writes a record; values as they stand in `RECORD`. Raises struct.error where one does not fit."""

    def __call__(
        self,
        kind: int,
        flags: int,
        arena: int = 0,
        request: int = 0,
        tenant: int = 0,
        name: int = 0,
        label: int = 0,
        first: int = 0,
        count: int = 0,
        tok: tuple[int, int] = (0, 0),
        number: int = 0,
        time_ns: int | None = None,
    ) -> None:
        """Write it; `time_ns` is when it was observed (None: now)."""


@dataclass(frozen=True)
class Writers:
    """The functions of one ring."""

    put: Put
    owning: Callable[[str, General], Own]
    """The short way for `page.alloc` or `page.free`, with the general way for the rest. Once for each kind."""
    touching: Callable[[str, General], Touch]
    """The same for `page.write` and `page.read`."""
    shut: Callable[[], None]
    """Let nothing more be written."""


def record_writers(
    ring: mmap.mmap,
    counters: memoryview,
    sizes: Sizes,
    texts: Mapping[str | None, int],
    tenants: Mapping[str | None, int],
    pages_piece: Callable[[PageIds], int],
) -> Writers:
    """The functions that write records of one ring; they share the last number."""
    mapped: Any = ring
    pack, now, wrap = RECORD.pack_into, time.time_ns, sizes.slots * RECORD_BYTES - 1
    counts = [0] * COUNTERS  # of what `put` wrote; the short ways have their own codes and counts
    last = 0

    def put(
        kind: int,
        flags: int,
        arena: int = 0,
        request: int = 0,
        tenant: int = 0,
        name: int = 0,
        label: int = 0,
        first: int = 0,
        count: int = 0,
        tok: tuple[int, int] = (0, 0),
        number: int = 0,
        time_ns: int | None = None,
    ) -> None:
        nonlocal last
        last = seq = last + 1
        try:
            pack(
                mapped, (seq << 6 & wrap) + HEADER_BYTES, now() if time_ns is None else time_ns, arena,
                request, tenant, name, label, first, count, *tok, number, counts[kind] & 0xFFFF, kind, flags, seq,
            )  # fmt: skip
        except BaseException:
            if settle(seq):
                counts[kind] += 1
                counters[kind] = counts[kind]
            raise
        counts[kind] += 1
        counters[kind] = counts[kind]

    def settle(seq: int) -> bool:
        """After an exception: whether the record was finished; if not, give its number back, or fill its place."""
        nonlocal last
        if mapped is None:
            return False
        at = (seq << 6 & wrap) + HEADER_BYTES
        if _SEQ.unpack_from(mapped, at + SEQ_OFFSET)[0] == seq:
            return True
        if last == seq:
            last = seq - 1
        else:  # a signal handler has used the numbers after it
            pack(mapped, at, now(), *[0] * 10, counts[_LOST] & 0xFFFF, _LOST, 0, seq)
            counts[_LOST] += 1
            counters[_LOST] = counts[_LOST]
        return False

    def owning(event: str, general: General) -> Own:
        kind, allocs, done = QUICK[event], event == "page.alloc", 0

        def own(pool, pages, request=None, *, reason=None, tenant=None, holder=None, gen=None, to=None, path=None):  # type: ignore[no-untyped-def]
            nonlocal last, done
            seq = 0
            try:
                if allocs:
                    label, other = holder, reason
                else:
                    label, other = reason, holder
                if path is not None or to is not None or other is not None:
                    raise KeyError
                if pages.__class__ is int:
                    first = pages
                    count = 1
                    arena = 0
                    flags = 4
                elif pages.__class__ is range and pages.step == 1:
                    first = pages.start
                    count = len(pages)
                    arena = 0
                    flags = 4
                else:
                    if mapped is None:  # in a forked child, this arena is the parent's
                        raise KeyError
                    first = count = 0
                    arena = pages_piece(pages)
                    flags = 32
                if gen is None:
                    number = 0
                else:
                    number = gen
                    flags += 16
                last = seq = last + 1
                pack(
                    mapped, (seq << 6 & wrap) + HEADER_BYTES, now(), arena,
                    texts[request], 0 if tenant is None else tenants[tenant], texts[pool], texts[label],
                    first, count, 0, 0, number, done & 0xFFFF, kind, flags, seq,
                )  # fmt: skip
            except BaseException as error:
                finished = seq and settle(seq)
                if finished:
                    done += 1
                    counters[kind] = done
                if finished or not isinstance(error, _OURS):
                    raise
                whom = {"request": request, "tenant": tenant, "holder": holder, "reason": reason}
                general(event, {"pool": pool, "pages": pages, **whom, "gen": gen, "to": to, "path": path})
                return
            done += 1
            counters[kind] = done

        return own

    def touching(event: str, general: General) -> Touch:
        kind, done = QUICK[event], 0

        def touch(  # type: ignore[no-untyped-def]
            pool,
            pages,
            request=None,
            *,
            tok=None,
            op=None,
            step=None,
            phase=None,
            tenant=None,
            transfer=None,
            digest=None,
        ):
            nonlocal last, done
            seq = 0
            try:
                if transfer is not None or digest is not None:
                    raise KeyError
                if pages.__class__ is int:
                    first = pages
                    count = 1
                    arena = 0
                    flags = 4
                elif pages.__class__ is range and pages.step == 1:
                    first = pages.start
                    count = len(pages)
                    arena = 0
                    flags = 4
                else:
                    if mapped is None:  # in a forked child, this arena is the parent's
                        raise KeyError
                    first = count = 0
                    arena = pages_piece(pages)
                    flags = 32
                if tok is None:
                    tok_first = tok_end = 0
                else:
                    tok_first, tok_end = tok
                    flags += 8
                if step is None:
                    number = 0
                else:
                    number = step
                    flags += 16
                if phase is not None:
                    flags += _PHASES[phase]
                last = seq = last + 1
                pack(
                    mapped, (seq << 6 & wrap) + HEADER_BYTES, now(), arena,
                    texts[request], 0 if tenant is None else tenants[tenant], texts[pool], texts[op],
                    first, count, tok_first, tok_end, number, done & 0xFFFF, kind, flags, seq,
                )  # fmt: skip
            except BaseException as error:
                finished = seq and settle(seq)
                if finished:
                    done += 1
                    counters[kind] = done
                if finished or not isinstance(error, _OURS):
                    raise
                what = {"tok": tok, "op": op, "step": step, "phase": phase, "transfer": transfer, "digest": digest}
                general(event, {"pool": pool, "pages": pages, "request": request, "tenant": tenant, **what})
                return
            done += 1
            counters[kind] = done

        return touch

    def shut() -> None:
        nonlocal mapped
        mapped = None

    return Writers(put, owning, touching, shut)
