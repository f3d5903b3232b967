"""What fingerprints and canaries cost on a GPU: one run of at most five minutes, whose figures go into a JSON file.

    python benchmarks/gpu_fingerprint.py --json out.json
    python benchmarks/gpu_fingerprint.py --rehearse        # no GPU: everything that a CPU can do, on toy sizes

It needs an NVIDIA GPU, torch for CUDA and Triton. It measures, and compares with torch bit by bit while it does:

- bandwidth over sizes of rows and pages, beside a plain copy on the device and a gather of the same pages. GB/s count
  the bytes of the pages once, though a copy also writes them;
- what the host spends to enqueue a launch, or a check in a lane, and how long `digests` makes it wait;
- a captured launch that is replayed with other pages and another number of them;
- how much a reader of memory, as decoding is one, is slowed down while checks run on a stream of low priority.

What would not be done in time is left out, and named. A rehearsal shows that the script works; its figures are of
Triton's interpreter and mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

if "--rehearse" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks at it when it is imported

import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kvwitness.gpu_tracer.content.canary import Canaries  # noqa: E402
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints  # noqa: E402
from kvwitness.gpu_tracer.content.lanes import Lanes  # noqa: E402
from kvwitness.gpu_tracer.content.layout import Part, by_slot  # noqa: E402

SECRET = b"a secret of the benchmark"
CASES = [(row, page_tokens) for page_tokens in (16, 64, 1) for row in (128, 256, 656, 1152, 2048)]
"""Bytes of a row, tokens of a page: sizes of pages that engines have, the most usual first."""
REHEARSED = [(128, 16), (656, 1)]
Figures = dict[str, Any]


@dataclass
class Bench:
    """Where it is measured, how much, and until when."""

    device: torch.device
    megabytes: float
    rounds: int
    until: float
    """As `time.monotonic`."""
    parts: int = 8
    """Of a cache, all of which lie alike."""
    left_out: list[str] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """Whether there is a GPU, and no rehearsal."""
        return self.device.type == "cuda"

    def seconds(self, call: Callable[[], object]) -> float:
        """Of one call on the device, the median of the rounds, after two that do not count."""
        for _ in range(2 if self.real else 0):
            call()
        taken = []
        for _ in range(self.rounds):
            if self.real:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                end.synchronize()
                taken.append(begin.elapsed_time(end) / 1e3)
            else:
                started = time.perf_counter()
                call()
                taken.append(time.perf_counter() - started)
        return median(taken)

    def host_seconds(self, call: Callable[[], object], times: int = 100) -> float:
        """What the host spends on one call, without waiting for the device."""
        self.wait()
        started = time.perf_counter()
        for _ in range(times):
            call()
        spent = (time.perf_counter() - started) / times
        self.wait()
        return spent

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        if self.real:
            torch.cuda.synchronize(self.device)

    def in_time(self, what: str) -> bool:
        """Whether there is time left; else what was to come is put down as left out."""
        if time.monotonic() < self.until:
            return True
        self.left_out.append(what)
        return False


@dataclass
class Cache:
    """Some parts with rows of one length, filled with noise."""

    memory: torch.Tensor
    parts: list[Part]
    pages: int

    @classmethod
    def make(cls, bench: Bench, row: int, page_tokens: int) -> Cache:
        """As many pages as go into the megabytes, two at least."""
        pages = max(2, int(bench.megabytes * 1e6) // (row * bench.parts * page_tokens))
        shape = (bench.parts, pages * page_tokens, 1, row)
        memory = torch.randint(0, 256, shape, dtype=torch.uint8, device=bench.device)
        return cls(memory, [by_slot(at, f"part {at}", memory[at], page_tokens) for at in range(bench.parts)], pages)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.memory.numel()


def same(cache: Cache, by_kernel: Fingerprints, bits: int) -> bool:
    """Whether kernel and torch agree on three pages."""
    some = torch.tensor([0, cache.pages // 2, cache.pages - 1], device=cache.memory.device)
    return torch.equal(by_kernel.cells(some), Fingerprints(cache.parts, SECRET, bits=bits).cells(some))


def bandwidth(bench: Bench, row: int, page_tokens: int) -> Figures:
    """GB/s of each way to go over all pages, in random order."""
    cache = Cache.make(bench, row, page_tokens)
    table = torch.randperm(cache.pages, device=bench.device)
    counted = torch.cat([torch.tensor([cache.pages], device=bench.device), table])
    target, canaries = torch.empty_like(cache.memory), Canaries(cache.parts, SECRET)
    generations = torch.ones_like(table)
    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(cache.memory),
        "gather": lambda: [part.data.index_select(0, table) for part in cache.parts],
    }
    exact = True
    for bits in (64, 128):
        taken = Fingerprints(cache.parts, SECRET, bits=bits, kernel=True)
        exact = exact and same(cache, taken, bits)
        launch, _ = taken.launches[0]
        room = launch.room(cache.pages)
        ways[f"kernel, {bits} bits"] = lambda launch=launch, room=room: launch.into(room, counted)  # type: ignore[misc]
    ways["canaries checked"] = lambda: canaries.present(table, generations)
    ways["canaries planted"] = lambda: canaries.plant(table, generations)
    speeds = {name: cache.size / bench.seconds(call) / 1e9 for name, call in ways.items()}
    return {
        "row_bytes": row,
        "page_tokens": page_tokens,
        "pages": cache.pages,
        "megabytes": cache.size / 1e6,
        "bit_exact": exact,
        "gigabytes_per_second": speeds,
        "kernel_of_copy": speeds["kernel, 64 bits"] / speeds["copy"],
    }


def by_torch(bench: Bench) -> Figures:
    """GB/s of the same numbers by operations of torch, over fewer pages, since they copy them several times."""
    cache = Cache.make(replace(bench, megabytes=bench.megabytes / 8), 1152, 64)
    table, taken = torch.randperm(cache.pages, device=bench.device), Fingerprints(cache.parts, SECRET)
    seconds = bench.seconds(lambda: taken.cells(table))
    return {"row_bytes": 1152, "page_tokens": 64, "gigabytes_per_second": cache.size / seconds / 1e9}


def enqueue(bench: Bench) -> Figures:
    """Microseconds that the host spends: on a launch, on the ways that allocate, and on waiting for digests."""
    cache = Cache.make(bench, 1152, 16)
    taken = Fingerprints(cache.parts, SECRET, kernel=True)
    few = min(64, cache.pages)
    table = torch.arange(few, device=bench.device)
    counted = torch.cat([torch.tensor([few], device=bench.device), table])
    launch, _ = taken.launches[0]
    room = launch.room(few)
    launch.into(room, counted)
    times = 100 if bench.real else 1
    pages = list(range(few))
    lanes = Lanes(taken, room=few, lanes=times)
    submit_us = 1e6 * bench.host_seconds(lambda: lanes.submit("check", pages, few * 16), times)
    plain = Fingerprints(cache.parts, SECRET).digests(pages)
    back = [one.digests == plain for one in lanes.poll()]
    return {
        "pages": few,
        "bit_exact": back == [True] * times and lanes.skipped == 0,
        "submit_us": submit_us,
        "launch_us": 1e6 * bench.host_seconds(lambda: launch.into(room, counted), times),
        "cells_us": 1e6 * bench.host_seconds(lambda: taken.cells(table), times),
        "digests_with_wait_us": 1e6 * bench.host_seconds(lambda: taken.digests(pages), times),
        "read_once_us": 1e6 * bench.seconds(lambda: launch.into(room, counted)),
    }


def counts(pages: int) -> list[int]:
    """Numbers of pages that a captured launch is replayed with."""
    return sorted({1, max(1, pages // 16), max(1, pages // 2), pages})


def replay(bench: Bench) -> Figures:
    """A captured launch, replayed with other pages and other numbers of them: right, and how long it takes."""
    cache = Cache.make(bench, 1152, 16)
    taken, plain = Fingerprints(cache.parts, SECRET, kernel=True), Fingerprints(cache.parts, SECRET)
    launch, _ = taken.launches[0]
    table = torch.zeros(1 + cache.pages, dtype=torch.int64, device=bench.device)
    room = launch.room(cache.pages)
    again: Callable[[], object] = lambda: launch.into(room, table)  # noqa: E731
    again()
    if bench.real:
        bench.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch.into(room, table)
        again = graph.replay
    rows = []
    for count in counts(cache.pages):
        pages = torch.randperm(cache.pages, device=bench.device)[:count]
        table[0], table[1 : 1 + count] = count, pages
        room.fill_(-1)
        again()
        held = room[..., : count * 16].sum(1).view(1, bench.parts, count, 16)
        some = min(count, 3)
        right = torch.equal(held[:, :, :some], plain.cells(pages[:some]))
        rows.append(
            {
                "pages": count,
                "bit_exact": right,
                "rest_untouched": bool((room[..., count * 16 :] == -1).all()),
                "microseconds": 1e6 * bench.seconds(again),
            }
        )
    return {"captured": bench.real, "room_for_pages": cache.pages, "replays": rows}


def interference(bench: Bench) -> Figures:
    """How much slower a reader on the main stream gets while checks run on a stream of low priority."""
    cache = Cache.make(bench, 1152, 64)
    reads = torch.randint(0, 2**15, (int(bench.megabytes * 1e6) // 8,), dtype=torch.int64, device=bench.device)
    weights = torch.randn(4096, 4096, dtype=torch.bfloat16, device=bench.device)
    vectors = torch.randn(4096, 64, dtype=torch.bfloat16, device=bench.device)
    taken = Fingerprints(cache.parts, SECRET, kernel=True)
    launch, _ = taken.launches[0]

    def step() -> None:
        """Reads memory as decoding does, and computes as little."""
        reads.sum()
        weights @ vectors

    side = torch.cuda.Stream(device=bench.device, priority=0)
    main = torch.cuda.Stream(device=bench.device, priority=-1)
    rows = []
    for share in (0.001, 0.01, 0.1, 1.0):
        few = max(1, int(cache.pages * share))
        table = torch.cat([torch.tensor([few]), torch.randperm(cache.pages)[:few]]).to(bench.device)
        room = launch.room(few)
        bench.wait()
        with torch.cuda.stream(main):
            alone = bench.seconds(step)

        def beside(room: torch.Tensor = room, table: torch.Tensor = table) -> None:
            ready = torch.cuda.Event()
            ready.record(main)
            side.wait_event(ready)  # a check sees what was written before it
            with torch.cuda.stream(side):
                launch.into(room, table)
            step()

        with torch.cuda.stream(main):
            together = bench.seconds(beside)
        bench.wait()
        rows.append(
            {
                "pages_checked_each_step": few,
                "checked_of_read": few * cache.size / cache.pages / (reads.numel() * 8),
                "alone_us": 1e6 * alone,
                "beside_checks_us": 1e6 * together,
                "slowdown": together / alone - 1,
            }
        )
    return {"read_each_step_megabytes": reads.numel() * 8 / 1e6, "steps": rows}


def run(bench: Bench) -> Figures:
    """Everything that there is time for. Prints as it goes."""
    figures: Figures = {"bandwidth": []}
    for row, page_tokens in CASES if bench.real else REHEARSED:
        if bench.in_time(f"bandwidth, rows of {row} bytes, pages of {page_tokens}"):
            one = bandwidth(bench, row, page_tokens)
            figures["bandwidth"].append(one)
            said = "  ".join(f"{name} {speed:.0f}" for name, speed in one["gigabytes_per_second"].items())
            print(f"rows of {row:4} B, pages of {page_tokens:2}: {said}; exact: {one['bit_exact']}", flush=True)
    others: dict[str, Callable[[Bench], Figures]] = {
        "enqueue": enqueue,
        "replay": replay,
        "interference": interference,
        "by_torch": by_torch,
    }
    for name, measure in others.items():
        if name == "interference" and not bench.real:
            bench.left_out.append("interference: a CPU has no streams")
        elif bench.in_time(name):
            figures[name] = measure(bench)
            print(f"{name}: {json.dumps(figures[name])}", flush=True)
    return figures


def wrong(figures: Figures) -> list[str]:
    """Where the kernel did not say what torch said."""
    found = [
        f"rows of {one['row_bytes']} bytes, pages of {one['page_tokens']}"
        for one in figures["bandwidth"]
        if not one["bit_exact"]
    ]
    if not figures.get("enqueue", {"bit_exact": True})["bit_exact"]:
        found.append("lanes")
    replays = figures.get("replay", {"replays": []})["replays"]
    found += [f"replay of {one['pages']} pages" for one in replays if not (one["bit_exact"] and one["rest_untouched"])]
    return found


def about(bench: Bench) -> Figures:
    """On what it was measured."""
    import triton

    known = {"rehearsal": not bench.real, "torch": torch.__version__, "triton": triton.__version__}
    if not bench.real:
        return {**known, "device": "a CPU, with Triton's interpreter"}
    seen = torch.cuda.get_device_properties(bench.device)
    return {
        **known,
        "device": seen.name,
        "capability": f"{seen.major}.{seen.minor}",
        "cuda": torch.version.cuda,
        "memory_gigabytes": seen.total_memory / 1e9,
    }


def main() -> int:
    """Measure, print, and write; status 1 where numbers differ, 2 where it cannot be measured."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--megabytes", type=float, default=2000, help="bytes of the pages, well over the GPU's caches")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=4.5, help="after which nothing more is begun")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to see that the script works")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print(
            "There is no GPU here that torch can use, and this measures on one. --rehearse tries the script on a CPU;"
            " python benchmarks/fingerprint.py --compiled says what is known without a GPU.",
            file=sys.stderr,
        )
        return 2
    began = time.monotonic()
    bench = Bench(
        torch.device("cpu" if options.rehearse else "cuda"),
        0.01 if options.rehearse else options.megabytes,
        1 if options.rehearse else options.rounds,
        began + 60 * options.minutes,
        parts=2 if options.rehearse else 8,
    )
    facts = about(bench)
    print(json.dumps(facts), flush=True)
    figures = run(bench)
    for one in bench.left_out:
        print(f"left out: {one}")
    differing = wrong(figures)
    for one in differing:
        print(f"kernel and torch differ: {one}", file=sys.stderr)
    if options.json:
        seconds = round(time.monotonic() - began, 1)
        written = {**facts, "seconds": seconds, "left_out": bench.left_out, **figures}
        options.json.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
