"""What NVIDIA's driver says of the GPUs of this machine, by its library `libnvidia-ml.so.1` (NVML).

Each fact stands alone: a driver that refuses one gives the others, and for the one its reason. No driver, no library
and no permission are answers too. Nothing but ctypes is needed; no CUDA context is made, no memory of a GPU is used.

Names, structures and numbers follow NVIDIA's NVML API reference, in the newest form that a driver has of each
function. A call may take milliseconds, and hangs where a GPU does not answer: keep it off an engine's threads. ctypes
gives up the interpreter's lock for as long as a call takes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
Facts = dict[str, Any]

REASONS: Mapping[int, str] = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    8: "the GPU lacks external power",
    9: "the driver is not loaded",
    10: "the driver did not answer in time",
    11: "the driver has a problem with the GPU's interrupts",
    12: "no library",
    13: "not in this driver",
    14: "the GPU's own information is damaged",
    15: "the GPU is lost",
    16: "the GPU has to be reset",
    17: "refused by the operating system",
    18: "library and driver are of different versions",
    19: "in use",
    20: "out of memory",
    21: "no data",
    25: "not in this driver",
    26: "no longer supported",
    27: "not ready",
    28: "no such GPU",
    29: "not in this state",
    999: "unknown error of the driver",
}
"""NVML's return codes -> what they mean."""
_NOT_FOUND, _INSUFFICIENT_SIZE, _NO_LIBRARY, _NO_FUNCTION, _NO_VERSION = 6, 7, 12, 13, 25
_NOT_AVAILABLE, _NO_INSTANCE = 2**64 - 1, 2**32 - 1
_SPARE_PROCESSES, _TRIES = 8, 4

SLOWED_BY: Mapping[int, str] = {
    0x1: "idle",
    0x2: "set_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
"""Bits of NVML's clock event (once: throttle) reasons -> names."""


class NotKnownError(Exception):
    """A fact cannot be had; says why, in a few words."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _MemoryV1(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("used", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


@dataclass(frozen=True)
class Device:
    """A GPU, or a part of one that MIG has made, and what is known of it."""

    index: int
    """NVML's number. CUDA may count in another order, and a reboot may change it: match by `uuid`."""
    uuid: str | None
    """`GPU-...` or `MIG-...`; None where not even that could be had."""
    parent: str | None = None
    """Of a part: UUID of the GPU."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Name -> value; `docs/devices.md` says what each is. Bytes, MHz and counts."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """What was asked in vain -> why."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "device": self.uuid,
            "index": self.index,
            "parent": self.parent,
            "facts": dict(self.facts),
            "absent": dict(self.absent),
        }


@dataclass(frozen=True)
class Survey:
    """One look at all devices."""

    devices: tuple[Device, ...] = ()
    """GPUs in NVML's order, each followed by its MIG parts."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """`driver_version`, `nvml_version` and `cuda_version`, as far as they are known."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why there are no devices (`library`, `driver`, `devices`), and what of `driver` is not known."""

    def of(self, uuid: str) -> Device | None:
        """The device of that UUID; None where there is none, or where an abbreviation means several.

        As CUDA does, it takes a beginning for the whole; and, as torch writes it, a UUID without `GPU-`.
        """
        wanted = plain_uuid(uuid)
        found = [one for one in self.devices if one.uuid is not None and plain_uuid(one.uuid).startswith(wanted)]
        exact = [one for one in found if plain_uuid(one.uuid or "") == wanted]
        found = exact or found
        return found[0] if wanted and len(found) == 1 else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "driver": dict(self.driver),
            "absent": dict(self.absent),
            "devices": [device.to_dict() for device in self.devices],
        }


def plain_uuid(uuid: str) -> str:
    """A UUID without its `GPU-` or `MIG-`, in lower case: the form in which two can be compared."""
    lower = uuid.strip().lower()
    return lower.removeprefix("gpu-").removeprefix("mig-")


