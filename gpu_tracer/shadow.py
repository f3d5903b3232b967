"""The live shadow: the provenance that the audit replays, kept in the serving process, for those who ask for it.

It knows of each page who holds it, who wrote which of its positions last and in which generation, and who is attached
to it. So a read of what the reader neither wrote nor may share is known at the moment it is recorded, which adapters do
before the step runs. KVWITNESS_SHADOW says what becomes of that:

    record   (default) there is no shadow; the record is judged by the audit
    warn     the log says so at once, and the record gets a `shadow.finding`
    refuse   besides, the adapter has the request aborted in the way in which the engine itself aborts

The rules are those of the audit for a read (own write in the live generation, admitted share, reserved page), without
what takes hindsight or other processes: transfers between engines, late writes of others, taint. The audit judges for
itself and does not listen to it. Memory and time are those of a small object per page and a few dictionary look-ups per
page of an event.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvwitness.gpu_tracer.arena import PageIds, flat
from kvwitness.gpu_tracer.records import Bound
from kvwitness.gpu_tracer.tracer import Tracer

SHADOW_VARIABLE = "KVWITNESS_SHADOW"
"""`record`, `warn` or `refuse`."""
_log = logging.getLogger("kvwitness.gpu_tracer")
_REMEMBERED = 100_000
"""Requests whose tenants and attachments are known; what they wrote stays theirs beyond that."""
_KEPT = ("session", "snapshot")
"""Holders that keep pages for a tenant."""


class Mode(StrEnum):
    """What becomes of an unsound read."""

    RECORD = "record"
    WARN = "warn"
    REFUSE = "refuse"

    @classmethod
    def configured(cls) -> Mode:
        """As the environment says; anything but a mode is said in the log, and is `record`."""
        value = os.environ.get(SHADOW_VARIABLE) or cls.RECORD
        try:
            return cls(value)
        except ValueError:
            _log.warning("%s is %r, which is none of %s: record", SHADOW_VARIABLE, value, ", ".join(cls))
            return cls.RECORD


@dataclass(frozen=True, slots=True)
class Who:
    """A request that wrote, or a holder that is none."""

    request: str | None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Unsound:
    """A stretch of a page that a request reads and that is neither its own nor admitted."""

    request: str
    tenant: str | None
    pool: str
    page: int
    first: int
    """First row of the page ..."""
    end: int
    """... and the row after the last."""
    how: str
    """`foreign` (another request's live content) or `unwritten` (nobody wrote it since the page was allocated)."""
    whose: str | None
    """Tenant whose content it is, as far as known."""

    @property
    def leak(self) -> bool:
        """Whether it is another tenant's."""
        return self.whose is not None and self.tenant is not None and self.whose != self.tenant


@dataclass(slots=True)
class _Layer:
    lo: int
    hi: int
    who: Who
    gen: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a page that one wrote (None: nobody), and whether they are sound for whom it was asked."""

    lo: int
    hi: int
    who: Who | None
    gen: int
    sound: bool


@dataclass(slots=True)
class _Page:
    owner: Who | None = None
    gen: int = 0
    known: bool = False
    """Whether its life is known from an alloc, or from the start of the pool, on."""
    published: dict[str | None, tuple[int, str | None]] = field(default_factory=dict)
    """Key -> generation and digest."""
    layers: list[_Layer] = field(default_factory=list)
    """Who wrote which rows last; they do not overlap."""


@dataclass(slots=True)
class _Share:
    gen: int
    lo: int
    hi: int
    admitted: bool


@dataclass(slots=True)
class _Pool:
    tokens: int
    known: bool
    reserved: frozenset[int]
    pages: dict[int, _Page] = field(default_factory=dict)

    def page(self, number: int) -> _Page:
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = _Page(known=self.known)
        return page


class Shadow:
    """Who holds and wrote what, from the events of one process. Methods take what the tracer's do, and may raise."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._who: dict[str, Who] = {}
        self._shares: dict[str, dict[tuple[str, int], _Share]] = {}

    def engine_pool(
        self, pool: str, *, page_tokens: int, reserved: PageIds | None = None, reason: str | None = None, **_: Any
    ) -> None:
        """A pool, made anew with reason `start`."""
        known = self._pools.get(pool)
        if known is None or reason == "start":
            pages = frozenset() if reserved is None else frozenset(flat(reserved).tolist())
            self._pools[pool] = _Pool(page_tokens, reason == "start", pages)

    def request_received(self, request: str, tenant: str, **_: Any) -> None:
        """Whose a request is."""
        self._name(request, tenant)

    def alloc(
        self, pool: str, pages: PageIds, request: str | None = None, *, tenant: str | None = None,
        holder: str | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Pages become owned: what they hold is of an earlier generation now."""
        if (known := self._pools.get(pool)) is None:
            return
        owner = self._name(request, tenant) if request is not None else Who(None, holder)
        for number in _ids(pages):
            page = known.page(number)
            page.owner, page.known = owner, True
            page.gen += 1

    def free(
        self, pool: str, pages: PageIds, request: str | None = None, *, holder: str | None = None,
        to: str | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """A holder lets go, or a sharer is detached."""
        if (known := self._pools.get(pool)) is None:
            return
        shares = self._shares.get(request) if request is not None else None
        for number in _ids(pages):
            page = known.page(number)
            owner = page.owner
            if owner is not None and owner.request == request:
                page.owner = None if to is None else Who(None, owner.tenant if to in _KEPT else None)
            elif shares is not None:
                shares.pop((pool, number), None)

    def write(
        self, pool: str, pages: PageIds, request: str | None = None, *, tok: Sequence[int] | None = None,
        op: str | None = None, phase: str | None = None, tenant: str | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Bytes have landed; those of a write that is only issued have not."""
        if (known := self._pools.get(pool)) is None or phase == "begin":
            return
        who = Who(None) if request is None else self._name(request, tenant)
        for number, lo, hi in _rows(known, pages, tok):
            page = known.page(number)
            if op == "scrub" and (page.owner is None or page.owner.request is None or page.owner.request != request):
                _uncover(page, lo, hi)  # zeros of nobody's; those of the page's holder are as good as its content
            else:
                _cover(page, _Layer(lo, hi, who, page.gen))

    def share(
        self, pool: str, pages: PageIds, request: str, *, key: str | int | None = None,
        tok: Sequence[int] | None = None, tenant: str | None = None, digest: str | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """A request attaches to pages: admitted where they are published under the key, or are its tenant's own."""
        if (known := self._pools.get(pool)) is None:
            return
        mine = self._shares.setdefault(request, {})
        who = self._name(request, tenant)
        for number, lo, hi in _rows(known, pages, tok):
            page = known.page(number)
            if page.owner is not None and page.owner.request == request:
                continue
            if key is None:
                last = page.layers[-1].who.tenant if page.layers else None
                admitted = last is not None and last == who.tenant
            else:
                gen, published = page.published.get(str(key), (-1, None))
                admitted = gen == page.gen and (None in (digest, published) or digest == published)
            mine[pool, number] = _Share(page.gen, lo, hi, admitted or not page.known)

    def publish(
        self, pool: str, pages: PageIds, *, key: str | int | None = None, digest: str | None = None, **_: Any
    ) -> None:
        """Pages become findable under a key."""
        if (known := self._pools.get(pool)) is not None:
            for number in _ids(pages):
                page = known.page(number)
                held = page.published.get(str(key))
                if held is None or held[0] != page.gen:  # the oldest counts: it was made by whoever wrote the page
                    page.published = {k: v for k, v in page.published.items() if v[0] == page.gen}
                    page.published[str(key)] = page.gen, digest

    def copy(
        self, pool: str, pages: PageIds, to_pages: PageIds, *, to_pool: str | None = None, request: str | None = None,
        **_: Any,
    ) -> None:  # fmt: skip
        """Content is duplicated; what the request could soundly read becomes its own on the target."""
        source, target = self._pools.get(pool), self._pools.get(to_pool or pool)
        if source is None or target is None:
            return
        for one, other in zip(_ids(pages), _ids(to_pages), strict=True):
            page, copy = source.page(one), target.page(other)
            who = copy.owner if request is None else self._name(request, None)
            copy.layers = []
            reader = who.request if who is not None else None
            for piece in self._pieces(pool, one, page, 0, source.tokens, reader):
                if piece.who is not None:
                    live = piece.gen == page.gen
                    owner, gen = (who, copy.gen) if piece.sound else (piece.who, copy.gen - (not live))
                    copy.layers.append(_Layer(piece.lo, piece.hi, owner or piece.who, gen))

    def move(self, pool: str, pages: PageIds, to_pages: PageIds, *, to_pool: str | None = None, **_: Any) -> None:
        """Content is relocated with all that belongs to it."""
        source, target = self._pools.get(pool), self._pools.get(to_pool or pool)
        if source is None or target is None:
            return
        for one, other in zip(_ids(pages), _ids(to_pages), strict=True):
            page, moved = source.page(one), target.page(other)
            gen = moved.gen if moved.owner is not None and moved.owner == page.owner else moved.gen + 1
            target.pages[other] = _Page(
                page.owner, gen, page.known,
                {key: (gen, digest) for key, (was, digest) in page.published.items() if was == page.gen},
                [_Layer(x.lo, x.hi, x.who, gen if x.gen == page.gen else gen - 1) for x in page.layers],
            )  # fmt: skip
            page.owner = None
            for shares in self._shares.values():
                if (share := shares.pop((pool, one), None)) is not None:
                    shares[to_pool or pool, other] = _Share(gen, share.lo, share.hi, share.admitted)

    def read(
        self, pool: str, pages: PageIds, request: str, *, tok: Sequence[int] | None = None, phase: str | None = None,
        tenant: str | None = None, **_: Any,
    ) -> list[Unsound]:  # fmt: skip
        """What of a read is not sound; nothing changes."""
        known = self._pools.get(pool)
        if known is None or phase == "end":
            return []
        out: list[Unsound] = []
        for number, lo, hi in _rows(known, pages, tok):
            page = known.pages.get(number)
            if page is not None and len(page.layers) == 1:
                only = page.layers[0]  # nearly always: all of it was written by the reader
                if only.who.request == request and only.gen == page.gen and only.lo <= lo and hi <= only.hi:
                    continue
            if number in known.reserved:
                continue
            self._judge(out, pool, number, known.page(number), lo, hi, self._name(request, tenant))
        return out

    def _judge(self, out: list[Unsound], pool: str, number: int, page: _Page, lo: int, hi: int, who: Who) -> None:
        assert who.request is not None
        for piece in self._pieces(pool, number, page, lo, hi, who.request):
            if piece.sound:
                continue
            if piece.who is None or piece.who.request == who.request:
                how, whose = "unwritten", None
            else:
                how, whose = "foreign" if piece.gen == page.gen else "unwritten", piece.who.tenant
            out.append(Unsound(who.request, who.tenant, pool, number, piece.lo, piece.hi, how, whose))

    def _pieces(self, pool: str, number: int, page: _Page, lo: int, hi: int, request: str | None) -> Iterator[_Piece]:
        """Rows [lo, hi) of a page, cut where another wrote, and where the reader's attachment begins and ends."""
        share = None if request is None else self._shares.get(request, {}).get((pool, number))
        at = lo
        for layer in sorted(page.layers, key=lambda one: one.lo):
            first, end = max(layer.lo, lo), min(layer.hi, hi)
            if first >= end:
                continue
            if at < first:
                yield _Piece(at, first, None, page.gen, not page.known)
            edges = () if share is None else (share.lo, share.hi)
            cuts = sorted({first, end, *(edge for edge in edges if first < edge < end)})
            for x, y in itertools.pairwise(cuts):
                admitted = share is not None and share.admitted and share.gen == page.gen and share.lo <= x < share.hi
                yield _Piece(x, y, layer.who, layer.gen, self._sound(page, layer, request, admitted))
            at = end
        if at < hi:
            yield _Piece(at, hi, None, page.gen, not page.known)

    def _sound(self, page: _Page, layer: _Layer, request: str | None, admitted: bool) -> bool:
        """Whether content is the reader's own, or admitted to it."""
        if layer.gen != page.gen or request is None:
            return False
        if layer.who.request == request:
            return True
        if page.owner is not None and page.owner.request is None and page.owner.tenant is not None:
            mine = self._who.get(request)
            if mine is not None and page.owner.tenant == mine.tenant:
                return True  # kept for the tenant by a session or a snapshot
        return admitted and layer.who.request is not None

    def _name(self, request: str, tenant: str | None) -> Who:
        who = self._who.get(request)
        if who is None or (who.tenant is None and tenant is not None):
            who = self._who[request] = Who(request, tenant)
            if len(self._who) > _REMEMBERED:
                oldest = next(iter(self._who))
                del self._who[oldest]
                self._shares.pop(oldest, None)
        return who


def _ids(pages: PageIds) -> Sequence[int]:
    if pages.__class__ is int:
        return (pages,)
    if pages.__class__ is list and all(one.__class__ is int for one in pages):
        return pages
    out: list[int] = flat(pages).tolist()
    return out


def _rows(pool: _Pool, pages: PageIds, tok: Sequence[int] | None) -> list[tuple[int, int, int]]:
    """Each page with the rows [lo, hi) of it that positions `tok` fall on; all of them without positions."""
    numbers, tokens = _ids(pages), pool.tokens
    if tok is None:
        return [(number, 0, tokens) for number in numbers]
    first, end = tok
    out, start = [], first // tokens * tokens
    for number in numbers:
        lo, hi = max(0, first - start), min(tokens, end - start)
        if lo < hi:
            out.append((number, lo, hi))
        start += tokens
    return out


def _cover(page: _Page, new: _Layer) -> None:
    """Put a layer over what a page holds."""
    if page.layers:
        last = page.layers[-1]
        if last.who is new.who and last.gen == new.gen and last.lo <= new.lo <= last.hi and len(page.layers) == 1:
            last.hi = max(last.hi, new.hi)  # the next position of the same request
            return
        _uncover(page, new.lo, new.hi)
    page.layers.append(new)


def _uncover(page: _Page, lo: int, hi: int) -> None:
    """Take rows [lo, hi) away from what a page holds."""
    kept = []
    for old in page.layers:
        if old.hi <= lo or old.lo >= hi:
            kept.append(old)
            continue
        if old.lo < lo:
            kept.append(_Layer(old.lo, lo, old.who, old.gen))
        if old.hi > hi:
            kept.append(_Layer(hi, old.hi, old.who, old.gen))
    page.layers = kept


class Watched:
    """A tracer with a shadow beside it: takes and records what a `Tracer` does, and knows what was unsound.

    If the shadow itself fails, it is given up, said in log and record, and the tracer goes on alone.
    """

    def __init__(self, tracer: Tracer, mode: Mode) -> None:
        self._tracer, self.mode = tracer, mode
        self.shadow: Shadow | None = Shadow()
        self._found: list[Unsound] = []
        self._said: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracer, name)

    def taken(self) -> list[Unsound]:
        """What was unsound since it was last asked for, where reads are to be refused."""
        found, self._found = self._found, []
        return found

    def taken_of(self, request: str) -> bool:
        """Whether something of this request was unsound since it was last asked for."""
        found = [one for one in self._found if one.request == request]
        if found:
            self._found = [one for one in self._found if one.request != request]
        return bool(found)

    def engine_pool(self, pool: str, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.engine_pool(pool, **fields)
        self.tell("engine_pool", pool, **fields)

    def request_received(self, request: str, tenant: str, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.request_received(request, tenant, **fields)
        self.tell("request_received", request, tenant)

    def alloc(self, pool: str, pages: PageIds, request: str | None = None, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.alloc(pool, pages, request, **fields)
        self.tell("alloc", pool, pages, request, **fields)

    def free(self, pool: str, pages: PageIds, request: str | None = None, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.free(pool, pages, request, **fields)
        self.tell("free", pool, pages, request, **fields)

    def write(self, pool: str, pages: PageIds, request: str | None = None, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.write(pool, pages, request, **fields)
        self.tell("write", pool, pages, request, **fields)

    def read(self, pool: str, pages: PageIds, request: str, **fields: Any) -> None:
        """As the tracer's; an unsound one is said at once."""
        self._tracer.read(pool, pages, request, **fields)
        self._say(self.tell("read", pool, pages, request, **fields) or [])

    def decoded(self, pool: str, pages: PageIds, request: str, *, tok: Sequence[int], step: int) -> None:
        """As the tracer's."""
        self.write(pool, pages, request, tok=tok, op="forward", step=step)
        self.read(pool, pages, request, tok=tok, op="decode", step=step)

    def reader(self, pool: str, op: str) -> Bound:
        """As the tracer's, in no shorter way."""
        return lambda page, request, first, end, step: self.read(
            pool, page, request, tok=(first, end), op=op, step=step
        )

    def writer(self, pool: str, op: str) -> Bound:
        """As the tracer's, in no shorter way."""
        return lambda page, request, first, end, step: self.write(
            pool, page, request, tok=(first, end), op=op, step=step
        )

    def look(self, pool: str, pages: PageIds, request: str, tok: Sequence[int]) -> list[Unsound]:
        """What would be unsound of a read that is not recorded here."""
        found = self.tell("read", pool, pages, request, tok=tok) or []
        self._say(found)
        return found

    def share(self, pool: str, pages: PageIds, request: str, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.share(pool, pages, request, **fields)
        self.tell("share", pool, pages, request, **fields)

    def publish(self, pool: str, pages: PageIds, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.publish(pool, pages, **fields)
        self.tell("publish", pool, pages, **fields)

    def copy(self, pool: str, pages: PageIds, to_pages: PageIds, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.copy(pool, pages, to_pages, **fields)
        self.tell("copy", pool, pages, to_pages, **fields)

    def move(self, pool: str, pages: PageIds, to_pages: PageIds, **fields: Any) -> None:
        """As the tracer's."""
        self._tracer.move(pool, pages, to_pages, **fields)
        self.tell("move", pool, pages, to_pages, **fields)

    def tell(self, method: str, *args: Any, **fields: Any) -> Any:
        """Have the shadow follow what was recorded in another way; what it returns, None where it is given up."""
        if self.shadow is None:
            return None
        try:
            return getattr(self.shadow, method)(*args, **fields)
        except Exception as error:
            self.shadow = None
            what = f"the live shadow was given up: {type(error).__name__} in {method}"
            _log.warning("%s; recording goes on", what)
            self._tracer.shadow_finding(what)
            return None

    def _say(self, found: list[Unsound]) -> None:
        for one in found:
            if one.request in self._said:
                continue
            if len(self._said) >= 10_000:
                del self._said[next(iter(self._said))]
            self._said[one.request] = None
            what = "another tenant's content" if one.leak else f"{one.how} content"
            _log.warning("request %s reads %s on page %d of %s", one.request, what, one.page, one.pool)
            pages = sorted({other.page for other in found if other.request == one.request})
            self._tracer.shadow_finding(
                f"{one.how} read", request=one.request, tenant=one.tenant, pool=one.pool, pages=pages
            )
        if self.mode is Mode.REFUSE:
            self._found += found


AnyTracer = Tracer | Watched
"""What adapters record with."""


def tracer_from_environment(source: str, *, refuses: bool = False) -> AnyTracer:
    """The tracer of a source, with a shadow where KVWITNESS_SHADOW asks for one and something is recorded.

    `refuses` says that whoever records asks for `taken` and has such requests aborted; others can only warn.
    """
    tracer, mode = Tracer.from_environment(source), Mode.configured()
    if mode is Mode.REFUSE and not refuses:
        _log.warning("this adapter cannot refuse reads: it warns")
        mode = Mode.WARN
    return tracer if mode is Mode.RECORD or not tracer.active else Watched(tracer, mode)
