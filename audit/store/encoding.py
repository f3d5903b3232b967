"""How columns are encoded in segments."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_SAMPLE = 262_144
"""Page ids from which the encoding of a page list is decided: about what one data page holds."""
_PLAIN, _DELTA = "PLAIN", "DELTA_BINARY_PACKED"


def parquet_options(first: pa.Table) -> dict[str, Any]:
    """Options of a Parquet writer for a segment that begins with the rows `first`.

    zstd for everything; integers as bit-packed differences; text by dictionary; page lists as `page_encoding`
    says. Without the copy of the Arrow schema that the library would add: the types survive without it, and
    it costs 6 KB in every small segment.
    """
    encodings: dict[str, str] = {}
    texts: list[str] = []
    for field in first.schema:
        if pa.types.is_integer(field.type):
            encodings[field.name] = _DELTA
        elif pa.types.is_string(field.type):
            texts.append(field.name)
        elif pa.types.is_list(field.type):
            element = f"{field.name}.list.element"
            if field.type.value_type == pa.uint32():
                encodings[element] = page_encoding(first.column(field.name))
            elif pa.types.is_integer(field.type.value_type):
                encodings[element] = _DELTA
            elif pa.types.is_string(field.type.value_type):
                texts.append(element)
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": texts,
        "column_encoding": encodings,
        "dictionary_pagesize_limit": 4 << 20,
        "store_schema": False,
        "write_page_checksum": True,
    }


def page_encoding(lists: pa.ChunkedArray) -> str:
    """The smaller of two encodings for page lists, found by trying both on a sample.

    In a fresh pool the ids come in runs, and differences take a fifth of the space. In an aged pool they do
    not, but the same lists come again and again (alloc, write, read, free), which zstd sees only if the ids
    keep their bytes: there plain ids take half the space. A short list is left plain. (Plain bytes split into
    streams would be smaller still, but DuckDB 1.x cannot read them.)
    """
    sample = pa.chunked_array([chunk.flatten() for chunk in lists.chunks], pa.uint32()).slice(0, _SAMPLE)
    if len(sample) < _SAMPLE:
        return _PLAIN
    return min((_PLAIN, _DELTA), key=lambda encoding: _size(sample, encoding))


def _size(ids: pa.ChunkedArray, encoding: str) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"id": ids}),
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding={"id": encoding},
        store_schema=False,
    )
    return int(sink.getvalue().size)