class Nvml:
    """The driver's library, for as long as this object lives. Looks at devices; changes nothing on them.

    Any thread may use it; one at a time gets an answer. A process that was forked off begins anew by itself.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        """Nothing is loaded before the first look; `library` is a path, or a name that the loader finds."""
        self._name = library
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._loaded: _Library | None = None

    def survey(self) -> Survey:
        """Look at everything. Raises nothing for what the driver refuses: that stands in the answer."""
        with self._alone():
            try:
                library = self._ready()
            except NotKnownError as absent:
                return Survey(absent={"library" if absent.code == _NO_LIBRARY else "driver": absent.reason})
            driver, missing = _answers(library, None, _OF_DRIVER)
            try:
                count = library.number("nvmlDeviceGetCount_v2")
            except NotKnownError as absent:
                return Survey(driver=driver, absent={**missing, "devices": absent.reason})
            found = tuple(device for index in range(count) for device in _looked_at(library, index))
            return Survey(found, driver, missing)

    def close(self) -> None:
        """Let the library go; a later look loads it again."""
        with self._alone():
            if self._loaded is not None:
                self._loaded.end()
            self._loaded = None

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alone(self) -> threading.Lock:
        if self._pid != os.getpid():
            # What the parent has initialised is of no use here, and the lock may be held by a thread that is not here.
            self._lock, self._pid, self._loaded = threading.Lock(), os.getpid(), None
        return self._lock

    def _ready(self) -> _Library:
        if self._loaded is None:
            self._loaded = _Library(self._name)
        return self._loaded


class _Library:
    """The loaded library, initialised. Every refusal is a `NotKnownError`."""

    def __init__(self, name: str) -> None:
        try:
            self._functions = ctypes.CDLL(name)
        except OSError as error:
            raise NotKnownError(_why_not_loaded(name, error), _NO_LIBRARY) from None
        self.call("nvmlInit_v2")

    def end(self) -> None:
        with suppress(NotKnownError):  # it is let go either way
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name."""
        try:
            function = getattr(self._functions, name)
        except AttributeError:
            raise NotKnownError(REASONS[_NO_FUNCTION], _NO_FUNCTION) from None
        if code := function(*arguments):
            raise NotKnownError(REASONS.get(code, f"error {code} of the driver"), code)

    def number(self, name: str, *arguments: Any) -> int:
        """The one number that a function answers with."""
        answer = c_uint()
        self.call(name, *arguments, byref(answer))
        return answer.value

    def long(self, name: str, *arguments: Any) -> int:
        """The one number of 64 bits that a function answers with."""
        answer = c_ulonglong()
        self.call(name, *arguments, byref(answer))
        return answer.value

    def pair(self, name: str, *arguments: Any) -> tuple[int, int]:
        """The two numbers that a function answers with."""
        first, second = c_uint(), c_uint()
        self.call(name, *arguments, byref(first), byref(second))
        return first.value, second.value

    def text(self, name: str, *arguments: Any) -> str:
        """The text that a function answers with; NVML's own are at most 96 characters."""
        answer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, answer, c_uint(len(answer)))
        return answer.value.decode("utf-8", "replace")

    def handle(self, name: str, *arguments: Any) -> c_void_p:
        """The device that a function answers with."""
        answer = c_void_p()
        self.call(name, *arguments, byref(answer))
        return answer


def _why_not_loaded(name: str, error: OSError) -> str:
    # the loader's own words, where it is more than that the file is not there
    text = str(error)
    absent = "No such file" in text and name in text
    return f"there is no {name} here: no driver of NVIDIA's, or not in this container" if absent else text


# -- questions ----------------------------------------------------------------------------------------------

Question = Callable[[_Library, Any], Facts]
"""Asks about a device; the facts that it gives have their own names. Raises `NotKnownError`."""


def _driver_version(library: _Library, _: Any) -> Facts:
    return {"driver_version": library.text("nvmlSystemGetDriverVersion")}


def _nvml_version(library: _Library, _: Any) -> Facts:
    return {"nvml_version": library.text("nvmlSystemGetNVMLVersion")}


def _cuda_version(library: _Library, _: Any) -> Facts:
    number = library.number("nvmlSystemGetCudaDriverVersion_v2")
    return {"cuda_version": f"{number // 1000}.{number % 1000 // 10}"}


