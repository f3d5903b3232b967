"""What a fingerprint is, in plain Python: slow, and the standard that every quicker computation has to meet bit by bit.

A *cell* is what one part of the cache (K of a layer, say) holds for one token slot. Its row of bytes is read as
little-endian words of 64 bits, padded with zeros, and hashed with NH, a universal hash: with a secret key word for each
word of the row, the halves of row and key are added (modulo 2**32), the two sums multiplied, and the products added up
(modulo 2**64). Two given rows that differ have the same fingerprint for one key in 2**32 at most; for an accident, that
is never. Who knows the key, or sees fingerprints of rows that they chose, can make two rows agree: it is no signature.

Cells add up. Each head has key words of its own, numbered over the whole model, so the cells of tensor-parallel shards
have the cell of the whole row as their sum, however many shards there are. The sum over parts is the slot's; and a
page's is the sum over its slots, each stirred together with its place, so that two slots that change places are seen.
Neither the number of a page nor that of its pool enters: the same bytes have the same fingerprint wherever they are.

That is one *lane*, of 64 bits. A second one is the same with each head's key words shifted by one (Toeplitz NH), and
both together are 128 bits: two given rows agree in both for one key in 2**64 at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

WORD = 8
"""Bytes of a word."""
MIN_SECRET_BYTES = 16
GOLDEN = 0x9E37_79B9_7F4A_7C15
STIR_1 = 0xBF58_476D_1CE4_E5B9
STIR_2 = 0x94D0_49BB_1331_11EB
MASK_32, MASK_64 = 2**32 - 1, 2**64 - 1


def key_words(secret: bytes, part: str, head: int, words: int) -> list[int]:
    """The key of one head of one part: so many words of 64 bits, drawn from the secret.

    `part` names the part alike on all ranks and sides (`layer 3 K`); `head` counts over the whole model. Raises
    ValueError for a secret of fewer than 16 bytes.
    """
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"the secret of fingerprints has {len(secret)} bytes; {MIN_SECRET_BYTES} are the least")
    seed = len(secret).to_bytes(8, "little") + secret + head.to_bytes(8, "little") + part.encode()
    stream = hashlib.shake_256(b"kvwitness fingerprint 1" + seed).digest(words * WORD)
    return words_of(stream)


def lane_words(secret: bytes, part: str, head: int, words: int, lane: int) -> list[int]:
    """The key of a lane, 0 or 1: as `key_words`, from the word of that number on."""
    return key_words(secret, part, head, words + lane)[lane:]


def words_of(row: bytes) -> list[int]:
    """A row as words; zeros fill the last one."""
    padded = row + bytes(-len(row) % WORD)
    return [int.from_bytes(padded[at : at + WORD], "little") for at in range(0, len(padded), WORD)]


def cell(heads: Sequence[bytes], keys: Sequence[Sequence[int]]) -> int:
    """The fingerprint of one cell: the rows of its heads, each with the key words of its head."""
    total = 0
    for row, key in zip(heads, keys, strict=True):
        for word, secret in zip(words_of(row), key, strict=True):
            low = (word + secret) & MASK_32
            high = ((word >> 32) + (secret >> 32)) & MASK_32
            total += low * high
    return total & MASK_64


def mix(value: int) -> int:
    """Stir 64 bits, so that each bit that comes out depends on all that went in (the finaliser of splitmix64)."""
    value = ((value ^ (value >> 30)) * STIR_1) & MASK_64
    value = ((value ^ (value >> 27)) * STIR_2) & MASK_64
    return value ^ (value >> 31)


def slot(cells: Iterable[int]) -> int:
    """The fingerprint of a slot, from its cells of some parts and of all shards."""
    return sum(cells) & MASK_64


def page(slots: Iterable[int]) -> int:
    """The fingerprint of a page, from those of its slots that hold something, in their order."""
    return sum(mix(one ^ mix(((at + 1) * GOLDEN) & MASK_64)) for at, one in enumerate(slots)) & MASK_64
