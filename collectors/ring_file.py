"""Reads one ring, while its writer writes or after its death, and accounts for every number.

`kvwitness.audit.trace.ring` says what a ring looks like. What is read is a sequence of events and of losses; together
they have every `seq` from the position on, once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvwitness.audit.trace.report import TraceError
from kvwitness.audit.trace.ring import (
    CLOSED,
    COUNTERS,
    COUNTERS_AT,
    DESCRIPTION_AT,
    HEADER_BYTES,
    LOST,
    MAGIC,
    MAX_DESCRIPTION,
    MAX_SOURCE,
    RECORD_BYTES,
    SOURCE_AT,
    VERSION,
    Description,
    Sizes,
    Word,
)
from kvwitness.collectors.ring_records import Decoder, Unreadable

RECORDS = np.dtype(
    [
        ("time_ns", "<i8"),
        ("arena", "<u8"),
        *((name, "<u4") for name in ("request", "tenant", "name", "label", "first", "count")),
        *((name, "<u4") for name in ("tok_first", "tok_end", "number")),
        ("ordinal", "<u2"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("seq", "<u8"),
    ]
)
"""The records as numpy reads them."""
_MARGIN = 64
"""Slots after the last record that a living writer may be writing."""
_STRIDE = 4096
_OVERWRITTEN = "overwritten before it was read"


@dataclass(frozen=True)
class Event:
    """One event: its kind, time (ns) and other fields, as JSON would have them; pages may be arrays."""

    seq: int
    kind: str
    time_ns: int
    fields: dict[str, Any]
    bytes: int


@dataclass(frozen=True)
class Loss:
    """Events that cannot be had any more."""

    from_seq: int
    to_seq: int
    reason: str
    time_ns: int
    """When the next event after it happened, or the last before it."""
    kinds: dict[str, int]
    """Kind -> how many of them were lost; less than all where it is not known."""

    @property
    def dropped(self) -> int:
        """How many events."""
        return self.to_seq - self.from_seq + 1


class RingFile:
    """A ring that is read from `position`, the last number that was taken. Raises TraceError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from None
        try:
            self._open()
        except (ValueError, OSError) as error:
            os.close(self._fd)
            raise TraceError(f"{path} is not a ring that can be read: {error}") from None

    def _open(self) -> None:
        size = os.fstat(self._fd).st_size
        if size < HEADER_BYTES:
            raise ValueError("it is too short")
        self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        words = np.frombuffer(self._map, "<u8", COUNTERS_AT // 8)
        if int(words[Word.MAGIC]) != MAGIC:
            raise ValueError("it does not begin like one")
        if int(words[Word.VERSION]) != VERSION:
            raise ValueError(f"its version is {int(words[Word.VERSION])}, and {VERSION} is what is understood")
        self.sizes = Sizes(*(int(words[word]) for word in (Word.SLOTS, Word.STRINGS, Word.ARENA)))
        if self.sizes.total != size:
            raise ValueError("its size is not what it says")
        lengths = int(words[Word.SOURCE_BYTES]), int(words[Word.DESCRIPTION_BYTES])
        if lengths[0] > MAX_SOURCE or lengths[1] > MAX_DESCRIPTION:
            raise ValueError("its header is damaged")
        self.source = bytes(self._map[SOURCE_AT : SOURCE_AT + lengths[0]]).decode()
        described = Description.from_json(self._map[DESCRIPTION_AT : DESCRIPTION_AT + lengths[1]])
        self._kinds = described.kinds
        self._words = words
        self._counters = np.frombuffer(self._map, "<u8", COUNTERS, COUNTERS_AT)
        self._records = np.frombuffer(self._map, RECORDS, self.sizes.slots, HEADER_BYTES)
        self._decoder = Decoder(self._map, self.sizes, described)
        self.position = 0
        self.counts: npt.NDArray[np.int64] | None = np.zeros(COUNTERS, np.int64)
        """Per code, how many records there were up to the position; None where that is not known."""

    # -- what is known of it ----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The writer's process, as the writer saw it."""
        return int(self._words[Word.PID])

    @property
    def closed(self) -> bool:
        """Whether the writer said that it was done."""
        return int(self._words[Word.STATE]) == CLOSED

    @property
    def failed(self) -> int:
        """Events that the tracer could not record."""
        return int(self._words[Word.FAILED])

    @property
    def scrubbed(self) -> int:
        """Values that the tracer dropped or replaced because a trace must not contain them."""
        return int(self._words[Word.SCRUBBED])

    def abandoned(self) -> bool:
        """Whether nobody will write any more: the writer is dead, or has closed it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def head(self) -> int:
        """The number of the last finished record."""
        known = max(self.position, int(self._counters.sum()))
        while True:
            expected = np.arange(known + 1, known + 1 + _STRIDE, dtype=np.uint64)
            found = self._records["seq"][(expected % self.sizes.slots).astype(np.int64)]
            wrong = np.flatnonzero(found != expected)
            known += int(wrong[0]) if len(wrong) else _STRIDE
            if len(wrong):
                return known

    def emitted(self) -> Counter[str]:
        """Kind -> events so far, as the writer counted them; of a ring that nobody writes any more."""
        counts = self._counters.astype(np.int64)
        head = self.head()
        for seq in range(int(counts.sum()) + 1, head + 1):  # the writer died between a record and its counting
            counts[self._records["kind"][seq % self.sizes.slots]] += 1
        return self._by_kind(counts)

    # -- reading ----------------------------------------------------------------------------------------

    def read(self, limit: int, *, alive: bool) -> list[Event | Loss]:
        """What comes after the position, at most about `limit` events; the position moves behind it.

        `alive`: somebody may be writing meanwhile.
        """
        counters = self._counters.astype(np.int64)
        head = self.head()
        if head == self.position:
            return []
        records = self._copied(head)
        first = int(head - len(records)) + 1
        overtaken = self.head() + _MARGIN - self.sizes.slots if alive else self._begun(head)
        records = records[max(0, overtaken - first + 1) :]
        first = head - len(records) + 1
        out: list[Event | Loss] = []
        if first > self.position + 1:
            out.append(self._overwritten(first, records, self._counters_at_head(counters, records)))
        taken = records[:limit]
        out += self._decoded(taken, first)
        self.position = first + len(taken) - 1
        if self.counts is not None:
            self.counts += np.bincount(taken["kind"], minlength=COUNTERS)[:COUNTERS]
        return out

    def _begun(self, head: int) -> int:
        """The number of the last record over which a writer that is dead had begun to write, or 0: where `head` is the
        last that it finished, it can have been at the two after it."""
        for oldest in (head + 2 - self.sizes.slots, head + 1 - self.sizes.slots):
            if oldest > 0 and int(self._records["seq"][oldest % self.sizes.slots]) != oldest:
                return oldest
        return 0

    def _copied(self, head: int) -> npt.NDArray[np.void]:
        """The records after the position, as far as they can still be there, up to `head`."""
        first = max(self.position, head - self.sizes.slots) + 1
        begin, end = first % self.sizes.slots, (head + 1) % self.sizes.slots
        if head < first:
            return self._records[:0].copy()
        if begin < end:
            return self._records[begin:end].copy()
        return np.concatenate([self._records[begin:], self._records[:end]])

    def _overwritten(self, first: int, records: npt.NDArray[np.void], at_head: npt.NDArray[np.int64]) -> Loss:
        before = at_head - np.bincount(records["kind"], minlength=COUNTERS)[:COUNTERS]
        kinds = self._by_kind(before - self.counts) if self.counts is not None else Counter[str]()
        time = int(records["time_ns"][0]) if len(records) else int(self._words[Word.CREATED_NS])
        loss = Loss(self.position + 1, first - 1, _OVERWRITTEN, time, dict(kinds))
        self.counts = before
        return loss

    def _counters_at_head(
        self, counters: npt.NDArray[np.int64], records: npt.NDArray[np.void]
    ) -> npt.NDArray[np.int64]:
        """The counters as they were at the last of `records`; `counters` were read shortly before or after.

        Of a code that occurs in them, the last record tells, to the 16 bits that it has. A code that does not
        has not been counted lately.
        """
        out = counters.copy()
        for code in np.unique(records["kind"]):
            last = np.flatnonzero(records["kind"] == code)[-1]
            count = int(records["ordinal"][last]) + 1
            off = (count - int(counters[code]) + 0x8000) % 0x10000 - 0x8000
            out[code] += off
        return out

    def _by_kind(self, counts: npt.NDArray[np.int64]) -> Counter[str]:
        out: Counter[str] = Counter()
        for code, count in enumerate(counts.tolist()):
            if count > 0:
                out[self._kinds[code] if code < len(self._kinds) else f"code {code}"] += count
        return out

    def seen(self) -> Counter[str]:
        """Kind -> events up to the position, lost ones included."""
        return self._by_kind(self.counts) if self.counts is not None else Counter()

    def _decoded(self, records: npt.NDArray[np.void], first: int) -> Iterator[Event | Loss]:
        time = int(self._words[Word.CREATED_NS])
        for seq, record in enumerate(records.tolist(), first):
            (moment, *_, kind, _flags, stamp) = record
            name = self._kinds[kind] if kind < len(self._kinds) else f"code {kind}"
            if stamp != seq or not moment:
                yield Loss(seq, seq, "damaged record", time, {})
                continue
            time = moment
            try:
                moment, name, fields, size = self._decoder.event(record)
            except Unreadable as reason:
                yield Loss(seq, seq, str(reason), time, {name: 1})
                continue
            if name == LOST:
                lost, why = fields.get("kind", "event"), fields.get("reason", "unknown")
                yield Loss(seq, seq, f"the tracer could not record it: {why}", time, {lost: 1})
            else:
                yield Event(seq, name, moment, fields, size)

    def remove(self) -> None:
        """Delete the file and let go of it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


assert RECORDS.itemsize == RECORD_BYTES
