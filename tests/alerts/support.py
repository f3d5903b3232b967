"""A clock that is turned by hand, receivers on loopback, and small incidents to alert on."""

from __future__ import annotations

import hashlib
import io
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kvwitness.audit.alerts.cadence import duration_ns
from kvwitness.audit.alerts.config import Config, Route
from kvwitness.audit.alerts.decide import Outcome, step
from kvwitness.audit.alerts.delivery import Delivered, deliver
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.matching import Matcher
from kvwitness.audit.alerts.model import Notice, Signal
from kvwitness.audit.alerts.sinks.model import Sink
from kvwitness.audit.rules import RULES
from kvwitness.audit.store import Store
from kvwitness.audit.trace import load_trace
from tests.rules.traces import Trace

T0 = 1_790_000_000
T0_NS = T0 * 1_000_000_000
RUNBOOK = "https://runbooks.example.org/#{rule}"


class ManualClock:
    """Stands still until it is turned; whoever waits is there at once, up to `end_ns`."""

    def __init__(self, now_ns: int = T0_NS, end_ns: int | None = None) -> None:
        self._now_ns, self._end_ns = now_ns, end_ns

    def now_ns(self) -> int:
        return self._now_ns

    def turn(self, duration: str) -> ManualClock:
        self._now_ns += duration_ns(duration)
        return self

    def wait_until(self, moment_ns: int) -> bool:
        if self._end_ns is not None and moment_ns > self._end_ns:
            return False
        self._now_ns = max(self._now_ns, moment_ns)
        return True


class Memory:
    """A sink that keeps what it is given, and fails when it is told to."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.fails: Exception | None = None

    def deliver(self, notice: Notice) -> None:
        if self.fails is not None:
            raise self.fails
        self.notices.append(notice)

    @property
    def said(self) -> list[tuple[str, str, int]]:
        return [(n.status, n.severity, n.incidents) for n in self.notices]


def leak(number: int, **changes: Any) -> Signal:
    """One incident of a request."""
    one = Signal(
        id=f"inc-{number:012d}",
        verdict="leak",
        rules=("foreign-page-read",),
        request=f"r{number}",
        tenant="t-a",
        tenants=frozenset({"t-a", "t-b"}),
        engine="dec-1",
        first_ns=T0_NS + number,
        last_ns=T0_NS + number,
    )
    return replace(one, **changes)


def drift(engine: str = "pf-1", **changes: Any) -> Signal:
    """A condition of an engine."""
    one = Signal(f"inc-{engine}", "exposure", ("capacity-drift",), engine=engine, first_ns=T0_NS, lasting=True)
    return replace(one, **changes)


@dataclass
class Desk:
    """A ledger, a configuration with one sink that hears everything, and a clock."""

    ledger: Ledger
    config: Config
    clock: ManualClock = field(default_factory=ManualClock)

    @classmethod
    def at(cls, path: Path, **settings: Any) -> Desk:
        sinks: dict[str, Sink] = settings.pop("sinks", {"desk": Memory()})
        routes = settings.pop("routes", (Route("all", Matcher(), tuple(sinks), False),))
        return cls(Ledger(path / "alerts" / "ledger.sqlite"), Config(RUNBOOK, sinks=sinks, routes=routes, **settings))

    @property
    def sink(self) -> Memory:
        found = self.config.sinks["desk"]
        assert isinstance(found, Memory)
        return found

    def finds(self, *signals: Signal, due: Sequence[str] = tuple(RULES), after: str = "5m") -> Outcome:
        """A check that finds just these, some time after the one before."""
        self.clock.turn(after)
        with self.ledger.transaction():
            outcome = step(self.ledger, self.config, signals, due, self.clock.now_ns())
        self.deliver()
        return outcome

    def deliver(self) -> Delivered:
        return deliver(self.ledger, self.config, self.clock, random.Random(1))


@dataclass(frozen=True)
class Received:
    """One request to a receiver."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A server on loopback that keeps what it is sent. `answer` is (status, headers, body)."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")
        self.url = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept.received.append(Received(self.path, dict(self.headers.items()), body))
            status, headers, answer = kept.answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kept.url = f"http://127.0.0.1:{server.server_port}"
        yield kept
        server.shutdown()


def over_limit(first: int, count: int, *, t0: int = T0, engine: str = "e") -> Trace:
    """Requests above an engine's limit, each answered with 200: one incident of verdict integrity each."""
    trace = Trace()
    if first == 0:
        trace.add(t0, f"{engine}/0", "engine.limits", engine=engine, input_limit_tokens=100)
    for n in range(first, first + count):
        t = t0 + n
        seq = n * 2 + 1
        trace.received(t, f"r{n}", "t-a", prompt_tokens=150, seq=seq)
        trace.add(t, f"{engine}/0", "page.alloc", pool=f"{engine}/0/kv", pages=[n + 1], request=f"r{n}", seq=n + 2)
        trace.finished(t, f"r{n}", 200, seq=seq + 1)
    return trace


def put(store: Store, trace: Trace) -> None:
    """Import a trace; the same one a second time adds nothing."""
    data = trace.text().encode()
    table, report = load_trace(io.BytesIO(data))
    assert report.bad_total == 0, report.bad
    store.import_batches(table.to_batches(), sha256=hashlib.sha256(data).hexdigest(), name="trace")