def _name(library: _Library, device: Any) -> Facts:
    return {"name": library.text("nvmlDeviceGetName", device)}


def _memory(library: _Library, device: Any) -> Facts:
    newer = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
    try:
        library.call("nvmlDeviceGetMemoryInfo_v2", device, byref(newer))
        return _known({"total": newer.total, "reserved": newer.reserved, "free": newer.free, "used": newer.used})
    except NotKnownError as absent:
        if absent.code not in (_NO_FUNCTION, _NO_VERSION):
            raise
    older = _MemoryV1()
    library.call("nvmlDeviceGetMemoryInfo", device, byref(older))
    # here, what the driver keeps for itself counts as used
    return _known({"total": older.total, "free": older.free, "used_and_reserved": older.used})


def _known(sizes: Mapping[str, int]) -> Facts:
    known = {f"memory_{name}_bytes": size for name, size in sizes.items() if size != _NOT_AVAILABLE}
    if not known:
        raise NotKnownError("not available")
    return known


def _processes(of: str) -> Question:
    fact = f"{of.lower()}_processes"

    def ask(library: _Library, device: Any) -> Facts:
        for version in ("v3", "v2"):  # of the same form
            try:
                return {fact: _listed(library, f"nvmlDeviceGet{of}RunningProcesses_{version}", device)}
            except NotKnownError as absent:
                if absent.code != _NO_FUNCTION or version == "v2":
                    raise
        raise AssertionError

    return ask


def _listed(library: _Library, function: str, device: Any) -> list[Facts]:
    """Processes come and go between the question of how many there are and that of which."""
    room = 0
    for _ in range(_TRIES):
        count, found = c_uint(room), (_Process * room)()
        try:
            library.call(function, device, byref(count), found if room else None)
            return [_process(one) for one in found[: count.value]]
        except NotKnownError as absent:
            if absent.code != _INSUFFICIENT_SIZE:
                raise
            room = count.value + _SPARE_PROCESSES
    raise NotKnownError("changes too quickly")


def _process(one: _Process) -> Facts:
    facts: Facts = {"pid": one.pid}
    if one.used != _NOT_AVAILABLE:
        facts["bytes"] = one.used
    if one.gpu_instance != _NO_INSTANCE:
        facts |= {"gpu_instance": one.gpu_instance, "compute_instance": one.compute_instance}
    return facts


def _switched(fact: str, function: str) -> Question:
    def ask(library: _Library, device: Any) -> Facts:
        now, pending = library.pair(function, device)
        # what it will be after the next reset, said only where that is a change
        return {fact: bool(now)} | ({f"{fact}_pending": bool(pending)} if pending != now else {})

    return ask


def _ecc_errors(fact: str, uncorrected: int, lifetime: int) -> Question:
    def ask(library: _Library, device: Any) -> Facts:
        return {fact: library.long("nvmlDeviceGetTotalEccErrors", device, c_uint(uncorrected), c_uint(lifetime))}

    return ask


def _remapped_rows(library: _Library, device: Any) -> Facts:
    numbers = [c_uint() for _ in range(4)]
    library.call("nvmlDeviceGetRemappedRows", device, *map(byref, numbers))
    corrected, uncorrected, pending, failed = (number.value for number in numbers)
    return {
        "rows_remapped_corrected": corrected,
        "rows_remapped_uncorrected": uncorrected,
        "row_remap_pending": bool(pending),
        "row_remap_failed": bool(failed),
    }


def _clock(fact: str, function: str, which: int) -> Question:
    return lambda library, device: {fact: library.number(function, device, c_uint(which))}


def _slowed_by(library: _Library, device: Any) -> Facts:
    try:
        bits = library.long("nvmlDeviceGetCurrentClocksEventReasons", device)
    except NotKnownError as absent:
        if absent.code != _NO_FUNCTION:
            raise
        bits = library.long("nvmlDeviceGetCurrentClocksThrottleReasons", device)
    unknown = bits & ~sum(SLOWED_BY)
    names = [name for bit, name in SLOWED_BY.items() if bits & bit]
    return {"slowed_by": [*names, hex(unknown)] if unknown else names}


