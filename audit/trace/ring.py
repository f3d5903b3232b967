"""What a ring file looks like: the tracer writes it inside a serving process, a collector reads it from outside.

    header      16 KiB: words of 64 bits, the name of the source, and a description (JSON) of the names used below
    records     a power of two of 64-byte records; event number `seq` (from 1) is at `seq % slots`
    strings     a power of two of 128-byte entries; string number `n` (from 1) is at `n % strings`
    arena       bytes; what does not fit a record, each piece in one stretch, at an absolute position modulo its size

Everything is little-endian. One thread writes, anybody may read at the same time, and nobody waits for anybody:

- A record ends with its `seq`, which is written last: where it is not the expected one, there is no record (yet).
- A string's number and a piece's own position are written last and first; they tell when either was overwritten.
- `Word.ARENA_END` is raised before a piece is written, so a piece is intact as long as that is at most one arena ahead.
- The counters (one per code of a kind, cumulative) are raised after the record: their sum is the last `seq`, or less
  by what is being finished, which is one record or two. Each record holds its own count within its code, so that the
  counters can be had for any record: that is how "N emitted, M seen" is proved per kind across a loss.

A record has slots for what the frequent kinds say (`SLOTS`); any other field goes to the arena, so that each event of
the vocabulary can be written. Standard library only.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from enum import IntEnum, IntFlag
from typing import Any

from kvwitness.audit.trace.fields import FIELDS
from kvwitness.audit.trace.vocabulary import KINDS

DIRECTORY_VARIABLE = "KVWITNESS_RING_DIR"
"""Environment variable that names the directory of the rings."""
SUFFIX = ".ring"
UNFINISHED = ".ring-tmp"
"""Suffix of a ring that is being made."""

MAGIC = int.from_bytes(b"KVWRING\0", "little")
VERSION = 1
HEADER_BYTES = 16_384
SOURCE_AT, MAX_SOURCE = 1024, 1024
DESCRIPTION_AT, MAX_DESCRIPTION = 2048, HEADER_BYTES - 2048
COUNTERS_AT, COUNTERS = 512, 64
"""Byte offset and number of the counters; code `k` has the k-th."""


class Word(IntEnum):
    """Index of each 64-bit word of the header."""

    MAGIC = 0
    VERSION = 1
    RING = 2
    """Random id of the ring; `source` ends with its last 32 bits."""
    PID = 3
    SLOTS = 4
    STRINGS = 5
    ARENA = 6
    """Size of the arena in bytes."""
    CREATED_NS = 7
    """Unix time in ns when the ring was made ..."""
    MONOTONIC_NS = 8
    """... and the monotonic clock at that moment."""
    STATE = 9
    """0, or `CLOSED` once the writer has said that it is done."""
    ARENA_END = 10
    FAILED = 11
    """Events that could not be recorded; each has a record of kind `LOST` in its place, where that was possible."""
    SCRUBBED = 12
    """Values that were dropped or replaced because a trace must not contain them."""
    SOURCE_BYTES = 13
    DESCRIPTION_BYTES = 14


CLOSED = 1

RECORD = struct.Struct("<qQIIIIIIIIIHBBQ")
"""time_ns, arena, request, tenant, name, label, first, count, tok_first, tok_end, number, ordinal, kind, flags, seq.

