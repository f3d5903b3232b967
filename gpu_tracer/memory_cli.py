"""`kvwitness attach memory`: whose a GPU's memory is, by torch's allocator and the driver."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvwitness.gpu_tracer.allocator import Extent, SnapshotError, load
from kvwitness.gpu_tracer.memory_view import Held, MemoryView, OnDevice, view

_UNSOUND, _REFUSED = 1, 2
_TENSOR = re.compile(r"(.+)=(0x[0-9a-fA-F]+|\d+)\+(\d+)")
_MIB = 1 << 20
_TOLD_TENSORS = 20


def memory(
    snapshot: Annotated[
        Path, typer.Argument(help="Written by allocator.record, or a pickle of torch.cuda.memory._dump_snapshot.")
    ],
    tensor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ADDRESS+BYTES", help="A tensor of the cache that is not in the file; repeatable."),
    ] = None,
    format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Say in which segments of torch's allocator the tensors of a KV cache lie, and who has the rest of the GPU.

    Reads a file; nothing in it is run. Status 0, or 1 where bytes of a tensor are in no block that is in use, or 2
    where the file cannot be read.
    """
    if format not in ("text", "json"):
        _refuse(f"--format is text or json, not {format}")
    extents = [_extent(text) for text in tensor or ()]
    try:
        seen = view(load(snapshot), extents)
    except (SnapshotError, OSError) as error:
        _refuse(str(error))
    print(json.dumps(seen.to_dict(), indent=2) if format == "json" else "\n".join(told(seen)))
    if not all(one.sound for one in seen.tensors):
        raise typer.Exit(_UNSOUND)


def _extent(text: str) -> Extent:
    found = _TENSOR.fullmatch(text)
    if found is None:
        _refuse(f"--tensor {text}: not NAME=ADDRESS+BYTES, such as K0=0x7f0000000000+1048576")
    return Extent(found[1], int(found[2], 0), int(found[3]))


def told(seen: MemoryView) -> list[str]:
    """Whose the memory is, as lines for people."""
    lines = _tensors(seen.tensors)
    for one in seen.devices:
        lines += _device(one)
    return lines


def _tensors(tensors: tuple[Held, ...]) -> list[str]:
    if not tensors:
        return ["no tensors were given: all that is in use counts as others"]
    unsound = [one for one in tensors if not one.sound]
    total, segments = sum(one.extent.size for one in tensors), {a for one in tensors for a in one.segments}
    lines = [f"{len(tensors)} tensors, {_size(total)}, in {len(segments)} segments"]
    for one in unsound[:_TOLD_TENSORS]:
        parts = {"freed and waiting for a stream": one.pending, "FREE for anybody": one.free}
        parts["in no segment of torch's"] = one.outside
        wrong = ", ".join(f"{_size(size)} {what}" for what, size in parts.items() if size)
        lines.append(f"  {one.extent.name} at {one.extent.address:#x}, {_size(one.extent.size)}: {wrong}")
    if len(unsound) > _TOLD_TENSORS:
        lines.append(f"  and {len(unsound) - _TOLD_TENSORS} more; --format json has all")
    if not unsound:
        lines.append("  all of them in blocks that are in use")
    return lines


def _device(one: OnDevice) -> list[str]:
    lines = [f"GPU {one.device} of torch's{f', {one.uuid}' if one.uuid else ''}"]
    states = ", ".join(f"{_size(size)} {state}" for state, size in Counter(one.by_state).most_common())
    lines.append(f"  torch      {_size(one.reserved)} from CUDA: {states}")
    if len(one.by_pool) > 1 or "0.0" not in one.by_pool:
        lines.append("  pools      " + ", ".join(f"{pool}: {_size(size)}" for pool, size in one.by_pool.items()))
    lines.append(f"  in use     {_size(one.cache)} the given tensors, {_size(one.others)} others")
    if one.neighbours:
        lines.append(f"             {_size(one.neighbours)} of the others in the same segments as the tensors")
    lines += [f"             {_size(size)} {place}" for place, size in one.owners]
    names = {"total": "in all", "used": "used", "free": "free", "own": "of this process"}
    names |= {"own_outside": "of it not by torch", "others": "of other processes", "untold": "of nobody that is named"}
    if one.whole:
        lines.append("  GPU        " + ", ".join(f"{_size(one.whole[n])} {names[n]}" for n in names if n in one.whole))
    for why in dict.fromkeys(one.absent.values()):
        lines.append(f"  not known  {', '.join(n for n in one.absent if one.absent[n] == why)}: {why}")
    return lines


def _size(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB" if abs(size) >= _MIB // 10 or not size else f"{size:,} bytes"


def _refuse(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    raise typer.Exit(_REFUSED)
