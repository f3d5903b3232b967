"""Rings into a store: every number once, losses with counts per kind, and whoever dies when."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import DiskFull, Store, Writer
from kvwitness.audit.trace.ring import COUNTERS_AT, HEADER_BYTES, PAIRED, QUICK, Sizes, Word
from kvwitness.collectors.ring_tail import Tail
from kvwitness.collectors.tail_state import State
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.support import rows, take

POOL = "e/0/full"
SMALL = Sizes(slots=1024, strings=1024, arena=1 << 20)


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    return tmp_path / "rings"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def work(tracer: Tracer, count: int, first: int = 0) -> Counter[str]:
    """Record `count` events of several kinds; how many of each."""
    done: Counter[str] = Counter()
    for n in range(first, first + count):
        if n % 10 == 3:
            tracer.alloc(POOL, [n % 97, n % 89], f"r{n // 20}", tenant="t")
            done["page.alloc"] += 1
        elif n % 100 == 7:
            tracer.request_received(f"r{n // 20}", "t", prompt_tokens=n)
            done["request.received"] += 1
        else:
            tracer.read(POOL, n % 97, f"r{n // 20}", step=n)
            done["page.read"] += 1
    return done


def accounted(found: list[dict[str, Any]]) -> Counter[str]:
    """Kind -> events that are there, and those that gaps say were lost; also checks that no number is missing."""
    kinds: Counter[str] = Counter()
    expected = 1
    for row in found:
        if row["event"] == "telemetry.gap":
            assert row["from_seq"] == expected
            assert row["to_seq"] == row["seq"]
            assert row["dropped"] == row["to_seq"] - row["from_seq"] + 1
            extra = json.loads(row["extra"])
            lost = dict(zip(extra["lost_kinds"], extra["lost_counts"], strict=True))
            assert sum(lost.values()) == row["dropped"]
            kinds.update(lost)
        else:
            assert row["seq"] == expected
            kinds[row["event"]] += 1
        expected = row["seq"] + 1
    return kinds


# -- loss -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(900,), (1024,), (5000,), (300, 5000), (2000, 300, 2000, 10), (500, 500, 500)])
def test_what_is_overwritten_is_counted_by_kind(parts: tuple[int, ...], rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    done: Counter[str] = Counter()
    for part in parts:
        done += work(tracer, part, done.total())
        take(rings, store)
    tracer.close()
    found = rows(store)
    assert accounted(found) == done
    gaps = [row for row in found if row["event"] == "telemetry.gap"]
    assert len(gaps) == sum(part > 1000 for part in parts)
    assert len(found) - len(gaps) >= min(done.total(), 1024 - 64)
    [followed] = take(rings, store).rings.values()
    assert (followed.removed, followed.differing) == (True, {})


def test_a_dead_ring_gives_all_it_has(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    done = work(tracer, 5000)
    tracer.close()
    take(rings, store)
    found = rows(store)
    assert accounted(found) == done
    assert len(found) == 1 + 1024
    assert list(rings.glob("*.ring")) == []


def test_page_lists_are_lost_one_by_one(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=Sizes(slots=1024, strings=1024, arena=4096))
    for n in range(100):
        tracer.alloc(POOL, np.array([n, n + 2], np.int32), "r")
        tracer.read(POOL, n, "r")
    take(rings, store)
    found = rows(store)
    assert accounted(found) == {"page.alloc": 100, "page.read": 100}
    lists = [row["pages"] for row in found if row["event"] == "page.alloc"]
    assert lists == [[n, n + 2] for n in range(100 - len(lists), 100)]
    assert 25 < len(lists) < 40
    reads = [row for row in found if row["event"] == "page.read"]
    assert len(reads) == 100
    assert {row["reason"] for row in found if row["event"] == "telemetry.gap"} == {
        "its piece of the arena was overwritten before it was read"
    }


def test_a_page_list_that_is_being_overwritten_is_not_trusted(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    tracer.read(POOL, 1, "r")
    for n in range(3):
        tracer.alloc(POOL, np.array([n, n + 2], np.int32), "r")
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        word = 8 * Word.ARENA_END  # claimed up to and into the second list, nothing written there yet
        data[word : word + 8] = (SMALL.arena + 130).to_bytes(8, "little")
    take(rings, store)
    assert [row["event"] for row in rows(store)] == [
        "page.read",
        "telemetry.gap",
        "telemetry.gap",
        "page.alloc",
    ]


def test_strings_outlive_the_records_that_mention_them(rings: Path, store: Store) -> None:
    """As long as not each record has two new ones."""
    tracer = Tracer(rings, "e/0", sizes=Sizes(slots=64, strings=64, arena=4096))
    for n in range(500):
        tracer.read(POOL, 1, f"r{n // 3}", op="decode")
    take(rings, store)
    found = rows(store)
    assert accounted(found) == {"page.read": 500}
    assert [row["request"] for row in found[1:]] == [f"r{n // 3}" for n in range(501 - len(found), 500)]


def test_strings_that_are_gone_are_losses(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=Sizes(slots=1024, strings=64, arena=4096))
    for n in range(500):
        tracer.read(POOL, 1, f"r{n}", op="decode")
    take(rings, store)
    found = rows(store)
    assert accounted(found) == {"page.read": 500}
    names = [row["request"] for row in found if row["event"] == "page.read"]
    assert names == [f"r{n}" for n in range(500 - len(names), 500)]
    assert len(names) >= 32


# -- lives ----------------------------------------------------------------------------------------------


def test_a_restarted_engine_is_a_source_of_its_own(rings: Path, store: Store) -> None:
    for _ in range(2):
        tracer = Tracer(rings, "e/0", sizes=SMALL)
        work(tracer, 100)
        tracer.close()
        take(rings, store)
    sources = store.info()["sources"]
    assert [(s["source"][:4], s["rows"], s["min_seq"], s["max_seq"]) for s in sources] == [("e/0/", 100, 1, 100)] * 2
    assert len({s["source"] for s in sources}) == 2


def test_a_tail_goes_on_where_the_last_one_stopped(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    for n in range(5):
        work(tracer, 100, 100 * n)
        [followed] = take(rings, store).rings.values()
        assert followed.events == 100
    assert accounted(rows(store)).total() == 500
    assert tracer.rings[0].exists()


@pytest.mark.parametrize("when", ["before the store", "after the store", "position lost"])
def test_death_between_store_and_position(
    when: str, rings: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 100)
    take(rings, store)
    work(tracer, 100, 100)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, Tail(rings, store) as tail:
        if when == "before the store":
            patched.setattr(tail._writer, "append", die)
        else:
            patched.setattr(State, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            tail.once()
        patched.undo()
    if when == "position lost":
        for file in rings.glob("tail-*"):
            file.unlink()
    done = work(tracer, 3000, 200)
    take(rings, store)
    found = rows(store)
    kinds = [row for row in found if row["event"] != "telemetry.gap"]
    assert len({row["seq"] for row in found}) == len(found)
    assert len(kinds) >= (100 if when == "before the store" else 200) + 1024 - 64
    if when == "position lost":  # then nobody knows which kinds were overwritten, only how many events
        assert sum(row["dropped"] for row in found if row["event"] == "telemetry.gap") + len(kinds) == 3200
    else:
        assert accounted(found).total() == 200 + done.total()


def test_a_store_that_is_full_for_a_while(rings: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 100)
    flush, failures, said = Writer.flush, [3], list[str]()

    def failing(writer: Writer) -> str | None:
        if writer.waiting and failures[0]:
            failures[0] -= 1
            raise DiskFull("no space left")
        return flush(writer)

    monkeypatch.setattr(Writer, "flush", failing)
    turns = iter(range(12))

    def stopped() -> bool:
        turn = next(turns)
        if turn == 5:
            work(tracer, 100, 100)
        return turn >= 11

    with Tail(rings, store, say=said.append) as tail:
        tail.run(stopped, poll_s=0, flush_s=0)
    assert accounted(rows(store)).total() == 200
    assert len(said) == 3
    assert "no space left" in said[0]


def test_one_tail_at_a_time(rings: Path, store: Store) -> None:
    Tracer(rings, "e/0", sizes=SMALL).alloc(POOL, 1, "r")
    with Tail(rings, store), pytest.raises(KvwitnessError, match="Another"):
        Tail(rings, store)
    take(rings, store)


def test_what_is_no_ring_is_told_and_left_alone(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 10)
    whole = tracer.rings[0].read_bytes()
    damaged = {"short": whole[:100], "cut": whole[:-1], "other": b"x" * 20_000, "newer": whole[:8] + b"\2" + whole[9:]}
    for name, data in damaged.items():
        (rings / f"{name}.ring").write_bytes(data)
    (rings / "link.ring").symlink_to(tracer.rings[0])
    said: list[str] = []
    with Tail(rings, store, say=said.append) as tail:
        tail.once()
        tail.once()
    assert len(said) == 5
    assert accounted(rows(store)).total() == 10
    assert len(list(rings.glob("*.ring"))) == 6


def test_damaged_records_are_losses(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 30)
    records = HEADER_BYTES
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        data[records + 64 * 12 : records + 64 * 13] = data[records + 64 * 5 : records + 64 * 6]  # an older one
        data[records + 64 * 14 : records + 64 * 14 + 8] = bytes(8)  # one that was about to be written over
    take(rings, store)
    found = rows(store)
    assert [row["seq"] for row in found] == list(range(1, 31))
    assert [row["seq"] for row in found if row["event"] == "telemetry.gap"] == [12, 14]


@pytest.mark.parametrize("count", [500, 5000])
def test_death_between_a_record_and_its_counting(count: int, rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    done = work(tracer, count)
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        counter = COUNTERS_AT + 8 * QUICK["page.read"]
        counted = int.from_bytes(data[counter : counter + 8], "little")
        data[counter : counter + 8] = (counted - 1).to_bytes(8, "little")
    tracer.close()
    [followed] = take(rings, store).rings.values()
    assert accounted(rows(store)) == done
    assert (followed.removed, followed.differing) == (True, {})


def test_death_between_two_records_and_their_counting(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    done = work(tracer, 500)
    for step in range(3):  # the first has new strings, and is two by themselves
        tracer.decoded(POOL, 3, "r1", tok=(0, 16), step=step)
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for code in PAIRED.values():
            counter = COUNTERS_AT + 8 * code
            assert int.from_bytes(data[counter : counter + 8], "little") == 2
            data[counter : counter + 8] = (1).to_bytes(8, "little")
    tracer.close()
    [followed] = take(rings, store).rings.values()
    assert accounted(rows(store)) == {kind: done.get(kind, 0) + 3 * (kind in PAIRED) for kind in {*done, *PAIRED}}
    assert (followed.removed, followed.differing) == (True, {})


@pytest.mark.parametrize("records", [1, 2])
def test_death_while_the_oldest_records_are_written_over(records: int, rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    done = work(tracer, 5000)
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for n in range(1, records + 1):
            begun = HEADER_BYTES + 64 * ((sum(done.values()) + n) % SMALL.slots)
            data[begun : begun + 64] = bytes(64)
    tracer.close()
    [followed] = take(rings, store).rings.values()
    found = rows(store)
    assert accounted(found) == done
    assert {row["reason"] for row in found if row["event"] == "telemetry.gap"} == {"overwritten before it was read"}
    assert (followed.removed, followed.differing) == (True, {})


def test_a_writer_that_counts_otherwise_is_told(rings: Path, store: Store) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 100)
    with tracer.rings[0].open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for code, change in ((QUICK["page.read"], -5), (QUICK["page.alloc"], 5)):
            counter = COUNTERS_AT + 8 * code
            counted = int.from_bytes(data[counter : counter + 8], "little")
            data[counter : counter + 8] = (counted + change).to_bytes(8, "little")
    tracer.close()
    [followed] = take(rings, store).rings.values()
    assert set(followed.differing) == {"page.read", "page.alloc"}


def test_leftovers_of_a_ring_that_was_never_made_go(rings: Path, store: Store) -> None:
    rings.mkdir()
    old, new = rings / "old.ring-tmp", rings / "new.ring-tmp"
    for file in (old, new):
        file.write_bytes(b"")
    os.utime(old, (0, 0))
    take(rings, store)
    assert (old.exists(), new.exists()) == (False, True)


# -- the command ----------------------------------------------------------------------------------------


def test_command_once(rings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 3000)
    assert run(["tail", str(rings), "--once", "--store", str(tmp_path / "s")]) == 0
    captured = capsys.readouterr()
    [row] = [json.loads(line) for line in captured.out.splitlines()]
    assert (row["state"], row["position"], row["gaps"]) == ("live", 3000, 1)
    assert row["events"] + row["lost"] == 3000
    assert "events were lost" in captured.err
    assert run(["tail", str(tmp_path / "nowhere"), "--once", "--store", str(tmp_path / "s")]) == 2


COMMAND = "import sys; from kvwitness.audit.cli import main; sys.argv[0] = 'kvwitness'; main()"


def test_sigterm_takes_the_rest_and_ends(rings: Path, tmp_path: Path) -> None:
    tracer = Tracer(rings, "e/0", sizes=SMALL)
    work(tracer, 100)
    command = [sys.executable, "-c", COMMAND, "tail", str(rings), "--store", str(tmp_path / "s")]
    with subprocess.Popen([*command, "--flush-every", "3600"], stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not (rings / "tail.lock").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        work(tracer, 100, 100)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["events"] == 200
    assert accounted(rows(Store.open(tmp_path / "s"))).total() == 200
