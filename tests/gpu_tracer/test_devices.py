"""What NVIDIA's driver says of GPUs, asked of a small library in its place that is compiled here, and of none at all.

The shim has the real one's functions and structures, and does not stand in for a GPU: what a real driver answers on a
given card is not shown here.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit.store import Store
from kvwitness.gpu_tracer.device_sampler import SIZES, DeviceSampler
from kvwitness.gpu_tracer.nvml import LIBRARY, QUESTIONS, Nvml, Survey
from kvwitness.gpu_tracer.tracer import Tracer
from tests.gpu_tracer.nvml_shim import FIRST, GIB, PARTS, SECOND, State, needs_compiler
from tests.gpu_tracer.support import recorded, take

WAIT_S = 60


def look(library: Path) -> Survey:
    with Nvml(str(library)) as nvml:
        return nvml.survey()


def attach(*arguments: str, library: Path | None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`kvwitness attach devices`, as a person has it."""
    own = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "KVWITNESS_RING_DIR")}
    path = {} if library is None else {"LD_LIBRARY_PATH": str(library.parent)}
    return subprocess.run(
        [Path(sys.executable).parent / "kvwitness", "attach", "devices", *arguments],
        env=own | path | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


# -- one look -----------------------------------------------------------------------------------------------


@needs_compiler
def test_everything_that_a_driver_says(shim: Path, state: State) -> None:
    survey = look(shim)
    assert survey.driver == {"driver_version": "570.86.15", "nvml_version": "12.570.86.15", "cuda_version": "12.8"}
    assert survey.absent == {}
    first, second = survey.devices
    assert (first.uuid, first.index, first.parent, first.absent) == (FIRST, 0, None, {})
    assert (second.uuid, second.index) == (SECOND, 1)
    assert first.facts == {
        "name": "NVIDIA Shim 80GB",
        "memory_total_bytes": 80 * GIB,
        "memory_reserved_bytes": GIB // 2,
        "memory_free_bytes": 80 * GIB - GIB - GIB // 2,
        "memory_used_bytes": GIB,
        "compute_processes": [{"pid": 4711, "bytes": GIB}, {"pid": 4712}],
        "graphics_processes": [],
        "mig": False,
        "ecc": True,
        "ecc_corrected": 5,
        "ecc_uncorrected": 0,
        "ecc_corrected_lifetime": 105,
        "ecc_uncorrected_lifetime": 100,
        "rows_remapped_corrected": 3,
        "rows_remapped_uncorrected": 0,
        "row_remap_pending": False,
        "row_remap_failed": False,
        "clock_sm_mhz": 1755,
        "clock_sm_max_mhz": 1980,
        "clock_memory_mhz": 2619,
        "slowed_by": ["power_cap", "hardware_thermal", "0x8000"],
    }


REFUSALS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMemoryInfo_v2": "memory",
    "nvmlDeviceGetComputeRunningProcesses_v3": "compute_processes",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "graphics_processes",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
    "nvmlDeviceGetMaxClockInfo": "clock_sm_max_mhz",
    "nvmlDeviceGetCurrentClocksEventReasons": "slowed_by",
    "nvmlDeviceGetUUID": "uuid",
}


@needs_compiler
@pytest.mark.parametrize(
    ("code", "reason"), [(3, "not supported"), (4, "no permission"), (15, "the GPU is lost"), (777, "error 777")]
)
@pytest.mark.parametrize("function", REFUSALS)
def test_each_fact_may_be_refused_by_itself(shim: Path, state: State, function: str, code: int, reason: str) -> None:
    whole = look(shim).devices[0]
    state(**{function: code})
    left = look(shim).devices[0]
    assert list(left.absent) == [REFUSALS[function]]
    assert left.absent[REFUSALS[function]].startswith(reason)
    gone = set(whole.facts) - set(left.facts)
    assert all(left.facts[name] == value for name, value in whole.facts.items() if name not in gone)
    assert len(gone) <= 4
    assert left.uuid == (None if function == "nvmlDeviceGetUUID" else FIRST)


@needs_compiler
def test_a_card_without_ecc_has_no_counts_either(shim: Path, state: State) -> None:
    state(nvmlDeviceGetEccMode=3, nvmlDeviceGetTotalEccErrors=3, nvmlDeviceGetRemappedRows=3)
    device = look(shim).devices[1]
    asked = [name for name in QUESTIONS if name.startswith("ecc")]
    assert device.absent == dict.fromkeys([*asked, "remapped_rows"], "not supported")


@needs_compiler
def test_an_older_driver_is_asked_in_its_own_way(old_shim: Path, state: State) -> None:
    device = look(old_shim).devices[0]
    assert device.facts["memory_used_and_reserved_bytes"] == GIB + GIB // 2
    assert "memory_used_bytes" not in device.facts
    assert device.facts["compute_processes"] == [{"pid": 99, "bytes": GIB}]
    assert device.facts["slowed_by"] == ["idle"]
    assert device.absent == {"graphics_processes": "not in this driver"}