def _instances(library: _Library, device: Any) -> Facts:
    return {
        "gpu_instance": library.number("nvmlDeviceGetGpuInstanceId", device),
        "compute_instance": library.number("nvmlDeviceGetComputeInstanceId", device),
    }


_OF_DRIVER: tuple[tuple[str, Question], ...] = (
    ("driver_version", _driver_version),
    ("nvml_version", _nvml_version),
    ("cuda_version", _cuda_version),
)
_COMMON: tuple[tuple[str, Question], ...] = (
    ("name", _name),
    ("memory", _memory),
    ("compute_processes", _processes("Compute")),
    ("graphics_processes", _processes("Graphics")),
)
_OF_GPU: tuple[tuple[str, Question], ...] = (
    *_COMMON,
    ("mig", _switched("mig", "nvmlDeviceGetMigMode")),
    ("ecc", _switched("ecc", "nvmlDeviceGetEccMode")),
    ("ecc_corrected", _ecc_errors("ecc_corrected", 0, 0)),
    ("ecc_uncorrected", _ecc_errors("ecc_uncorrected", 1, 0)),
    ("ecc_corrected_lifetime", _ecc_errors("ecc_corrected_lifetime", 0, 1)),
    ("ecc_uncorrected_lifetime", _ecc_errors("ecc_uncorrected_lifetime", 1, 1)),
    ("remapped_rows", _remapped_rows),
    ("clock_sm_mhz", _clock("clock_sm_mhz", "nvmlDeviceGetClockInfo", 1)),
    ("clock_sm_max_mhz", _clock("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", 1)),
    ("clock_memory_mhz", _clock("clock_memory_mhz", "nvmlDeviceGetClockInfo", 2)),
    ("slowed_by", _slowed_by),
)
_OF_PART: tuple[tuple[str, Question], ...] = (*_COMMON, ("instances", _instances))

QUESTIONS: tuple[str, ...] = tuple(name for name, _ in _OF_GPU)
"""What is asked about a GPU, by the names that stand in `Device.absent`."""


def _answers(library: _Library, device: Any, questions: Sequence[tuple[str, Question]]) -> tuple[Facts, dict[str, str]]:
    facts: Facts = {}
    absent: dict[str, str] = {}
    for name, ask in questions:
        try:
            facts |= ask(library, device)
        except NotKnownError as refused:
            absent[name] = refused.reason
    return facts, absent


def _looked_at(library: _Library, index: int) -> Iterator[Device]:
    """A GPU, and then its MIG parts."""
    try:
        handle = library.handle("nvmlDeviceGetHandleByIndex_v2", c_uint(index))
    except NotKnownError as absent:
        yield Device(index, None, absent={"device": absent.reason})
        return
    gpu = _device(library, handle, index, None, _OF_GPU)
    yield gpu
    if gpu.facts.get("mig"):
        yield from _parts(library, handle, gpu)


def _parts(library: _Library, handle: c_void_p, gpu: Device) -> Iterator[Device]:
    try:
        most = library.number("nvmlDeviceGetMaxMigDeviceCount", handle)
    except NotKnownError as absent:
        yield Device(gpu.index, None, gpu.uuid, absent={"mig_devices": absent.reason})
        return
    for number in range(most):
        try:
            part = library.handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(number))
        except NotKnownError as absent:
            if absent.code != _NOT_FOUND:  # else the place is empty
                yield Device(number, None, gpu.uuid, absent={"device": absent.reason})
            continue
        yield _device(library, part, number, gpu.uuid, _OF_PART)


def _device(
    library: _Library, handle: c_void_p, index: int, parent: str | None, questions: Sequence[tuple[str, Question]]
) -> Device:
    facts, absent = _answers(library, handle, questions)
    uuid: str | None = None
    try:
        uuid = library.text("nvmlDeviceGetUUID", handle)
    except NotKnownError as refused:
        absent["uuid"] = refused.reason
    return Device(index, uuid, parent, facts, absent)
