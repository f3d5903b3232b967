"""A line is an event or is accounted for: number, reason, and the `seq` that it used up."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from kvwitness.audit.trace import EVENT_SCHEMA, TraceError, TraceReader, load_trace, read_jsonl, stream

Load = Callable[..., Any]
Make = Callable[..., dict[str, Any]]
CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl"))


def test_an_event_becomes_a_row(load: Load, alloc: Make) -> None:
    events, report = load(alloc())
    assert events == [
        {
            "time_ns": 1788221380500000000,
            "event": "page.alloc",
            "source": "eng/0",
            "seq": 7,
            "request": "r1",
            "tenant": "t-ash",
            "line": 1,
            "pool": "eng/0/full",
            "pages": [14, 15, 16, 50],
        }
    ]
    assert (report.lines, report.events, report.bad_total, report.blank) == (1, 1, 0, 0)


def test_every_field_reaches_its_columns(load: Load) -> None:
    [transfer, limits, publish, digest, step, lease, pool], report = load(
        '{"t":1.5,"event":"transfer.begin","transfer":17,"request":"r","src_pool":"a","src_pages":[[3,4]],'
        '"src_gen":2,"dst_pool":"b","dst_pages":[9,8],"dst_announced":[9,8,7],"tokens":32,"tok":[0,32],'
        '"writers":[0,1],"incarnation":3,"gen":4}',
        '{"t":1.5,"event":"engine.clock","engine":"e","offset_s":-1,"uncertainty_s":0.25}',
        '{"t":1.5,"event":"page.publish","pool":"p","pages":[],"key":"k","ns":{"b":1,"a":{"d":1,"c":2}}}',
        '{"t":1.5,"event":"content.digest","pool":"p","pages":[1,2],"digests":["x","y"],"at":"send"}',
        '{"t":1.5,"event":"step.begin","pool":"p","step":4,"dummy":true}',
        '{"t":1.5,"event":"transfer.lease","transfer":"x","until":1788221380}',
        '{"t":1.5,"event":"engine.pool","pool":"p","page_tokens":16,"pages_total":9,"reserved":[0,[7,8]]}',
    )
    assert report.bad == []
    assert transfer["transfer"] == "17"
    assert transfer["src_pages"] == [3, 4]
    assert transfer["src_gen"] == [2]
    assert transfer["dst_pages"] == [9, 8]
    assert transfer["dst_announced"] == [9, 8, 7]
    assert (transfer["tok_first"], transfer["tok_end"]) == (0, 32)
    assert transfer["writers"] == [0, 1]
    assert (transfer["incarnation"], transfer["gen"]) == (3, 4)
    assert (limits["offset_s"], limits["uncertainty_s"]) == (-1.0, 0.25)
    assert publish["ns"] == '{"a":{"c":2,"d":1},"b":1}'
    assert publish["pages"] == []
    assert digest["digests"] == ["x", "y"]
    assert step["dummy"] is True
    assert lease["until_ns"] == 1788221380 * 10**9
    assert pool["reserved"] == [0, 7, 8]


def test_an_empty_namespace_is_not_an_absent_one(load: Load) -> None:
    events, _ = load(
        '{"t":1,"event":"page.publish","pool":"p","pages":[1],"ns":{}}',
        '{"t":1,"event":"page.publish","pool":"p","pages":[1]}',
    )
    assert [e.get("ns") for e in events] == ["{}", None]


REASONS = [
    ({"t": None}, "t: missing"),
    ({"event": None}, "event: missing"),
    ({"event": 5}, "event: not a string"),
    ({"event": "x" * 129}, "event: longer than 128 characters"),
    ({"event": "page\x1b[2J"}, "event: not a name"),
    ({"t": "now"}, "t: not a number"),
    ({"t": True}, "t: not a number"),
    ({"pool": None}, "pool: missing"),
    ({"pages": None}, "pages: missing"),
    ({"request": None}, "request or holder: missing"),
    ({"pool": 5}, "pool: not a string"),
    ({"tenant": ["t"]}, "tenant: not a string"),
    ({"seq": True}, "seq: not an integer"),
    ({"seq": 7.0}, "seq: not an integer"),
    ({"seq": "7"}, "seq: not an integer"),
    ({"seq": -1}, "seq: out of range"),
    ({"seq": 2**63}, "seq: out of range"),
    ({"incarnation": 2**31}, "incarnation: out of range"),
    ({"pages": 5}, "pages: not a list of pages"),
    ({"pages": [-1]}, "pages: page id outside 0..2**32-1"),
    ({"pages": [2**32]}, "pages: page id outside 0..2**32-1"),
    ({"pages": [[9, 8]]}, "pages: a range is reversed"),
    ({"pages": [True]}, "pages: an item is neither a page id nor a [first, last] range"),
    ({"pages": [[0, 2**32 - 1]]}, "pages: more than 16777216 pages in one list"),
    ({"event": "page.read", "tok": [5, 4]}, "tok: reversed"),
    ({"event": "page.read", "tok": [-1, 4]}, "tok: out of range"),
    ({"event": "page.read", "tok": [0, 2**63]}, "tok: out of range"),
    ({"event": "page.read", "tok": [0]}, "tok: not a pair of integers"),
    ({"event": "page.read", "tok": [0, True]}, "tok: not a pair of integers"),
    ({"event": "page.publish", "ns": []}, "ns: not an object"),
    ({"event": "step.begin", "step": 1, "dummy": 1}, "dummy: not a boolean"),
    ({"event": "engine.clock", "engine": "e", "offset_s": "1"}, "offset_s: not a number"),
    ({"event": "engine.clock", "engine": "e", "uncertainty_s": -1}, "uncertainty_s: out of range"),
    ({"event": "engine.pool", "page_tokens": 0, "pages_total": 4}, "page_tokens: out of range"),
    ({"event": "page.copy", "to_pages": [1, 2, 3]}, "to_pages: not as many as pages"),
    ({"event": "content.digest", "digests": ["x"]}, "digests: not as many as pages"),
    ({"event": "content.digest", "digests": "x"}, "digests: not a list of strings"),
    ({"event": "content.digest", "digests": [1, 2, 3, 4]}, "digests: not a list of strings"),
    (
        {"event": "content.digest", "digests": ["x" * 257] * 4},
        "digests: an item is longer than 256 characters",
    ),
    (
        {"event": "transfer.begin", "transfer": "x", "src_pages": [1, 2, 3], "src_gen": [1, 1]},
        "src_gen: not as many as src_pages",
    ),
    ({"event": "transfer.begin", "transfer": "x", "writers": [0, True]}, "writers: not a list of integers"),
    ({"event": "transfer.begin", "transfer": "x", "src_gen": [-1]}, "src_gen: out of range"),
    ({"event": "transfer.begin", "transfer": True}, "transfer: not a string"),
]


@pytest.mark.parametrize(("changes", "reason"), REASONS, ids=[r for _, r in REASONS])
def test_a_bad_event_is_named_and_its_neighbours_are_kept(
    load: Load, alloc: Make, changes: dict[str, Any], reason: str
) -> None:
    events, report = load(alloc(), alloc(**changes), alloc())
    assert [e["line"] for e in events] == [1, 3]
    assert events[0]["pages"] == events[1]["pages"] == [14, 15, 16, 50]
    assert report.bad == [(2, reason)]
    assert report.bad_by_reason == {reason: 1}
    assert report.lines == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "not JSON: "),
        (b'{"t":NaN,"event":"x"}', "not JSON: "),
        (b'{"t":1e999,"event":"x"}', "not JSON: "),
        (b'{"t":1,"event":"x"', "not JSON: "),
        (b'{"t":1,"event":"\xff"}', "not valid UTF-8"),
        (b'{"t":1,"event":"\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"t":1,"event":"x","a":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deeply"),
        (b'[{"t":1,"event":"x"}]', "not an object"),
        (b'"x"', "not an object"),
        (b"null", "not an object"),
        (b"17", "not an object"),
        (b'{"t":1,"event":"x","event":"x"}', "a key occurs twice"),
        (b'{"t":1,"event":"x","a":1 , "a" :2}', "a key occurs twice"),
        (b'{"t":1,"event":"x","a":1,"\\u0061":2}', "a key occurs twice"),
        (b'{"t":1,"event":"x","a":{"b":1,"b":2}}', "a key occurs twice"),
        (b'{"t":1,"event":"x","a":[{"b":1,"b":2}]}', "a key occurs twice"),
        (b'{"t":1,"event":"x","a":"\\":","a":2}', "a key occurs twice"),
    ],
)
def test_what_is_no_event_at_all(load: Load, line: bytes, reason: str) -> None:
    events, report = load(line)
    assert events == []
    assert report.bad_total == 1
    assert report.bad[0][1].startswith(reason)


@pytest.mark.parametrize(
    "line",
    [
        '{"t":1,"event":"x","a":"\\":\\":"}',
        '{"t" : 1 , "event":\t"x"\r, "a" :{"t" : 1}}',
        '{"t":1,"event":"x","a":"b :c"}',
        '{"t":1,"event":"x","a":{"b":1},"c":{"b":1}}',
        '{"t":1,"event":"x","a":[{"b":1},{"b":1}]}',
    ],
)
def test_what_only_looks_like_a_second_key_is_kept(load: Load, line: str) -> None:
    events, report = load(line)
    assert report.bad == []
    assert events[0]["event"] == "x"


def test_a_rejected_line_uses_up_its_seq(load: Load, alloc: Make) -> None:
    _, report = load(
        alloc(seq=1),
        alloc(seq=2, pages="no"),
        '{"t":NaN,"seq":3,"source":"eng/0","event":"page.alloc"}',
        '{"t":1,"seq":4,"source":"eng/0","event":"page.alloc","pages":[[1,',
        '{"t":1,"seq":5',
        '{"t":NaN,"seq":6,"seq":7}',
        alloc(seq=8, source=None, pages="no"),
        alloc(seq=-9, pages="no"),
        alloc(seq="x", pages="no"),
        "garbage",
    )
    assert report.bad_total == 9
    assert report.rejected_seqs == [("eng/0", 2), ("eng/0", 3), ("eng/0", 4), (None, 8)]


def test_what_a_rejected_line_said_is_lost_at_its_place(load: Load, alloc: Make) -> None:
    _, report = load(
        alloc(seq=1),
        alloc(seq=2, pages="no"),
        alloc(seq=None, pages="no"),
        "garbage",
        "more of it",
        alloc(seq=4),
        '{"t":1,"seq":5,"source":"eng/0","event":"page.alloc","pages":[[1,',
    )
    assert report.unread == [("eng/0", 2, 1), ("eng/0", None, 1), (None, None, 1), ("eng/0", 5, 2)]


def test_damaged_compression_is_a_loss_at_the_end(load: Load, alloc: Make) -> None:
    whole = gzip.compress(b"\n".join(orjson.dumps(alloc(seq=n)) for n in range(1, 400)), mtime=0)
    events, report = load(whole[:-30])
    assert report.stream_errors
    assert report.unread[-1] == (None, None, len(events))


def test_unknown_kinds_and_fields_are_kept_and_counted(load: Load, alloc: Make) -> None:
    events, report = load(
        alloc(layer=3, branch={"z": 1, "a": [1, 2]}),
        alloc(layer=4),
        {"t": 1, "event": "engine.sneezed", "pool": "p", "pages": [[1, 2]], "tokens": "many", "force": 9},
    )
    assert [e.get("extra") for e in events] == [
        '{"branch":{"a":[1,2],"z":1},"layer":3}',
        '{"layer":4}',
        '{"force":9}',
    ]
    assert events[2]["pages"] == [1, 2]
    assert report.unknown_kinds == {"engine.sneezed": 1}
    assert report.unknown_fields == {"layer": 2, "branch": 1, "force": 1}
    assert report.dropped_content == {"tokens": 1}


def test_a_field_that_the_kind_does_not_define_may_have_any_type(load: Load, alloc: Make) -> None:
    events, report = load(alloc(status="late", step=4))
    assert report.bad == []
    assert events[0]["step"] == 4
    assert events[0]["extra"] == '{"status":"late"}'


def test_null_is_absent(load: Load, alloc: Make) -> None:
    good = {**alloc(), "gen": None, "path": None, "time_unix_nano": None, "mood": None}
    events, report = load(good, {**alloc(), "pool": None, "gen": None})
    assert events[0]["extra"] == '{"mood":null}'
    assert "gen" not in events[0]
    assert report.bad == [(2, "pool: missing")]


def test_content_is_counted_once_however_the_line_was_read(load: Load) -> None:
    event = {"t": 1, "event": "page.publish", "pool": "p", "pages": [1], "ns": {"salt": "s"}, "key": None}
    events, report = load(event, {**event, "pages": "no"})
    assert events[0]["ns"] == "{}"
    assert report.dropped_content == {"ns.salt": 1}


def test_blank_lines_byte_order_marks_and_returns(load: Load, alloc: Make) -> None:
    line = orjson.dumps(alloc())
    events, report = load(b"\xef\xbb\xbf" + line + b"\r", b"", b" \t\r", line, b"\xef\xbb\xbf" + line, b"")
    assert [e["line"] for e in events] == [1, 4]
    assert (report.lines, report.blank, report.bad_total) == (5, 2, 1)


def test_an_overlong_line_is_skipped_without_being_held(
    load: Load, alloc: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_LINE", 2000)
    monkeypatch.setattr(stream, "_CHUNK", 500)
    long = alloc(seq=9, note="x" * 5000)
    events, report = load(alloc(), long, alloc(), orjson.dumps(alloc(seq=10)) + b" " * 9000)
    assert [e["line"] for e in events] == [1, 3]
    assert [line for line, _ in report.bad] == [2, 4]
    assert all("longer than" in reason for _, reason in report.bad)
    assert report.rejected_seqs == [("eng/0", 9), ("eng/0", 10)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_where_the_reads_fall_makes_no_difference(
    load: Load, alloc: Make, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    lines = [alloc(seq=1), b"", b"bad", alloc(seq=2, pages=[[1, 90]]), b" "]
    expected = load(*lines)
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    assert load(*lines) == expected


def test_batches_hold_no_more_rows_than_asked_and_keep_the_order(load: Load, alloc: Make) -> None:
    lines = b"\n".join(orjson.dumps(alloc(seq=n)) for n in range(25))

    sizes = [b.num_rows for b in read_jsonl(io.BytesIO(lines), batch_rows=10)]
    assert sizes == [10, 10, 5]
    events, _ = load(*lines.split(b"\n"), batch_rows=7)
    assert [e["seq"] for e in events] == list(range(25))
    with pytest.raises(ValueError, match="batch_rows"):
        TraceReader(io.BytesIO(b""), batch_rows=0)


def test_a_batch_ends_early_when_it_grows_heavy(load: Load, alloc: Make) -> None:

    lines = b"\n".join(orjson.dumps(alloc(pages=[[0, 2**23]])) for _ in range(5))
    batches = list(read_jsonl(io.BytesIO(lines)))
    assert len(batches) > 1
    assert sum(b.num_rows for b in batches) == 5


def test_the_report_keeps_a_thousand_bad_lines_and_counts_all(load: Load) -> None:
    _, report = load(*["{"] * 1500)
    assert len(report.bad) == 1000
    assert report.bad_total == 1500
    assert report.bad_by_reason == {"not JSON": 1500}
    assert orjson.loads(orjson.dumps(report.to_dict()))["bad"][0] == {"line": 1, "reason": report.bad[0][1]}


def test_counters_of_names_are_bounded(load: Load) -> None:
    _, report = load(*[{"t": 1, "event": f"k{n}", f"f{n}": 1} for n in range(3000)])
    assert len(report.unknown_kinds) <= 1001
    assert sum(report.unknown_kinds.values()) == sum(report.unknown_fields.values()) == 3000


def test_a_missing_file_says_what_to_do() -> None:
    with pytest.raises(TraceError, match=r"no-such\.jsonl.*\n.*standard input"):
        load_trace("no-such.jsonl")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        load_trace(tmp_path)


def test_an_empty_file_is_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    table, report = load_trace(tmp_path / "x")
    assert table.num_rows == report.lines == 0
    assert table.schema == EVENT_SCHEMA


def test_a_trace_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvwitness.audit.trace import reader

    monkeypatch.setattr(reader, "MAX_IN_MEMORY", 10)
    path = tmp_path / "x"
    path.write_text('{"t":1,"event":"page.write","pool":"p","pages":[[1,11]]}')
    with pytest.raises(TraceError, match=r"more than 10 pages[^\n]*\n.*store"):
        load_trace(path)


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_the_cases_load_without_a_bad_line(case: Path) -> None:
    table, report = load_trace(case)
    assert report.bad == []
    assert report.unknown_kinds == {}
    assert table.num_rows == report.events == report.lines
