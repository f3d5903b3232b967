"""One segment: an immutable Parquet file of events that describes and can prove itself.

Its footer carries a JSON record (key `kvwitness`) with the statistics and the SHA-256 of the whole file,
taken with the 64 digits of that very hash as zeros. So a damaged byte anywhere, the footer included, is
found.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kvwitness.audit.store.durable import HashingFile
from kvwitness.audit.store.encoding import parquet_options
from kvwitness.audit.store.failures import CorruptSegment, explained
from kvwitness.audit.store.layout import FLUSHED
from kvwitness.audit.store.schema import SCHEMA_VERSION, STORE_SCHEMA
from kvwitness.audit.store.stats import Span, Stats

METADATA_KEY = b"kvwitness"
GROUP_ROWS = 131_072
GROUP_BYTES = 128 << 20
"""A row group ends at this many rows, or at this many bytes in memory: rows can hold lists of 10,000
pages."""
TARGET_ROWS = 2_000_000
TARGET_BYTES = 256 << 20
"""A large segment ends at about this many rows or bytes on disk."""
_HASH_KEY = b'"sha256":"'
_NO_HASH = "0" * 64
_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Segment:
    """A segment as the manifest and its own footer describe it."""

    name: str
    """Path inside the store, such as flushed/1/1/ev-gateway-0000000001.parquet."""
    bytes: int
    stats: Stats
    created_ns: int
    schema_version: int
    sha256: str
    origin: str | None = None
    """What the writer was told about where its records come from."""

    @property
    def rows(self) -> int:
        """Number of events."""
        return self.stats.rows

    @property
    def min_time_ns(self) -> int | None:
        """Earliest time in it; None when empty."""
        return self.stats.min_time_ns

    @property
    def max_time_ns(self) -> int | None:
        """Latest time in it; None when empty."""
        return self.stats.max_time_ns

    @property
    def sources(self) -> dict[str | None, Span]:
        """source -> rows, lowest and highest `seq`."""
        return self.stats.sources

    @property
    def kind(self) -> str:
        """`live`, `import` or `sealed`."""
        return {FLUSHED: "live", "imports": "import"}.get(self.name.split("/", 1)[0], "sealed")

    @property
    def sealed(self) -> bool:
        """Whether the compactor wrote it."""
        return self.kind == "sealed"

    def to_json(self) -> dict[str, Any]:
        """The manifest's record of it."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "created_ns": self.created_ns,
            "schema_version": self.schema_version,
            "sha256": self.sha256,
            "origin": self.origin,
            **self.stats.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Segment:
        """The reverse of `to_json`."""
        return cls(
            name=data["name"],
            bytes=data["bytes"],
            stats=Stats.from_json(data),
            created_ns=data["created_ns"],
            schema_version=data["schema_version"],
            sha256=data["sha256"],
            origin=data.get("origin"),
        )


class SegmentWriter:
    """Writes one segment to a path that no reader looks at. Afterwards `place` gives it its name."""

    def __init__(self, path: Path, *, schema: pa.Schema = STORE_SCHEMA, schema_version: int = SCHEMA_VERSION) -> None:
        self.path = path
        self.rows = 0
        self._version = schema_version
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._file = HashingFile(path)
        self._parquet: pq.ParquetWriter | None = None

    @property
    def size(self) -> int:
        """Bytes written so far, without what still waits to fill a row group."""
        return self._file.size

    def write(self, table: pa.Table) -> None:
        """Append rows in the segment's schema."""
        for start in range(0, table.num_rows, GROUP_ROWS):
            self._take(table.slice(start, GROUP_ROWS))

    def _take(self, piece: pa.Table) -> None:
        size = piece.nbytes
        if size > GROUP_BYTES and piece.num_rows > 1:
            half = piece.num_rows // 2
            self._take(piece.slice(0, half))
            self._take(piece.slice(half))
            return
        full = self._waiting_rows + piece.num_rows > GROUP_ROWS or self._waiting_bytes + size > GROUP_BYTES
        if self._waiting and full:
            self._end_group()
        self._waiting.append(piece)
        self._waiting_rows += piece.num_rows
        self._waiting_bytes += size

    def _end_group(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._open(table).write_table(table, row_group_size=GROUP_ROWS)
        self.rows += table.num_rows

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, self._schema, **parquet_options(first))
        return self._parquet

    def finish(self, stats: Stats, *, name: str, origin: str | None = None) -> Segment:
        """Write the footer and sync. `name` is the path in the store that the file will get."""
        if self._waiting:
            self._end_group()
        if self.rows != stats.rows:
            raise AssertionError(f"{self.path}: {self.rows} rows written, {stats.rows} described")
        record = {
            "schema_version": self._version,
            "created_ns": time.time_ns(),
            "origin": origin,
            **stats.to_json(),
            "sha256": _NO_HASH,
        }
        parquet = self._open(self._schema.empty_table())
        parquet.add_key_value_metadata({METADATA_KEY: orjson.dumps(record)})
        parquet.close()
        digest = self._seal()
        segment = Segment(
            name=name,
            bytes=self._file.size,
            stats=stats,
            created_ns=record["created_ns"],
            schema_version=self._version,
            sha256=digest,
            origin=origin,
        )
        self._file.sync()
        self._file.dispose()
        return segment

    def _seal(self) -> str:
        footer_length = int.from_bytes(self._file.tail(8)[:4], "little") + 8
        footer = self._file.tail(footer_length)
        at = footer.rfind(_HASH_KEY + _NO_HASH.encode()) + len(_HASH_KEY)
        digest = self._file.digest()
        self._file.patch(self._file.size - footer_length + at, digest.encode())
        return digest

    def abort(self) -> None:
        """Throw the file away."""
        self._file.discard()
        with suppress(OSError, ValueError, pa.ArrowException):
            if self._parquet is not None:
                self._parquet.close()
        self._file.dispose()
        self.path.unlink(missing_ok=True)


