"""Data as a person reads it: tables with cells that are short, and harmless to the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

_NS = 1_000_000_000
_SHOWN_ITEMS = 6
_SHOWN_ROWS = 100
# Names in a trace are somebody else's text: no control character of theirs reaches the terminal as it is.
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code != ord("\n")}


@dataclass(frozen=True)
class Table:
    """Columns and rows; a column without a name in every place has no heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""


def record_tables(record: Mapping[str, Any], title: str = "") -> list[Table]:
    """One object: its plain values beside their names, and each list of objects as a table below."""
    nested = {name: value for name, value in record.items() if _is_objects(value)}
    plain = [(name, cell(value, name)) for name, value in record.items() if name not in nested]
    tables = [object_table(value[:_SHOWN_ROWS], _counted(name, value)) for name, value in nested.items()]
    return [Table(["", ""], plain, title), *tables]


def object_table(objects: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Objects that may differ in their fields, one per row."""
    columns = list(dict.fromkeys(name for one in objects for name in one))
    return Table(columns, [[one.get(name) for name in columns] for one in objects], title)


def print_tables(tables: Sequence[Table], file: TextIO) -> None:
    """Print to a terminal in its width; elsewhere in full, since a pager or `grep` wants whole lines."""
    from rich.console import Console

    console = Console(file=file, width=None if file.isatty() else 10_000)
    for table in tables:
        console.print(_rendered(table))


def cell(value: Any, name: str = "") -> str:
    """A value in short; integers in columns named `*_ns` are times."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_ns"):
        return timestamp(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {cell(v, str(k))}" for k, v in value.items())
    if isinstance(value, list | tuple):
        shown = ", ".join(cell(item) for item in value[:_SHOWN_ITEMS])
        return shown if len(value) <= _SHOWN_ITEMS else f"{shown}, ... ({len(value)})"
    return harmless(str(value))


def harmless(text: str) -> str:
    """The text with its control characters written out, line ends excepted."""
    return text.translate(_CONTROLS)


def timestamp(time_ns: int) -> str:
    """Nanoseconds since the epoch as UTC with microseconds."""
    seconds, rest = divmod(time_ns, _NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest // 1000:06d}Z"


def _rendered(table: Table) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    rendered = RichTable(title=table.title or None, title_justify="left", show_header=any(table.columns))
    for n, name in enumerate(table.columns):
        values = [row[n] for row in table.rows if row[n] is not None]
        numeric = bool(values) and all(isinstance(v, int | float) for v in values)
        rendered.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        rendered.add_row(*[Text(cell(v, name)) for name, v in zip(table.columns, row, strict=True)])
    return rendered


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _counted(name: str, value: Sequence[Any]) -> str:
    return name if len(value) <= _SHOWN_ROWS else f"{name} (the first {_SHOWN_ROWS} of {len(value)})"
