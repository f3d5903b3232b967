"""Order of events: reading a trace, one sequence for replay, and what certainly happened before what.

Within a source `seq` orders events. Across sources two things do: transfer and request ids (a transfer begins
before it writes), and clocks where both sources have stated theirs and the two intervals do not overlap.
Anything else is concurrent, and a rule that depends on the order of two concurrent events may only say
`unproven`.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

REQUIRED = {
    "engine.pool": ("pool", "page_tokens", "pages_total"),
    "engine.clock": ("engine",),
    "request.received": ("request",),
    "request.rejected": ("request",),
    "request.aborted": ("request",),
    "request.preempted": ("request",),
    "request.finished": ("request",),
    "page.alloc": ("pool", "pages"),
    "page.free": ("pool", "pages"),
    "page.share": ("pool", "pages", "request"),
    "page.publish": ("pool", "pages"),
    "page.unpublish": ("pool", "pages"),
    "page.write": ("pool", "pages"),
    "page.read": ("pool", "pages", "request"),
    "page.copy": ("pool", "pages", "to_pages"),
    "page.move": ("pool", "pages", "to_pages"),
    "transfer.offer": ("transfer", "request"),
    "transfer.begin": ("transfer", "request"),
    "transfer.done": ("transfer",),
    "transfer.failed": ("transfer",),
    "transfer.drained": ("transfer",),
    "transfer.lease": ("transfer", "until"),
    "step.begin": ("step", "pool"),
    "step.end": ("step", "pool"),
}


def expand(pages: list[Any] | None) -> list[int]:
    """Page list with inclusive ranges -> ids in order of token positions."""
    out: list[int] = []
    for item in pages or []:
        if isinstance(item, list):
            out.extend(range(item[0], item[1] + 1))
        else:
            out.append(item)
    return out


def seconds(value: float) -> float:
    """A time stamp of either form, in seconds."""
    return value / 1e9 if abs(value) >= 1e12 else float(value)


def load(path: str | Path) -> list[dict[str, Any]]:
    """All lines of a trace as dicts. One that cannot be read consumes its `seq`: an event without a kind."""
    out = []
    for line in Path(path).read_text().splitlines():
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError:
            item = None
        if not isinstance(item, dict):
            seq = re.search(r'"seq"\s*:\s*(\d+)', line)
            source = re.search(r'"source"\s*:\s*"([^"]*)"', line)
            if not (seq and source):
                continue
            item = {"seq": int(seq[1]), "source": source[1]}
        out.append(item)
    return out


@dataclass(eq=False)
class Event:
    """One event. `k`: place within its source; `ref`: reference time, s; `at`: place in the replay."""

    d: dict[str, Any]
    line: int
    source: str
    k: int = 0
    ref: float = 0.0
    slack: float | None = None
    at: int = -1
    gap: bool = False
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.d.get("event"))

    def valid(self) -> bool:
        need = REQUIRED.get(self.kind)
        return need is not None and all(self.d.get(name) is not None for name in need)


class Timeline:
    """Events of a trace in replay order (`events`), with `before(a, b)` for what is certain."""

    def __init__(self, dicts: list[dict[str, Any]]):
        self.by_source: dict[str, list[Event]] = defaultdict(list)
        self.midlife: set[str] = set()
        for line, d in enumerate(dicts):
            source = str(d.get("source") or "?")
            self.by_source[source].append(Event(d, line, source))
        for source, events in self.by_source.items():
            self.by_source[source] = self._order(source, events)
        self._clocks()
        self._edges: dict[int, list[Event]] = defaultdict(list)
        self._id_edges()
        self.events = self._merge()

    def _order(self, source: str, events: list[Event]) -> list[Event]:
        if not all(isinstance(e.d.get("seq"), int) for e in events):
            for k, e in enumerate(events):
                e.k = k
            return events
        events = sorted(events, key=lambda e: (e.d["seq"], e.line))
        out: list[Event] = []
        last = None
        for e in events:
            seq = e.d["seq"]
            if seq == last:
                continue
            if last is None and seq > 1:
                self.midlife.add(source)
            e.gap = last is not None and seq > last + 1
            e.k, last = len(out), seq
            out.append(e)
        self._declared_gaps(out)
        return out

    @staticmethod
    def _declared_gaps(events: list[Event]) -> None:
        """A declared loss counts where it is declared, unless it explains a hole that is there anyway."""
        holes = any(e.gap for e in events)
        for e in events:
            if e.kind == "telemetry.gap" and e.d.get("dropped") != 0:
                if holes and e.d.get("from_seq") is not None:
                    continue
                e.gap = True

    def _clocks(self) -> None:
        known: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for events in self.by_source.values():
            for e in events:
                if e.kind == "engine.clock" and e.valid():
                    entry = (
                        seconds(e.d.get("t", e.d.get("time_unix_nano", 0))),
                        float(e.d.get("offset_s") or 0),
                        e.d.get("uncertainty_s"),
                    )
                    known[e.d["engine"]].append(entry)
        for entries in known.values():
            entries.sort()
        for source, events in self.by_source.items():
            entries = known.get(source) or known.get(source.split("/")[0]) or []
            ref = float("-inf")
            for e in events:
                t = seconds(e.d.get("t", e.d.get("time_unix_nano", 0)))
                if entries:
                    entry = entries[max(0, bisect_left(entries, (t, 1e9, 1e9)) - 1)]
                    t, e.slack = t - entry[1], entry[2]
                ref = max(ref, t)
                e.ref = ref

    def certain_by_clock(self, a: Event, b: Event) -> bool:
        """True if the clocks alone prove a before b."""
        return a.slack is not None and b.slack is not None and a.ref + a.slack + b.slack < b.ref

    def _edge(self, a: Event, b: Event) -> None:
        if a.source != b.source and not self.certain_by_clock(b, a):
            self._edges[id(b)].append(a)

    def _id_edges(self) -> None:
        """What ids alone order: reception before service, allocation and begin before landing before done."""
        every = [e for es in self.by_source.values() for e in es if e.valid()]
        every.sort(key=lambda e: (e.ref, e.line))
        received: dict[Any, list[Event]] = defaultdict(list)
        first: dict[Any, Event] = {}
        begins: dict[Any, list[Event]] = defaultdict(list)
        allocs: dict[Any, list[Event]] = defaultdict(list)
        landings: dict[Any, list[Event]] = defaultdict(list)
        for e in every:
            r = (e.d.get("request"), e.d.get("incarnation") or 0)
            if e.kind == "request.received":
                received[r].append(e)
            if r[0] is not None:
                first.setdefault((r, e.source), e)
            if e.kind in ("transfer.begin", "transfer.offer"):
                begins[e.d["transfer"]].append(e)
            elif e.kind == "page.alloc":
                allocs[(r, e.d["pool"])].append(e)
            elif e.kind == "page.write" and e.d.get("op") in ("transfer", "load"):
                landings[(r, e.d["pool"])].append(e)
        for (r, _), e in first.items():
            if len(received[r]) == 1:
                self._edge(received[r][0], e)
        for key, writes in landings.items():
            for w in writes:
                self._landing_edges(key, w, allocs[key], [b for bs in begins.values() for b in bs])
        self._terminal_edges(every, begins, landings)

    def _landing_edges(self, key: Any, w: Event, allocs: list[Event], begins: list[Event]) -> None:
        mine = set(expand(w.d["pages"]))
        owning = [a for a in allocs if mine & set(expand(a.d["pages"]))]
        for a in owning:
            if a.ref <= w.ref or len(owning) == 1:
                self._edge(a, w)
        for b in begins:
            there = ((b.d["request"], b.d.get("incarnation") or 0), b.d.get("dst_pool"))
            if b.kind == "transfer.begin" and there == key and b.ref <= w.ref:
                self._edge(b, w)

    def _terminal_edges(
        self, events: list[Event], begins: dict[Any, list[Event]], landings: dict[Any, list[Event]]
    ) -> None:
        for e in events:
            if e.kind not in ("transfer.done", "transfer.failed", "transfer.drained"):
                continue
            for b in begins[e.d["transfer"]]:
                self._edge(b, e)
                if e.kind == "transfer.failed" or b.kind != "transfer.begin":
                    continue
                r = (b.d["request"], b.d.get("incarnation") or 0)
                for w in landings.get((r, b.d.get("dst_pool")), []):
                    if b.ref <= w.ref <= e.ref:
                        self._edge(w, e)

    def _merge(self) -> list[Event]:
        """One sequence that respects every source's own order and the ids, and otherwise reference time."""
        waiting: dict[int, int] = {}
        after: dict[int, list[Event]] = defaultdict(list)
        heap: list[tuple[float, int, Event]] = []
        every = [e for es in self.by_source.values() for e in es]
        for events in self.by_source.values():
            for a, b in pairwise(events):
                self._edges[id(b)].append(a)
        for e in every:
            waiting[id(e)] = len(self._edges[id(e)])
            for a in self._edges[id(e)]:
                after[id(a)].append(e)
            if not waiting[id(e)]:
                heapq.heappush(heap, (e.ref, e.line, e))
        out: list[Event] = []
        placed: set[int] = set()
        while len(out) < len(every):
            if not heap:  # a cycle: times and ids contradict each other; time decides
                e = min((e for e in every if id(e) not in placed), key=lambda e: (e.ref, e.line))
                heapq.heappush(heap, (e.ref, e.line, e))
            _, _, e = heapq.heappop(heap)
            if id(e) in placed:
                continue
            placed.add(id(e))
            e.at = len(out)
            out.append(e)
            self._see(e)
            for b in after[id(e)]:
                waiting[id(b)] -= 1
                if waiting[id(b)] == 0 and id(b) not in placed:
                    heapq.heappush(heap, (b.ref, b.line, b))
        return out

    def _see(self, e: Event) -> None:
        """What is certain to have happened before e: per source the index of the last such event."""
        seen: dict[str, int] = {}
        for a in self._edges[id(e)]:
            self._take(seen, a)
        if e.slack is not None:
            for source, events in self.by_source.items():
                if source == e.source or events[0].slack is None:
                    continue
                k = bisect_left(events, e.ref, key=lambda a: a.ref + (a.slack or 0) + e.slack) - 1
                if k >= 0:
                    self._take(seen, events[k])
        e.seen = seen

    @staticmethod
    def _take(seen: dict[str, int], a: Event) -> None:
        for source, k in (*a.seen.items(), (a.source, a.k)):
            if k > seen.get(source, -1):
                seen[source] = k

    def before(self, a: Event, b: Event) -> bool:
        """True if a certainly happened before b."""
        if a.source == b.source:
            return a.k < b.k
        return b.seen.get(a.source, -1) >= a.k

    def concurrent(self, a: Event, b: Event) -> bool:
        return a is not b and not self.before(a, b) and not self.before(b, a)
