"""Unpacking a body, never further than to a limit."""

from __future__ import annotations

import zlib

import zstandard

from kvwitness.collectors.otlp.refusal import INVALID_ARGUMENT, Refusal

ENCODINGS = ("identity", "gzip", "deflate", "zstd")
_STEP = 1 << 20
_SIP = 256
"""Compressed bytes per step of zstd: four of them can unfold to 128 KiB."""
_WINDOW = 1 << 27
"""Most that a zstd frame may ask to be remembered, in bytes; what `zstd --ultra` makes by default needs no more."""


def check_encoding(encoding: str) -> None:
    """Raises `Refusal` (415) for a `Content-Encoding` that is not taken."""
    if encoding not in ENCODINGS:
        raise Refusal(
            415,
            INVALID_ARGUMENT,
            f"Content-Encoding is not one of {', '.join(ENCODINGS)}",
            kind="bad_encoding",
        )


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its compression.

    Raises `Refusal` where it would be longer than `limit` (413), or is damaged or cut short (400).
    """
    try:
        if encoding == "gzip":
            body = _inflated(body, 31, limit)
        elif encoding == "deflate":
            body = _inflated(body, 15, limit)
        elif encoding == "zstd":
            body = _unzstd(body, limit)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise Refusal.bad(f"the body is damaged {encoding} data") from None
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _too_large(limit: int) -> Refusal:
    return Refusal.too_large(f"the body is longer than {limit} bytes when unpacked")


def _inflated(body: bytes, wbits: int, limit: int) -> bytes:
    out, size = [], 0
    while body:
        decoder = zlib.decompressobj(wbits)
        while not decoder.eof:
            piece = decoder.decompress(body, _STEP)
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            if not piece and not decoder.unconsumed_tail and not decoder.eof:
                raise EOFError
            out.append(piece)
            body = decoder.unconsumed_tail
        body = decoder.unused_data
    return b"".join(out)


def _unzstd(body: bytes, limit: int) -> bytes:
    out, size = [], 0
    view = memoryview(body)
    while len(view):
        decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        while not decoder.eof:
            if not len(view):
                raise EOFError
            piece = decoder.decompress(view[:_SIP])
            view = view[_SIP:]
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            out.append(piece)
        rest = decoder.unused_data
        view = memoryview(body)[len(body) - len(view) - len(rest) :]
    return b"".join(out)
