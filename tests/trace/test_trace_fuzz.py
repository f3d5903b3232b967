"""Whatever the bytes: no crash, every line accounted for, and batches that hold together."""

from __future__ import annotations

import io
import random
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from kvwitness.audit.trace import EVENT_SCHEMA, FIELDS, ImportReport, read_jsonl

GOOD = [
    b'{"t":1788221380.000021,"seq":7,"source":"e/0","event":"page.alloc","pool":"p","pages":[[1,3],9],"request":"r"}',
    b'{"t":1,"event":"page.publish","pool":"p","pages":[1],"ns":{"a":{"b":[1,2]}},"key":"k","x":{"y":"{\\"z\\":1}"}}',
    b'{"t":1,"event":"transfer.begin","transfer":"x","request":"r","src_pages":[1,2],"src_gen":[1,2],"tok":[0,4]}',
    b'{"t":1,"event":"content.digest","pool":"p","pages":[1,2],"digests":["a","b"],"at":"send"}',
    b'{"time_unix_nano":1788221380000000000,"event":"odd","prompt":"p","until":2.5,"dummy":true,"offset_s":-1.5e3}',
]
SPICE = [
    *(bytes([c]) for c in b'{}[]":,\\\n\r \0\xff'),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-1", b"1.5", b"4294967296", b"9223372036854775808"),
    *(b"1" * 400, b"0." + b"1" * 400, b"[" * 600, b'{"a":' * 300, b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b'"t":1,', b'"event":"page.free",', b'"pages":[[5,4]]', b'"prompt"', b"e-999999999", b"E9"),
    *(b'"\\ud800"', b'"\\u0000"'),
]


def read(data: bytes, batch_rows: int = 3) -> tuple[pa.Table, ImportReport]:
    reader = read_jsonl(io.BytesIO(data), batch_rows=batch_rows)
    table = pa.Table.from_batches(list(reader), EVENT_SCHEMA)
    table.validate(full=True)
    report = reader.report
    assert report.lines == report.events + report.bad_total + report.blank
    assert report.lines == len(data.split(b"\n")) - (not data.split(b"\n")[-1])
    assert table.num_rows == report.events
    assert sum(report.bad_by_reason.values()) == report.bad_total
    assert report.stream_errors == []
    return table, report


@given(st.binary(max_size=200).filter(lambda b: b[:2] != b"\x1f\x8b" and b[:4] != b"\x28\xb5\x2f\xfd"))
def test_random_bytes(data: bytes) -> None:
    read(data)


@given(st.lists(st.sampled_from(SPICE + GOOD) | st.binary(max_size=3), max_size=20).map(b"".join))
@example(b'{"t":1.5,"event":"x","a":' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'{"t":1.5,"event":"x" ,"a" :' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}")
@example(b'{"event":"x","a":' + b'{"t":' * 900 + b"1" + b"}" * 900 + b',"t":1.5}')
def test_pieces_of_json_in_any_order(data: bytes) -> None:
    if data[:2] != b"\x1f\x8b":
        read(data)


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    2**63,
    2**64 - 1,
    -(2**63),
    "",
    "x",
    "x" * 2000,
    [],
    [[]],
    [1, 2],
    [[2, 1]],
]
ODD += [[[1, 2, 3]], [-1], [2**32], [[0, 2**32 - 1]], ["a"], {}, {"a": {"b": None}}, [True], [0.5], [None]]


def other_value(rng: random.Random) -> bytes:
    """A good event with one value replaced by one of another type or range."""
    event = orjson.loads(rng.choice(GOOD))
    event[rng.choice([*event, *FIELDS])] = rng.choice(ODD)
    return orjson.dumps(event)


def other_bytes(rng: random.Random) -> bytes:
    """A good line with bytes taken out, put in or changed."""
    line = bytearray(rng.choice(GOOD))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(line) + 1)
        match rng.randrange(4):
            case 0:
                del line[at : at + rng.randint(1, 6)]
            case 1:
                line[at:at] = rng.choice(SPICE)
            case 2:
                line[at : at + rng.randint(1, 6)] = rng.choice(SPICE)
            case _:
                line[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(line)


def test_good_lines_with_pieces_changed() -> None:
    rng = random.Random(20260909)
    lines = [rng.choice((other_value, other_bytes))(rng) for _ in range(4000)]
    table, report = read(b"\n".join([GOOD[0], *lines, GOOD[1]]), batch_rows=100)
    numbers = table["line"].to_pylist()
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, report.lines)
    # some changes leave a good line: the test has not only seen rejection, nor only acceptance
    assert report.events > 1000
    assert report.bad_total > 1000
    assert len(report.bad_by_reason) > 30


@given(st.sampled_from(GOOD), st.integers(0, 200))
def test_a_line_cut_short_is_one_bad_line(line: bytes, at: int) -> None:
    cut = line[: min(at, len(line) - 1)]
    table, report = read(cut + b"\n" + GOOD[0])
    assert table.num_rows == 1
    assert report.bad_total + report.blank == 1
