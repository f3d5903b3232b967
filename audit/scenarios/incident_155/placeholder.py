"""The fault: a prompt that prefill refused is handed off all the same, as a placeholder of one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.traffic import Request
from kvwitness.audit.scenarios.incident_155.truth import Incident

if TYPE_CHECKING:
    from kvwitness.audit.scenarios.incident_155.simulation import Deployment


class Placeholder:
    """The way of an over-long prompt, from its refusal to the read that nothing covers."""

    def __init__(self, deployment: Deployment) -> None:
        self._all = deployment
        self._world = deployment.world

    def accepted(self, request: Request) -> None:
        """Decode has taken pages for the true length, which is within its own limit."""
        self._world.after(self._world.rng.between(4_000, 15_000), self._refuse, request)

    def _refuse(self, request: Request) -> None:
        self._world.emit(site.PREFILL, "request.rejected", request=request.id, reason="input_too_long", status=400)
        self._world.after(self._world.rng.between(1_500, 6_000), self._allocate, request)

    def _allocate(self, request: Request) -> None:
        prefill = self._all.prefill
        if prefill.pool.available < 1:
            self._world.after(200_000, self._allocate, request)
            return
        prefill.allocated(request, prefill.pool.take(1))
        request.prefill_pages = request.own
        self._world.after(self._world.rng.between(9_000, 22_000), self._hand_off, request)

    def _hand_off(self, request: Request) -> None:
        self._all.prefill.wrote(request, 0, 1)
        self._all.prefill.hand_off(request, 1)
        self._world.after(self._world.rng.between(2_000, 5_000), self._arrived, request)

    def _arrived(self, request: Request) -> None:
        self._all.decode.landed(request, 1)
        self._world.after(15_000, self._all.prefill.release, request, "finish")
        self._world.after(25_000, self._read, request)

    def _read(self, request: Request) -> None:
        """Write down what the read is going to meet, then let it happen."""
        decode = self._all.decode
        met = decode.content.met(request.decode_pages, request.prompt, request.index)
        self._all.truth.incidents.append(Incident(request.id, request.tenant, request.prompt, met))
        decode.start(request)
