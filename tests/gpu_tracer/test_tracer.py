"""What the tracer records, what it keeps out, and that it never disturbs its host."""

from __future__ import annotations

import inspect
import json
import logging
import os
import random
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwitness.audit.store import Pseudonyms
from kvwitness.audit.trace import FIELDS, KINDS, load_trace
from kvwitness.audit.trace.ring import Sizes
from kvwitness.collectors.ring_file import Event, RingFile
from kvwitness.gpu_tracer.lifecycle import Lifecycle
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.support import recorded
from tests.trace.test_trace_round_trip import events as any_event

SMALL = Sizes(slots=1024, strings=1024, arena=1 << 20)
POOL = "e/0/full"
OWN = ("source", "seq", "time_ns")


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    return tmp_path / "rings"


@pytest.fixture
def tracer(rings: Path) -> Iterator[Tracer]:
    made = Tracer(rings, "e/0", sizes=SMALL)
    yield made
    made.close()


# -- what is recorded -----------------------------------------------------------------------------------


def test_the_four_quick_methods(tracer: Tracer, rings: Path) -> None:
    for _ in range(2):  # the first time the strings are new
        tracer.alloc(POOL, [14, 15, 50], "r1", tenant="t-ash", gen=3)
        tracer.write(POOL, range(14, 16), "r1", tok=(0, 32), op="forward", step=7)
        tracer.read(POOL, 14, "r1", tok=(0, 16), op="decode", step=8, phase="begin")
        tracer.free(POOL, np.array([14, 15, 50], np.int32), "r1", reason="finish")
    tracer.alloc(POOL, 4, holder="cache", path="radix")
    tracer.free(POOL, 4, holder="cache", to="session", path="evict")
    tracer.write(POOL, 5, "r1", transfer=12, digest="d")
    tracer.read(POOL, 5, "r1", transfer="room")
    found = recorded(rings)
    assert tracer.errors == {}
    assert [row["seq"] for row in found] == list(range(1, 13))
    own = ("source", "seq", "time_ns")
    plain = [{k: v for k, v in row.items() if k not in own} for row in found]
    assert plain[0] == {
        "event": "page.alloc", "pool": POOL, "pages": [14, 15, 50], "request": "r1", "tenant": "t-ash", "gen": 3,
    }  # fmt: skip
    assert plain[1] == {
        "event": "page.write", "pool": POOL, "pages": [14, 15], "request": "r1", "tok_first": 0, "tok_end": 32,
        "op": "forward", "step": 7,
    }  # fmt: skip
    assert plain[2] == {
        "event": "page.read", "pool": POOL, "pages": [14], "request": "r1", "tok_first": 0, "tok_end": 16,
        "op": "decode", "step": 8, "phase": "begin",
    }  # fmt: skip
    assert plain[3] == {
        "event": "page.free", "pool": POOL, "pages": [14, 15, 50], "request": "r1", "reason": "finish",
    }  # fmt: skip
    assert plain[4:8] == plain[:4]
    assert plain[8] == {"event": "page.alloc", "pool": POOL, "pages": [4], "holder": "cache", "path": "radix"}
    assert plain[9] == {
        "event": "page.free", "pool": POOL, "pages": [4], "holder": "cache", "to": "session", "path": "evict",
    }  # fmt: skip
    assert plain[10]["transfer"] == "12"
    assert plain[11]["transfer"] == "room"
    assert all(abs(row["time_ns"] - time.time_ns()) < 60 * 10**9 for row in found)


@pytest.mark.parametrize("pages", [7, [7], [7, 9, 12], range(3, 6), np.array([4, 1], np.int32)], ids=str)
@pytest.mark.parametrize("heir", ["cache", "session", "snapshot", "somebody"])
def test_pages_are_passed_on(pages: Any, heir: str, tracer: Tracer, rings: Path) -> None:
    for _ in range(2):
        tracer.free(POOL, pages, "r1", reason="finish", to=heir)
    first, second = ({k: v for k, v in row.items() if k not in OWN} for row in recorded(rings))
    assert first == second
    listed = [pages] if isinstance(pages, int) else list(pages)
    assert first == {
        "event": "page.free", "pool": POOL, "pages": listed, "request": "r1", "reason": "finish", "to": heir,
    }  # fmt: skip
    assert not tracer.errors


