"""Whose a GPU's memory is: torch's record of its own allocations, laid beside the tensors of a KV cache.

torch takes memory from CUDA in *segments* and hands it out in *blocks*. `record` writes down, in the process that has
the cache, the segments, where the given tensors lie, and what NVML says of the GPU; `memory_view.view` puts the three
together, there or anywhere later: where the cache lies, who else has something there, and who has the rest.

Structures are those of `torch.cuda.memory._snapshot()`, as torch documents it. Only `record` needs torch, and
only where it is not given a snapshot.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvwitness.gpu_tracer.nvml import Nvml, Survey

ALLOCATED, FREE = "active_allocated", "inactive"
"""States of a block: in use; free to be handed out. All others are on the way from one to the other."""
NO_PLACE = "not recorded"
"""In place of the code that made a block, where torch was not told to keep that."""


class SnapshotError(ValueError):
    """What was given is no snapshot; says where it differs, and what to do."""


@dataclass(frozen=True)
class Extent:
    """Where a tensor lies: the bytes from its first to its last, gaps of a strided view included."""

    name: str
    address: int
    size: int
    """Bytes."""

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.address + self.size


@dataclass(frozen=True)
class Block:
    """A piece of a segment that was handed out, or may be."""

    address: int
    size: int
    """Bytes."""
    state: str
    place: str
    """`file:line function` that it was made in, or `NO_PLACE`."""


@dataclass(frozen=True)
class Segment:
    """A piece of a GPU's memory that torch has from CUDA."""

    device: int
    """torch's number of the GPU, which is not NVML's."""
    address: int
    size: int
    """Bytes."""
    pool: tuple[int, int]
    """Of torch's memory pools: (0, 0) is the common one, others are of CUDA graphs and of `torch.cuda.MemPool`."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Recording:
    """What `record` wrote, or a snapshot alone."""

    segments: tuple[Segment, ...]
    extents: tuple[Extent, ...] = ()
    pid: int | None = None
    uuids: Mapping[int, str] = field(default_factory=dict)
    """torch's number of a GPU -> its UUID."""
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """UUID -> what NVML said of it: `facts` and `absent`."""
    absent: str | None = None
    """Why there are no `devices`."""


# -- reading --------------------------------------------------------------------------------------------------


def load(path: str | Path) -> Recording:
    """A file that `record` wrote, or one of `torch.cuda.memory._dump_snapshot`.

    A pickle is read without running anything: one that names a class or function is refused. Raises SnapshotError, and
    OSError where the file cannot be read.
    """
    data = Path(path).read_bytes()
    if data[:1] in (b"{", b"["):
        try:
            return recording(json.loads(data))
        except json.JSONDecodeError as error:
            raise SnapshotError(f"{path} is no JSON: {error}") from None
    with open(path, "rb") as file:
        try:
            return recording(_Plain(file).load())
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(
                f"{path} is neither JSON nor a pickle ({type(error).__name__}); "
                "torch.cuda.memory._dump_snapshot(FILE) and allocator.record(FILE, ...) write what can be read"
            ) from None


