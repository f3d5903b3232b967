"""The queue: in order, once, through outages, refusals and deaths."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kvwitness.audit.alerts import delivery
from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.config import Heartbeat, Route
from kvwitness.audit.alerts.delivery import beat, remind
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.patience import Patience
from kvwitness.audit.alerts.signals import of_the_watching
from kvwitness.audit.alerts.sinks.model import Refused, Unreachable
from kvwitness.audit.errors import KvwitnessError
from tests.alerts.support import Desk, Memory, leak
from tests.alerts.test_alert_sinks import made, notice


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk.at(tmp_path, update_every_ns=duration_ns("1m"))
    yield opened
    opened.ledger.close()


def test_after_an_hour_without_the_sink_everything_arrives_in_order_and_once(desk: Desk) -> None:
    found = [leak(0)]
    desk.sink.fails = Unreachable("down")
    for n in range(1, 60):
        found.append(leak(n))
        desk.finds(*found, after="1m")
    assert desk.sink.notices == []
    desk.sink.fails = None
    desk.clock.turn("5m")
    desk.deliver()
    assert [n.version for n in desk.sink.notices] == list(range(1, 60))
    assert [n.incidents for n in desk.sink.notices] == list(range(2, 61))
    assert desk.deliver().delivered == 0


def test_tries_become_rarer_and_what_the_other_side_asks_for_is_kept(desk: Desk) -> None:
    tries: list[int] = []

    class Down(Memory):
        def deliver(self, notice: Notice) -> None:
            tries.append(desk.clock.now_ns())
            raise Unreachable("down", 1000.0 if len(tries) > 8 else None)

    desk.config = replace(desk.config, sinks={"desk": Down()})
    desk.finds(leak(1))
    for _ in range(4000):
        desk.clock.turn("1s")
        desk.deliver()
    gaps = [(b - a) / 1e9 for a, b in pairwise(tries)]
    assert gaps[0] <= 3
    assert 100 <= max(gaps[:8]) <= 301
    assert min(gaps[8:]) >= 1000


def test_a_sink_that_fails_does_not_hold_up_another(tmp_path: Path) -> None:
    down, up = Memory(), Memory()
    down.fails = RuntimeError("a fault in the sink itself")
    desk = Desk.at(tmp_path, sinks={"a": down, "b": up}, routes=(Route("all", Matcher(), ("a", "b"), False),))
    desk.finds(leak(1))
    assert up.said == [("firing", "critical", 1)]
    assert desk.ledger.sink("a").error == "RuntimeError: a fault in the sink itself"


def test_what_is_refused_for_good_is_put_aside_and_the_next_is_sent(desk: Desk) -> None:
    desk.sink.fails = Refused("too large")
    desk.finds(leak(1))
    desk.sink.fails = None
    desk.finds(leak(1), leak(2))
    assert [n.version for n in desk.sink.notices] == [2]
    assert [d["state"] for d in desk.ledger.deliveries()] == ["delivered", "refused"]
    watching = of_the_watching(desk.config, desk.ledger, desk.clock.now_ns(), None)
    assert [s.said for s in watching] == ["desk refused 1 messages within a day."]


def test_a_sink_that_stays_away_is_an_alert_that_another_hears_of(tmp_path: Path) -> None:
    down, up = Memory(), Memory()
    down.fails = Unreachable("down")
    desk = Desk.at(tmp_path, sinks={"a": down, "b": up}, routes=(Route("all", Matcher(), ("a", "b"), False),))
    for _ in range(4):
        watching = of_the_watching(desk.config, desk.ledger, desk.clock.now_ns(), None)
        desk.finds(leak(1), *watching)
    assert [n.title for n in up.notices][1:] == ["kvwitness: Alerts cannot be delivered"]


def test_who_died_while_sending_sends_again_under_the_same_key_and_says_so(desk: Desk, tmp_path: Path) -> None:
    class Death(BaseException):
        """As if the process ended here: nothing after it runs."""

    class Dying(Memory):
        def deliver(self, notice: Notice) -> None:
            super().deliver(notice)
            raise Death

    dying = Dying()
    desk.config = replace(desk.config, sinks={"desk": dying})
    with pytest.raises(Death):
        desk.finds(leak(1))
    after = Memory()
    again = Desk(Ledger(desk.ledger.path), replace(desk.config, sinks={"desk": after}), desk.clock)
    again.deliver()
    again.deliver()
    assert [n.key for n in after.notices] == [n.key for n in dying.notices]
    assert [n.repeated for n in (*dying.notices, *after.notices)] == [False, True]


def test_messages_for_a_sink_that_is_configured_no_more_are_put_aside(desk: Desk) -> None:
    desk.sink.fails = Unreachable("down")
    desk.finds(leak(1))
    desk.config = replace(desk.config, sinks={"other": Memory()}, routes=(Route("all", Matcher(), ("other",), False),))
    desk.clock.turn("1h")
    assert desk.deliver().refused == 1
    assert desk.ledger.deliveries()[0]["error"] == "there is no sink desk any more"


def test_what_was_said_is_not_kept_once_it_was_delivered(desk: Desk) -> None:
    desk.finds(leak(1))
    body = desk.ledger._db.execute("SELECT body FROM outbox").fetchone()[0]
    assert body is None


class Forgetful(Memory):
    """Has to be reminded, and carries signs of life."""

    def __init__(self) -> None:
        super().__init__()
        self.reminded: list[list[str]] = []
        self.beats = 0

    def remind(self, firing: list[Notice], now_ns: int) -> None:
        self.reminded.append([n.status for n in firing])

    def beat(self, now_ns: int, every_ns: int) -> None:
        if self.fails is not None:
            raise self.fails
        self.beats += 1


def test_a_sink_that_forgets_is_reminded_while_something_fires(tmp_path: Path) -> None:
    sink = Forgetful()
    desk = Desk.at(tmp_path, sinks={"desk": sink})
    remind(desk.ledger, desk.config, desk.clock)
    desk.finds(leak(1))
    for _ in range(10):
        remind(desk.ledger, desk.config, desk.clock.turn("1m"))
    assert sink.reminded == [["firing"], ["firing"]]
    desk.finds(leak(1), after="24h")
    remind(desk.ledger, desk.config, desk.clock.turn("1h"))
    assert len(sink.reminded) == 2


def test_signs_of_life_to_a_sink_and_a_file(tmp_path: Path) -> None:
    sink, file = Forgetful(), tmp_path / "alive"
    desk = Desk.at(tmp_path, sinks={"desk": sink}, heartbeat=Heartbeat(duration_ns("1m"), ("desk",), file))
    for _ in range(120):
        beat(desk.ledger, desk.config, desk.clock.turn("1s"))
    assert sink.beats == 2
    assert int(file.read_text()) == desk.clock.now_ns() // 10**9
    sink.fails = Unreachable("down")
    beat(desk.ledger, desk.config, desk.clock.turn("2m"))
    assert sink.beats == 2


def test_a_tenant_that_was_removed_is_not_named_any_more(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, name_tenants=True, group_by=("verdict", "tenant"))
    desk.sink.fails = Unreachable("down")
    desk.finds(leak(1, tenant="t-gone"), leak(2, tenant="t-a", tenants=frozenset({"t-a", "t-gone"})))
    silence = {
        "id": "s",
        "conditions": {"tenant": ["t-gone"]},
        "owner": "o",
        "reason": "r",
        "from_ns": 0,
        "until_ns": 1,
    }
    with desk.ledger.transaction():
        desk.ledger.set_silence(silence)
    with desk.ledger.transaction():
        desk.ledger.forget("t-gone")
    assert "t-gone" not in "\n".join(desk.ledger._db.iterdump())
    desk.sink.fails = None
    desk.clock.turn("1h")
    desk.deliver()
    assert [(n.labels["tenant"], n.tenant_names) for n in desk.sink.notices] == [("t-a", ("t-a",))]


def test_what_cannot_be_kept_is_not_sent(desk: Desk) -> None:
    desk.ledger._db.execute("PRAGMA max_page_count = 1")  # as a full disk
    with pytest.raises(KvwitnessError, match="cannot be written"):
        desk.finds(*(leak(n) for n in range(500)))
    assert desk.sink.notices == []
    desk.ledger._db.execute("PRAGMA max_page_count = 100000")
    desk.finds(*(leak(n) for n in range(500)))
    assert desk.sink.said == [("firing", "critical", 500)]


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Takes requests, and answers each by hand."""
    listening = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            answer(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        listening.close()


def test_a_receiver_whose_answer_has_no_end_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket never waits for long, so that no time-out of a socket ends it."""
    monkeypatch.setattr(delivery, "patience", Patience(1.0))
    over, posts = threading.Event(), []

    def drip(connection: socket.socket) -> None:
        posts.append(connection.getpeername())
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000:
            connection.sendall(bytes([byte]))
            if over.wait(0.05):
                return

    with raw_server(drip) as url:
        slow, other = made("webhook", url=url), Memory()
        desk = Desk.at(tmp_path, sinks={"a": slow, "desk": other})
        desk.finds(leak(1))
        assert [n.status for n in other.notices] == ["firing"]
        assert desk.ledger.sink("a").error == "no answer was complete within 1 s"
        desk.clock.turn("10m")
        assert desk.deliver().waiting == 1
        assert "it has been answering" in (desk.ledger.sink("a").error or "")
        assert len(posts) == 1  # no second call beside one that is not over
        over.set()


def test_of_an_answer_without_end_no_more_than_the_beginning_is_read() -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1024):
            connection.sendall(b"x" * 65_536)
        poured.set()

    poured = threading.Event()
    with raw_server(pour) as url:
        made("webhook", url=url).deliver(notice())
    assert not poured.is_set()
