"""Puts together what `allocator` has read: where a cache lies, what else torch has, and who has the rest of the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvwitness.gpu_tracer.allocator import ALLOCATED, FREE, Block, Extent, Recording, Segment, merged
from kvwitness.gpu_tracer.nvml import plain_uuid


@dataclass(frozen=True)
class Held:
    """A tensor, and what torch's allocator says of its bytes. All sizes are in bytes."""

    extent: Extent
    device: int | None
    """torch's number of the GPU; None where no segment has any of it."""
    segments: tuple[int, ...]
    """Addresses of the segments in which it lies."""
    pools: tuple[tuple[int, int], ...]
    allocated: int
    """In blocks that are in use, as it should be."""
    pending: int
    """In blocks that were freed and wait for a stream."""
    free: int
    """In blocks that are free: the allocator may hand these bytes to anybody."""
    outside: int
    """In no segment of torch's: other memory, or memory that went back to CUDA."""
    places: tuple[str, ...]
    """What made the blocks, where that was kept."""

    @property
    def sound(self) -> bool:
        """Whether all of it is in blocks that are in use."""
        return self.allocated == self.extent.size


@dataclass(frozen=True)
class OnDevice:
    """One GPU, as torch's allocator in one process has it. All sizes are in bytes."""

    device: int
    uuid: str | None
    reserved: int
    """What torch has from CUDA."""
    by_state: dict[str, int]
    """State of blocks -> bytes; with those of `reserved` that no block has under `unlisted`, where there are any."""
    by_pool: dict[str, int]
    """torch's memory pool -> bytes of its segments."""
    cache: int
    """Of the blocks in use: what the given tensors cover."""
    others: int
    """Of the blocks in use: all else."""
    owners: tuple[tuple[str, int], ...]
    """The code that made `others`, by bytes, the most first."""
    neighbours: int
    """Of `others`: what lies in the same segments as the given tensors."""
    whole: dict[str, int]
    """By NVML, as far as it is known: `total`, `used`, `free`, `own` (of this process), `own_outside` (CUDA's context,
    libraries, whatever this process has not from torch), `others` (other processes), `untold` (used, and by no process
    that NVML names)."""
    absent: dict[str, str]
    """What of `whole` is not known -> why."""


@dataclass(frozen=True)
class MemoryView:
    """Whose the memory is."""

    tensors: tuple[Held, ...]
    devices: tuple[OnDevice, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"tensors": [_tensor(one) for one in self.tensors], "devices": [_on(one) for one in self.devices]}


def view(recorded: Recording, extents: Sequence[Extent] = (), *, most: int = 10) -> MemoryView:
    """Put together a recording and tensors, those in it and `extents`; at most `most` owners of the rest are named."""
    wanted = [*recorded.extents, *extents]
    held = tuple(_held(one, recorded.segments) for one in wanted)
    numbers = sorted({one.device for one in recorded.segments})
    return MemoryView(held, tuple(_on_device(n, recorded, wanted, held, most) for n in numbers))


def _held(extent: Extent, segments: Sequence[Segment]) -> Held:
    sizes: Counter[str] = Counter()
    found: list[Segment] = []
    places: list[str] = []
    for segment in segments:
        if not _common(extent, segment):
            continue
        found.append(segment)
        for block in segment.blocks:
            if common := _common(extent, block):
                sizes[block.state] += common
                places.append(block.place)
    allocated, free = sizes.pop(ALLOCATED, 0), sizes.pop(FREE, 0)
    # a segment may have bytes that no block lists: nobody has them
    listed = sum(sizes.values()) + allocated + free
    unlisted = sum(_common(extent, segment) for segment in found) - listed
    return Held(
        extent,
        found[0].device if found else None,
        tuple(one.address for one in found),
        tuple(dict.fromkeys(one.pool for one in found)),
        allocated,
        sum(sizes.values()),
        free + unlisted,
        extent.size - listed - unlisted,
        tuple(dict.fromkeys(places)),
    )


def _common(extent: Extent, piece: Segment | Block) -> int:
    """Bytes that both have."""
    return max(0, min(extent.end, piece.address + piece.size) - max(extent.address, piece.address))


