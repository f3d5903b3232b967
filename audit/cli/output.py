"""Data goes to standard output or a file, everything said to a person goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvwitness.audit.cli.tables import Block, Table, harmless, object_table, print_blocks, record_tables
from kvwitness.audit.errors import KvwitnessError

if TYPE_CHECKING:
    import polars as pl


class Format(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    """One document: an array of rows, or one object."""
    JSONL = "jsonl"
    """One object per line."""
    CSV = "csv"
    """Lists are JSON text in their cell."""
    PARQUET = "parquet"
    """Needs a file to go to."""


def say(text: str, *, quiet: bool = False) -> None:
    """Tell a person something, on standard error."""
    if not quiet:
        print(harmless(text), file=sys.stderr)


def confirm(question: str) -> None:
    """Ask a person, on standard error; raises `typer.Abort` unless the answer is yes."""
    print(f"{harmless(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


@dataclass(frozen=True)
class Printer:
    """Prints rows or one record in one format, to standard output or to a file."""

    format: Format
    path: Path | None = None

    @classmethod
    def choose(cls, format: Format | None, path: Path | None = None) -> Printer:
        """The printer for what the user asked for; what was left open follows from the file's name, else from
        whether a terminal is listening.

        Raises `KvwitnessError` when Parquet has no file to go to.
        """
        if format is None:
            suffix = path.suffix.lstrip(".") if path else ""
            if suffix in set(Format):
                format = Format(suffix)
            else:
                format = Format.TABLE if path is None and sys.stdout.isatty() else Format.JSONL
        if format is Format.PARQUET and path is None:
            raise KvwitnessError("Parquet is not printed on standard output.", "Name a file with --output FILE.")
        return cls(format, path)

    @property
    def for_people(self) -> bool:
        """Whether a person is going to read it, who wants the gist."""
        return self.format is Format.TABLE

    def rows(self, frame: pl.DataFrame, *, title: str = "") -> None:
        """Print the rows of a frame; `title` stands above a table."""
        if self.format is Format.PARQUET:
            frame.write_parquet(self._file())
        elif self.format is Format.TABLE:
            self.blocks([Table(frame.columns, list(frame.iter_rows()), title)])
        elif self.format is Format.CSV:
            self._write(_csv(frame))
        else:
            rows = frame.to_dicts()
            self._write(_json(rows) if self.format is Format.JSON else b"".join(_json(row) for row in rows))

    def objects(self, objects: Sequence[Mapping[str, Any]], *, title: str = "", columns: Sequence[str] = ()) -> None:
        """Print objects that hold nested values of their own shape; where cells hold scalars, those are JSON
        text. `columns` names the columns when there is no object to name them."""
        if self.format is Format.TABLE:
            self.blocks([object_table(objects, title)])
        elif self.format is Format.JSON:
            self._write(_json([dict(one) for one in objects]))
        elif self.format is Format.JSONL:
            self._write(b"".join(_json(dict(one)) for one in objects))
        else:
            import polars as pl

            flat = [{k: _flat(v) for k, v in one.items()} for one in objects]
            self.rows(pl.DataFrame(flat, infer_schema_length=None) if flat else pl.DataFrame(schema=list(columns)))

    def record(self, record: Mapping[str, Any], *, title: str = "") -> None:
        """Print one object: name beside value in a table, lists of objects below it; one row in CSV."""
        if self.format is Format.TABLE:
            self.blocks(record_tables(record, title))
        elif self.format in (Format.JSON, Format.JSONL):
            self._write(_json(dict(record)))
        else:
            self.objects([record])

    def blocks(self, blocks: Sequence[Block]) -> None:
        """Print paragraphs and tables for a person; for the table format alone."""
        if self.path is None:
            print_blocks(blocks, sys.stdout)
        else:
            with self.path.open("w", encoding="utf-8") as file:
                print_blocks(blocks, file)

    def _file(self) -> Path:
        assert self.path is not None  # checked in `choose`
        return self.path

    def _write(self, data: bytes) -> None:
        if self.path is not None:
            self.path.write_bytes(data)
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def _flat(value: Any) -> Any:
    """Nested values as JSON text, for formats whose cells hold scalars."""
    if isinstance(value, Mapping | list | tuple):
        return _json(value).decode().strip()
    return value


def _csv(frame: pl.DataFrame) -> bytes:
    import polars as pl

    flat = [
        pl.Series(s.name, [_flat(v) for v in s.to_list()], pl.String) if s.dtype.is_nested() else s
        for s in frame.iter_columns()
    ]
    return pl.DataFrame(flat).write_csv().encode()
