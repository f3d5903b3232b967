"""The reference of fingerprints: fixed for good, since two versions that differ could not be compared."""

from __future__ import annotations

import random

from kvwitness.gpu_tracer.content import reference

SECRET = b"a secret for the tests"
PINNED = ["8e8a810b4e155333", "91a5e905a3524391", "94c9611818a743f7", "4abc96a859a93d26"]


def cell(row: bytes, part: str = "layer 3 K", head: int = 0) -> int:
    return reference.cell([row], [reference.key_words(SECRET, part, head, -(-len(row) // 8))])


def test_the_numbers_do_not_change() -> None:
    slots = [cell(bytes(range(at, at + 32))) for at in range(3)]
    assert [f"{one:016x}" for one in (*slots, reference.page(slots))] == PINNED


def test_every_flip_of_one_bit_is_seen() -> None:
    row = random.Random(5).randbytes(64)
    bits = int.from_bytes(row, "little")
    seen = {cell((bits ^ (1 << at)).to_bytes(64, "little")) for at in range(512)}
    assert len(seen | {cell(row)}) == 513


def test_an_incomplete_word_is_filled_with_zeros() -> None:
    assert cell(b"abc") == cell(b"abc\0\0\0\0\0")
    assert cell(b"abc") != cell(b"abd")


def test_the_second_lane_has_the_key_moved_on_by_one_word() -> None:
    words = reference.key_words(SECRET, "layer 3 K", 2, 5)
    assert reference.lane_words(SECRET, "layer 3 K", 2, 4, 0) == words[:4]
    assert reference.lane_words(SECRET, "layer 3 K", 2, 4, 1) == words[1:]
