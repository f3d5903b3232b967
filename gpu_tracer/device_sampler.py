"""Puts down, now and then, what the driver says of the GPUs: `device.state` events, from a thread of their own.

An engine's threads never wait for the driver: the sampler has its own thread, its own small ring and its own loaded
library. Without a driver it says so in the record, once, and rests.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection
from typing import Any, Self

from kvwitness.audit.trace.ring import Sizes
from kvwitness.gpu_tracer.nvml import Device, Nvml, Survey, plain_uuid
from kvwitness.gpu_tracer.tracer import Tracer

SIZES = Sizes(slots=1024, strings=1024, arena=1 << 20)
"""Of the sampler's ring: an event every few seconds needs no more."""
LEAST_S = 1.0
"""Asking more often than this would disturb the GPU's own work for nothing."""
_log = logging.getLogger("kvwitness.gpu_tracer")


class DeviceSampler:
    """Looks at devices, and records what it sees. Nothing that goes wrong in it reaches its host."""

    def __init__(
        self, tracer: Tracer, *, every_s: float = 30.0, only: Collection[str] | None = None, nvml: Nvml | None = None
    ) -> None:
        """Record with `tracer`, every `every_s` seconds (at least one) once it is started.

        `only` are UUIDs, with or without `GPU-`: a process that has some of a machine's GPUs names those. Numbers are
        of no use, since CUDA counts in its own order. `nvml` is the library to ask.
        """
        self.tracer, self.every_s = tracer, max(every_s, LEAST_S)
        self.errors: Counter[str] = Counter()
        """What went wrong, by the name of the exception -> how often."""
        self._only = None if only is None else frozenset(map(plain_uuid, only))
        self._nvml = nvml or Nvml()
        self._told: dict[str, Any] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_environment(cls, source: str, **options: Any) -> Self:
        """As the environment says (see `Tracer.from_environment`), with a ring of the size that it needs."""
        return cls(Tracer.from_environment(source, sizes=SIZES), **options)

    def start(self) -> None:
        """Begin to sample, in a thread that does not keep the process alive. To start twice is to start once."""
        if self._thread is None or not self._thread.is_alive():
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name="kvwitness-devices", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End it; whether it has ended. It has not, after `timeout_s`, where the driver does not answer."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        self._nvml.close()
        return True

    def sample(self) -> Survey:
        """Look once, in the calling thread, record what is seen, and return it."""
        survey = self._nvml.survey()
        if not survey.devices:
            self._none(survey)
            return survey
        self._told = None
        for device in survey.devices:
            if self._wanted(device):
                self._record(device, survey)
        return survey

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.sample()
            except Exception as error:
                name = type(error).__name__
                self.errors[name] += 1
                if self.errors[name] == 1:
                    _log.warning("the devices could not be looked at: %s (said once)", name)
            self._ended.wait(self.every_s)

    def _wanted(self, device: Device) -> bool:
        """A part is wanted with its GPU too; one that has no UUID may be the one that is wanted."""
        ids = [plain_uuid(uuid) for uuid in (device.uuid, device.parent) if uuid is not None]
        return self._only is None or not ids or any(one in self._only for one in ids)

    def _record(self, device: Device, survey: Survey) -> None:
        self.tracer.device_state(
            device.uuid,
            parent=device.parent,
            facts={"index": device.index, **survey.driver, **device.facts},
            absent={**survey.absent, **device.absent} or None,
        )

    def _none(self, survey: Survey) -> None:
        # said once, and again when it is another reason
        said = survey.to_dict()
        if said != self._told:
            self._told = said
            absent = dict(survey.absent) or {"devices": "the driver has none"}
            self.tracer.device_state(facts=dict(survey.driver) or None, absent=absent)


__all__ = ["DeviceSampler"]