class _Plain(pickle.Unpickler):
    """Containers, numbers and strings alone: a snapshot is made of nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise SnapshotError(f"refused: the pickle names {module_name}.{global_name}, and a snapshot names nothing")


def recording(document: Any) -> Recording:
    """What `torch.cuda.memory._snapshot()` or `memory_snapshot()` returns, or `record` has written.

    Raises SnapshotError.
    """
    given = document if isinstance(document, Mapping) else {"segments": document}
    found = given.get("segments")
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise SnapshotError("no segments in it: not a snapshot of torch's allocator")
    segments = tuple(sorted((_segment(n, one) for n, one in enumerate(found)), key=lambda one: one.address))
    tensors = given.get("tensors") or {}
    try:
        extents = tuple(Extent(str(name), int(address), int(size)) for name, (address, size) in tensors.items())
        uuids = {int(number): str(uuid) for number, uuid in (given.get("uuids") or {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise SnapshotError("tensors or uuids are not as allocator.record writes them") from None
    return Recording(
        segments, extents, given.get("pid"), uuids, given.get("devices") or {}, given.get("devices_absent")
    )


def _segment(number: int, given: Any) -> Segment:
    try:
        blocks, at = [], int(given["address"])
        for one in given["blocks"]:
            at = int(one.get("address", at))  # older versions of torch leave it to be counted
            blocks.append(Block(at, int(one["size"]), str(one["state"]), _place(one.get("frames"))))
            at += int(one["size"])
        first, second = given.get("segment_pool_id", (0, 0))
        return Segment(
            int(given.get("device", 0)),
            int(given["address"]),
            int(given["total_size"]),
            (int(first), int(second)),
            tuple(blocks),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"segment {number} is not one of torch's allocator: {error!r}") from None


def _place(frames: Any) -> str:
    """The innermost line that is Python, and not torch's own."""
    named = [f for f in frames or () if isinstance(f, Mapping) and str(f.get("filename", "")).endswith(".py")]
    own = [f for f in named if "/torch/" not in str(f["filename"])]
    for frame in own or named:
        return f"{frame['filename']}:{frame.get('line', '?')} {frame.get('name', '')}".rstrip()
    return NO_PLACE


# -- recording ------------------------------------------------------------------------------------------------


def extents_of(tensors: Mapping[str, Any]) -> list[Extent]:
    """Where tensors lie. Views are taken from their first byte to their last; empty ones are left out.

    For the parts of a layout: `extents_of({part.name: part.data for part in parts})`.
    """
    out = []
    for name, tensor in tensors.items():
        if tensor.numel():
            last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            out.append(Extent(name, int(tensor.data_ptr()), (last + 1) * tensor.element_size()))
    return out


def record(
    path: str | Path,
    tensors: Mapping[str, Any],
    *,
    snapshot: Any = None,
    uuids: Mapping[int, str] | None = None,
    nvml: Nvml | None = None,
) -> None:
    """Write to `path`, as JSON, what `view` needs: torch's segments, where `tensors` lie, and what NVML says now.

    Call it where a pause of some milliseconds is no harm: it takes the allocator's lock and asks the driver. `snapshot`
    is one taken before (default: one without history is taken here), `uuids` are those of torch's GPUs by their numbers
    (default: torch is asked). Raises SnapshotError where this process has no CUDA in use, and OSError where the file
    cannot be written.
    """
    segments = _segments_now() if snapshot is None else snapshot
    if uuids is None:
        uuids = _uuids_now() if snapshot is None else {}
    document = {
        "segments": segments["segments"] if isinstance(segments, Mapping) else segments,
        "tensors": {one.name: [one.address, one.size] for one in extents_of(tensors)},
        "pid": os.getpid(),
        "uuids": dict(uuids),
    }
    survey = nvml.survey() if nvml is not None else _survey_now()
    document["devices"] = {one.uuid: one.to_dict() for one in survey.devices if one.uuid}
    document["devices_absent"] = "; ".join(survey.absent.values()) or None
    recording(document)  # what cannot be read back is not written
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def _survey_now() -> Survey:
    with Nvml() as own:
        return own.survey()


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        raise SnapshotError("this process has no CUDA in use by torch: call it in the process that has the cache")
    return torch.cuda


def _segments_now() -> Any:
    cuda = _cuda()
    try:
        return cuda.memory_snapshot(include_traces=False)
    except TypeError:  # older versions of torch have no such choice
        return cuda.memory_snapshot()


def _uuids_now() -> dict[int, str]:
    cuda = _cuda()
    properties = [cuda.get_device_properties(n) for n in range(cuda.device_count())]
    return {n: str(one.uuid) for n, one in enumerate(properties) if hasattr(one, "uuid")}


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches [first, end) without overlaps, in order: what the given ones cover together."""
    out: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((first, end))
    return out
