"""Working off the queue: each sink in the order in which messages were queued, each message until it has arrived.

A message is sent at least once, always under the same key. Whoever dies between sending and remembering it sends it
again, marked as repeated, so that a receiver that looks at keys takes each once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kvwitness.audit.alerts.clock import SECOND_NS, Clock
from kvwitness.audit.alerts.config import BEAT_FILE, Config, Heartbeat
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.patience import patience
from kvwitness.audit.alerts.rows import HeartbeatRow, Queued, SinkRow
from kvwitness.audit.alerts.sinks.model import Beating, Refused, Sink, Standing, Unreachable

FIRST_RETRY_S, LONGEST_RETRY_S = 2.0, 300.0
REMIND_NS = 300 * SECOND_NS
"""How often a sink that forgets is reminded of what fires."""


@dataclass
class Delivered:
    """What one round of delivery did."""

    delivered: int = 0
    refused: int = 0
    waiting: int = 0
    """Messages of sinks that could not be reached."""


def deliver(ledger: Ledger, config: Config, clock: Clock, jitter: random.Random) -> Delivered:
    """Send what is due. A sink that fails is left alone until its next try; the others do not wait for it."""
    done = Delivered()
    for name in ledger.waiting_sinks():
        sink = config.sinks.get(name)
        if sink is None:
            _drop(ledger, name, clock.now_ns(), done)
            continue
        while (row := ledger.sink(name)).retry_ns <= clock.now_ns():
            queued = ledger.first_waiting(name, clock.now_ns())
            if queued is None or not _sent(ledger, sink, queued, row, clock, jitter, done):
                break
    return done


def _drop(ledger: Ledger, name: str, now_ns: int, done: Delivered) -> None:
    """Messages for a sink that configuration does not have any more."""
    while (queued := ledger.first_waiting(name, 1 << 62)) is not None:
        with ledger.transaction():
            ledger.settle(queued, "refused", now_ns, f"there is no sink {name} any more")
        done.refused += 1


def _sent(
    ledger: Ledger, sink: Sink, queued: Queued, row: SinkRow, clock: Clock, jitter: random.Random, done: Delivered
) -> bool:
    """Send one; whether to go on with the next."""
    with ledger.transaction():
        ledger.attempt(queued)
    try:
        patience.call(sink, partial(sink.deliver, replace(queued.notice, repeated=queued.attempts > 0)))
    except Refused as exc:
        with ledger.transaction():
            ledger.settle(queued, "refused", clock.now_ns(), str(exc))
            ledger.set_sink(replace(row, failures=0, failing_since_ns=None, retry_ns=0, error=str(exc)))
        done.refused += 1
        return True
    except Exception as exc:  # a sink that is broken must not take the others along
        with ledger.transaction():
            ledger.set_sink(failing(row, exc, clock.now_ns(), jitter))
        done.waiting += 1
        return False
    with ledger.transaction():
        now = clock.now_ns()
        ledger.settle(queued, "delivered", now)
        ledger.set_sink(replace(row, failures=0, failing_since_ns=None, retry_ns=0, ok_ns=now, error=None))
    done.delivered += 1
    return True


def failing(row: SinkRow, exc: Exception, now_ns: int, jitter: random.Random) -> SinkRow:
    """A sink after one more failure: its next try is later each time, and at no round time."""
    asked = exc.after_s if isinstance(exc, Unreachable) else None
    pause = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(row.failures, 20)) * jitter.uniform(0.5, 1.0)
    told = _told(exc)
    return replace(
        row,
        failures=row.failures + 1,
        failing_since_ns=row.failing_since_ns or now_ns,
        retry_ns=now_ns + int(max(pause, asked or 0.0) * SECOND_NS),
        error=told,
    )


def remind(ledger: Ledger, config: Config, clock: Clock) -> None:
    """Tell sinks that forget which alerts fire. Nothing is remembered of failures: the next round tells it again."""
    firing = [(row, Notice.from_json(row.notice)) for row in ledger.firing() if row.notice is not None]
    for name, sink in config.sinks.items():
        row, now = ledger.sink(name), clock.now_ns()
        if not isinstance(sink, Standing) or now - (row.reminded_ns or 0) < REMIND_NS or row.retry_ns > now:
            continue
        if ledger.first_waiting(name, now) is not None:
            continue  # first what is new, in its order
        mine = [notice for alert, notice in firing if name in alert.sinks]
        if mine and _tried(partial(patience.call, sink, partial(sink.remind, mine, now))):
            with ledger.transaction():
                ledger.set_sink(replace(ledger.sink(name), reminded_ns=clock.now_ns()))


def beat(ledger: Ledger, config: Config, clock: Clock) -> None:
    """Give a sign of life, where and when configuration wants it. One that does not arrive is not sent later; that it
    did not is remembered, and an alert when it goes on (`signals`)."""
    heartbeat, now = config.heartbeat, clock.now_ns()
    if heartbeat is None:
        return
    known = ledger.heartbeats()
    for target in heartbeat.targets:
        row = known.get(target, HeartbeatRow(target))
        fresh = now - (row.ok_ns or 0) < heartbeat.every_ns
        if fresh and target != BEAT_FILE:  # the file is touched by every check
            continue
        try:
            _beaten(config, heartbeat, target, now)
        except Exception as exc:  # whatever it is, it must not take the check along
            since = row.failing_since_ns or now
            new = replace(row, failures=row.failures + 1, failing_since_ns=since, error=_told(exc))
        else:
            new = row if fresh and not row.failures else HeartbeatRow(target, now)
        if new is row:
            continue
        with ledger.transaction():
            ledger.set_heartbeat(new)


def _beaten(config: Config, heartbeat: Heartbeat, target: str, now_ns: int) -> None:
    """Send a sign of life to one target. Raises whatever keeps it from arriving."""
    if target == BEAT_FILE and heartbeat.file is not None:
        try:
            heartbeat.file.write_text(f"{now_ns // SECOND_NS}\n", encoding="utf-8")
        except OSError as exc:
            raise Unreachable(f"{heartbeat.file}: {exc.strerror}") from exc
        return
    sink = config.sinks[target]
    assert isinstance(sink, Beating)  # configuration sees to it
    patience.call(sink, partial(sink.beat, now_ns, heartbeat.every_ns))


def _told(exc: Exception) -> str:
    return str(exc) if isinstance(exc, Unreachable | Refused) else f"{type(exc).__name__}: {exc}"


def _tried(send: Callable[[], None]) -> bool:
    try:
        send()
    except Exception:
        return False
    return True