`arena` is the position of the piece; `request`, `tenant`, `name` and `label` are string numbers (0: none); `ordinal` is
the low 16 bits of how many records of its code came before it.
"""
RECORD_BYTES = 64
SEQ_OFFSET = 56
STRING_BYTES = 128
STRING_HEAD = 16
"""An entry begins with its number (64 bits) and its length in bytes (32 bits)."""
MAX_STRING = STRING_BYTES - STRING_HEAD
"""Longest string that gets a number, in bytes of UTF-8; longer ones go to the arena."""

PIECE = struct.Struct("<QII")
"""Head of a piece of the arena: its own position, its length with the head, the number of items."""
ITEM = struct.Struct("<BBHI")
"""Head of an item: field, form, bytes that are skipped before the data, bytes of data. The data are padded to 8."""
ALIGN = 64
"""Pieces begin at multiples of this, and long page lists in them: copying them takes half the time then."""
EXTRA_FIELD = 255
"""Field number of the JSON object with everything outside the vocabulary."""


class Flag(IntFlag):
    """What a record holds besides strings."""

    BEGIN = 1
    """`phase` is `begin`."""
    END = 2
    """`phase` is `end`."""
    PAGES = 4
    """`first` and `count` are a run of pages."""
    TOK = 8
    NUMBER = 16
    ARENA = 32


class ItemForm(IntEnum):
    """How the data of an item are to be read."""

    TEXT = 1
    INT = 2
    NUMBER = 3
    BOOL = 4
    INTS = 5
    JSON = 6
    PAGES_I32 = 16
    PAGES_U32 = 17
    PAGES_I64 = 18
    PAGES_U64 = 19


@dataclass(frozen=True)
class Slots:
    """Which fields of a kind have a place in the record; every kind has one for `request`, `tenant`, `tok`, `phase`."""

    name: str | None = None
    label: str | None = None
    """A string that repeats, since strings are kept once."""
    number: str | None = None
    """An integer from 0 to 2**32-1."""
    pages: str | None = "pages"


_PAGE = {
    "page.alloc": Slots("pool", "holder", "gen"),
    "page.free": Slots("pool", "reason", "gen"),
    "page.share": Slots("pool", "tier", "gen"),
    "page.publish": Slots("pool", "tier", "gen"),
    "page.unpublish": Slots("pool", "reason", "gen"),
    "page.write": Slots("pool", "op", "step"),
    "page.read": Slots("pool", "op", "step"),
    "page.copy": Slots("pool", "cause", "gen"),
    "page.move": Slots("pool", "cause", "gen"),
}
_OTHERS = {
    "engine.pool": Slots("pool", "kind", "pages_total", "reserved"),
    "engine.limits": Slots("engine", "role", "input_limit_tokens"),
    "engine.clock": Slots("engine"),
    "engine.epoch": Slots("engine", None, "epoch"),
    "request.received": Slots("model", "traffic", "prompt_tokens"),
    "request.rejected": Slots(None, "reason", "status"),
    "request.aborted": Slots("by", "reason"),
    "request.preempted": Slots(None, "reason"),
    "request.finished": Slots("answered_by", "finish_reason", "status"),
    "transfer.offer": Slots("transfer", "src_pool", "tokens", "src_pages"),
    "transfer.begin": Slots("transfer", "dst_pool", "tokens", "dst_pages"),
    "transfer.done": Slots("transfer", "observer", "tokens"),
    "transfer.failed": Slots("transfer", "observer", "tokens"),
    "transfer.drained": Slots("transfer", None, "rank"),
    "transfer.lease": Slots("transfer"),
    "aux.write": Slots("slot", "transfer", "length"),
    "aux.read": Slots("slot", "transfer", "length"),
    "step.begin": Slots("pool", None, "step"),
    "step.end": Slots("pool", None, "step"),
    "canary.planted": Slots("marker"),
    "canary.seen": Slots("marker"),
    "content.digest": Slots("pool", "at", "gen"),
    "shadow.finding": Slots("pool", "reason"),
    "telemetry.gap": Slots(None, "reason", "dropped"),
}
OTHER, LOST = "(other)", "(lost)"
"""`OTHER`: an event of a kind outside the vocabulary, which its label names. `LOST`: an event that could not be
recorded; its name is the kind, its label what went wrong."""

SLOTS: dict[str, Slots] = {
    **{kind: (_PAGE | _OTHERS).get(kind, Slots()) for kind in KINDS},
    OTHER: Slots(None, "event"),
    LOST: Slots("kind", "reason"),
}
"""Kind -> its slots."""

CODES: dict[str, int] = {kind: code for code, kind in enumerate(SLOTS)}
"""Kind -> its code in records."""

_SHORT = ("page.alloc", "page.free", "page.write", "page.read", "page.publish")
QUICK: dict[str, int] = {kind: len(SLOTS) + n for n, kind in enumerate(_SHORT)}
"""Kind -> a second code, for kinds that a writer may record in a short way with a counter of its own."""

_TOUCHING = ("page.write", "page.read")
PAIRED: dict[str, int] = {kind: len(SLOTS) + len(QUICK) + n for n, kind in enumerate(_TOUCHING)}
"""Kind -> a third code, for records that a writer writes two at a time, and counts when both are there."""
BOUND: dict[str, int] = {kind: code + len(PAIRED) for kind, code in PAIRED.items()}
"""Kind -> a fourth code, for the shortest way: pool and operation are the same from one record to the next."""

FIELD_NUMBERS: dict[str, int] = {name: number for number, name in enumerate(FIELDS)}
"""Field -> its number in items."""


@dataclass(frozen=True)
class Description:
    """The names that a ring uses, as its header states them: a reader of another version follows these."""

    kinds: tuple[str, ...]
    """By code; a kind with several codes is here several times."""
    slots: tuple[Slots, ...]
    """Parallel to `kinds`."""
    fields: tuple[str, ...]

    @classmethod
    def own(cls) -> Description:
        """What this version writes."""
        kinds = (*SLOTS, *QUICK, *PAIRED, *BOUND)
        return cls(kinds, tuple(SLOTS[kind] for kind in kinds), tuple(FIELD_NUMBERS))

    def to_json(self) -> bytes:
        """As it stands in the header."""
        slots = [list(asdict(s).values()) for s in self.slots]
        document = {"kinds": self.kinds, "slots": slots, "fields": self.fields}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Description:
        """The reverse of `to_json`; raises ValueError for anything else."""
        try:
            document: dict[str, Any] = json.loads(data)
            kinds, fields = tuple(map(str, document["kinds"])), tuple(map(str, document["fields"]))
            slots = tuple(Slots(*row) for row in document["slots"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the description of a ring: {error}") from None
        if len(kinds) != len(slots) or len(kinds) > COUNTERS:
            raise ValueError("not the description of a ring: kinds and slots differ")
        return cls(kinds, slots, fields)


@dataclass(frozen=True)
class Sizes:
    """How large the parts of a ring are. `slots` and `strings` are powers of two, `arena` a multiple of 4096."""

    slots: int = 65_536
    strings: int = 65_536
    arena: int = 4 << 20
    """What is written round and round should stay in the processor's caches, and leave them to the host."""

    def __post_init__(self) -> None:
        for number, least in ((self.slots, 64), (self.strings, 64)):
            if number < least or number & (number - 1):
                raise ValueError(f"{number} is not a power of two from {least}")
        if self.arena < 4096 or self.arena % 4096:
            raise ValueError(f"an arena of {self.arena} bytes is not a multiple of 4096")

    @property
    def strings_at(self) -> int:
        """Byte offset of the strings."""
        return HEADER_BYTES + self.slots * RECORD_BYTES

    @property
    def arena_at(self) -> int:
        """Byte offset of the arena."""
        return self.strings_at + self.strings * STRING_BYTES

    @property
    def total(self) -> int:
        """Bytes of the whole file."""
        return self.arena_at + self.arena

    @property
    def largest_piece(self) -> int:
        """Most bytes that one event may have in the arena: a larger one would push too much out."""
        return self.arena // 2
