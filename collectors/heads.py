"""The beginning of a file as it is to be recognised: unpacked, without a byte order mark."""

from __future__ import annotations

import zlib

import zstandard

from kvwitness.audit.trace.stream import GZIP, ZSTD

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def beginning(head: bytes) -> bytes:
    """The first bytes of a file, unpacked as far as they can be."""
    try:
        if head.startswith(GZIP):
            head = zlib.decompressobj(wbits=31).decompress(head, 65536)
        elif head.startswith(ZSTD):
            head = zstandard.ZstdDecompressor().decompressobj().decompress(head[:4096])
    except (zlib.error, zstandard.ZstdError):
        return b""
    if head.startswith(_UTF16):  # known for what it is, so that its reader can say that it has to be converted
        return head.decode("utf-16", "replace").encode()
    return head.removeprefix(_BOM)


def lines(head: bytes, most: int = 20) -> list[bytes]:
    """The first lines that are whole and not blank."""
    text = beginning(head)
    whole = text.split(b"\n") if text.endswith(b"\n") or b"\n" not in text else text.split(b"\n")[:-1]
    return [line for line in whole if line.strip()][:most]