def write_segment(path: Path, tables: list[pa.Table], stats: Stats, *, name: str, origin: str | None = None) -> Segment:
    """Write and sync a whole segment at once; nothing is left at `path` if it fails."""
    writer = SegmentWriter(path)
    try:
        for table in tables:
            writer.write(table)
        return writer.finish(stats, name=name, origin=origin)
    except BaseException:
        writer.abort()
        raise


def read_segment(path: Path, name: str) -> Segment:
    """The description in a segment's footer; its content is not checked.

    Raises CorruptSegment when the footer cannot be read, FileNotFoundError when there is no file.
    """
    footer, size = _footer(path, name)
    start = footer.rfind(_HASH_KEY)
    try:
        metadata = pq.read_metadata(path).metadata if start >= 0 else None
        if not metadata or METADATA_KEY not in metadata:
            raise CorruptSegment(
                f"{path} is not a segment of this program: its footer has no `kvwitness` record.",
                "Remove the file from the store's directory if it does not belong there.",
            )
        record = orjson.loads(metadata[METADATA_KEY])
        return Segment(
            name=name,
            bytes=size,
            stats=Stats.from_json(record),
            created_ns=record["created_ns"],
            schema_version=record["schema_version"],
            sha256=record["sha256"],
            origin=record["origin"],
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as exc:
        if isinstance(exc, FileNotFoundError):
            raise
        raise _damaged(path, f"its footer cannot be read ({exc})") from exc


def check_segment(path: Path, name: str) -> Segment:
    """Read the whole file and compare it with its checksum.

    Raises CorruptSegment when they differ or the footer cannot be read, FileNotFoundError when there is no
    file.
    """
    segment = read_segment(path, name)
    footer, size = _footer(path, name)
    at = footer.rfind(_HASH_KEY) + len(_HASH_KEY)
    sha = hashlib.sha256()
    with explained("reading", path), open(path, "rb") as file:
        body = size - len(footer)
        while body > 0:
            block = file.read(min(1 << 20, body))
            if not block:
                break
            sha.update(block)
            body -= len(block)
    sha.update(footer[:at] + _NO_HASH.encode() + footer[at + 64 :])
    if body or sha.hexdigest() != segment.sha256:
        raise _damaged(path, "its bytes differ from its checksum")
    return segment


def _footer(path: Path, name: str) -> tuple[bytes, int]:
    """(footer bytes up to the end of the file, size of the file)."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little") + 8
        if len(end) < 8 or end[4:] != _MAGIC or length > size:
            raise _damaged(path, "it does not end as a Parquet file does; it may be cut short")
        file.seek(size - length)
        return file.read(length), size


def _damaged(path: Path, how: str) -> CorruptSegment:
    return CorruptSegment(
        f"The segment {path} is damaged: {how}.",
        "Restore the file from a backup, or move it aside with `kvwitness store verify --quarantine`: the "
        "rest of the store then stays readable, and what is missing is recorded.",
    )
