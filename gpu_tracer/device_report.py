"""What is seen of the GPUs, as lines for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvwitness.gpu_tracer.nvml import Device, Survey

_MIB = 1 << 20
_ON = {True: "on", False: "off"}
_Facts = Mapping[str, Any]


def told(survey: Survey, chosen: list[Device]) -> list[str]:
    """The driver, and the devices in `chosen`."""
    known = {"driver": "driver_version", "NVML": "nvml_version", "CUDA": "cuda_version"}
    said = [f"{what} {survey.driver[fact]}" for what, fact in known.items() if fact in survey.driver]
    lines = [", ".join(said)] if said else []
    lines += [f"{what}: {why}" for what, why in survey.absent.items()]
    for device in chosen:
        lines += _device(device)
    return lines


def nothing(survey: Survey) -> str:
    """That there is no device, and why."""
    why = "; ".join(survey.absent.values()) or "the driver has none"
    return f"No GPU was seen: {why}."


def _device(device: Device) -> list[str]:
    place = f"NVML index {device.index}" if device.parent is None else f"part {device.index} of {device.parent}"
    name = device.facts.get("name")
    lines = [f"{device.uuid or 'no UUID'}  {f'{name}, ' if name else ''}{place}"]
    for label, tell in _TOLD:
        if text := tell(device.facts):
            lines.append(f"  {label:10} {text}")
    for why in sorted(set(device.absent.values())):
        what = [fact for fact, reason in device.absent.items() if reason == why]
        lines.append(f"  {why}: {', '.join(what)}")
    return lines


def _mib(size: int) -> str:
    return f"{size // _MIB:,} MiB"


def _memory(facts: _Facts) -> str:
    names = {"used": "used", "reserved": "kept by the driver", "used_and_reserved": "used or kept by the driver"}
    names |= {"free": "free"}
    sizes = [f"{_mib(facts[f'memory_{n}_bytes'])} {say}" for n, say in names.items() if f"memory_{n}_bytes" in facts]
    whole = [f"of {_mib(facts['memory_total_bytes'])}"] if "memory_total_bytes" in facts else []
    return ", ".join([*sizes, *whole])


def _processes(fact: str) -> Callable[[_Facts], str]:
    def tell(facts: _Facts) -> str:
        if fact not in facts:
            return ""
        return ", ".join(_process(one) for one in facts[fact]) or "none"

    return tell


def _process(one: _Facts) -> str:
    size = _mib(one["bytes"]) if "bytes" in one else "memory not told"
    place = f", instance {one['gpu_instance']}/{one['compute_instance']}" if "gpu_instance" in one else ""
    return f"pid {one['pid']} ({size}{place})"


def _switch(facts: _Facts, fact: str) -> str:
    pending = facts.get(f"{fact}_pending")
    later = "" if pending is None else f", {_ON[pending]} after the next reset"
    return f"{_ON[facts[fact]]}{later}"


def _ecc(facts: _Facts) -> str:
    parts = [_switch(facts, "ecc")] if "ecc" in facts else []
    for suffix, when in (("", "since the driver was loaded"), ("_lifetime", "in its life")):
        counts = [
            f"{facts[f'ecc_{n}{suffix}']:,} {n}" for n in ("uncorrected", "corrected") if f"ecc_{n}{suffix}" in facts
        ]
        parts += [f"{' and '.join(counts)} {when}"] if counts else []
    return "; ".join(parts)


def _rows(facts: _Facts) -> str:
    if "rows_remapped_uncorrected" not in facts:
        return ""
    remapped = (
        f"{facts['rows_remapped_uncorrected']} for uncorrected errors, {facts['rows_remapped_corrected']} for corrected"
    )
    pending = ", one more after the next reset" if facts["row_remap_pending"] else ""
    return f"{remapped}{pending}{', a remapping FAILED' if facts['row_remap_failed'] else ''}"


def _clocks(facts: _Facts) -> str:
    parts = []
    if "clock_sm_mhz" in facts:
        most = f" of {facts['clock_sm_max_mhz']:,}" if "clock_sm_max_mhz" in facts else ""
        parts.append(f"SM {facts['clock_sm_mhz']:,}{most} MHz")
    if "clock_memory_mhz" in facts:
        parts.append(f"memory {facts['clock_memory_mhz']:,} MHz")
    return ", ".join(parts)


def _instance(facts: _Facts) -> str:
    return f"{facts['gpu_instance']}/{facts['compute_instance']}" if "gpu_instance" in facts else ""


_TOLD: tuple[tuple[str, Callable[[_Facts], str]], ...] = (
    ("memory", _memory),
    ("compute", _processes("compute_processes")),
    ("graphics", _processes("graphics_processes")),
    ("MIG", lambda facts: _switch(facts, "mig") if "mig" in facts else ""),
    ("ECC", _ecc),
    ("remapped", _rows),
    ("clocks", _clocks),
    ("slowed by", lambda facts: ", ".join(facts["slowed_by"]) or "nothing" if "slowed_by" in facts else ""),
    (
        "instance",
        lambda facts: f"{facts['gpu_instance']}/{facts['compute_instance']}" if "gpu_instance" in facts else "",
    ),
)
