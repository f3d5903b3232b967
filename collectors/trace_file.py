"""Traces in the JSON Lines form, as `kvwitness import FILE` takes them: plain, gzip or zstd."""

from __future__ import annotations

import zlib

import zstandard

from kvwitness.audit.trace import TraceReader, read_jsonl
from kvwitness.audit.trace.stream import GZIP, ZSTD, Progress, Source


def recognise(head: bytes) -> bool:
    """Whether a file that begins with `head` (a few KiB are plenty) is a JSON Lines trace.

    It is one when its first line, blank ones aside, is the beginning of a JSON object that names an event.
    """
    text = _inflated(head).removeprefix(b"\xef\xbb\xbf").lstrip()
    first = text.split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"event"' in first


def read(path: Source, progress: Progress | None = None) -> TraceReader:
    """Batches of a trace file (`-`: standard input); `.report` of the result is complete after the last.

    Raises TraceError, while batches are taken, where the file cannot be read.
    """
    return read_jsonl(path, progress=progress)


def _inflated(head: bytes) -> bytes:
    try:
        if head.startswith(GZIP):
            return zlib.decompressobj(wbits=31).decompress(head, 65536)
        if head.startswith(ZSTD):
            return zstandard.ZstdDecompressor().decompressobj().decompress(head[:4096])
    except (zlib.error, zstandard.ZstdError):
        return b""
    return head
