"""Data as a person reads it: tables with cells that are short, and harmless to the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

_NS = 1_000_000_000
_SHOWN_ITEMS = 6
_SHOWN_ROWS = 100
_WIDEST_WORD = 24
"""Words up to this length are not broken as long as the table fits."""
_NARROWEST = 6
_GAP = 2
_STYLES = {
    "leak": "bold red",
    "integrity": "yellow",
    "exposure": "cyan",
    "unproven": "magenta",
    "clean": "green",
}
"""Verdict -> how it looks on a terminal with colours."""
# Names in a trace are somebody else's text: no control character of theirs reaches the terminal as it is.
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code != ord("\n")}


@dataclass(frozen=True)
class Table:
    """Columns and rows; a column without a name in every place has no heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    whole: Collection[str] = ()
    """Columns whose cells are never broken, such as ids that somebody will copy."""
    upright: bool = False
    """Whether each row becomes a list of names and values where the terminal is too narrow for every word, since
    its cells hold names of unknown length, of which half is of no use."""


@dataclass(frozen=True)
class Prose:
    """A paragraph between tables."""

    text: str
    heading: bool = False
    verbatim: bool = False
    """Commands and SQL: never wrapped, so that they can be copied."""


Block = Table | Prose


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


def print_blocks(blocks: Sequence[Block], file: TextIO) -> None:
    """Print to a terminal in its width; elsewhere in full, since a pager or `grep` wants whole lines."""
    from rich.console import Console

    console = Console(file=file, width=None if file.isatty() else 10_000, highlight=False)
    for number, block in enumerate(blocks):
        if number and not (isinstance(block, Prose) and block.verbatim):
            console.print()
        if isinstance(block, Table):
            if block.title:
                console.print(harmless(block.title), style="bold", markup=False)
            console.print(_rendered(block, console.width))
        else:
            style = "bold" if block.heading else None
            console.print(harmless(block.text), style=style, markup=False, soft_wrap=block.verbatim)


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


def _rendered(table: Table, width: int) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    cells = [[cell(v, name) for name, v in zip(table.columns, row, strict=True)] for row in table.rows]
    if table.upright and sum(_least(table, cells, 0)) > width - _GAP * (len(table.columns) - 1):
        return _upright(table, cells)
    rendered = RichTable(
        box=SIMPLE_HEAD, show_header=any(table.columns), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for n, (name, columns) in enumerate(zip(table.columns, _widths(table, cells, width), strict=True)):
        values = [row[n] for row in table.rows if row[n] is not None]
        numeric = bool(values) and all(isinstance(v, int | float) for v in values)
        rendered.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", width=columns)
    for texts in cells:
        pairs = zip(texts, table.columns, strict=True)
        rendered.add_row(*[Text(text, _STYLES.get(text, "") if name == "verdict" else "") for text, name in pairs])
    return rendered


def _widths(table: Table, cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Width of each column in a terminal of `width`.

    The widest give way first; no word is broken and no cell of a column that stays whole, as far as that is
    possible.
    """
    widths = [max(map(len, lines)) for lines in _columns(table, cells, "\n")]
    least = _least(table, cells, _WIDEST_WORD)
    excess = sum(widths) - (width - _GAP * (len(widths) - 1))
    for floor in (least, [min(n, _NARROWEST) for n in least]):
        while excess > 0 and (wide := [n for n in range(len(widths)) if widths[n] > floor[n]]):
            widths[max(wide, key=lambda n: widths[n])] -= 1
            excess -= 1
    return widths


def _least(table: Table, cells: Sequence[Sequence[str]], most: int) -> list[int]:
    """Width of each column below which a word would be broken; words above `most` may be, if that is not 0."""
    words = [max(map(len, column), default=0) for column in _columns(table, cells, None)]
    lines = [max(map(len, column)) for column in _columns(table, cells, "\n")]
    return [
        lines[n] if name in table.whole else min(words[n], most or words[n]) for n, name in enumerate(table.columns)
    ]


def _columns(table: Table, cells: Sequence[Sequence[str]], between: str | None) -> list[list[str]]:
    """Heading and cells of each column, split into lines or words."""
    columns = [[name, *(row[n] for row in cells)] for n, name in enumerate(table.columns)]
    return [[part for text in column for part in text.split(between)] for column in columns]


def _upright(table: Table, cells: Sequence[Sequence[str]]) -> Any:
    """Name beside value, an empty line between rows; what a row does not have is left out."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rendered = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    rendered.add_column(overflow="fold", no_wrap=True)
    rendered.add_column(overflow="fold")
    for number, texts in enumerate(cells):
        if number:
            rendered.add_row("", "")
        for name, text in zip(table.columns, texts, strict=True):
            if text:
                rendered.add_row(Text(name), Text(text, _STYLES.get(text, "") if name == "verdict" else ""))
    return rendered


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _counted(name: str, value: Sequence[Any]) -> str:
    return name if len(value) <= _SHOWN_ROWS else f"{name} (the first {_SHOWN_ROWS} of {len(value)})"
