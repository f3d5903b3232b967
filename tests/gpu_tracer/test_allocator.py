"""Whose a GPU's memory is, from snapshots in the form that torch documents.

They were put together by hand: there is no GPU here that could have written one.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.allocator import Extent, SnapshotError, load, record, recording
from kvwitness.gpu_tracer.memory_view import view
from kvwitness.gpu_tracer.nvml import Nvml
from tests.gpu_tracer.nvml_shim import FIRST, GIB, State, needs_compiler

MIB = 1 << 20
BASE = 0x7F00_0000_0000
UUIDS = {0: FIRST.removeprefix("GPU-")}


def frames(*places: str) -> list[dict[str, Any]]:
    return [{"filename": place, "line": 7, "name": "make"} for place in places]


def block(size: int, state: str = "active_allocated", *places: str, **more: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, "frames": frames(*places), **more}


def segment(address: int, *blocks: dict[str, Any], pool: tuple[int, int] = (0, 0), device: int = 0) -> dict[str, Any]:
    """As torch has it; blocks get their addresses."""
    at, placed = address, []
    for one in blocks:
        placed.append({"address": at, **one})
        at += one["size"]
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": False,
        "frames": [],
        "blocks": placed,
    }


WEIGHTS = ("/usr/lib/python3/site-packages/torch/nn/module.py", "/app/engine/weights.py")
SNAPSHOT = {
    "segments": [
        segment(BASE + 64 * MIB, block(16 * MIB, "active_allocated", "??", *WEIGHTS), block(4 * MIB, "inactive")),
        segment(
            BASE,
            block(20 * MIB, "active_allocated", "/app/engine/pool.py"),
            block(10 * MIB, "active_allocated", "/app/engine/scratch.py"),
            block(6 * MIB, "active_pending_free"),
            block(4 * MIB, "inactive"),
        ),
        segment(BASE + 256 * MIB, block(8 * MIB), pool=(0, 1)),
    ],
    "device_traces": [[]],
    "allocator_settings": {"expandable_segments": False},
}
K, V = Extent("layer 0 K", BASE, 10 * MIB), Extent("layer 0 V", BASE + 10 * MIB, 10 * MIB)


def test_the_cache_lies_in_a_segment_with_others_beside_it() -> None:
    seen = view(recording(SNAPSHOT), [K, V])
    assert [(one.sound, one.allocated, one.segments, one.pools) for one in seen.tensors] == [
        (True, 10 * MIB, (BASE,), ((0, 0),))
    ] * 2
    assert seen.tensors[0].places == ("/app/engine/pool.py:7 make",)
    (gpu,) = seen.devices
    assert gpu.reserved == 68 * MIB
    assert gpu.by_state == {
        "active_allocated": 54 * MIB, "active_pending_free": 6 * MIB, "inactive": 8 * MIB,
    }  # fmt: skip
    assert gpu.by_pool == {"0.0": 60 * MIB, "0.1": 8 * MIB}
    assert (gpu.cache, gpu.others, gpu.neighbours) == (20 * MIB, 34 * MIB, 10 * MIB)
    assert gpu.owners == (
        ("/app/engine/weights.py:7 make", 16 * MIB),
        ("/app/engine/scratch.py:7 make", 10 * MIB),
        ("not recorded", 8 * MIB),
    )
    assert set(gpu.absent.values()) == {"the GPU's UUID was not recorded"}


@pytest.mark.parametrize(
    ("address", "size", "parts"),
    [
        (BASE + 30 * MIB, 6 * MIB, (0, 6, 0, 0)),
        (BASE + 36 * MIB, 4 * MIB, (0, 0, 4, 0)),
        (BASE + 28 * MIB, 12 * MIB, (2, 6, 4, 0)),
        (BASE + 38 * MIB, 8 * MIB, (0, 0, 2, 6)),
        (BASE + 512 * MIB, 1 * MIB, (0, 0, 0, 1)),
        (BASE + 60 * MIB, 8 * MIB, (4, 0, 0, 4)),
    ],
)
def test_a_tensor_on_memory_that_is_not_in_use(address: int, size: int, parts: tuple[int, ...]) -> None:
    (one,) = view(recording(SNAPSHOT), [Extent("K", address, size)]).tensors
    assert (one.allocated, one.pending, one.free, one.outside) == tuple(MIB * part for part in parts)
    assert not one.sound
    assert one.device == (None if parts[3] * MIB == size else 0)


def test_interleaved_views_are_counted_once() -> None:
    whole = [Extent(f"layer {n}", BASE + n * MIB, 15 * MIB) for n in range(5)]
    (gpu,) = view(recording(SNAPSHOT), whole).devices
    assert (gpu.cache, gpu.others) == (19 * MIB, 35 * MIB)


def test_two_gpus_are_told_apart() -> None:
    both = [*SNAPSHOT["segments"], segment(BASE + 1024 * MIB, block(2 * MIB), device=1)]
    one, other = view(recording(both), [K]).devices
    assert (one.device, one.cache, other.device, other.cache, other.reserved) == (0, 10 * MIB, 1, 0, 2 * MIB)


def test_bytes_of_a_segment_that_no_block_lists_are_nobodys() -> None:
    torn = segment(BASE, block(2 * MIB), block(2 * MIB))
    torn["blocks"].pop()
    seen = view(recording([torn]), [Extent("K", BASE, 4 * MIB)])
    assert (seen.tensors[0].allocated, seen.tensors[0].free) == (2 * MIB, 2 * MIB)
    assert seen.devices[0].by_state["unlisted"] == 2 * MIB


def test_blocks_without_addresses_are_counted_as_older_torch_has_them() -> None:
    old = json.loads(json.dumps(SNAPSHOT))
    for one in old["segments"]:
        for piece in one["blocks"]:
            del piece["address"]
        del one["segment_pool_id"]
    assert view(recording(old), [K, V]).tensors == view(recording(SNAPSHOT), [K, V]).tensors


# -- files ----------------------------------------------------------------------------------------------------


def test_a_pickle_is_read_without_running_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "snapshot.pickle", tmp_path / "bad.pickle"
    good.write_bytes(pickle.dumps(SNAPSHOT))
    assert load(good) == recording(SNAPSHOT)

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    bad.write_bytes(pickle.dumps({"segments": [Runs()]}))
    with pytest.raises(SnapshotError, match=r"refused: .*mkdir"):
        load(bad)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"\x00\x01", "neither JSON nor a pickle"),
        (b"{}", "no segments in it"),
        (b'{"segments": [{"address": 1}]}', "segment 0 is not one of torch's allocator: KeyError"),
        (b'{"segments": [], "tensors": {"K": 5}}', "tensors or uuids are not as"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(SnapshotError, match=message):
        load(file)


class Tensor:
    """What is asked of a tensor, for where torch is not."""

    def __init__(self, address: int, size: int) -> None:
        self.shape, self._address = (size,), address

    def numel(self) -> int:
        return self.shape[0]

    def stride(self) -> tuple[int]:
        return (1,)

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return self._address


CACHE = {"layer 0 K": Tensor(BASE, 10 * MIB), "layer 0 V": Tensor(BASE + 10 * MIB, 10 * MIB)}


def test_without_cuda_nothing_can_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no CUDA in use"):
        record(tmp_path / "memory.json", CACHE)
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_who_has_the_rest_of_the_gpu(shim: Path, state: State, tmp_path: Path) -> None:
    state(order=1, pid=os.getpid(), processes=1)
    file = tmp_path / "memory.json"
    record(file, CACHE, snapshot=SNAPSHOT, uuids=UUIDS, nvml=Nvml(str(shim)))
    (gpu,) = view(load(file)).devices
    assert gpu.uuid == UUIDS[0]
    assert gpu.cache == 20 * MIB
    assert gpu.whole == {
        "total": 80 * GIB, "used": GIB, "free": 80 * GIB - GIB - GIB // 2, "own": GIB, "own_outside": GIB - 68 * MIB,
        "others": 0, "untold": 0,
    }  # fmt: skip
    assert gpu.absent == {}


@needs_compiler
@pytest.mark.parametrize(
    ("told", "absent"),
    [
        ({"pid": 1, "processes": 1}, {"own", "own_outside", "others"}),
        ({"pid": os.getpid(), "processes": 2}, {"others", "untold"}),
        ({"nvmlDeviceGetComputeRunningProcesses_v3": 4}, {"own", "own_outside", "others", "untold"}),
        ({"nvmlDeviceGetMemoryInfo_v2": 3, "pid": 1, "processes": 0}, {"total", "used", "free", "own", "own_outside",
                                                                       "others", "untold"}),
        ({"nvmlInit_v2": 9}, {"total", "used", "free", "own", "own_outside", "others", "untold"}),
    ],
)  # fmt: skip
def test_what_the_driver_does_not_say_is_absent_with_its_reason(
    shim: Path, state: State, tmp_path: Path, told: dict[str, int], absent: set[str]
) -> None:
    if "pid" in told and told["pid"] != 1:
        told = {**told, "pid": os.getpid()}
    state(**told)
    file = tmp_path / "memory.json"
    record(file, CACHE, snapshot=SNAPSHOT, uuids=UUIDS, nvml=Nvml(str(shim)))
    (gpu,) = view(load(file)).devices
    assert set(gpu.absent) == absent
    assert all(gpu.absent.values())
    assert not absent & set(gpu.whole)
    assert gpu.cache == 20 * MIB


# -- the command ----------------------------------------------------------------------------------------------


def attach(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "kvwitness", "attach", "memory", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_tells_people_and_machines(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(SNAPSHOT))
    given = ("--tensor", f"K={BASE:#x}+{10 * MIB}")
    done = attach(str(file), *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 tensors, 10.0 MiB, in 1 segments" in done.stdout
    assert "10.0 MiB the given tensors, 44.0 MiB others" in done.stdout
    assert "16.0 MiB /app/engine/weights.py:7 make" in done.stdout
    freed = attach(str(file), *given, "--tensor", f"V={BASE + 36 * MIB}+{8 * MIB}", "--format", "json")
    assert freed.returncode == 1
    document = json.loads(freed.stdout)
    assert [one["sound"] for one in document["tensors"]] == [True, False]
    assert (document["tensors"][1]["free"], document["tensors"][1]["outside"]) == (4 * MIB, 4 * MIB)


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(SNAPSHOT))
    for arguments in ((str(tmp_path / "none"),), (str(file), "--tensor", "K"), (str(file), "--format", "csv")):
        done = attach(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