@needs_compiler
@pytest.mark.parametrize(
    ("refused", "absent"),
    [
        ({"nvmlInit_v2": 9}, {"driver": "the driver is not loaded"}),
        ({"nvmlInit_v2": 18}, {"driver": "library and driver are of different versions"}),
        ({"nvmlDeviceGetCount_v2": 4}, {"devices": "no permission"}),
        ({"gpus": 0}, {}),
    ],
)
def test_no_devices_and_why(shim: Path, state: State, refused: dict[str, int], absent: dict[str, str]) -> None:
    state(**refused)
    survey = look(shim)
    assert survey.devices == ()
    assert survey.absent == absent


@needs_compiler
def test_a_driver_that_comes_later_is_found(shim: Path, state: State) -> None:
    state(nvmlInit_v2=9)
    with Nvml(str(shim)) as nvml:
        assert nvml.survey().devices == ()
        state()
        assert len(nvml.survey().devices) == 2


@needs_compiler
def test_a_gpu_that_cannot_be_had_does_not_hide_the_others(shim: Path, state: State) -> None:
    state(gpus=3)
    *two, third = look(shim).devices
    assert [one.uuid for one in two] == [FIRST, SECOND]
    assert (third.uuid, third.absent) == (None, {"device": "invalid argument"})


@needs_compiler
def test_many_processes_are_all_told(shim: Path, state: State) -> None:
    state(processes=300, pid=1000)
    told = look(shim).devices[0].facts["compute_processes"]
    assert [one["pid"] for one in told] == list(range(1000, 1300))


@needs_compiler
def test_parts_that_mig_made(shim: Path, state: State) -> None:
    state(mig=1, mig_pending=1, order=1)
    gpu, *parts, other = look(shim).devices
    assert (gpu.uuid, gpu.facts["mig"], "mig_pending" in gpu.facts) == (SECOND, True, False)
    assert (other.uuid, other.facts["mig"], other.facts["mig_pending"]) == (FIRST, False, True)
    assert [(one.uuid, one.parent) for one in parts] == [(uuid, SECOND) for uuid in PARTS]
    assert [one.facts["memory_total_bytes"] for one in parts] == [40 * GIB] * 2
    assert [one.facts["gpu_instance"] for one in parts] == [1, 2]
    assert parts[1].facts["compute_processes"][0] == {
        "pid": 4711, "bytes": GIB, "gpu_instance": 2, "compute_instance": 0,
    }  # fmt: skip
    assert all(one.absent == {} for one in parts)


@needs_compiler
def test_devices_are_known_by_their_uuid_in_whatever_order(shim: Path, state: State) -> None:
    for order in (0, 1):
        state(order=order, mig=1)
        survey = look(shim)
        device = survey.of(SECOND)
        assert device is not None
        assert (device.index, device.facts["memory_used_bytes"]) == (1 - order, 2 * GIB)
        assert survey.of(SECOND.removeprefix("GPU-").upper()) is device  # as torch writes it
        assert survey.of("GPU-2") is device  # as CUDA takes it
        assert survey.of(PARTS[0]) is not None
        assert survey.of("GPU-9") is survey.of("") is survey.of("GPU-") is None


