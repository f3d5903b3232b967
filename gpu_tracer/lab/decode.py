"""The decode engine: runs requests whose pages came from elsewhere, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvwitness.gpu_tracer.lab.model import Model
from kvwitness.gpu_tracer.lab.pool import Pool, covering, pages_for
from kvwitness.gpu_tracer.lab.prefill import Job
from kvwitness.gpu_tracer.lab.text import STOP, text, tokens
from kvwitness.gpu_tracer.tracer import Tracer


@dataclass
class Running:
    """A request that decodes."""

    job: Job
    table: list[int]
    ids: list[int]
    """The prompt's tokens, then those of the answer."""
    filled: int
    """Positions that have K and V, as far as the engine knows: it believes what the transfer reported."""
    prompt: int = 0
    owns: bool = True
    """Whether its pages are still its own to free."""

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)

    @property
    def answer(self) -> str:
        """So far."""
        return text(self.ids[self.prompt :])

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        return self.answer.endswith(STOP) or len(self.ids) - self.prompt >= self.job.max_new


class Decode:
    """One decode server with its pool."""

    def __init__(self, tracer: Tracer, pool: Pool, model: Model) -> None:
        self.tracer, self.pool, self._model = tracer, pool, model
        self._step = 0

    def admit(self, job: Job) -> Running:
        """Make room for a prompt and its answer; the prompt's pages are to be filled by a transfer."""
        ids = tokens(job.prompt)
        table = self.pool.alloc(pages_for(len(ids) + job.max_new), job.request, job.tenant)
        return Running(job, table, ids, len(ids) - 1)

    def step(self, batch: Sequence[Running], meanwhile: Callable[[], None] | None = None) -> None:
        """One token for each; `meanwhile` is what the rest of the engine does while the device is at it."""
        self._step += 1
        used = sorted({page for one in batch for page in covering(one.table, 0, len(one.ids))})
        self.tracer.step_begin(self._step, self.pool.name, used)
        if meanwhile is not None:
            meanwhile()
        for one in batch:
            self._forward(one)
        self.tracer.step_end(self._step, self.pool.name, used)

    def finish(self, one: Running, reason: str = "finish") -> None:
        """Give the pages back."""
        if one.owns:
            self.pool.free(one.table, one.job.request, tokens=one.filled, reason=reason)
        one.owns = False

    def _forward(self, one: Running) -> None:
        at, request, name = one.filled, one.job.request, self.pool.name
        following = self._model.forward(
            [one.ids[at]], at, lambda layer, q, k, v: self.pool.attend(one.table, at, layer, q, k, v)
        )
        one.filled += 1
        page = covering(one.table, at, at + 1)
        self.tracer.write(name, page, request, tok=(at, at + 1), op="forward", step=self._step)
        self.tracer.read(name, covering(one.table, 0, at + 1), request, tok=(0, at + 1), op="decode", step=self._step)
        one.ids.append(following)
