"""Renders the reference of the trace format from the vocabulary.

`python -m kvwitness.audit.trace.reference > docs/trace-format.md` refreshes the committed page.
"""

from __future__ import annotations

from inspect import cleandoc

from kvwitness.audit.trace import columns, pages, privacy, reader, rows, stream
from kvwitness.audit.trace.fields import COMMON, FIELDS
from kvwitness.audit.trace.model import Field, Kind
from kvwitness.audit.trace.schema import EVENT_SCHEMA, column_comments, duckdb_types, polars_schema
from kvwitness.audit.trace.vocabulary import KINDS

_HEAD = """
# Trace format

<!-- Generated from audit/trace. To refresh it:
     python -m kvwitness.audit.trace.reference > docs/trace-format.md -->

A trace says what happened to the pages of a KV cache, to requests and to transfers, in words that belong to
no engine. It has two forms with the same names and meanings: JSON Lines (one event per line; plain, gzip or
zstd, told from the content), and tables with one row per event.

```json
{"t":1788221380.000021,"seq":7,"source":"eng-1/0","event":"page.alloc",
 "pool":"eng-1/0/full","pages":[[14,16],50],"request":"r1","tenant":"t-ash"}
```

(In a file that is one line.)

## Conventions

- **Time.** `t` is in seconds since the Unix epoch as a decimal, or an integer of nanoseconds where it is 1e12
  or more. `time_unix_nano` is another name for it. Decimals are read digit by digit: `1788221380.000021` is
  exactly 1788221380000021000 ns. `until` is written alike.
- **Order.** Within a `source`, by `seq`. Across sources only request and transfer ids order events; clocks
  are a hint.
- **Pages.** A list whose items are a page id or an inclusive range: `[[14, 16], 50]` is 14, 15, 16, 50. The
  order is that of token positions and is kept. Ids are 0 to 2**32-1. Tables hold the expanded list.
- **Positions.** `tok` is `[first, end)`, in positions of the request. The first page listed holds `first`,
  at offset `first % page_tokens`.
- **Null** is the same as absent. A boolean is not an integer.
"""

_UNKNOWN = """
## What is not in the vocabulary

A field outside the vocabulary is kept, in the column `extra`, as one JSON object with sorted keys. So is a
field of the vocabulary that has another type on a kind which does not define it. An event of an unknown kind
is kept in the same way, counted, and reported once per kind.

## What is rejected

A rejected line is counted and reported with its number (from 1) and a reason that quotes nothing of the
line; the rest of the file is still read. Its `source` and `seq`, where they can be read, are reported too. What it
said is lost, and judged like any loss: it may have been the write that a later read relies on. Where the numbers of
the sources do not show whose it was, it counts for each that may have written it. Every line is an event, a
rejected line or blank.

- not JSON, not valid UTF-8, `NaN` or an infinity, nested too deeply, not an object, or a key twice in one
  object
- longer than {max_line} MiB
- `t` or `event` missing, a required field missing, `t` and `time_unix_nano` at odds, a kind of more than
  {max_kind} characters or with control characters
- a field that the kind defines with a value of a wrong type or out of range; a page list with a reversed
  range, an id outside 0 to 2**32-1, or more than {max_list} pages; a `tok` that is reversed
- lists that must go together and do not: `to_pages` or `digests` with `pages`, `src_gen` with `src_pages`
  (one number stands for all)
- a fingerprint of more than {max_digest} characters in `digests`

Compressed data that is damaged or ends early is read up to there, and the report says so.
"""


def render() -> str:
    """The whole reference page, as Markdown."""
    unknown = _UNKNOWN.format(
        max_line=stream.MAX_LINE // 2**20,
        max_kind=rows.MAX_KIND,
        max_list=pages.MAX_LIST,
        max_digest=columns.MAX_DIGEST,
    )
    parts = [
        cleandoc(_HEAD),
        "## Fields of every event",
        _table(
            ("field", "form", "meaning"),
            [_field_row(FIELDS[name], "**" if name in ("t", "event") else "") for name in COMMON],
        ),
        "## Kinds of event\n\nBesides the fields of every event. Required ones are **bold**; of fields "
        "joined "
        "by *or* at least one is required. Those in *italics* have no column: they stand in `extra`.",
        _table(("event", "fields", "meaning"), [_kind_row(kind) for kind in KINDS.values()]),
        "## Fields of the kinds",
        _table(("field", "form", "meaning"), [_field_row(f) for n, f in FIELDS.items() if n not in COMMON]),
        cleandoc(unknown),
        "## Privacy\n\n" + cleandoc(privacy.__doc__ or ""),
        "## Columns\n\nEvery column may be null but `time_ns` and `event`. "
        f"Batches hold at most 65,536 rows or about {reader.BATCH_BYTES // 2**20} MiB.",
        _table(("column", "Arrow", "Polars", "DuckDB", "meaning"), _column_rows()),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def _field_row(field: Field, mark: str = "") -> tuple[str, ...]:
    meaning = f"{field.meaning} Unit: {field.unit}." if field.unit else field.meaning
    return f"{mark}`{field.name}`{mark}", field.form.value, meaning


def _kind_row(kind: Kind) -> tuple[str, ...]:
    names = [f"**`{name}`**" for name in kind.required]
    if kind.one_of:
        names.append(" *or* ".join(f"**`{name}`**" for name in kind.one_of))
    names += [f"`{name}`" for name in kind.optional]
    names += [f"*`{name}`*" for name in kind.loose]
    return f"`{kind.name}`", ", ".join(names), kind.meaning


def _column_rows() -> list[tuple[str, ...]]:
    meanings, duck, frames = column_comments(), duckdb_types(), polars_schema()
    return [
        (
            f"`{name}`",
            str(EVENT_SCHEMA.field(name).type).replace("<item: ", "<"),
            str(frames[name]),
            duck[name],
            meanings[name],
        )
        for name in EVENT_SCHEMA.names
    ]


if __name__ == "__main__":
    print(render(), end="")
