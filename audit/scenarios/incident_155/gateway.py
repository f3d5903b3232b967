"""The gateway: where requests arrive, are told to wait no longer, and are answered."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.traffic import Request

if TYPE_CHECKING:
    from kvwitness.audit.scenarios.incident_155.simulation import Deployment


def salt_hmac(tenant: str) -> str:
    """The keyed hash of a tenant's cache salt."""
    return "s:" + hashlib.sha256(tenant.encode()).hexdigest()[:16]


class Gateway:
    """Writes down what clients sent and what they received."""

    def __init__(self, deployment: Deployment) -> None:
        self._all = deployment
        self._world = deployment.world
        self._truth = deployment.truth
        self.answered = 0

    def arrive(self, request: Request) -> None:
        """A prompt comes in and goes the way of its kind."""
        fields = {"salt_hmac": salt_hmac(request.tenant)} if request.tenant in site.SALTED else {}
        if request.kind == "health":
            fields["traffic"] = "health"
        self._world.emit(
            site.GATEWAY,
            "request.received",
            request=request.id,
            tenant=request.tenant,
            tenant_source="gateway_auth",
            prompt_tokens=request.prompt,
            max_new_tokens=request.max_new,
            **fields,
        )
        rng, world, truth = self._world.rng, self._world, self._truth
        if request.kind == "health":
            truth.health.append(request.id)
            world.after(30_000, self.finished, request, 200, "length", 4, 0, 1)
        elif request.kind in ("gate400", "dec400"):
            truth.answered_400.append(request.id)
            world.after(rng.between(2_000, 9_000), self._refuse, request)
        elif request.abort == "queued":
            truth.aborted.append(request.id)
            world.after(rng.between(20_000, 60_000), self._abort_queued, request)
        else:
            if request.kind == "near":
                truth.near_limit.append(request.id)
            world.after(rng.between(3_000, 9_000), self._all.decode.queue, request)

    def finished(self, request: Request, status: int, reason: str, prompt: int, cached: int, completion: int) -> None:
        """What the client received, with the usage that it was told (tokens)."""
        self._world.emit(
            site.GATEWAY,
            "request.finished",
            request=request.id,
            status=status,
            finish_reason=reason,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
        )
        request.done = True
        self.answered += 1

    def disconnected(self, source: str, request: Request) -> None:
        """The client went away; `source` is who noticed."""
        self._world.emit(source, "request.aborted", request=request.id, by="client", reason="disconnect")

    def _refuse(self, request: Request) -> None:
        """The rightful answer to a prompt that is too long."""
        source = site.GATEWAY if request.kind == "gate400" else site.DECODE
        self._world.emit(source, "request.rejected", request=request.id, reason="input_too_long", status=400)
        self._world.after(3_000, self.finished, request, 400, "error", request.prompt, 0, 0)

    def _abort_queued(self, request: Request) -> None:
        self.disconnected(site.GATEWAY, request)
        self._world.after(1_000, self.finished, request, 499, "abort", request.prompt, 0, 0)
