"""A deployment: a gateway, a prefill engine and a decode engine, and a request's way through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvwitness.audit.trace.ring import Sizes
from kvwitness.gpu_tracer.lab.decode import Decode, Running
from kvwitness.gpu_tracer.lab.faults import Fault, Guard
from kvwitness.gpu_tracer.lab.model import Model
from kvwitness.gpu_tracer.lab.pool import PAGE_TOKENS, Pool
from kvwitness.gpu_tracer.lab.prefill import Job, Prefill, Prefilled
from kvwitness.gpu_tracer.lab.transfer import Transfer
from kvwitness.gpu_tracer.tracer import Tracer

LIMIT = 96
"""Tokens of the longest prompt that is served."""
PREFILL_PAGES, DECODE_PAGES = 64, 32
_OK, _REFUSED, _CLIENT_CLOSED, _FAILED = 200, 400, 499, 500
_SECRET = b"the lab has no secrets but these"
"""Key of fingerprints and prefixes: the texts are known, so there is nothing to hide."""


@dataclass(frozen=True)
class Answer:
    """What the client of a request got."""

    job: Job
    status: int
    text: str = ""


@dataclass
class Admitted:
    """A request between its admission and its answer."""

    prefilled: Prefilled
    running: Running
    transfer: Transfer


@dataclass
class Cluster:
    """One gateway, one prefill server `prefill-0`, one decode server `decode-0`.

    `rings` is where the tracer records (None: nowhere). `label` is put before the engines' names, so that several
    deployments can be recorded side by side.
    """

    rings: Path | None
    fault: Fault = Fault.NONE
    guard: Guard = Guard.NONE
    label: str = ""
    sizes: Sizes = field(default_factory=lambda: Sizes(slots=8192, strings=8192, arena=1 << 20))

    def __post_init__(self) -> None:
        self.answers: list[Answer] = []
        model = Model()
        names = [f"{self.label}{name}" for name in ("gateway", "prefill-0", "decode-0")]
        self._tracers = [
            Tracer(self.rings, name if at == 0 else f"{name}/0", sizes=self.sizes) for at, name in enumerate(names)
        ]
        self.gateway, ahead, behind = self._tracers
        for tracer, name in zip(self._tracers, names, strict=True):
            tracer.engine_clock(name, offset_s=0, uncertainty_s=0)
        pools = []
        for tracer, name, pages, role, sharing in (
            (ahead, names[1], PREFILL_PAGES, "prefill", "tenant"),
            (behind, names[2], DECODE_PAGES, "decode", "none"),
        ):
            room = (pages - 1) * PAGE_TOKENS
            tracer.engine_limits(
                name, role=role, advertised_tokens=LIMIT, input_limit_tokens=LIMIT, pool_tokens=room, model="lab"
            )
            pools.append(Pool(f"{name}/0/kv", tracer, pages, secret=_SECRET, guard=self.guard, sharing=sharing))
        self.prefill = Prefill(ahead, pools[0], model, limit=LIMIT, secret=_SECRET, fault=self.fault)
        self.decode = Decode(behind, pools[1], model)

    def close(self) -> None:
        """Nothing more is recorded."""
        for tracer in self._tracers:
            tracer.close()

    def admit(self, job: Job, fault: Fault = Fault.NONE) -> Admitted | None:
        """Bring a request as far as its transfer's beginning; None when it is refused, and answered so.

        `fault` is what happens to its transfer.
        """
        self.gateway.request_received(
            job.request, job.tenant, prompt_tokens=len(job.prompt), max_new_tokens=job.max_new, model="lab"
        )
        prefilled = self.prefill.take(job)
        if prefilled is None:
            self.answer(job, _REFUSED)
            return None
        running = self.decode.admit(job)
        transfer = Transfer(self.prefill, self.decode, prefilled, running, fault)
        transfer.begin()
        return Admitted(prefilled, running, transfer)

    def receive(self, one: Admitted) -> Running:
        """Its transfer lands; prefill lets go of its pages."""
        one.transfer.land()
        one.transfer.received()
        self.prefill.release(one.prefilled)
        return one.running

    def run(self, batch: Sequence[Running], meanwhile: Callable[[], None] | None = None) -> None:
        """Decode until all have answered; `meanwhile` happens during the first step."""
        active = [one for one in batch if not self._refused(one)]
        for one in active:
            self.decode.pool.digest(one.table, one.job.request, one.filled, "read")
        while active:
            self.decode.step(active, meanwhile)
            meanwhile = None
            for one in [one for one in active if one.finished]:
                active.remove(one)
                self.decode.finish(one)
                self.answer(one.job, _OK, one.answer)

    def _refused(self, one: Running) -> bool:
        """Whether a request is not to be decoded because its pages have not been filled; it is answered then."""
        guarded = self.guard is Guard.REFUSE
        if not guarded or not self.decode.pool.unwritten(one.table, one.filled):
            return False
        self.decode.tracer.request_aborted(one.job.request, by="decode", reason="rows_unwritten")
        self.decode.finish(one, "abort")
        self.answer(one.job, _FAILED)
        return True

    def cancel(self, one: Admitted) -> None:
        """The client goes away while the transfer is in flight: wait for it, then free."""
        self.gateway.request_aborted(one.running.job.request, by="client", reason="disconnect")
        self.receive(one)
        self.prefill.tracer.transfer_drained(one.transfer.name)
        self.decode.finish(one.running, "abort")
        self.answer(one.running.job, _CLIENT_CLOSED)

    def cancel_early(self, one: Admitted) -> None:
        """As `cancel`, but the pages are given away at once, and the transfer is left to itself."""
        self.gateway.request_aborted(one.running.job.request, by="client", reason="disconnect")
        one.running.filled = 0
        self.decode.finish(one.running, "abort")
        self.answer(one.running.job, _CLIENT_CLOSED)

    def serve(self, job: Job) -> None:
        """A request all alone."""
        one = self.admit(job)
        if one is not None:
            self.run([self.receive(one)])

    def answer(self, job: Job, status: int, text: str = "") -> None:
        """The client has its answer."""
        self.answers.append(Answer(job, status, text))
        if status == _CLIENT_CLOSED:
            self.gateway.response(job.request, status=status, finish_reason="abort")
        elif status != _OK:
            self.gateway.response(job.request, status=status)
        else:
            reason = "stop" if len(text) < job.max_new or text.endswith(";") else "length"
            self.gateway.response(
                job.request,
                status=status,
                finish_reason=reason,
                prompt_tokens=len(job.prompt),
                completion_tokens=len(text),
            )