@needs_compiler
def test_a_forked_child_begins_anew(shim: Path, state: State) -> None:
    with Nvml(str(shim)) as nvml:
        before = nvml.survey()
        if not (pid := os.fork()):
            os._exit(0 if nvml.survey() == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert nvml.survey() == before


# -- recording ------------------------------------------------------------------------------------------------


def states(rings: Path) -> list[dict[str, Any]]:
    """The `device.state` events in the rings, in order."""
    rows = [row for row in recorded(rings) if row["event"] == "device.state"]
    return [json.loads(row["extra"]) for row in rows]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


@needs_compiler
def test_a_sampler_records_what_changes_from_a_thread_of_its_own(shim: Path, state: State, tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    tracer = Tracer(rings, "e/0", sizes=SIZES)
    sampler = DeviceSampler(tracer, every_s=1, only=[SECOND.removeprefix("GPU-")], nvml=Nvml(str(shim)))
    state(order=1)
    sampler.start()
    sampler.start()
    until(lambda: bool(tracer.rings))
    state(uncorrected=3, remapped=1)
    store = Store.create(tmp_path / "store")

    def seen() -> list[dict[str, Any]]:
        assert take(rings, store).report.unknown_fields == {}
        found = store.events().collect().filter(event="device.state").sort("source", "seq")
        return [json.loads(extra) for extra in found["extra"]]

    until(lambda: any(row["facts"]["ecc_uncorrected"] for row in seen()))
    assert sampler.stop(WAIT_S)
    assert tracer.errors == sampler.errors == {}
    assert len(tracer.rings) == 1
    told = seen()
    assert {row["device"] for row in told} == {SECOND}
    assert (told[0]["facts"]["ecc_uncorrected"], told[0]["facts"]["index"]) == (0, 0)
    assert (told[-1]["facts"]["ecc_uncorrected"], told[-1]["facts"]["index"]) == (3, 1)
    assert told[-1]["facts"]["row_remap_pending"] is True
    assert told[-1]["facts"]["driver_version"] == "570.86.15"
    assert all("absent" not in row for row in told)
    tracer.close()


@needs_compiler
def test_what_is_refused_is_on_record_with_its_reason(shim: Path, state: State, tmp_path: Path) -> None:
    state(nvmlDeviceGetEccMode=3, nvmlDeviceGetComputeRunningProcesses_v3=4, mig=1)
    tracer = Tracer(tmp_path / "rings", "e/0", sizes=SIZES)
    DeviceSampler(tracer, nvml=Nvml(str(shim))).sample()
    tracer.close()
    told = {row["device"]: row for row in states(tmp_path / "rings")}
    assert list(told) == [FIRST, SECOND, *PARTS]
    assert told[FIRST]["absent"] == {"compute_processes": "no permission", "ecc": "not supported"}
    assert told[PARTS[0]]["parent"] == SECOND


def test_without_a_library_the_record_says_so_once(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path / "rings", "e/0", sizes=SIZES)
    missing = str(tmp_path / LIBRARY)
    sampler = DeviceSampler(tracer, nvml=Nvml(missing))
    assert [sampler.sample().devices for _ in range(3)] == [()] * 3
    sampler.start()
    assert sampler.stop(WAIT_S)
    tracer.close()
    (only,) = states(tmp_path / "rings")
    assert list(only) == ["absent"]
    assert f"there is no {missing} here" in only["absent"]["library"]


def test_what_is_not_a_library_is_said_in_the_loaders_words(tmp_path: Path) -> None:
    wrong = tmp_path / LIBRARY
    wrong.write_text("not a library")
    survey = Nvml(str(wrong)).survey()
    assert str(wrong) in survey.absent["library"]
    assert "there is no" not in survey.absent["library"]


# -- the command --------------------------------------------------------------------------------------------


@needs_compiler
def test_the_command_tells_people(shim: Path, state: State) -> None:
    state(nvmlDeviceGetRemappedRows=3, nvmlDeviceGetGraphicsRunningProcesses_v3=4, order=1, mig=1)
    done = attach(library=shim, CUDA_VISIBLE_DEVICES=f"{FIRST[:8]},GPU-7,0")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == "driver 570.86.15, NVML 12.570.86.15, CUDA 12.8"
    assert lines[1] == f"{SECOND}  NVIDIA Shim 80GB, NVML index 0"
    assert "memory     2,048 MiB used, 512 MiB kept by the driver, 79,360 MiB free, of 81,920 MiB" in lines
    assert "compute    pid 4711 (1,024 MiB), pid 4712 (memory not told)" in lines
    assert "not supported: remapped_rows" in lines
    assert "no permission: graphics_processes" in lines
    assert "MIG        on" in lines
    assert lines[-4:-1] == [
        f"CUDA_VISIBLE_DEVICES={FIRST[:8]},GPU-7,0",
        f"{FIRST[:8]}: {FIRST}",
        "GPU-7: none of these, or several begin so",
    ]
    assert lines[-1].startswith("0: not told apart")


@needs_compiler
def test_the_command_as_json_for_one_gpu(shim: Path, state: State) -> None:
    state(mig=1)
    done = attach("--format", "json", "--gpu", "GPU-222", library=shim)
    document = json.loads(done.stdout)
    assert [one["device"] for one in document["devices"]] == [SECOND, *PARTS]
    assert document["devices"][0]["absent"] == {}
    assert document["visible"] == {"value": None, "by_uuid": {}, "by_number": []}
    unknown = attach("--gpu", "GPU-9", library=shim)
    assert unknown.returncode == 2
    assert FIRST in unknown.stderr


@needs_compiler
def test_the_command_records_until_it_is_told_to_end(shim: Path, state: State, tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    refused = attach("--record", library=shim)
    assert (refused.returncode, "KVWITNESS_RING_DIR" in refused.stderr) == (2, True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(shim.parent), "KVWITNESS_RING_DIR": str(rings)}
    command = [str(Path(sys.executable).parent / "kvwitness"), "attach", "devices", "--gpu", FIRST, "--record"]
    process = subprocess.Popen([*command, "--every", "1"], env=environment, stdout=subprocess.DEVNULL)
    store = Store.create(tmp_path / "store")

    def several() -> bool:
        take(rings, store)
        return store.events().collect().height >= 2

    until(lambda: any(rings.glob("*.ring")))
    until(several)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert {row["device"] for row in map(json.loads, store.events().collect()["extra"])} == {FIRST}


@pytest.mark.skipif(bool(ctypes.util.find_library("nvidia-ml")), reason="this machine has a driver's library")
def test_the_command_without_any_library() -> None:
    done = attach(library=None)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"No GPU was seen: there is no {LIBRARY} here" in done.stderr
    as_json = attach("--format", "json", library=None)
    assert as_json.returncode == 2
    document = json.loads(as_json.stdout)
    assert document["devices"] == []
    assert "library" in document["absent"]
