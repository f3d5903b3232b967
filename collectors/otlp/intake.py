"""Between the doors and the store: a bounded queue, one thread that reads and maps, one fsync for many requests.

    submit --> queue --> decode, map, leave out what came already --> one segment --> answers

A request is answered when the segment that holds its records is on the disk. While one segment is synced, more
requests wait, and all of those become the next: the more comes, the more share a flush. Memory is bounded by the
budget of what is held between arrival and answer, and by the size of a group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from kvwitness.audit.store import Store, StoreBusy, StoreError
from kvwitness.audit.store.snapshot import Snapshot
from kvwitness.audit.trace import EVENT_SCHEMA, ImportReport
from kvwitness.audit.trace.columns import Rejected
from kvwitness.audit.trace.rows import RowBuilder
from kvwitness.collectors.otlp import body, genai, logs, messages, metrics
from kvwitness.collectors.otlp.messages import LOGS, TRACES, Signal
from kvwitness.collectors.otlp.records import Account, Event, Origin, Record
from kvwitness.collectors.otlp.refusal import INTERNAL, Refusal
from kvwitness.collectors.otlp.seen import Seen

WRITER = "otlp"
GROUP_ROWS = 60_000
"""A segment has about so many rows at most: the store takes so many in one piece."""
GROUP_BYTES = 32 << 20
"""A group ends early when its rows unfold to more than this."""
OWN_EVENTS = 50_000
"""Events of errands that may wait to be written."""
_RETRY_S = 1.0
_COMPACT_EVERY = 64
_IDS = ("span_id", "log_id")

Answer = Callable[["Account | Refusal"], None]


@dataclass(frozen=True)
class Limits:
    """How much is taken, held and remembered."""

    body_bytes: int = 64 << 20
    """Largest body, packed or unpacked."""
    held_bytes: int = 128 << 20
    """Bodies that are held between arrival and answer; beyond it senders are told to wait."""
    commit_s: float = 0.05
    """Least time between two flushes, so that many small requests do not make many small segments."""
    remembered: int = 1_000_000
    """Records of which it is known that they came already."""


@dataclass
class Job:
    """One export request on its way."""

    signal: Signal
    body: bytes
    packing: str
    """Its `Content-Encoding`."""
    encoding: str
    """Its media type."""
    origin: Origin
    answer: Answer
    """Called once, from the intake's thread: with what became of its records, or with why it was refused."""
    account: Account = field(default_factory=Account)


