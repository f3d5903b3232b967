"""Cells by a Triton kernel: those of all parts that lie alike in one launch, with the numbers of `reference`.

This module needs Triton, and nothing imports it but who asks for the kernel. With TRITON_INTERPRET=1 it runs on a CPU,
slowly, which is how it is tested where there is no GPU.

The kernel is made for each geometry, with all strides known to the compiler and no loops left. A program takes some
slots of one part, and of them as much of a row as is at most `_CHUNKS` times `_WIDTH` words; where rows are longer, or
apart, there are several pieces, which are added up afterwards. How many pages there are is read from the device, so a
captured launch can be replayed with other pages, and another number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kvwitness.gpu_tracer.content.geometry import Geometry
from kvwitness.gpu_tracer.content.reference import GOLDEN, STIR_1, STIR_2

_WIDTH = 16
"""Words of a row that are read at a time: 128 bytes, one line of the cache. Wider ones cost more instructions."""
_CHUNKS = 16
"""How many of those one program reads of a row."""
_GOLDEN, _STIR_1, _STIR_2 = tl.constexpr(GOLDEN), tl.constexpr(STIR_1), tl.constexpr(STIR_2)
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""How it is compiled; there is no floating point in it."""


@triton.jit
def cells(
    bases,  # [part], addresses
    keys,  # [lane, part, head, word], filled up with zeros to whole pieces
    table,  # how many pages, then their numbers
    out,  # [lane, piece, part, slot]
    room,  # slots that `out` has room for
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    ALIGN: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOT: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    UNITS: tl.constexpr,
    STEP: tl.constexpr,
    PIECES: tl.constexpr,  # of a head
    CHUNKS: tl.constexpr,  # of a piece
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """NH of the rows of some slots of one part."""
    part, parts, piece = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    held = tl.load(table) * SLOTS
    first = tl.program_id(0) * BLOCK
    if first >= held:
        return
    at = first + tl.arange(0, BLOCK)
    page = tl.load(table + 1 + at // SLOTS, mask=at < held, other=-1)
    there = (page >= 0) & (page < PAGES)  # a number that is no page's reads nothing, and gives 0
    head = piece // PIECES
    base = tl.load(bases + part)
    row = page * PAGE + (at % SLOTS).to(tl.int64) * SLOT + head.to(tl.int64) * HEAD
    column = (piece % PIECES) * (CHUNKS * WIDTH) + tl.arange(0, WIDTH)
    per_word: tl.constexpr = 8 // UNIT
    whole: tl.constexpr = PIECES * CHUNKS * WIDTH * per_word == UNITS
    key = keys + (part * HEADS + head) * (PIECES * CHUNKS * WIDTH) + column
    first_sum = tl.zeros([BLOCK, WIDTH], tl.uint64)
    second_sum = tl.zeros([BLOCK, WIDTH], tl.uint64)
    for chunk in tl.static_range(CHUNKS):
        word = column + chunk * WIDTH
        if UNIT == 8:
            words = tl.multiple_of(base.to(tl.pointer_type(tl.int64)), ALIGN)
            where = words + row[:, None] + (word * STEP)[None, :]
            if whole or (PIECES == 1 and (chunk + 1) * WIDTH <= UNITS):
                x = tl.load(where, mask=there[:, None], other=0)
            else:
                x = tl.load(where, mask=there[:, None] & (word < UNITS)[None, :], other=0)
        else:
            x = tl.zeros([BLOCK, WIDTH], tl.int64)
            for place in tl.static_range(per_word):
                unit = word * per_word + place
                where = row[:, None] + (unit * STEP)[None, :]
                mask = there[:, None] & (unit < UNITS)[None, :]
                if UNIT == 4:
                    some = tl.load(base.to(tl.pointer_type(tl.uint32)) + where, mask=mask, other=0)
                elif UNIT == 2:
                    some = tl.load(base.to(tl.pointer_type(tl.uint16)) + where, mask=mask, other=0)
                else:
                    some = tl.load(base.to(tl.pointer_type(tl.uint8)) + where, mask=mask, other=0)
                x |= some.to(tl.int64) << (place * UNIT * 8)
        low, high = x.to(tl.uint32), (x >> 32).to(tl.uint32)
        k = tl.load(key + chunk * WIDTH)[None, :]
        first_sum += (low + k.to(tl.uint32)).to(tl.uint64) * (high + (k >> 32).to(tl.uint32)).to(tl.uint64)
        if LANES == 2:
            k = tl.load(key + parts * (HEADS * PIECES * CHUNKS * WIDTH) + chunk * WIDTH)[None, :]
            second_sum += (low + k.to(tl.uint32)).to(tl.uint64) * (high + (k >> 32).to(tl.uint32)).to(tl.uint64)
    pieces: tl.constexpr = HEADS * PIECES
    place = (piece * parts + part).to(tl.int64) * room + at
    tl.store(out + place, tl.where(there, tl.sum(first_sum, 1).to(tl.int64), 0), mask=at < held)
    if LANES == 2:
        place += (pieces * parts).to(tl.int64) * room
        tl.store(out + place, tl.where(there, tl.sum(second_sum, 1).to(tl.int64), 0), mask=at < held)


@triton.jit
def mixed(value):
    """As `reference.mix`."""
    value = (value ^ (value >> 30)) * _STIR_1
    value = (value ^ (value >> 27)) * _STIR_2
    return value ^ (value >> 31)


@triton.jit
def rolled(
    rows,  # [lane, layer, row], addresses of rows of cells; where a layer has fewer, of a row of zeros
    table,  # as of `cells`; after the room for pages, how many positions hold something
    out,  # [lane, layer, page]
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROOM: tl.constexpr,  # pages
    BLOCK: tl.constexpr,
):
    """One page of one layer, from its cells: `reference.page`."""
    page, layer, layers, lane = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    if page >= tl.load(table):
        return
    slot = tl.arange(0, BLOCK)
    held = (slot < SLOTS) & (page * SLOTS + slot < tl.load(table + 1 + ROOM))
    total = tl.zeros([BLOCK], tl.int64)
    for at in range(ROWS):
        address = tl.load(rows + (lane * layers + layer) * ROWS + at)
        where = address.to(tl.pointer_type(tl.int64)) + page * SLOTS + slot
        total += tl.load(where, mask=held, other=0)
    stirred = mixed(total.to(tl.uint64) ^ mixed((slot + 1).to(tl.uint64) * _GOLDEN))
    tl.store(out + (lane * layers + layer) * ROOM + page, tl.sum(tl.where(held, stirred, 0), 0).to(tl.int64))


@dataclass(frozen=True)
class Plan:
    """How the rows of one geometry are cut into pieces."""

    geometry: Geometry
    pieces: int
    """Of a head."""
    chunks: int
    """Of a piece."""

    @classmethod
    def of(cls, geometry: Geometry) -> Plan:
        """Even pieces, as few as can be."""
        chunks = -(-geometry.words // _WIDTH)
        pieces = -(-chunks // _CHUNKS)
        return cls(geometry, pieces, -(-chunks // pieces))

    @property
    def slots(self) -> int:
        """Slots of a program: more of short rows, so that what a program does but once weighs less.

        With more of long rows the registers would not suffice (benchmarks/fingerprint.py counts).
        """
        return 128 if self.chunks <= 2 else 64 if self.chunks <= 8 else 32

    @property
    def padded_words(self) -> int:
        """Words of a row that is filled up to whole pieces."""
        return self.pieces * self.chunks * _WIDTH

    def constants(self, lanes: int) -> dict[str, int]:
        """What the kernel is compiled for."""
        one = self.geometry
        return {
            "LANES": lanes,
            "UNIT": one.unit,
            "ALIGN": 16 if one.aligned else one.unit,
            "PAGES": one.pages,
            "PAGE": one.page,
            "SLOTS": one.slots,
            "SLOT": one.slot,
            "HEADS": one.heads,
            "HEAD": one.head,
            "UNITS": one.units,
            "STEP": one.step,
            "PIECES": self.pieces,
            "CHUNKS": self.chunks,
            "WIDTH": _WIDTH,
            "BLOCK": self.slots,
        }


class Launch:
    """Takes the cells of parts that have one geometry and lie on one device.

    `keys` is `[lane, part, head, word]`, the heads as the caches have them. The parts' memory is held by its address:
    when a cache moves, make a new one.
    """

    def __init__(self, geometry: Geometry, parts: Sequence[torch.Tensor], keys: torch.Tensor) -> None:
        self._plan = Plan.of(geometry)
        self._lanes, self._parts = keys.shape[:2]
        self._slots = geometry.slots
        self._held = tuple(parts)
        self._bases = torch.tensor([part.data_ptr() for part in parts], dtype=torch.int64, device=keys.device)
        rows = keys.reshape(self._lanes, self._parts, geometry.heads, -1)
        room = self._plan.padded_words - rows.shape[-1]
        self._keys = torch.nn.functional.pad(rows, (0, room)).contiguous()

    def room(self, pages: int) -> torch.Tensor:
        """Memory for the cells of so many pages, uninitialised: `[lane, piece, part, slot]`."""
        shape = (self._lanes, self._plan.geometry.heads * self._plan.pieces, self._parts, pages * self._slots)
        return torch.empty(shape, dtype=torch.int64, device=self._keys.device)

    def into(self, out: torch.Tensor, table: torch.Tensor) -> None:
        """Enqueue one launch: allocates nothing, and waits for nothing once it has been compiled.

        `table` holds the number of pages, then theirs, on the device; `out` is as from `room`, and has room for as
        many pages as the table. What is past the number of pages stays as it is; a number that is no page's gives 0.
        """
        room = out.shape[-1]
        grid = (-(-room // self._plan.slots), self._parts, out.shape[1])
        cells[grid](self._bases, self._keys, table, out, room, **self._plan.constants(self._lanes), **OPTIONS)


class RollUp:
    """Rolls cells up to pages, layer by layer, where the launches of a cache have left them.

    `rooms` are those of the launches, for so many pages each; `layers` says, for each room, the place of the layer of
    each of its parts.
    """

    def __init__(self, rooms: Sequence[torch.Tensor], layers: Sequence[Sequence[int]], slots: int, pages: int) -> None:
        lanes, number = rooms[0].shape[0], 1 + max(max(places) for places in layers)
        rows: list[list[list[int]]] = [[[] for _ in range(number)] for _ in range(lanes)]
        for room, places in zip(rooms, layers, strict=True):
            for lane in range(lanes):
                for piece in range(room.shape[1]):
                    for part, place in enumerate(places):
                        rows[lane][place].append(room[lane, piece, part].data_ptr())
        self._most = max(len(one) for of_lane in rows for one in of_lane)
        self._nothing = torch.zeros(pages * slots, dtype=torch.int64, device=rooms[0].device)
        rest = self._nothing.data_ptr()
        filled = [[one + [rest] * (self._most - len(one)) for one in of_lane] for of_lane in rows]
        self._rows = torch.tensor(filled, dtype=torch.int64, device=rooms[0].device)
        self._held, self._slots, self._pages = tuple(rooms), slots, pages
        self.shape = (lanes, number, pages)

    def into(self, out: torch.Tensor, table: torch.Tensor) -> None:
        """Enqueue one launch. `table` is as of `Launch.into`, with the valid positions after the room for pages."""
        lanes, layers, pages = self.shape
        rolled[(pages, layers, lanes)](
            self._rows,
            table,
            out,
            ROWS=self._most,
            SLOTS=self._slots,
            ROOM=self._pages,
            BLOCK=triton.next_power_of_2(self._slots),
            **OPTIONS,
        )
