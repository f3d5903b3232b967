"""What the referee remembers: requests, pools, pages, rows, shares, transfers, open reads and writes.

A row is one position's place in a page. Everything is kept per row in plain dicts: slow, and easy to believe.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .timeline import Event, expand

Req = tuple[str, int]  # request id and incarnation
OWN_TRAFFIC = ("warmup", "health", "capture", "probe")
RANK = {"leak": 4, "integrity": 3, "exposure": 2, "unproven": 1}


@dataclass(eq=False)
class Request:
    key: Req
    tenant: str | None = None
    received: Event | None = None
    traffic: str = "user"
    salt: Any = None
    adapter: Any = None
    ended: Event | None = None  # first of finish (the last answer), abort, refusal
    taint: set[tuple[Req, frozenset[str]]] = field(default_factory=set)
    gaps: set[str] = field(default_factory=set)  # sources with a gap while it was alive there
    maybe: set[str] = field(default_factory=set)  # sources that may have served it before a gap ended

    @property
    def exempt(self) -> bool:
        return self.traffic in OWN_TRAFFIC

    def doubt(self, home: str | None = None) -> bool:
        """Something done for it by a source (other than `home`) may not be on record."""
        return bool((self.gaps | self.maybe) - {home})


@dataclass(frozen=True, eq=False)
class Cell:
    """The bytes of one row.

    `writer`: whose write it counts as. `by`: who performed it. `authors`: whose content it is. `foreign`: for
    a row filled from a source that its writer could not soundly read, whose content that was (None among them
    stands for bytes that nobody wrote). `legit`: the performer held the page when the bytes landed. `zero`: scrubbed,
    which is a write to the request that held the page and did it, and to everybody else the absence of one.
    """

    writer: Req | None
    by: Req | None
    gen: int
    stamp: int
    authors: frozenset[Req] = frozenset()
    foreign: frozenset[Req | None] = frozenset()
    taint: frozenset[tuple[Req, frozenset[str]]] = frozenset()
    legit: bool = True
    unknown: bool = False  # copied from where the record does not reach
    zero: bool = False


@dataclass(frozen=True)
class Holder:
    """A request, or `cache`, `session`, `snapshot` and whatever else an engine names, that owns a page."""

    request: Req | None
    kind: str
    tenant: str | None


@dataclass
class Share:
    lo: int
    hi: int
    gen: int
    published: str  # yes, never, unknown
    same_space: bool  # namespaces equal
    digests: str  # equal, differ, absent
    stamp: float = float("inf")  # when the run was published
    by: Req | None = None  # by whom
    aliens: frozenset[Req | None] = frozenset()  # other owners than its publisher, of a page handed out twice
    writers: set[Req | None] | None = None  # of a key that another pool published: who had written what it stands for


@dataclass
class Publication:
    key: Any
    ns: str | None
    digest: Any
    gen: int
    live: bool = True
    fields: dict[str, Any] = field(default_factory=dict)
    stamp: float = float("inf")
    by: Req | None = None
    aliens: frozenset[Req | None] = frozenset()
    writers: frozenset[Req | None] = frozenset()


@dataclass(eq=False)
class Page:
    pool: Pool
    id: int
    gen: int = 0
    known: bool = False  # the trace covers its life
    freed: bool = False  # seen to be let go
    owners: list[Holder] = field(default_factory=list)
    sharers: dict[Req, list[Share]] = field(default_factory=dict)
    former: set[Req] = field(default_factory=set)
    rivals: set[Req] = field(default_factory=set)  # to whom it was handed out while another request had it
    rows: dict[int, Cell] = field(default_factory=dict)
    pubs: list[Publication] = field(default_factory=list)
    gap_seen: int = 0
    deaths: dict[int, int] = field(default_factory=dict)  # generation -> stamp of its end
    touches: list[Event] = field(default_factory=list)
    last_loser: Req | None = None
    guard: float = float("-inf")  # until when somebody live stood behind it

    @property
    def live(self) -> bool:
        return bool(self.owners or self.sharers)

    @property
    def dirty(self) -> bool:
        """Something on its source went unrecorded since it was last allocated."""
        return self.gap_seen < self.pool.gaps

    def owned_by(self, r: Req | None) -> bool:
        return r is not None and any(h.request == r for h in self.owners)

    def requests(self) -> list[Req]:
        """The requests that hold it: owners, else those attached."""
        out = [h.request for h in self.owners if h.request]
        return out or list(self.sharers)


@dataclass(eq=False)
class Pool:
    name: str
    tokens: int | None = None
    kind: str = "kv"
    sharing: str = "tenant"
    reserved: set[int] = field(default_factory=set)
    home: str | None = None
    covered: bool = True  # its source was there from the start
    gaps: int = 0
    gap_stamp: int = -1
    pages: dict[int, Page] = field(default_factory=dict)

    def page(self, n: int) -> Page:
        if n not in self.pages:
            self.pages[n] = Page(self, n, known=self.covered)
        return self.pages[n]


@dataclass(eq=False)
class Movement:
    """One transfer.begin: which positions go from which source pages to which destination pages."""

    transfer: Transfer
    event: Event
    src_pool: str | None
    src: list[int]
    dst_pool: str | None
    dst: list[int]
    first: int
    end: int | None
    src_gen: dict[int, int]  # source page -> generation meant
    src_base: int = 0
    dst_base: int = 0
    announced: set[int] = field(default_factory=set)
    place: dict[int, int] = field(default_factory=dict)  # destination page -> index


@dataclass(eq=False)
class Transfer:
    id: str
    request: Req
    start: Event
    moves: list[Movement] = field(default_factory=list)
    offer_gen: dict[tuple[str, int], int] = field(default_factory=dict)
    offered: Event | None = None
    offered_as: Movement | None = None
    lease: tuple[float, Event] | None = None
    failed: list[Event] = field(default_factory=list)
    done: list[Event] = field(default_factory=list)
    drained: list[Event] = field(default_factory=list)

    @property
    def terminal(self) -> bool:
        return bool(self.failed or self.done or self.drained)


@dataclass(eq=False)
class OpenRead:
    request: Req
    op: str
    event: Event
    rows: dict[Page, tuple[int, int]]
    gens: dict[Page, int]
    open: set[Page]
    key: Any = None


@dataclass(eq=False)
class OpenWrite:
    event: Event
    key: Any
    gens: dict[Page, int]
    rows: list[tuple[Page, int, int, int | None]]


def canonical(ns: Any) -> str | None:
    """A namespace as one comparable string; absent stays absent."""
    return None if ns is None else json.dumps(ns, sort_keys=True)


def spans(pages: list[int], tok: list[int] | None, size: int) -> Iterator[tuple[int, int, int, int | None]]:
    """(page, first row, end row, first position) for a page list that starts at the page of `tok[0]`."""
    if tok is None:
        for p in pages:
            yield p, 0, size, None
        return
    pos, end = tok
    for p in pages:
        lo = pos % size
        n = min(size - lo, end - pos)
        if n <= 0:
            return
        yield p, lo, lo + n, pos
        pos += n


def base_of(pages: list[int], tok: list[int] | None, size: int) -> int:
    """The position of the first page of a transfer's page list.

    The lists start at position 0. One that is too short for that, in a movement with `tok`, is taken to start
    at the page of `tok[0]`.
    """
    if tok is None or len(pages) >= -(-tok[1] // size):
        return 0
    return tok[0] // size * size


class World:
    """All state, and the findings collected so far."""

    def __init__(self) -> None:
        self.pools: dict[str, Pool] = {}
        self.requests: dict[Req, Request] = {}
        self.transfers: list[Transfer] = []
        self.reads: list[OpenRead] = []
        self.writes: list[OpenWrite] = []
        self.steps: dict[tuple[str, Any], dict[int, int]] = {}  # page -> its generation at dispatch
        self.places: dict[tuple[Req, str], dict[int, int]] = defaultdict(dict)
        self.window: dict[tuple[Req, str], set[int]] = defaultdict(set)
        self.unreliable: set[tuple[Req, str]] = set()
        self.local: dict[tuple[Req, str], list[tuple[int, int]]] = defaultdict(list)  # written or shared there
        self.moved: dict[tuple[Req, str], list[tuple[int, int]]] = defaultdict(list)  # transferred there
        self.snapshots: dict[tuple[Req, str, int, int], tuple[int, str, Cell | None]] = {}
        self.published_keys: dict[Any, list[Publication]] = defaultdict(list)
        self.findings: dict[tuple[str, str, Req | None, str | None], tuple[set[str], set[int]]] = {}

    def request(self, key: Req) -> Request:
        return self.requests.setdefault(key, Request(key))

    def tenant(self, key: Req | None) -> str | None:
        return self.requests[key].tenant if key in self.requests else None

    def pool(self, name: str) -> Pool:
        return self.pools.setdefault(name, Pool(name, covered=False))

    def report(
        self, rule: str, verdict: str, r: Req | None, page: Page | None = None, others: set[str] | None = None
    ) -> None:
        pool = page.pool.name if page else None
        seen = self.findings.setdefault((rule, verdict, r, pool), (set(), set()))
        seen[0].update(others or set())
        if page:
            seen[1].add(page.id)

    def tenants(self, reqs: set[Req | None] | frozenset[Req | None]) -> set[str]:
        return {t for t in (self.tenant(r) for r in reqs) if t is not None}

    def against(self, r: Req | None, tenants: set[str]) -> tuple[str, set[str]]:
        """Verdict of content of these tenants in the hands of r, and the other tenants among them."""
        mine = self.tenant(r)
        other = {t for t in tenants if t != mine} if mine is not None else set()
        return ("leak" if other else "integrity"), other

    def lost(self, page: Page, row: int) -> bool:
        """What this row holds is not on record: it came before the trace, or a gap may have changed it."""
        cell = page.rows.get(row)
        if not page.known:
            return cell is None
        return page.dirty and (cell is None or cell.stamp < page.pool.gap_stamp)

    def doubtful(self, r: Req, page: Page) -> bool:
        """Something that gave r a right to this page, or filled it for r, may not be on record."""
        return self.requests[r].doubt(None if page.dirty else page.pool.home)

    def judge(self, r: Req, page: Page, row: int, copier: bool = False) -> str:
        """`sound`, `foreign`, `unwritten`, `unknown` or, for copiers, `intact`: a former holder's bytes."""
        how, cell = self.judge_known(r, page, row, copier), page.rows.get(row)
        return "unknown" if cell is not None and cell.unknown and how != "unwritten" else how

    def judge_known(self, r: Req, page: Page, row: int, copier: bool) -> str:
        if page.id in page.pool.reserved:
            return "sound"
        cell = page.rows.get(row)
        if not page.known and (cell is None or (cell.writer != r and not cell.zero)):
            return "unknown"
        if self.lost(page, row):
            return "unknown"
        if cell is not None and cell.zero and cell.writer != r:
            return "unwritten"
        live = cell is not None and cell.gen == page.gen
        if cell is not None and live and cell.writer == r:
            return "foreign" if cell.foreign else "sound"
        rights = [s for s in page.sharers.get(r, []) if cell is not None and self.admits(s, page, row, cell, r)]
        if cell is not None and rights:
            if all(s.published == "unknown" for s in rights):
                return "unknown"
            return "foreign" if cell.foreign else "sound"
        if cell is not None and live and self.kept_for(r, page) and self.same_tenant(cell.writer, r):
            return "sound"
        if cell is not None and live:
            return "foreign"
        if copier and cell is not None and cell.writer == r:
            return "intact"
        return "unwritten"

    def same_tenant(self, a: Req | None, b: Req | None) -> bool:
        return self.tenant(a) is not None and self.tenant(a) == self.tenant(b)

    def kept_for(self, r: Req, page: Page) -> bool:
        """The page is held by a session or snapshot of r's tenant."""
        return any(h.kind in ("session", "snapshot") and h.tenant == self.tenant(r) for h in page.owners)

    def admits(self, s: Share, page: Page, row: int, cell: Cell, r: Req) -> bool:
        """Whether a share makes a read of this row by r sound."""
        if not (s.lo <= row < s.hi and cell.gen == s.gen and cell.legit and s.published != "never"):
            return False
        if cell.writer is None:
            return False
        if cell.stamp > s.stamp and s.by is not None and s.by not in (cell.writer, cell.by):
            return False  # not what was published: somebody wrote over it since
        if cell.writer in s.aliens:
            return False  # nor was it when it was published
        if self.same_tenant(cell.writer, r):
            return True
        if s.writers is not None and cell.writer not in s.writers:
            return False  # the tier's page holds something else by now
        if page.pool.sharing == "global" and s.same_space:
            return True
        return s.digests != "differ"

    def result(self) -> list[dict[str, Any]]:
        return [
            {
                "rule": rule,
                "verdict": verdict,
                "request": r[0] if r else None,
                "other_tenants": others,
                "pool": pool,
                "pages": pages,
            }
            for (rule, verdict, r, pool), (others, pages) in self.findings.items()
        ]


def req_of(d: dict[str, Any]) -> Req | None:
    return (d["request"], d.get("incarnation") or 0) if d.get("request") is not None else None


def page_list(d: dict[str, Any], name: str = "pages") -> list[int]:
    return expand(d.get(name))