def whose(n: int) -> str:
    return f"r{n // 3}" if n % 10 or n < 50 else "one that stays"


def as_two(tracer: Tracer, page: Any, n: int) -> None:
    tracer.write(POOL, page, whose(n), tok=(n, n + 16), op="forward", step=n)
    tracer.read(POOL, page, whose(n), tok=(n, n + 16), op="decode", step=n)


def as_a_pair(tracer: Tracer, page: Any, n: int) -> None:
    tracer.decoded(POOL, page, whose(n), tok=(n, n + 16), step=n)


def bound(tracer: Tracer, page: Any, n: int) -> None:
    tracer.writer(POOL, "forward")(page, whose(n), n, n + 16, n)
    tracer.reader(POOL, "decode")(page, whose(n), n, n + 16, n)


@pytest.mark.parametrize("way", [as_a_pair, bound])
def test_shorter_ways_record_the_same(way: Any, tmp_path: Path) -> None:
    """With so few slots and strings that both are used again and again, and read before that."""
    found = []
    for name, record in (("short", way), ("long", as_two)):
        tracer = Tracer(tmp_path / name, "e/0", sizes=Sizes(slots=64, strings=64, arena=4096))
        assert tracer.active
        reader = RingFile(tracer.rings[0])
        events: list[Any] = []
        for n in range(300):
            # pairs have odd numbers, so that one meets the end of the slots
            record(tracer, n if n % 7 else [n, n + 2], n)
            events += reader.read(1000, alive=False)
        tracer.close()
        assert not tracer.errors
        assert reader.emitted() == reader.seen() == {"page.write": 300, "page.read": 300}
        assert all(isinstance(one, Event) for one in events)
        found.append([(one.seq, one.kind, {k: str(v) for k, v in one.fields.items()}) for one in events])
    assert found[0] == found[1]


@pytest.mark.parametrize("way", [as_a_pair, bound])
def test_shorter_ways_lose_what_the_long_one_loses(way: Any, tracer: Tracer, rings: Path) -> None:
    for page in (-1, "x", 2**32, 1.5):
        way(tracer, page, 5)
    way(tracer, 1, 5)
    found = recorded(rings)
    assert [row["event"] for row in found] == [*["telemetry.gap"] * 8, "page.write", "page.read"]
    assert sum(tracer.errors.values()) == 8


PAGES: list[tuple[Any, list[int]]] = [
    (7, [7]),
    (range(3, 6), [3, 4, 5]),
    (range(9, 3, -3), [9, 6]),
    (range(0), []),
    ([], []),
    ([5], [5]),
    ((5, 1, 2**32 - 1), [5, 1, 2**32 - 1]),
    ([[14, 16], 50], [14, 15, 16, 50]),
    (np.array([3, 1], np.int32), [3, 1]),
    (np.array([3, 2**32 - 1], np.uint32), [3, 2**32 - 1]),
    (np.array([3, 1], np.int64), [3, 1]),
    (np.array([3, 1], np.uint64), [3, 1]),
    (np.array([3, 1], np.int16), [3, 1]),
    (np.array([3, 1], ">i4"), [3, 1]),
    (np.arange(10, dtype=np.int32)[::3], [0, 3, 6, 9]),
    (np.int64(4).reshape(1), [4]),
    (np.arange(16_384, dtype=np.int32), list(range(16_384))),
]


@pytest.mark.parametrize(("given_as", "pages"), PAGES, ids=[str(n) for n in range(len(PAGES))])
def test_pages_in_any_form(given_as: Any, pages: list[int], tracer: Tracer, rings: Path) -> None:
    tracer.alloc(POOL, given_as, "r")
    tracer.copy(POOL, given_as, given_as)
    first, second = recorded(rings)
    assert (first["pages"], second["pages"], second["to_pages"]) == (pages, pages, pages)


