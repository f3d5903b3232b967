from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pytest

from kvwitness.audit.trace import EVENT_SCHEMA, ImportReport, read_jsonl

Loaded = tuple[list[dict[str, Any]], ImportReport]


def load_lines(*lines: dict[str, Any] | str | bytes, **options: Any) -> Loaded:
    """Read lines (objects are dumped); the events with their non-null columns, and the report."""
    raw = [x if isinstance(x, bytes) else x.encode() if isinstance(x, str) else orjson.dumps(x) for x in lines]
    reader = read_jsonl(io.BytesIO(b"\n".join(raw)), **options)
    table = pa.Table.from_batches(list(reader), EVENT_SCHEMA)
    table.validate(full=True)
    return [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()], reader.report


@pytest.fixture(scope="session")
def load() -> Callable[..., Loaded]:
    return load_lines


@pytest.fixture(scope="session")
def alloc() -> Callable[..., dict[str, Any]]:
    """A good `page.alloc`, with changes; None takes a field away."""

    def make(**changes: Any) -> dict[str, Any]:
        event = {
            "t": 1788221380.5,
            "seq": 7,
            "source": "eng/0",
            "event": "page.alloc",
            "pool": "eng/0/full",
            "pages": [[14, 16], 50],
            "request": "r1",
            "tenant": "t-ash",
        }
        return {k: v for k, v in {**event, **changes}.items() if v is not None}

    return make