def _on_device(number: int, recorded: Recording, wanted: Sequence[Extent], held: Sequence[Held], most: int) -> OnDevice:
    segments = [one for one in recorded.segments if one.device == number]
    states: Counter[str] = Counter()
    pools: Counter[str] = Counter()
    owners: Counter[str] = Counter()
    covered = merged((one.address, one.end) for one in wanted)
    shared = {address for one in held for address in one.segments}
    cache = neighbours = 0
    for segment in segments:
        pools[f"{segment.pool[0]}.{segment.pool[1]}"] += segment.size
        for block in segment.blocks:
            states[block.state] += block.size
            if block.state != ALLOCATED:
                continue
            ours = _covered(block, covered)
            cache += ours
            if rest := block.size - ours:
                owners[block.place] += rest
                neighbours += rest if segment.address in shared else 0
    reserved = sum(one.size for one in segments)
    if unlisted := reserved - sum(states.values()):
        states["unlisted"] = unlisted
    uuid = recorded.uuids.get(number)
    whole, absent = _whole(recorded, uuid, reserved)
    return OnDevice(
        number, uuid, reserved, dict(states), dict(pools), cache, sum(owners.values()),
        tuple(owners.most_common(most)), neighbours, whole, absent,
    )  # fmt: skip


def _covered(block: Block, spans: Iterable[tuple[int, int]]) -> int:
    end = block.address + block.size
    return sum(max(0, min(end, last) - max(block.address, first)) for first, last in spans)


_WHOLE = ("total", "used", "free", "own", "own_outside", "others", "untold")


def _whole(recorded: Recording, uuid: str | None, reserved: int) -> tuple[dict[str, int], dict[str, str]]:
    """What NVML adds, and why it does not."""
    if uuid is None:
        return {}, dict.fromkeys(_WHOLE, "the GPU's UUID was not recorded")
    same = [d for of, d in recorded.devices.items() if plain_uuid(of) == plain_uuid(uuid)]
    if not same:
        return {}, dict.fromkeys(_WHOLE, recorded.absent or "NVML knows no GPU of that UUID")
    facts, missing = same[0].get("facts", {}), same[0].get("absent", {})
    whole = {n: facts[f"memory_{n}_bytes"] for n in ("total", "used", "free") if f"memory_{n}_bytes" in facts}
    absent = {n: missing.get("memory", "not told by this driver") for n in ("total", "used", "free") if n not in whole}
    processes = facts.get("compute_processes")
    if processes is None:
        return whole, absent | dict.fromkeys(_WHOLE[3:], missing.get("compute_processes", "not recorded"))
    told = {one["pid"]: one["bytes"] for one in processes if "bytes" in one}
    silent = [one["pid"] for one in processes if "bytes" not in one]
    if recorded.pid in told:
        whole["own"] = told[recorded.pid]
        whole["own_outside"] = whole["own"] - reserved
    else:
        # in a container, the driver may name it by another number, and it would be taken for somebody else
        absent |= dict.fromkeys(("own", "own_outside"), f"NVML tells no memory of process {recorded.pid}")
    if silent:
        why = f"NVML tells no memory of {'process' if len(silent) == 1 else 'processes'} {', '.join(map(str, silent))}"
        return whole, absent | dict.fromkeys(("others", "untold"), why)
    if recorded.pid in told:
        whole["others"] = sum(told.values()) - told[recorded.pid]
    else:
        absent["others"] = absent["own"]
    if "used" in whole:
        whole["untold"] = whole["used"] - sum(told.values())
    else:
        absent["untold"] = absent["used"]
    return whole, absent


def _tensor(one: Held) -> dict[str, Any]:
    return {
        "name": one.extent.name,
        "address": one.extent.address,
        "bytes": one.extent.size,
        "device": one.device,
        "sound": one.sound,
        "allocated": one.allocated,
        "pending": one.pending,
        "free": one.free,
        "outside": one.outside,
        "segments": list(one.segments),
        "pools": [list(pool) for pool in one.pools],
        "places": list(one.places),
    }


def _on(one: OnDevice) -> dict[str, Any]:
    return {
        "device": one.device,
        "uuid": one.uuid,
        "reserved": one.reserved,
        "by_state": one.by_state,
        "by_pool": one.by_pool,
        "cache": one.cache,
        "others": one.others,
        "owners": [{"place": place, "bytes": size} for place, size in one.owners],
        "neighbours": one.neighbours,
        "whole": one.whole,
        "absent": one.absent,
    }