METHODS = {
    **{name: name.replace("_", ".", 1) for name, _ in inspect.getmembers(Lifecycle, inspect.isfunction)},
    **{
        name: f"page.{name}"
        for name in ["alloc", "free", "share", "publish", "unpublish", "write", "read", "copy", "move"]
    },
    "response": "request.finished",
    "gap": "telemetry.gap",
}


def methods() -> dict[str, str]:
    """Method -> kind, of those that record one."""
    return {name: kind for name, kind in METHODS.items() if kind in KINDS}


def test_every_kind_has_a_method() -> None:
    assert sorted(methods().values()) == sorted(KINDS)


@pytest.mark.parametrize("name", sorted(methods()))
def test_each_method_records_its_kind_with_its_fields(name: str, tracer: Tracer, rings: Path) -> None:
    examples: dict[str, Any] = {
        "pages": [1, 2], "string": "x", "string or integer": "k", "integer": 5, "number": 1.5, "boolean": True,
        "[first, end)": (0, 8), "integers": [1, 2], "strings": ["a", "b"], "object": {"model": "m"}, "time": 10.5,
    }  # fmt: skip
    parameters = inspect.signature(getattr(Tracer, name)).parameters
    known = [p for p in parameters if p in FIELDS]
    arguments = {p: examples[FIELDS[p].form] for p in known}
    getattr(tracer, name)(**arguments)
    [row] = recorded(rings)
    assert row["event"] == methods()[name]
    assert {column for p in known for column in FIELDS[p].column_names} <= set(row)
    required = {*KINDS[row["event"]].required}
    assert required <= set(known)


OURS = ("source", "seq", "time_unix_nano")


@settings(deadline=None, max_examples=60)
@given(drawn=st.lists(any_event(), min_size=1, max_size=12))
def test_any_event_comes_back_as_from_json(
    drawn: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("rings")
    events = [{k: v for k, v in event.items() if k not in OURS} for event in drawn]
    file = directory / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, events)))
    expected, report = load_trace(file)
    assert report.bad == []
    tracer = Tracer(directory, "any/0", sizes=SMALL)
    for event in events:
        tracer.event(event["event"], **{k: v for k, v in event.items() if k != "event"})
    assert tracer.errors == {}
    tracer.close()
    found = recorded(directory)
    assert list(directory.glob("*.ring")) == []
    assert [row["seq"] for row in found] == list(range(1, len(events) + 1))
    plain = [{k: v for k, v in row.items() if k not in ("source", "seq")} for row in found]
    drop = ("line", "source", "seq")
    assert plain == [{k: v for k, v in row.items() if v is not None and k not in drop} for row in expected.to_pylist()]


def test_an_unknown_kind_and_unknown_fields_are_kept(tracer: Tracer, rings: Path) -> None:
    tracer.event("engine.mood", colour="blue", depth=np.int64(3), request="r1")
    [row] = recorded(rings)
    assert (row["event"], row["request"]) == ("engine.mood", "r1")
    assert json.loads(row["extra"]) == {"colour": "blue", "depth": 3}


def test_long_strings_are_whole(tracer: Tracer, rings: Path) -> None:
    name = "ü" * 100
    for _ in range(2):
        tracer.read(POOL, 1, name, op="decode")
    assert [row["request"] for row in recorded(rings)] == [name, name]


# -- what is kept out -----------------------------------------------------------------------------------


def test_content_is_not_even_in_the_file(tracer: Tracer, rings: Path) -> None:
    secret = "the patient has"
    tracer.request_received("r1", "t-ash", prompt=secret, messages=[{"role": "user", "content": secret}])
    tracer.publish(POOL, 1, key="k", ns={"salt": secret, "salt_hmac": "9f"})
    tracer.event("engine.mood", text=secret, token_ids=list(range(100, 140)))
    tracer.alloc(POOL, 1, "Bearer abcdef0123456789")
    [ring] = tracer.rings
    data = ring.read_bytes()
    assert secret.encode() not in data
    assert b"abcdef0123456789" not in data
    assert b"9f" in data
    assert RingFile(ring).scrubbed == 6
    found = recorded(rings)
    assert found[3]["request"].startswith("redacted:")
    assert "extra" not in found[0]


