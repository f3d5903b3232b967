"""Kills engines and tails at random moments: what was recorded before is in the store afterwards, once, and whole.

    KVWITNESS_KILLS=100 pytest -m kills tests/collectors/test_ring_kills.py

An engine is a process that records events which follow from their number, so that each can be checked by itself, and
notes in shared memory how many of its calls have returned. It is killed with SIGKILL while it works.
"""

from __future__ import annotations

import mmap
import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from kvwitness.audit.store import Store
from kvwitness.audit.trace.ring import Sizes
from kvwitness.collectors.ring_tail import Tail
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.support import rows

POOL = "e/0/full"
SMALL = Sizes(slots=2048, strings=2048, arena=1 << 18)
PAIR = 2
"""So many records are written at once, at most."""
ROOMY = Sizes(arena=64 << 20)
"""More than an engine fills before it is killed."""


def pages(n: int) -> Any:
    """The pages of event number `n`."""
    return n if n % 3 else np.arange(n, n + n % 40, dtype=np.int32)


def record(tracer: Tracer, n: int) -> None:
    """Record event number `n`, from 1."""
    if n % 11 == 0:
        tracer.request_received(f"r{n}", f"t{n % 7}", prompt_tokens=n, max_new_tokens=n + 1, adapter=f"a{n}")
    elif n % 11 == 5:  # two in one
        tracer.decoded(POOL, n, f"r{n // 50}", tok=(n, n + 16), step=n)
    elif n % 11 == 7:
        tracer.reader(POOL, "decode")(n, f"r{n // 50}", n, n + 16, n)
    elif n % 11 != 6:
        tracer.read(POOL, pages(n), f"r{n // 50}", tok=(n, n + 16), op="decode", step=n)


def wrong(row: dict[str, Any]) -> bool:
    """Whether a row is not exactly the event of its number."""
    n = row["seq"]
    if n % 11 == 0:
        expected: dict[str, Any] = {"event": "request.received", "request": f"r{n}", "tenant": f"t{n % 7}"}
        expected |= {"prompt_tokens": n, "max_new_tokens": n + 1, "adapter": f"a{n}"}
    elif n % 11 in (5, 6):
        first = n - n % 11 + 5
        kind, op = ("page.write", "forward") if n == first else ("page.read", "decode")
        expected = {"event": kind, "pool": POOL, "request": f"r{first // 50}", "op": op, "step": first}
        expected |= {"pages": [first], "tok_first": first, "tok_end": first + 16}
    elif n % 11 == 7:
        expected = {"event": "page.read", "pool": POOL, "request": f"r{n // 50}", "op": "decode", "step": n}
        expected |= {"pages": [n], "tok_first": n, "tok_end": n + 16}
    else:
        expected = {"event": "page.read", "pool": POOL, "request": f"r{n // 50}", "op": "decode", "step": n}
        expected |= {"pages": [n] if n % 3 else list(range(n, n + n % 40)), "tok_first": n, "tok_end": n + 16}
    return {k: v for k, v in row.items() if k not in ("seq", "source", "time_ns")} != expected


def engine(rings: Path, note: Path, sizes: Sizes, pause_s: float) -> None:
    """Record until killed; after each event, note its number. A pause after every 20 events, if there is one."""
    tracer = Tracer(rings, "e/0", sizes=sizes)
    with note.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)
    n = 0
    while True:
        n += 1
        record(tracer, n)
        shared[:] = n.to_bytes(8, "little")
        if pause_s and n % 20 == 0:
            time.sleep(pause_s)


def follow(rings: Path, store: Path) -> None:
    """Follow the rings until killed, flushing as often as can be."""
    with Tail(rings, Store.open(store)) as tail:
        tail.run(lambda: False, poll_s=0.001, flush_s=0.002)


@dataclass
class Engine:
    """A running engine, and how many of its calls have returned."""

    process: BaseProcess
    note: Path

    def noted(self) -> int:
        return int.from_bytes(self.note.read_bytes(), "little")

    def wait(self, events: int) -> None:
        until = time.monotonic() + 60
        while self.noted() < events and time.monotonic() < until:
            time.sleep(0.001)
        assert self.noted() >= events, "the engine does not work"

    def kill(self) -> int:
        kill(self.process)
        return self.noted()


def kill(process: BaseProcess) -> None:
    assert process.is_alive(), "it ended by itself"
    process.kill()
    process.join()


