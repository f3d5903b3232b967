"""`kvwitness attach devices`: what NVIDIA's driver says of the GPUs here, and what it does not say, and why."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer.base import configured_key
from kvwitness.gpu_tracer.device_report import nothing, told
from kvwitness.gpu_tracer.device_sampler import LEAST_S, SIZES, DeviceSampler
from kvwitness.gpu_tracer.nvml import Device, Nvml, Survey
from kvwitness.gpu_tracer.tracer import Tracer

_NONE = 2
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def devices(
    format: Annotated[str, typer.Option(help="text or json.")] = "text",
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="UUID", help="Only these GPUs (a beginning is enough, as with CUDA).")
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="Record what is seen, as device.state events, in a ring of KVWITNESS_RING_DIR."),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(min=LEAST_S, help="With --record: go on, every so many seconds, until SIGTERM or SIGINT."),
    ] = None,
    source: Annotated[str, typer.Option(help="With --record: who observes it.")] = "devices/0",
) -> None:
    """Say what NVIDIA's driver knows of the GPUs here: memory, processes, MIG, ECC, row remaps, clocks.

    What it does not say is named with the reason. Makes no CUDA context and changes nothing. Status 0 when a GPU was
    seen, 2 when there is none, or no driver.
    """
    if format not in ("text", "json"):
        _refuse(f"--format is text or json, not {format}")
    if every is not None and not record:
        _refuse("--every says how often to record: give --record too")
    with Nvml() as nvml:
        survey = nvml.survey()
        chosen = _chosen(survey, gpu)
        if record:
            _record(nvml, [one.uuid for one in chosen if one.uuid] if gpu else None, every, source)
    if format == "json":
        document = {**Survey(tuple(chosen), survey.driver, survey.absent).to_dict(), "visible": visible(survey)}
        print(json.dumps(document, indent=2))
    else:
        for line in [*told(survey, chosen), *_visibility(survey)] if survey.devices else []:
            print(line)
    if not survey.devices:
        print(nothing(survey), file=sys.stderr)
        raise typer.Exit(_NONE)


def _chosen(survey: Survey, wanted: list[str] | None) -> list[Device]:
    """The devices asked for, a GPU with its parts."""
    if not wanted or not survey.devices:
        return list(survey.devices)
    found = []
    for uuid in wanted:
        device = survey.of(uuid)
        if device is None:
            seen = ", ".join(one.uuid for one in survey.devices if one.uuid) or "none that gives its UUID"
            _refuse(f"no GPU here has the UUID {uuid}, or several begin so; seen: {seen}")
        found.append(device)
    return [one for one in survey.devices if one in found or any(one.parent == of.uuid for of in found)]


# -- recording ------------------------------------------------------------------------------------------------


def _record(nvml: Nvml, only: list[str] | None, every: float | None, source: str) -> None:
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        _refuse(f"nowhere to record: {DIRECTORY_VARIABLE} names the directory of the rings, and is not set")
    try:
        tracer = Tracer(Path(directory), source, sizes=SIZES, tenant_key=configured_key())
    except OSError as error:
        _refuse(f"the key for pseudonyms cannot be read: {error}")
    sampler = DeviceSampler(tracer, every_s=every or LEAST_S, only=only, nvml=nvml)
    with _until_told() as told_to_end:
        sampler.sample()
        if tracer.problem:
            _refuse(tracer.problem)
        while every is not None and not told_to_end.wait(every):
            sampler.sample()
    for ring in tracer.rings:
        print(f"recorded in {ring}", file=sys.stderr)
    tracer.close()


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second signal is obeyed."""
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: object) -> None:
        ended.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- what CUDA would see ----------------------------------------------------------------------------------------


def visible(survey: Survey) -> dict[str, Any]:
    """What CUDA_VISIBLE_DEVICES of this environment names: `value`, and by each of its names the UUID or None.

    Numbers are not translated: in which order CUDA counts, NVML does not say.
    """
    value = os.environ.get(VISIBLE_VARIABLE)
    names = [name.strip() for name in value.split(",") if name.strip()] if value else []
    found = {name: survey.of(name) for name in names if not re.fullmatch(r"-?\d+", name)}
    return {
        "value": value,
        "by_uuid": {name: None if device is None else device.uuid for name, device in found.items()},
        "by_number": [name for name in names if name not in found],
    }


def _visibility(survey: Survey) -> list[str]:
    seen = visible(survey)
    if seen["value"] is None:
        return []
    lines = [f"{VISIBLE_VARIABLE}={seen['value']}"]
    for name, uuid in seen["by_uuid"].items():
        lines.append(f"  {name}: {uuid or 'none of these, or several begin so'}")
    if seen["by_number"]:
        lines.append(
            f"  {', '.join(seen['by_number'])}: not told apart, since CUDA counts in an order of its own; use UUIDs"
        )
    return lines


def _refuse(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    raise typer.Exit(_NONE)