def test_tenants_under_the_pseudonyms_of_the_store(rings: Path) -> None:
    key = b"a key that is long enough"
    tracer = Tracer(rings, "e/0", sizes=SMALL, tenant_key=key)
    tracer.request_received("r1", "Ash Hospital")
    tracer.alloc(POOL, 1, "r1", tenant="Ash Hospital")
    tracer.request_received("r2", "Ash Hospital " * 20)
    assert b"Ash Hospital" not in tracer.rings[0].read_bytes()
    name = Pseudonyms(key).of("Ash Hospital")
    assert [row["tenant"] for row in recorded(rings)][:2] == [name, name]


def test_a_bad_key_records_nothing_rather_than_names(rings: Path) -> None:
    tracer = Tracer(rings, "e/0", tenant_key=b"short")
    tracer.request_received("r1", "Ash Hospital")
    assert not tracer.active
    assert tracer.problem is not None
    assert not rings.exists()


# -- failures -------------------------------------------------------------------------------------------


def test_what_cannot_be_recorded_is_a_loss_in_its_place(
    tracer: Tracer, rings: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracer.alloc(POOL, 1, "r1")
    tracer.alloc(POOL, "no pages", "r1")
    tracer.read(POOL, -1, "r1")
    tracer.free(POOL, np.array([1.5]), "r1")
    tracer.write(POOL, 1, "r1", tok=(5,))
    tracer.event("page.alloc", seq=4)
    tracer.request_received(object(), "t")  # type: ignore[arg-type]
    tracer.alloc(POOL, np.arange(200_000, dtype=np.int32), "r1")
    tracer.free(POOL, 1, "r1")
    found = recorded(rings)
    kinds = [row["event"] for row in found]
    assert kinds == ["page.alloc", *["telemetry.gap"] * 7, "page.free"]
    assert [row["seq"] for row in found] == list(range(1, 10))
    assert [(row["from_seq"], row["to_seq"], row["dropped"]) for row in found[1:8]] == [(n, n, 1) for n in range(2, 9)]
    lost = [json.loads(row["extra"])["lost_kinds"] for row in found[1:8]]
    assert lost == [[kind] for kind in (
        "page.alloc", "page.read", "page.free", "page.write", "page.alloc", "request.received", "page.alloc",
    )]  # fmt: skip
    assert tracer.errors.total() == 7
    assert "no pages" not in caplog.text


def test_what_the_vocabulary_refuses_is_a_loss_too(tracer: Tracer, rings: Path) -> None:
    tracer.write(POOL, 1, "r1", tok=(8, 4))
    tracer.event("page.alloc", pool=POOL)
    tracer.alloc(POOL, np.array([-1], np.int32), "r1")
    tracer.copy(POOL, [1, 2], [3])
    found = recorded(rings)
    assert [row["event"] for row in found] == ["telemetry.gap"] * 4
    assert [row["reason"] for row in found] == [
        "rejected: tok: reversed",
        "rejected: pages: missing",
        "rejected: pages: page id outside 0..2**32-1",
        "rejected: to_pages: not as many as pages",
    ]


def test_without_a_directory_nothing_happens(monkeypatch: pytest.MonkeyPatch, rings: Path) -> None:
    monkeypatch.delenv("KVWITNESS_RING_DIR", raising=False)
    off = Tracer.from_environment("e/0")
    off.alloc(POOL, 1, "r1")
    off.response("r1", status=200)
    assert (off.active, off.problem, off.rings) == (False, None, ())
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(rings))
    on = Tracer.from_environment("e/0", sizes=SMALL)
    assert on.active
    assert len(list(rings.glob("*.ring"))) == 1


def test_a_directory_that_cannot_be_had_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    tracer = Tracer(tmp_path / "file" / "rings", "e/0")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tracer.alloc(POOL, 1, "r1")
            tracer.response("r1")
    assert not tracer.active
    assert tracer.problem is not None
    assert len(caplog.records) == 1


def test_no_space_is_found_out_before_anything_is_written(rings: Path) -> None:
    tracer = Tracer(rings, "e/0", sizes=Sizes(arena=1 << 50))
    tracer.alloc(POOL, 1, "r1")
    assert not tracer.active
    assert list(rings.iterdir()) == []


