"""What people say about incidents: one small file per entry, written once and never changed.

An incident's id stays the same over audits, so an entry goes on belonging to it whatever later audits find.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path

import orjson
import polars as pl

from kvwitness.audit.store.durable import make_dir, write_atomic
from kvwitness.audit.store.failures import StoreError, explained
from kvwitness.audit.store.layout import SEED, Layout


class Deed(StrEnum):
    """What somebody did with an incident."""

    NOTE = "note"
    ACKNOWLEDGE = "acknowledge"
    ASSIGN = "assign"
    CLOSE = "close"
    REOPEN = "reopen"


_LONGEST = 4_000
_TEXTS = ("by", "text", "assignee")
"""What people wrote in their own words."""


@dataclass(frozen=True)
class Entry:
    """One entry, as it stands in the casebook."""

    incident: str
    deed: str
    """One of `Deed`."""
    by: str
    """Who, as they named themselves or as their login did."""
    text: str
    """The reason or the note; may be empty, except for a note and for closing."""
    assignee: str | None
    """Of `assign`: to whom."""
    verdict: str | None
    """Verdict of the incident when this was written, None where it was not known."""
    findings: int | None
    """How many findings it had then."""
    at_ns: int = 0
    """When it was written. [ns since the Unix epoch]"""


ENTRY_COLUMNS = {
    "incident": ("VARCHAR", "Id of the incident."),
    "deed": ("VARCHAR", "`note`, `acknowledge`, `assign`, `close` or `reopen`."),
    "by": ("VARCHAR", "Who, as they named themselves or as their login did."),
    "text": ("VARCHAR", "The reason or the note."),
    "assignee": ("VARCHAR", "Of `assign`: to whom."),
    "verdict": ("VARCHAR", "Verdict of the incident when this was written."),
    "findings": ("BIGINT", "How many findings it had then."),
    "at_ns": ("BIGINT", "When it was written. [ns since the Unix epoch]"),
}
"""Column -> (DuckDB type, meaning)."""
_SCHEMA = {name: pl.Int64 if kind == "BIGINT" else pl.String for name, (kind, _) in ENTRY_COLUMNS.items()}
assert list(_SCHEMA) == [field.name for field in fields(Entry)]


class Casebook:
    """The entries of one store. Any number of processes may add to it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def add(
        self,
        incident: str,
        deed: Deed | str,
        *,
        by: str,
        text: str = "",
        assignee: str | None = None,
        verdict: str | None = None,
        findings: int | None = None,
    ) -> Entry:
        """Write an entry; when this returns it is on the disk. Raises `StoreError` for one that says too little."""
        entry = Entry(incident, Deed(deed), by.strip(), text.strip(), assignee, verdict, findings, time.time_ns())
        _check(entry)
        name = f"{entry.at_ns:020d}-{os.urandom(4).hex()}.json"
        with explained("writing into the casebook", self._layout.casebook):
            make_dir(self._layout.casebook)
            write_atomic(self._layout.casebook / name, orjson.dumps(asdict(entry)), self._layout.tmp)
        return entry

    def entries(self, incident: str | None = None) -> pl.DataFrame:
        """All entries, or those of one incident, the oldest first."""
        rows = [entry for entry in self._read() if incident is None or entry["incident"] == incident]
        return pl.DataFrame(rows, schema=_SCHEMA).sort("at_ns", maintain_order=True)

    def naming(self, names: Collection[str]) -> pl.DataFrame:
        """The entries that name any of these, as a word of its own in any of their texts, whatever its case."""
        named = _words(names)
        rows = [entry for _, entry in self._files() if any(named.search(str(entry[key] or "")) for key in _TEXTS)]
        return pl.DataFrame(rows, schema=_SCHEMA).sort("at_ns", maintain_order=True)

    def rename(self, names: Collection[str], replacement: str) -> int:
        """Put something else in the place of these names, for good, in every entry that `naming` finds; how many.

        The one way in which an entry changes: what it says beside the name, and when and by whom, stays.
        """
        named, changed = _words(names), 0
        for path, entry in list(self._files()):
            told = {key: named.sub(lambda _: replacement, str(entry[key])) for key in _TEXTS if entry[key]}
            if any(entry[key] != text for key, text in told.items()):
                with explained("changing the casebook", path):
                    write_atomic(path, orjson.dumps(entry | told), self._layout.tmp)
                changed += 1
        return changed

    @staticmethod
    def no_entries() -> pl.DataFrame:
        """The table of `entries` without rows."""
        return pl.DataFrame(schema=_SCHEMA)

    def _read(self) -> Iterable[dict[str, object]]:
        return (entry for _, entry in self._files())

    def _files(self) -> Iterator[tuple[Path, dict[str, object]]]:
        if not self._layout.casebook.is_dir():
            return
        for path in sorted(self._layout.casebook.glob("*.json")):
            with explained("reading the casebook", path):
                try:
                    row = orjson.loads(path.read_bytes())
                except ValueError as error:
                    raise StoreError(
                        f"The entry {path} of the casebook cannot be read: {error}.",
                        "Restore it from a backup, or move it out of the store.",
                    ) from error
            if row["incident"] is not None:
                yield path, {name: row.get(name) for name in _SCHEMA}

    @property
    def revision(self) -> tuple[int, int]:
        """Changes whenever an entry is added."""
        try:
            found = self._layout.casebook.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_size


def _words(names: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted((name for name in names if name), key=len, reverse=True)
    if not longest_first:
        raise StoreError("No name was given to look for in the casebook.", "Name a tenant.")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)


def ensure_seed(layout: Layout) -> None:
    """The entry of nobody, so that the search pattern of the view finds a file."""
    make_dir(layout.casebook)
    path = layout.casebook / f"{SEED}.json"
    if not path.exists():
        write_atomic(path, orjson.dumps(dict.fromkeys(_SCHEMA)), layout.tmp)


def _check(entry: Entry) -> None:
    if not entry.by:
        raise StoreError("An entry in the casebook needs a name: who writes it.", "Give your name.")
    if entry.deed in (Deed.NOTE, Deed.CLOSE) and not entry.text:
        said = "A note needs a text." if entry.deed == Deed.NOTE else "Closing an incident needs a reason."
        raise StoreError(said, "Say in a sentence what was found or done.")
    if entry.deed == Deed.ASSIGN and not entry.assignee:
        raise StoreError("Nobody was named to whom the incident is assigned.", "Name a person or a team.")
    if len(entry.text) > _LONGEST:
        raise StoreError(
            f"The text has {len(entry.text):,} characters; {_LONGEST:,} are the most.",
            "Keep long texts elsewhere, and give a link here.",
        )
