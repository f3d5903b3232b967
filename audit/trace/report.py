"""What became of a trace file: every line accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvwitness.audit.errors import KvwitnessError

KEPT_BAD_LINES = 1000
"""How many rejected lines are kept one by one; beyond that they are only counted."""
KEPT_NAMES = 1000
"""How many distinct names a counter keeps; the rest are counted together under `OTHER`."""
OTHER = "(other)"


class TraceError(KvwitnessError):
    """A trace could not be opened, read or written."""


def bump(counter: dict[str, int], name: str, by: int = 1) -> None:
    """Count `name`, keeping the number of distinct names bounded."""
    if name not in counter and len(counter) >= KEPT_NAMES:
        name = OTHER
    counter[name] = counter.get(name, 0) + by


@dataclass
class ImportReport:
    """Filled while a trace is read, complete when its last batch has been taken.

    `lines == events - more_events + bad_total + blank + other`, always.
    No text in it quotes a value of the file: a rejected line may hold what a trace must not contain.
    """

    lines: int = 0
    events: int = 0
    blank: int = 0
    other: int = 0
    """Lines of a log that say nothing about requests, or that an earlier import of the same file took."""
    more_events: int = 0
    """Events beyond the first of a line; a line of a log may tell of a request's reception and of its end."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """(line number from 1, reason) of the first rejected lines."""
    bad_total: int = 0
    bad_by_reason: dict[str, int] = field(default_factory=dict)
    rejected_seqs: list[tuple[str | None, int]] = field(default_factory=list)
    """(source, seq) of rejected lines where they could be read."""
    unread: list[tuple[str | None, int | None, int]] = field(default_factory=list)
    """Source and seq of rejected lines as far as they could be read, and how many events came before them; lines in a
    row that say neither are one. Data that is damaged or ends early counts as one at the end."""
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    """Kind outside the vocabulary -> events of it, all of them kept."""
    unknown_fields: dict[str, int] = field(default_factory=dict)
    """Field that was kept in `extra` -> how often: one outside the vocabulary, or one that the kind does not
    define and that had another type."""
    dropped_content: dict[str, int] = field(default_factory=dict)
    """Dotted name -> values dropped because a trace must not contain them."""
    notes: list[tuple[int, str]] = field(default_factory=list)
    """(line number, what is odd about it) of lines that were kept, such as a clock that went back."""
    notes_total: int = 0
    stream_errors: list[str] = field(default_factory=list)
    """What went wrong below the lines: compressed data that is damaged or ends early."""
    unended: bool = False
    """Whether the last line, which is being read now or was read, has no line break: it may still be written."""
    sha256: str = ""
    """Of the raw bytes of the file, compressed as they are; empty until the end was reached."""
    bytes_read: int = 0
    """Raw bytes read so far."""

    def reject(self, line: int, reason: str, detail: str = "") -> None:
        """Account for a line that gave no event."""
        self.bad_total += 1
        bump(self.bad_by_reason, reason)
        if len(self.bad) < KEPT_BAD_LINES:
            self.bad.append((line, f"{reason}: {detail}" if detail else reason))

    def note(self, line: int, text: str) -> None:
        """Say that something about a line is odd."""
        self.notes_total += 1
        if len(self.notes) < KEPT_BAD_LINES:
            self.notes.append((line, text))

    def note_once(self, line: int, text: str) -> None:
        """Say it of the first such line only."""
        if all(text != said for _, said in self.notes):
            self.note(line, text)

    def lose(self, source: str | None, seq: int | None) -> None:
        """Note what is known of something that came here and could not be read."""
        if seq is not None:
            self.rejected_seqs.append((source, seq))
        lost = (source, seq, self.events)
        if not self.unread or self.unread[-1] != lost:
            self.unread.append(lost)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "lines": self.lines,
            "events": self.events,
            "blank": self.blank,
            "other": self.other,
            "more_events": self.more_events,
            "bad_total": self.bad_total,
            "bad_by_reason": dict(self.bad_by_reason),
            "bad": [{"line": n, "reason": r} for n, r in self.bad],
            "rejected_seqs": [{"source": s, "seq": n} for s, n in self.rejected_seqs],
            "unread": [{"source": s, "seq": n, "after_events": after} for s, n, after in self.unread],
            "unknown_kinds": dict(self.unknown_kinds),
            "unknown_fields": dict(self.unknown_fields),
            "dropped_content": dict(self.dropped_content),
            "notes": [{"line": n, "note": text} for n, text in self.notes],
            "notes_total": self.notes_total,
            "stream_errors": list(self.stream_errors),
            "sha256": self.sha256,
            "bytes_read": self.bytes_read,
        }