def test_after_close_nothing_is_recorded(tracer: Tracer, rings: Path) -> None:
    alloc = tracer.alloc
    tracer.alloc(POOL, 1, "r1")
    late = tracer.alloc  # the function of this thread's ring
    tracer.close()
    for way in (alloc, late, tracer.alloc):
        way(POOL, 2, "r1")
    tracer.response("r1")
    assert len(recorded(rings)) == 1


# -- files, threads, forks, signals ---------------------------------------------------------------------


def test_rings_are_private(tracer: Tracer, rings: Path) -> None:
    os.umask(before := os.umask(0))
    os.umask(0)
    try:
        tracer.alloc(POOL, 1, "r1")
    finally:
        os.umask(before)
    [ring] = tracer.rings
    assert stat.S_IMODE(ring.stat().st_mode) == 0o600
    assert stat.S_IMODE(rings.stat().st_mode) == 0o700


def test_a_file_that_is_there_is_not_taken(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    rings.mkdir()
    planted = rings / f"{os.getpid()}-{7:016x}.ring-tmp"
    planted.symlink_to(rings / "elsewhere")
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    assert not tracer.active
    assert not (rings / "elsewhere").exists()


def test_each_thread_has_a_ring_and_leaves_it_to_the_next(tracer: Tracer, rings: Path) -> None:
    barrier = threading.Barrier(4)

    def work(name: str) -> None:
        for n in range(200):
            tracer.read(POOL, n, name, step=n)
            if n == 100:
                barrier.wait(10)

    for part in range(2):
        threads = [threading.Thread(target=work, args=(f"r{part}{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(tracer.rings) == 4
    found = recorded(rings)
    assert len(found) == 8 * 200
    by_request: dict[str, list[tuple[str, int]]] = {}
    for row in found:
        by_request.setdefault(row["request"], []).append((row["source"], row["step"]))
    for steps in by_request.values():
        assert len({source for source, _ in steps}) == 1
        assert [step for _, step in steps] == list(range(200))


FORK = """
import os, sys
from kvwitness.gpu_tracer.tracer import Tracer
from kvwitness.audit.trace.ring import Sizes
tracer = Tracer(sys.argv[1], "e/0", sizes=Sizes(1024, 1024, 1 << 20))
tracer.alloc("p", 1, "parent")
alloc = tracer.alloc
children = []
wait, go = os.pipe()
for n in range(3):
    if not (pid := os.fork()):
        os.read(wait, 1)
        if n:
            alloc("p", [7, 9, 11], f"child{n}")      # held since before the fork
            tracer.read("p", 2, f"child{n}")
        os._exit(0)
    children.append(pid)
for n in range(20):
    tracer.write("p", [1, 3, 5], "parent")
os.write(go, b"123")
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
tracer.free("p", 1, "parent")
assert not tracer.errors, tracer.errors
"""


def test_a_forked_child_has_its_own_ring(rings: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(rings)], check=True, timeout=60)
    found = recorded(rings)
    by_source: dict[str, list[str]] = {}
    for row in found:
        if row["event"] == "page.write":
            assert row["pages"] == [1, 3, 5]
        else:
            by_source.setdefault(row["source"], []).append(f"{row['request']} {row['event']}")
    assert len(found) == 26
    assert sorted(map(tuple, by_source.values())) == [
        ("child1 page.alloc", "child1 page.read"),
        ("child2 page.alloc", "child2 page.read"),
        ("parent page.alloc", "parent page.free"),
    ]
    assert list(rings.glob("*.ring")) == []  # the child that recorded nothing left nothing


class Alarm(Exception):
    pass


def one_read(tracer: Tracer, step: int) -> None:
    tracer.read(POOL, [1, 2, step], "main", step=step)


def one_bound(tracer: Tracer, step: int) -> None:
    tracer.reader(POOL, "decode")(1, "main", 0, 1, step)


def one_pair(tracer: Tracer, step: int) -> None:
    tracer.decoded(POOL, 1, "main", tok=(0, 1), step=step)


@pytest.mark.parametrize("record", [one_read, one_bound, one_pair])
@pytest.mark.parametrize("raising", [False, True])
def test_signal_handlers_may_record_and_raise(raising: bool, record: Any, rings: Path) -> None:
    tracer = Tracer(rings, "e/0", sizes=Sizes(arena=32 << 20))
    counts = {"main": 0, "handler": 0, "alarms": 0, "armed": 0, "set": 0}

    def handler(number: int, frame: object) -> None:
        armed, step = counts["armed"], counts["handler"]
        counts["armed"], counts["handler"], counts["set"] = 0, step + 1, 0
        read = observer.read(100_000, alive=True)
        seen.update((one.seq, one.fields["step"]) for one in read if isinstance(one, Event))
        tracer.read(POOL, 1, "handler", step=step)
        if armed:
            raise Alarm

    tracer.read(POOL, 0, "main", step=0)
    observer, seen = RingFile(tracer.rings[0]), set[tuple[int, int]]()
    before, generator = signal.signal(signal.SIGALRM, handler), random.Random()
    try:
        until = time.monotonic() + 1.0
        # it ends before the ring or its arena is full, so that none is overwritten
        while time.monotonic() < until and counts["main"] + counts["handler"] < 30_000:
            if not counts["set"]:
                counts["set"] = 1
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 2e-4))
            try:
                counts["main"] += 1
                counts["armed"] = int(raising)
                record(tracer, counts["main"])
                counts["armed"] = 0
            except Alarm:
                counts["alarms"] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found = recorded(rings)
    reads = [row for row in found if row["event"] == "page.read"]
    steps = {who: [row["step"] for row in reads if row.get("request") == who] for who in ("main", "handler")}
    assert steps["handler"] == list(range(counts["handler"]))
    assert len(steps["main"]) == len(set(steps["main"]))
    # an alarm may come before or after the record that it interrupts
    assert counts["main"] - counts["alarms"] < len(steps["main"]) <= counts["main"] + 1
    assert counts["handler"] > 20
    assert seen <= {(row["seq"], row.get("step")) for row in found}, "what had been recorded is no longer there"
    losses = [row for row in found if row["event"] == "telemetry.gap"]
    writes = [row["step"] for row in found if row["event"] == "page.write"]
    if record is one_pair:  # both or neither, except where it takes two calls, and an alarm makes one of them a loss
        assert len(set(steps["main"][1:]) - set(writes)) <= len(losses)
        assert len(writes) - len(steps["main"][1:]) <= counts["alarms"]
    assert len(losses) <= counts["alarms"] * (2 if record is one_pair else 1)
    assert [row["seq"] for row in found] == list(range(1, len(found) + 1))


NUMPY_ONLY = """
import sys
ALLOWED = {"numpy", "kvwitness"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[2])
from kvwitness.gpu_tracer.tracer import Tracer
tracer = Tracer(sys.argv[1], "e/0")
tracer.request_received("r1", "t-ash", prompt='[{"role": "user", "content": "secret words"}]', note='{"a": [1, 2]}')
tracer.alloc("e/0/full", [1, 2, 9], "r1")
tracer.publish("e/0/full", [1, 2], key="k", ns={"model": "m"})
assert not tracer.errors, tracer.errors
assert tracer.active
from kvwitness.gpu_tracer import allocator, memory_view
from kvwitness.gpu_tracer.device_sampler import DeviceSampler
from kvwitness.gpu_tracer.nvml import Nvml
DeviceSampler(tracer, nvml=Nvml(sys.argv[1] + "/none.so")).sample()
assert memory_view.view(allocator.recording([])).devices == ()
loaded = {name.partition(".")[0] for name in sys.modules} & {"pyarrow", "polars", "duckdb", "numba", "orjson", "typer"}
assert not loaded, loaded
"""


def test_imports_and_records_with_numpy_alone(rings: Path, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", NUMPY_ONLY, str(rings), root], check=True, timeout=60, cwd=tmp_path)
    found = recorded(rings)
    assert [row["event"] for row in found] == ["request.received", "page.alloc", "page.publish", "device.state"]
    assert json.loads(found[0]["extra"]) == {"note": '{"a": [1, 2]}'}
