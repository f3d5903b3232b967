"""Compressed, damaged, piped: what is readable is read, and the hash is that of the bytes as they lie."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
import zstandard

from kvwitness.audit.trace import TraceError, load_trace, read_jsonl, stream

PLAIN = b"".join(
    orjson.dumps({"t": n, "seq": n, "source": "s", "event": "page.write", "pool": "p", "pages": [[n, n * n]]}) + b"\n"
    for n in range(1, 400)
)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def halves(squeeze: Callable[[bytes], bytes]) -> bytes:
    """Two members, the first of which ends within a line."""
    return squeeze(PLAIN[:5001]) + squeeze(PLAIN[5001:])


FORMS = {
    "plain": PLAIN,
    "gzip": gzip.compress(PLAIN),
    "gzip, two members": halves(gzip.compress),
    "zstd": zstd(PLAIN),
    "zstd, two frames": halves(zstd),
}


@pytest.mark.parametrize("chunk", [3, 1000, 2**20])
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_hold_the_same_trace(form: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    table, report = load_trace(io.BytesIO(FORMS[form]))
    assert table["seq"].to_pylist() == list(range(1, 400))
    assert (report.lines, report.bad_total, report.stream_errors) == (399, 0, [])
    assert report.sha256 == hashlib.sha256(FORMS[form]).hexdigest()
    assert report.bytes_read == len(FORMS[form])


@pytest.mark.parametrize("form", [f for f in FORMS if f != "plain"])
def test_what_lies_before_a_cut_is_kept(form: str) -> None:
    cut = FORMS[form][:-40]
    table, report = load_trace(io.BytesIO(cut))
    seqs = table["seq"].to_pylist()
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(report.stream_errors) == 1
    assert "ends early" in report.stream_errors[0]
    assert report.lines == report.events + report.bad_total + report.blank
    assert report.sha256 == hashlib.sha256(cut).hexdigest()


def test_a_cut_gzip_gives_the_lines_that_survived() -> None:
    table, _ = load_trace(io.BytesIO(FORMS["gzip"][:-40]))
    assert table.num_rows > 300


@pytest.mark.parametrize("squeeze", [gzip.compress, zstd])
def test_what_lies_before_damage_is_kept_and_the_rest_still_hashed(
    squeeze: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHUNK", 1000)
    data = squeeze(PLAIN) + b"this is no second member" * 1000
    table, report = load_trace(io.BytesIO(data))
    assert table.num_rows == 399
    assert len(report.stream_errors) == 1
    assert "damaged" in report.stream_errors[0]
    assert report.sha256 == hashlib.sha256(data).hexdigest()


def test_a_trailer_of_zeros_after_gzip_is_no_damage() -> None:
    table, report = load_trace(io.BytesIO(FORMS["gzip"] + bytes(512)))
    assert table.num_rows == 399
    assert report.stream_errors == []


def test_a_small_file_that_unfolds_to_much_is_read_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_LINE", 2**20)
    pieces: list[int] = []
    split = stream._split

    def watched(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            pieces.append(len(chunk))
            yield chunk

    monkeypatch.setattr(stream, "_split", lambda chunks, report: split(watched(chunks), report))
    _, report = load_trace(io.BytesIO(zstd(b" " * 2**28)))
    assert report.bad_by_reason == {f"longer than {2**20} bytes": 1} or report.blank == 1
    assert max(pieces) <= 2**28 / 2


def test_progress_tells_raw_bytes_and_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK", 1000)
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(FORMS["gzip"])
    seen: list[tuple[int, int | None]] = []
    load_trace(path, progress=lambda done, total: seen.append((done, total)))
    size = len(FORMS["gzip"])
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_standard_input_is_a_dash() -> None:
    code = (
        "from kvwitness.audit.trace import load_trace\n"
        "table, report = load_trace('-')\n"
        "print(table.num_rows, report.sha256)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=FORMS["zstd"], capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().split() == ["399", hashlib.sha256(FORMS["zstd"]).hexdigest()]


def test_the_hash_is_missing_until_the_end_was_reached() -> None:
    reader = read_jsonl(io.BytesIO(PLAIN), batch_rows=10)
    next(reader)
    assert reader.report.sha256 == ""
    assert reader.report.lines >= 10
    list(reader)
    assert reader.report.sha256 == hashlib.sha256(PLAIN).hexdigest()


def test_a_read_that_fails_says_how_far_it_came() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(100)

    with pytest.raises(TraceError, match="after 100 bytes: Input/output error"):
        load_trace(Broken(PLAIN))