@dataclass
class Field:
    """A directory of rings with a store, and processes to kill."""

    base: Path
    generator: random.Random
    context: ForkServerContext = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    engines: int = 0

    def __post_init__(self) -> None:
        # else most of the time goes into imports
        self.context.set_forkserver_preload(["tests.collectors.ring_kills", "kvwitness.audit.store"])
        self.rings, self.store = self.base / "rings", Store.create(self.base / "store")
        self.rings.mkdir()

    def start(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = self.context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def engine(self, sizes: Sizes, pause_s: float = 0.0) -> Engine:
        self.engines += 1
        note = self.base / f"note-{self.engines}"
        note.write_bytes(bytes(8))
        return Engine(self.start(engine, self.rings, note, sizes, pause_s), note)

    def take(self) -> Tail:
        with Tail(self.rings, self.store) as tail:
            tail.once()
        return tail


def lives(field: Field, kills: int) -> list[str]:
    """Kill engines and nothing else; what is wrong."""
    found: list[str] = []
    for number in range(kills):
        roomy = number % 2 == 0
        running = field.engine(ROOMY if roomy else SMALL)
        running.wait(1)
        time.sleep(field.generator.uniform(0, 0.04 if roomy else 0.15))
        returned = running.kill()
        [followed] = field.take().rings.values()
        events = rows(field.store, [followed.ring.source])
        found += [f"life {number}: {line}" for line in judge(events, returned, None if roomy else SMALL.slots)]
        if followed.differing or not followed.removed:
            found.append(f"life {number}: {followed.to_dict()}")
    return found


def overrun(field: Field, seconds: float) -> tuple[list[str], int]:
    """Follow an engine that writes more than its ring holds between two looks; what is wrong, and events lost."""
    running = field.engine(SMALL)
    running.wait(1)
    with Tail(field.rings, field.store) as tail:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            tail.poll()
            time.sleep(field.generator.uniform(0, 0.004))
        tail.flush()
        returned = running.kill()
        tail.once()
    [followed] = tail.rings.values()
    found = judge(rows(field.store), returned, SMALL.slots)
    if followed.differing or not followed.removed:
        found.append(str(followed.to_dict()))
    return found, followed.lost


def judge(events: list[dict[str, Any]], returned: int, slots: int | None) -> list[str]:
    """What is wrong with the rows of one life, of which `returned` calls had returned.

    `slots`: the ring has so many, and the life was longer; None: it held all.
    """
    found = []
    numbers = [row["seq"] for row in events]
    if len(set(numbers)) != len(numbers):
        found.append("a number is there twice")
    last = max(numbers, default=0)
    if not returned <= last <= returned + PAIR:
        found.append(f"{returned} calls had returned, and the last number is {last}")
    gaps = [row for row in events if row["event"] == "telemetry.gap"]
    whole = [row for row in events if row["event"] != "telemetry.gap"]
    found += [f"not as recorded: {row}" for row in whole if wrong(row)][:3]
    if len(whole) + sum(row["dropped"] for row in gaps) != last:
        found.append(f"{len(whole)} events and {gaps[:3]} do not make {last}")
    if any(row["reason"] == "damaged record" for row in gaps):
        found.append("read while it was being overwritten")
    if slots is None and gaps:
        found.append(f"lost although there was room: {gaps[:3]}")
    in_ring = [row for row in gaps if slots is not None and row["to_seq"] > last - slots + PAIR]
    if any("arena" not in row["reason"] for row in in_ring):
        found.append(f"lost although it was in the ring: {in_ring[:3]}")
    return found


def tails(field: Field, kills: int) -> list[str]:
    """Kill the tail again and again while an engine works, and sometimes the engine; what is wrong in the end."""
    returned: list[int] = []
    running = field.engine(ROOMY, 0.002)
    for number in range(kills):
        following = field.start(follow, field.rings, field.store.path)
        time.sleep(field.generator.uniform(0.05, 0.4))
        kill(following)
        if number % 4 == 3:
            running.wait(1)
            returned.append(running.kill())
            running = field.engine(ROOMY, 0.002)
    running.wait(1)
    returned.append(running.kill())
    field.take()
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows(field.store):
        by_source.setdefault(row["source"], []).append(row)
    found = []
    if list(field.rings.glob("*.ring*")):
        found.append("a ring was left")
    lengths = sorted(max(row["seq"] for row in events) for events in by_source.values())
    if len(lengths) != len(returned):
        found.append(f"{len(returned)} engines, {len(lengths)} sources")
    for events, calls in zip(sorted(by_source.values(), key=lambda e: e[-1]["seq"]), sorted(returned), strict=False):
        found += judge(events, calls, None)
    found += [problem.message for problem in field.store.verify() if problem.severity == "error"]
    return found