class Intake:
    """Takes export requests, writes their events to the store, and answers. Start it, submit, stop it."""

    def __init__(
        self, store: Store, reading: genai.Reading, limits: Limits, *, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._store, self._limits, self._say = store, limits, say
        self._reader = genai.Reader(reading)
        self._metrics = metrics.Facts()
        self.report = ImportReport()
        """What was dropped from events on their way into rows."""
        self._rows = RowBuilder(self.report)
        self._writer = store.writer(WRITER, origin="OTLP")
        self._seen = Seen(limits.remembered)
        self._recall()
        self._queue: deque[Job] = deque()
        self._own: deque[Event] = deque()
        self._lost = 0
        self._change = threading.Condition()
        self._held = 0
        self._stopping = False
        self._failing: str | None = None
        self._flushes = 0
        self._compacting: threading.Thread | None = None
        self._due = 0.0
        self.total = Account()
        """Of all requests since the start."""
        self.rows = 0
        """Events written since the start."""
        self.flushes = 0
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    # -- the doors' side --------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Bytes of bodies between arrival and answer."""
        return self._held

    @property
    def trouble(self) -> str | None:
        """Why nothing can be taken now; None where all is well."""
        if self._stopping:
            return "the receiver is about to end"
        if self._failing is not None:
            return f"the store cannot be written: {self._failing}"
        return None if self._thread.is_alive() else "the receiver is not running"

    def hold(self, size: int) -> None:
        """Set memory aside for bytes that have arrived. Raises `Refusal` (429) where there is none to spare."""
        with self._change:
            if self._held + size > self._limits.held_bytes:
                raise Refusal.busy(f"{self._held} bytes wait to be written already")
            self._held += size

    def release(self, size: int) -> None:
        """Give it back."""
        with self._change:
            self._held -= size

    def submit(self, job: Job) -> None:
        """Queue a request whose body's memory is set aside. Raises `Refusal` (503) where nothing can be taken now."""
        with self._change:
            if (trouble := self.trouble) is not None:
                raise Refusal.unavailable(trouble)
            self._queue.append(job)
            self._change.notify_all()

    def add(self, event: Event) -> None:
        """Queue an event that came otherwise than by a request; it goes with the next flush.

        While the store cannot be written so many wait; what is more is lost, and on record as a gap afterwards.
        """
        with self._change:
            if len(self._own) >= OWN_EVENTS:
                self._lost += 1
                return
            self._own.append(event)
            self._change.notify_all()

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more, finish all that was submitted, and let go of the store."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        self._thread.join()
        if self._compacting is not None:
            self._compacting.join()
        self._writer.close()

    # -- the thread's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        while (jobs := self._next_group()) is not None:
            try:
                self._handle(jobs)
            except Exception as error:  # a fault of ours must not silence the receiver
                self._say(f"a group of {len(jobs)} export requests failed: {type(error).__name__}")
                self._answer(jobs, Refusal(500, INTERNAL, "the receiver failed", kind="internal"))
            self._due = time.monotonic() + self._limits.commit_s

    def _next_group(self) -> list[Job] | None:
        """The requests that share the next flush; None when all is done and nothing more will come."""
        with self._change:
            while not self._queue and not self._own:
                if self._stopping:
                    return None
                self._change.wait()
            while (wait := self._due - time.monotonic()) > 0 and not self._stopping:
                self._change.wait(wait)
            jobs, size = [], 0
            while self._queue and size < GROUP_BYTES:
                jobs.append(self._queue.popleft())
                size += len(jobs[-1].body)
            return jobs

    def _handle(self, jobs: list[Job]) -> None:
        """Map requests, and flush when a group is full or they are at an end."""
        self._own_events()
        group: list[Job] = []
        for job in jobs:
            group.append(job)
            try:
                self._map(job)
            except Exception as error:  # a fault of ours in one request is none of the others
                self._say(f"an export request of {job.signal.name} failed: {type(error).__name__}")
                self._finish(job, Refusal(500, INTERNAL, "the receiver failed", kind="internal"))
            if self._rows.rows >= GROUP_ROWS // 2 or self._rows.weight > GROUP_BYTES:
                self._commit(group)
                group = []
        self._commit(group)

    def _map(self, job: Job) -> None:
        """Turn a request into rows; what is refused as a whole is answered at once."""
        try:
            plain = body.unpacked(job.body, job.packing, self._limits.body_bytes)
            message = messages.decoded(job.signal, job.encoding, plain)
        except Refusal as refusal:
            self._finish(job, refusal)
            return
        for record in self._records(job.signal, message, job.origin, job.account):
            if self._seen.known(record.identity):
                job.account.doubled += 1
            elif self._take(record, job.account):
                self._seen.add(record.identity)
            if self._failing is None and (self._rows.rows >= GROUP_ROWS or self._rows.weight > GROUP_BYTES):
                self._write()

    def _records(self, signal: Signal, message: Any, origin: Origin, account: Account) -> Any:
        if signal is TRACES:
            return genai.spans(message, self._reader, origin, account)
        if signal is LOGS:
            return logs.records(message, self._reader, origin, account)
        return self._metrics.records(message, self._reader, origin, account)

    def _take(self, record: Record, account: Account) -> bool:
        """Add the events of a record; all or none."""
        before = self._rows.rows
        try:
            for number, (kind, moment, fields) in enumerate(record.events):
                vouched = record.vouched[number] if record.vouched else None
                self._rows.add_parsed(0, kind, moment, fields, 200, vouched)
        except Rejected as rejected:
            self._rows.cut(before)
            account.rejected[rejected.reason] += 1
            return False
        account.accepted += 1
        return True

    def _own_events(self) -> None:
        with self._change:
            own, lost = list(self._own), self._lost
            self._own.clear()
            self._lost = 0
        if lost:
            gap = {"source": WRITER, "dropped": lost, "reason": "the store could not be written"}
            own.append(("telemetry.gap", time.time_ns(), gap))
        for kind, moment, fields in own:
            try:
                self._rows.add_parsed(0, kind, moment, fields, 200)
            except Rejected as rejected:
                self._say(f"an event of kind {kind} was left out: {rejected.reason}")

    # -- writing ----------------------------------------------------------------------------------------

    def _write(self) -> bool:
        """Make all rows durable; False where the store cannot take them now."""
        batch = self._rows.take()
        try:
            if batch.num_rows:
                self._writer.append(_without_lines(batch))
            self._writer.flush()
        except StoreError as error:
            self._failing = error.message
            self._say(f"the store cannot be written, and will be asked again: {error}")
            return False
        self.rows += batch.num_rows
        self.flushes += bool(batch.num_rows)
        return True

    def _commit(self, jobs: list[Job]) -> None:
        """Write, and answer the requests whose records are on the disk by it."""
        if self._failing is None and self._write():
            for job in jobs:
                self._finish(job, job.account)
        else:
            # What they brought waits in the writer and is written once; when it comes again, that is noticed.
            self._answer(jobs, Refusal.unavailable(f"the store cannot be written: {self._failing}"))
            self._recover()
        self._compact()

    def _recover(self) -> None:
        """Ask the store again until it takes what waits."""
        while self._failing is not None:
            with self._change:
                waiting, stopping = list(self._queue), self._stopping
                self._queue.clear()
            self._answer(waiting, Refusal.unavailable(f"the store cannot be written: {self._failing}"))
            try:
                self._writer.flush()
                self._failing = None
            except StoreError as error:
                if stopping:
                    return
                self._failing = error.message
                with self._change:
                    self._change.wait(_RETRY_S)

    def _answer(self, jobs: list[Job], refusal: Refusal) -> None:
        for job in jobs:
            self._finish(job, refusal)

    def _finish(self, job: Job, outcome: Account | Refusal) -> None:
        """Answer a request, once, and give its memory back."""
        if not job.body and job.account is _DONE:
            return
        if isinstance(outcome, Account):
            self._count(outcome)
        size, job.body, job.account = len(job.body), b"", _DONE
        self.release(size)
        job.answer(outcome)

    def _count(self, account: Account) -> None:
        total = self.total
        total.accepted += account.accepted
        total.doubled += account.doubled
        total.ignored += account.ignored
        for mine, other in (
            (total.rejected, account.rejected),
            (total.content, account.content),
            (total.unreadable, account.unreadable),
        ):
            for name, count in other.items():
                mine[name if name in mine or len(mine) < 1000 else "(other)"] += count

    def _compact(self) -> None:
        """Merge small segments, beside the work, when there are many."""
        self._flushes += 1
        busy = self._compacting is not None and self._compacting.is_alive()
        if self._flushes % _COMPACT_EVERY or busy or self._stopping:
            return
        self._compacting = threading.Thread(target=self._compact_now, name="compact", daemon=True)
        self._compacting.start()

    def _compact_now(self) -> None:
        store = Store.open(self._store.path)  # of its own: what it caches is not shared between threads
        with suppress(StoreBusy):  # somebody else is at it
            try:
                if store.compaction_due():
                    store.compact()
            except StoreError as error:
                self._say(f"small segments could not be merged: {error}")

    # -- after a restart --------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Remember what was written by an earlier life: it may not have been answered, and will come again."""
        snapshot = self._store.snapshot()
        since = _beginning(snapshot, self._limits.remembered)
        if since is None:
            return
        frame = snapshot.events(["ingest_row", "extra"], since=since).drop_nulls("extra")
        ids = frame.select(
            "ingest_row",
            *[pl.col("extra").str.json_path_match(f"$.{name}").alias(name) for name in ("trace_id", *_IDS)],
        )
        known = ids.filter(pl.any_horizontal(pl.col(*_IDS).is_not_null())).sort("ingest_row")
        for _, trace, span, log in known.tail(self._limits.remembered // 2).collect().iter_rows():
            self._seen.add(bytes.fromhex(log if log is not None else f"{trace}{span}"))


_DONE = Account()


def _beginning(snapshot: Snapshot, rows: int) -> dict[str, int] | None:
    """From where on the last so many rows of receivers are, for `Snapshot.events`; None where there are none."""
    readable, _ = snapshot.described()  # what is damaged has ids that nobody can read
    spans = [
        (segment.created_ns, name, span)
        for segment in readable
        for name, span in segment.stats.ingests.items()
        if name is not None and span.first is not None and span.last is not None
    ]
    since: dict[str, int] = {}
    for _, name, span in spans:
        since[name] = max(since.get(name, -1), span.last or 0)
    found = 0
    for _, name, span in sorted(spans, key=lambda one: (one[0], one[2].last), reverse=True):
        if found < rows and _ours(name):
            found += span.rows
            since[name] = min(since[name], (span.first or 0) - 1)
    return since if found else None


def _ours(ingest: str) -> bool:
    return ingest == WRITER or ingest.startswith(f"{WRITER}~")


def _without_lines(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nothing here has a line in a file."""
    at = EVENT_SCHEMA.get_field_index("line")
    return batch.set_column(at, EVENT_SCHEMA.field(at), pa.nulls(batch.num_rows, pa.int64()))
