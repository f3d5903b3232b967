"""The collector of trace files: what it recognises, and that it reads what it recognised."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from kvwitness.collectors.trace_file import read, recognise

LINE = b'{"t":1,"seq":1,"source":"s","event":"page.write","pool":"p","pages":[1]}\n'
TRACES = {
    "plain": LINE,
    "blank first": b"\n \n" + LINE,
    "byte order mark": b"\xef\xbb\xbf" + LINE,
    "gzip": gzip.compress(LINE * 5000),
    "zstd": zstandard.ZstdCompressor().compress(LINE * 5000),
}


@pytest.mark.parametrize("form", TRACES)
def test_a_trace_is_recognised_and_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(TRACES[form])
    assert recognise(path.read_bytes()[:4096])
    seen: list[int] = []
    reader = read(path, lambda done, total: seen.append(done))
    assert sum(b.num_rows for b in reader) == reader.report.events >= 1
    assert reader.report.bad_total == 0
    assert seen[-1] == path.stat().st_size


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"INFO 09-09 12:00:00 engine started",
        b'{"resourceSpans":[]}\n',
        b'[{"event":"x"}]',
        b"PAR1",
        b"\x1f\x8b broken",
        b"\x28\xb5\x2f\xfd\xff\xff",
        gzip.compress(b"a log", mtime=0),
        b'{"a":1}\n' + LINE,
    ],
)
def test_other_files_are_not(head: bytes) -> None:
    assert not recognise(head)
