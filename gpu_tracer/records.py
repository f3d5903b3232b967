"""The functions that write records: `put` for any event, and a short way for the four kinds an engine records most.

A function of the short way does all in one frame, with its state in variables of closures: a further call would cost
a third of the whole, and an attribute twice what a variable does. What it cannot take (a string that is new, a field
without a slot, a wrong type) goes the general way, which records it, or puts down that it could not.

Their parameters may be given by position, although `Tracer` wants names: what is left out costs a third then.

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
    BOUND,
    CODES,
    COUNTERS,
    FIELD_NUMBERS,
    HEADER_BYTES,
    ITEM,
    LOST,
    PAIRED,
    QUICK,
    RECORD,
    RECORD_BYTES,
    SEQ_OFFSET,
    Flag,
    ItemForm,
    Sizes,
)
from kvwitness.gpu_tracer.arena import PagesPiece

General = Callable[[str, dict[str, Any]], None]
"""Records an event of a kind with its fields, and never raises."""
Own = Callable[..., None]
"""As `Tracer.alloc` and `Tracer.free`; takes the fields of both."""
Touch = Callable[..., None]
"""As `Tracer.write` and `Tracer.read`."""
Decoded = Callable[..., None]
"""As `Tracer.decoded`."""
Bound = Callable[[int, str, int, int, int], None]
"""Page, request, positions [first, end), step: one page was written or read, of a pool and with an operation that
stand fast."""
Bind = Callable[[str, str], Bound]
"""Pool and operation -> the function for them."""
Derived = list[tuple[frozenset[str], dict[str, bytes]]]
"""Slots made of numbers of strings, by the one string that they differ in, beside those that they share."""
Publish = Callable[[str, int, str, str, str | None], None]
"""Pool, page, request, key, digest: a page became findable under a key of `DIGITS` characters of ASCII."""

OURS = (LookupError, TypeError, ValueError, OverflowError, AttributeError, struct.error)
"""What values can make this code raise. Anything else comes from the host, such as a signal handler, and passes."""
_PHASES = {"begin": int(Flag.BEGIN), "end": int(Flag.END)}
_SEQ = struct.Struct("<Q")
_LOST = CODES[LOST]
_NAMES = struct.Struct("<IIII")
_BOUND = struct.Struct(f"<qQ{_NAMES.size}sIIIIIIQ")
"""A record with its four strings in one piece, and ordinal, kind and flags in one number."""
_TWO = struct.Struct(RECORD.format + RECORD.format.lstrip("<"))
DIGITS = 16
"""Characters of a fingerprint that the short way of `page.publish` takes."""
_KEYED, _KEYED_WITH_DIGEST = struct.Struct(f"<QQQ{DIGITS}s"), struct.Struct(f"<QQQ{DIGITS}sQ{DIGITS}s")
"""A piece of the arena with the key, or with key and digest; the heads of piece and items in words, as few as can
be."""


def fingerprint(field: str, text: str) -> bytes:
    """An item with a fingerprint. Raises ValueError for what is none."""
    data = text.encode("ascii")
    if len(data) != DIGITS:
        raise ValueError(f"{field} is not {DIGITS} characters")
    return ITEM.pack(FIELD_NUMBERS[field], ItemForm.TEXT, 0, DIGITS) + data


def _head(field: str) -> int:
    """The head of an item with a fingerprint, as a word."""
    return int.from_bytes(fingerprint(field, "0" * DIGITS)[: ITEM.size], "little")


def _heir(name: str) -> bytes:
    head = ITEM.pack(FIELD_NUMBERS["to"], ItemForm.TEXT, 0, len(name))
    return head + name.encode() + bytes(-len(name) % 8)


HEIRS = {name: _heir(name) for name in ("cache", "session", "snapshot")}
"""Whom pages are passed on to -> the item of the arena that says so."""


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
    binding: Callable[[str, Touch], Bind]
    """The shortest way for `page.write` or `page.read`, with the short way for the rest. Once for each kind."""
    decoding: Callable[[Touch, Touch], Decoded]
    """The short way for a `page.write` and a `page.read` of the same positions, with those for one of them. Once."""
    publishing: Callable[[General], Publish]
    """The short way for `page.publish`, with the general way for the rest. Once."""
    is_open: Callable[[], bool]
    """Whether the ring may still be written to."""
    shut: Callable[[], None]
    """Let nothing more be written."""


def record_writers(
    ring: mmap.mmap,
    counters: memoryview,
    sizes: Sizes,
    texts: Mapping[str | None, int],
    tenants: Mapping[str | None, int],
    derived: Derived,
    reserve: Callable[[int], int],
    pages_piece: PagesPiece,
) -> Writers:
    """The functions that write records of one ring; they share the last number.

    What is put into `derived` is kept up to date, as `texts` and `tenants` are, when a string loses its number.
    """
    mapped: Any = ring
    header = HEADER_BYTES
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
                mapped, (seq << 6 & wrap) + header, now() if time_ns is None else time_ns, arena,
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
        at = (seq << 6 & wrap) + header
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

        def own(pool, pages, request=None, reason=None, tenant=None, holder=None, gen=None, to=None, path=None):  # type: ignore[no-untyped-def]
            nonlocal last, done
            seq = 0
            try:
                if allocs:
                    label, other = holder, reason
                else:
                    label, other = reason, holder
                if path is not None or other is not None:
                    raise KeyError
                if to is not None:
                    if mapped is None:
                        raise KeyError
                    first = count = 0
                    arena = pages_piece([pages] if pages.__class__ is int else pages, HEIRS[to])
                    flags = 32
                elif pages.__class__ is int:
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
                    mapped, (seq << 6 & wrap) + header, now(), arena,
                    texts[request], 0 if tenant is None else tenants[tenant], texts[pool], texts[label],
                    first, count, 0, 0, number, done & 0xFFFF, kind, flags, seq,
                )  # fmt: skip
            except BaseException as error:
                finished = seq and settle(seq)
                if finished:
                    done += 1
                    counters[kind] = done
                if finished or not isinstance(error, OURS):
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
                if (
                    tenant is None and phase is None and transfer is None and digest is None
                    and tok is not None and step is not None and pages.__class__ is int
                ):  # fmt: skip
                    tok_first, tok_end = tok
                    last = seq = last + 1
                    pack(
                        mapped, (seq << 6 & wrap) + header, now(), 0, texts[request], 0, texts[pool], texts[op],
                        pages, 1, tok_first, tok_end, step, done & 0xFFFF, kind, 28, seq,
                    )  # fmt: skip
                else:
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
                        mapped, (seq << 6 & wrap) + header, now(), arena,
                        texts[request], 0 if tenant is None else tenants[tenant], texts[pool], texts[op],
                        first, count, tok_first, tok_end, number, done & 0xFFFF, kind, flags, seq,
                    )  # fmt: skip
            except BaseException as error:
                finished = seq and settle(seq)
                if finished:
                    done += 1
                    counters[kind] = done
                if finished or not isinstance(error, OURS):
                    raise
                what = {"tok": tok, "op": op, "step": step, "phase": phase, "transfer": transfer, "digest": digest}
                general(event, {"pool": pool, "pages": pages, "request": request, "tenant": tenant, **what})
                return
            done += 1
            counters[kind] = done

        return touch

    def binding(event: str, touch: Touch) -> Bind:
        kind, done, made = BOUND[event], 0, dict[tuple[str, str], Bound]()
        code = kind << 16 | int(Flag.PAGES | Flag.TOK | Flag.NUMBER) << 24
        write = _BOUND.pack_into

        def bind(pool: str, op: str) -> Bound:
            if (pool, op) in made:
                return made[pool, op]
            named: dict[str, bytes] = {}
            derived.append((frozenset((pool, op)), named))

            def bound(page: int, request: str, first: int, end: int, step: int) -> None:
                nonlocal last, done
                seq = 0
                try:
                    names = named[request]
                    last = seq = last + 1
                    write(
                        mapped, (seq << 6 & wrap) + header,
                        now(), 0, names, page, 1, first, end, step, done & 0xFFFF | code, seq,
                    )  # fmt: skip
                except BaseException as error:
                    finished = seq and settle(seq)
                    if finished:
                        done += 1
                        counters[kind] = done
                    if finished or not isinstance(error, OURS):
                        raise
                    touch(pool, page, request, tok=(first, end), op=op, step=step)
                    if request in texts and pool in texts and op in texts:
                        named[request] = _NAMES.pack(texts[request], 0, texts[pool], texts[op])
                    return
                done += 1
                counters[kind] = done

            made[pool, op] = bound
            return bound

        return bind

    def decoding(write: Touch, read: Touch) -> Decoded:
        writes, reads, done = PAIRED["page.write"], PAIRED["page.read"], 0
        pack_both, last_slot = _TWO.pack_into, sizes.slots - 1

        def decoded(pool, page, request, *, tok, step):  # type: ignore[no-untyped-def]
            nonlocal last, done
            seq = 0
            try:
                if page.__class__ is not int:
                    raise KeyError
                named = texts[request]
                place = texts[pool]
                writing, reading = texts["forward"], texts["decode"]
                first, end = tok
                moment = now()
                if last + 1 & last_slot == last_slot:
                    raise KeyError  # where the records begin anew, there is no room for two in one stretch
                seq = last + 1
                last = seq + 1
                pack_both(
                    mapped, (seq << 6 & wrap) + header,
                    moment, 0, named, 0, place, writing, page, 1, first, end, step, done & 0xFFFF, writes, 28,
                    seq,
                    moment, 0, named, 0, place, reading, page, 1, first, end, step, done & 0xFFFF, reads, 28,
                    seq + 1,
                )  # fmt: skip
            except BaseException as error:
                # a record that was begun was finished, and the other with it: values that do not fit are in both
                finished = seq and settle(seq + 1) & settle(seq)
                if finished:
                    done += 1
                    counters[writes] = done
                    counters[reads] = done
                if finished or not isinstance(error, OURS):
                    raise
                write(pool, page, request, tok=tok, op="forward", step=step)
                read(pool, page, request, tok=tok, op="decode", step=step)
                return
            done += 1
            counters[writes] = done
            counters[reads] = done

        return decoded

    def publishing(general: General) -> Publish:
        kind, done = QUICK["page.publish"], 0
        one, both = _KEYED.pack_into, _KEYED_WITH_DIGEST.pack_into
        key_item, digest_item = _head("key"), _head("digest")
        alone, two_items = (size | count << 32 for size, count in ((_KEYED.size, 1), (_KEYED_WITH_DIGEST.size, 2)))
        arena_at, arena_size = sizes.arena_at, sizes.arena

        def publish(pool: str, page: int, request: str, key: str, digest: str | None) -> None:
            nonlocal last, done
            seq = 0
            try:
                if mapped is None:  # in a forked child, this arena is the parent's
                    raise KeyError
                named = texts[request]
                place = texts[pool]
                found = key.encode("ascii")
                content = None if digest is None else digest.encode("ascii")
                if len(found) != DIGITS or (content is not None and len(content) != DIGITS):
                    raise KeyError
                arena = reserve(64)
                if content is None:
                    one(mapped, arena % arena_size + arena_at, arena, alone, key_item, found)
                else:
                    both(mapped, arena % arena_size + arena_at, arena, two_items, key_item, found, digest_item, content)
                last = seq = last + 1
                pack(
                    mapped, (seq << 6 & wrap) + header, now(), arena,
                    named, 0, place, 0, page, 1, 0, 0, 0, done & 0xFFFF, kind, 36, seq,
                )  # fmt: skip
            except BaseException as error:
                finished = seq and settle(seq)
                if finished:
                    done += 1
                    counters[kind] = done
                if finished or not isinstance(error, OURS):
                    raise
                general(
                    "page.publish", {"pool": pool, "pages": [page], "request": request, "key": key, "digest": digest}
                )
                return
            done += 1
            counters[kind] = done

        return publish

    def is_open() -> bool:
        return mapped is not None

    def shut() -> None:
        nonlocal mapped
        mapped = None

    return Writers(put, owning, touching, binding, decoding, publishing, is_open, shut)
