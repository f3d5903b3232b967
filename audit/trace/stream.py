"""From a file, pipe or compressed stream to lists of lines, hashing the raw bytes on the way."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from kvwitness.audit.trace.report import ImportReport, TraceError

Source = str | Path | BinaryIO
Progress = Callable[[int, int | None], None]
"""Called with (raw bytes read, raw bytes in total or None where that is not known)."""

MAX_LINE = 64 * 2**20
"""Longest line in bytes; a longer one is rejected without being held in memory."""
_CHUNK = 2**20
_PIECE = 4096
"""Compressed bytes per step: a hostile block of a few bytes can unfold to 128 KiB."""
_HEAD = 4096
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Overlong(bytes):
    """The beginning of a line that was longer than `MAX_LINE`; the rest was not kept."""


@contextmanager
def opened(source: Source) -> Iterator[tuple[BinaryIO, int | None]]:
    """The byte stream of a source and its size where it is a regular file. `-` is standard input.

    Raises TraceError where it cannot be opened.
    """
    if not isinstance(source, str | Path):
        yield source, None
    elif str(source) == "-":
        yield sys.stdin.buffer, None
    else:
        try:
            stream = open(source, "rb")  # noqa: SIM115 - closed below; the error is about opening alone
        except OSError as error:
            raise TraceError(
                f"cannot read the trace {source}: {error.strerror or error}",
                "Give the path of a .jsonl, .jsonl.gz or .jsonl.zst file, or - for standard input.",
            ) from error
        with stream:
            size = Path(source).stat().st_size if Path(source).is_file() else None
            yield stream, size


def read_lines(
    stream: BinaryIO, size: int | None, report: ImportReport, progress: Progress | None = None
) -> Iterator[list[bytes]]:
    """Lists of lines without their newline; the compression is told from the first bytes, not from a name."""
    yield from _split(unpacked(stream, size, report, progress), report)


def unpacked(
    stream: BinaryIO, size: int | None, report: ImportReport, progress: Progress | None = None
) -> Iterator[bytes]:
    """The content of a stream, in chunks; `report` is told of its raw bytes."""
    raw = _raw_chunks(stream, size, report, progress)
    head = next(raw, b"")
    while len(head) < 4 and (more := next(raw, b"")):
        head += more
    chunks: Iterator[bytes] = chain((head,), raw)  # unlike a generator it does not close `raw` when it goes
    if head.startswith(GZIP):
        chunks = _inflate(chunks, lambda: zlib.decompressobj(wbits=31), "gzip", report)
    elif head.startswith(ZSTD):
        chunks = _inflate(chunks, lambda: zstandard.ZstdDecompressor().decompressobj(), "zstd", report)
    yield from chunks
    for _ in raw:
        pass  # after damage in the middle the rest still belongs to the hash


def _raw_chunks(stream: BinaryIO, size: int | None, report: ImportReport, progress: Progress | None) -> Iterator[bytes]:
    digest = hashlib.sha256()
    while True:
        try:
            chunk = stream.read(_CHUNK)
        except OSError as error:
            raise TraceError(
                f"reading the trace failed after {report.bytes_read} bytes: {error.strerror or error}"
            ) from error
        if not chunk:
            break
        digest.update(chunk)
        report.bytes_read += len(chunk)
        yield chunk
        if progress is not None:
            progress(report.bytes_read, size)
    report.sha256 = digest.hexdigest()


def _inflate(chunks: Iterator[bytes], new: Callable[[], Any], name: str, report: ImportReport) -> Iterator[bytes]:
    """Decompress members or frames one after another; keep all that came before damage or a cut."""
    padding = b"\0"  # tapes and block devices fill up with it; neither format begins a member so
    decoder, fed = new(), False
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE):
            piece = chunk[start : start + _PIECE]
            if not fed:
                piece = piece.lstrip(padding)
            while piece:
                try:
                    out = decoder.decompress(piece)
                except (zlib.error, zstandard.ZstdError) as error:
                    report.stream_errors.append(f"{name} data is damaged near byte {report.bytes_read}: {error}")
                    return
                fed, piece = True, b""
                if decoder.eof:
                    piece, decoder, fed = decoder.unused_data.lstrip(padding), new(), False
                if out:
                    yield out
    if fed:
        report.stream_errors.append(f"{name} data ends early: the last member is incomplete")


def _split(chunks: Iterator[bytes], report: ImportReport) -> Iterator[list[bytes]]:
    pending: list[bytes] = []
    held, skipping = 0, False
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        if not skipping:
            pending.append(first)
            held += len(first)
            if held > MAX_LINE:
                pending, skipping = [b"".join(pending)[:_HEAD]], True
        if not rest:
            continue
        *whole, last = rest
        line = b"".join(pending)
        lines: list[bytes] = [Overlong(line) if skipping else line]
        lines += [Overlong(x[:_HEAD]) if len(x) > MAX_LINE else x for x in whole] if len(chunk) > MAX_LINE else whole
        pending, held, skipping = [last], len(last), False
        yield lines
    line = b"".join(pending)
    if line:
        report.unended = True
        yield [Overlong(line) if skipping else line]
