"""What the tracer costs its host: ns per event, beside the least that could be done and beside OpenTelemetry.

    python benchmarks/ring.py
    python benchmarks/ring.py --directory /dev/shm --json out.json

Everything is measured in one run, what is compared in turns, and the best of many short rounds counts: the ratios
travel from one machine to another, the rest does not. The least that could be done is, for an event, an empty loop
around `struct.pack_into` of one such record on a map of such a file, always at the same place; for a page list, copying
it there. The span is one of opentelemetry-sdk with the same facts as attributes, a batch processor and an exporter that
does nothing. It is held against the shortest way to record an event, a function that `Tracer.reader` made for a pool
and an operation; beside it stands the ratio to `Tracer.read`, which takes any field. Without that package
(`pip install opentelemetry-sdk`) this part is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.audit import machine  # noqa: E402
from kvwitness.audit.trace.ring import HEADER_BYTES, RECORD, Sizes  # noqa: E402
from kvwitness.gpu_tracer.tracer import Tracer  # noqa: E402

POOL, REQUEST, TENANT = "decode-0/0/full", "cmpl-5f0c9f9e-0", "t-ash"
LONG = 16_384
"""Pages of the long list."""
LISTS = "16k"
Result = dict[str, Any]
Loop = Callable[[int], None]
"""Does something so many times."""


@dataclass(frozen=True)
class Measure:
    """Something that is measured."""

    name: str
    loop: Loop
    times: int
    """Times per round."""


def baselines(file: Path, pages: np.ndarray[Any, Any]) -> list[Measure]:
    """The least that could be done: a record, and a page list, on a map of a ring's file."""
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
    pack = RECORD.pack_into
    sizes = Sizes()
    arena = np.frombuffer(mapped, pages.dtype, sizes.arena // pages.itemsize, sizes.arena_at)
    places, turn = len(arena) // len(pages), itertools.count()

    def empty(times: int) -> None:
        for _ in range(times):
            pack(mapped, HEADER_BYTES, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def copy(times: int) -> None:
        for _ in range(times):
            at = next(turn) % places * LONG  # round and round, as the lists of a ring
            arena[at : at + LONG] = pages

    return [Measure("empty pack_into", empty, 1000), Measure("copy of 16k pages", copy, 100)]


def ours(tracer: Tracer, pages: np.ndarray[Any, Any]) -> list[Measure]:
    """Events by way of the tracer's methods."""
    short = pages[:16].copy()
    listed = pages.tolist()

    def read(times: int) -> None:
        for step in range(times):
            tracer.read(POOL, 17, REQUEST, tok=(0, 16), op="decode", step=step)

    reading = tracer.reader(POOL, "decode")

    def bound(times: int) -> None:
        for step in range(times):
            reading(17, REQUEST, 0, 16, step)

    def alloc(times: int) -> None:
        for _ in range(times):
            tracer.alloc(POOL, 17, REQUEST, tenant=TENANT)

    def alloc_short(times: int) -> None:
        for _ in range(times):
            tracer.alloc(POOL, short, REQUEST, tenant=TENANT)

    def alloc_long(times: int) -> None:
        for _ in range(times):
            tracer.alloc(POOL, pages, REQUEST, tenant=TENANT)

    def alloc_list(times: int) -> None:
        for _ in range(times):
            tracer.alloc(POOL, listed, REQUEST, tenant=TENANT)

    def received(times: int) -> None:
        for _ in range(times):
            tracer.request_received(REQUEST, TENANT, prompt_tokens=40, max_new_tokens=8)

    return [
        Measure("read, one page", read, 1000),
        Measure("reader, one page", bound, 1000),
        Measure("alloc, one page", alloc, 1000),
        Measure("alloc, 16 pages (int32 array)", alloc_short, 500),
        Measure("alloc, 16k pages (int32 array)", alloc_long, 100),
        Measure("alloc, 16k pages (Python list)", alloc_list, 10),
        Measure("request_received", received, 100),
    ]


def spans(pages: np.ndarray[Any, Any]) -> list[Measure]:
    """The same facts as spans; nothing where the package is not there."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    except ImportError:
        return []

    class Nothing(SpanExporter):
        def export(self, spans: Any) -> Any:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nothing()))
    tracer = provider.get_tracer("benchmark")
    listed = pages.tolist()
    facts = {
        "kind": "page.read",
        "pool": POOL,
        "request": REQUEST,
        "tok.first": 0,
        "tok.end": 16,
        "op": "decode",
        "seq": 1,
    }

    def span(times: int) -> None:
        for step in range(times):
            with tracer.start_as_current_span("page.read", attributes={**facts, "page": 17, "step": step}):
                pass

    def long_span(times: int) -> None:
        for step in range(times):
            with tracer.start_as_current_span("page.alloc", attributes={**facts, "pages": listed, "step": step}):
                pass

    return [Measure("span, one page", span, 30), Measure("span, 16k pages", long_span, 1)]


def measure(measures: list[Measure], seconds: float) -> dict[str, float]:
    """Name -> best ns per event, within about so many seconds.

    Only what is compared takes turns: a long Python list leaves nothing of others in the processor's caches.
    """
    best: dict[str, float] = {}
    kinds = [(LISTS in one.name, one.name.startswith("span"), "Python" in one.name) for one in measures]
    groups = [[one for one, k in zip(measures, kinds, strict=True) if k == kind] for kind in sorted(set(kinds))]
    for group in groups:
        until = time.monotonic() + seconds / len(groups)
        while time.monotonic() < until or group[0].name not in best:
            for one in group:
                begun = time.perf_counter_ns()
                one.loop(one.times)
                taken = (time.perf_counter_ns() - begun) / one.times
                best[one.name] = min(taken, best.get(one.name, taken))
    return best


def judged(ns: dict[str, float]) -> list[Result]:
    """The ratios that count, each with what it has to be."""
    scalar, bound, long = ns["read, one page"], ns["reader, one page"], ns["alloc, 16k pages (int32 array)"]
    empty, copy = ns["empty pack_into"], ns["copy of 16k pages"]
    rows = [
        _row("read() of one page / empty pack_into", scalar / empty, "at most", 4.0),
        _row("16k pages / their copy", long / copy, "at most", max(1.5, 5000.0 / copy)),
    ]
    if "span, one page" in ns:
        span = ns["span, one page"]
        rows.append(_row(f"span / reader() ({span / scalar:.0f} for read())", span / bound, "at least", 50.0))
        rows.append(_row("span / event with 16k pages", ns["span, 16k pages"] / long, "at least", 1000.0))
    return rows


def _row(what: str, ratio: float, sense: str, limit: float) -> Result:
    met = ratio <= limit if sense == "at most" else ratio >= limit
    return {"what": what, "ratio": round(ratio, 2), "wanted": f"{sense} {limit:.4g}", "met": met}


def main() -> int:
    """Measure and print; status 1 when a ratio is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    parser.add_argument("--directory", default=memory, help=f"where the rings are made (default: {memory})")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure (default: 20)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    pages = np.random.default_rng(1).permutation(LONG).astype(np.int32)
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        tracer, other = Tracer(Path(work) / "rings", "decode-0/0"), Tracer(Path(work) / "other", "decode-0/1")
        if not (tracer.active and other.active):
            raise SystemExit(tracer.problem or other.problem)
        measures = [*baselines(other.rings[0], pages), *ours(tracer, pages), *spans(pages)]
        ns = measure(measures, options.seconds)
        assert not tracer.errors, tracer.errors
    for name, value in ns.items():
        print(f"{name:<34}{value:>14,.0f} ns")
    if "span, one page" not in ns:
        print("no comparison with a span: opentelemetry-sdk is not installed")
    rows = judged(ns)
    for row in rows:
        met = "met" if row["met"] else "NOT MET"
        print(f"{row['what']:<40}{row['ratio']:>10,.2f}   wanted {row['wanted']:<16}{met}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "ns": ns, "ratios": rows}, indent=2) + "\n")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
