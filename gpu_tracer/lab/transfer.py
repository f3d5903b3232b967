"""The bytes on their way from the prefill engine's pages to those of the decode engine."""

from __future__ import annotations

from dataclasses import dataclass

from kvwitness.gpu_tracer.lab.decode import Decode, Running
from kvwitness.gpu_tracer.lab.faults import Fault
from kvwitness.gpu_tracer.lab.pool import covering
from kvwitness.gpu_tracer.lab.prefill import Prefill, Prefilled


@dataclass
class Transfer:
    """One transfer: begun, later landed. In between, the network has it, and nobody can call it back."""

    source: Prefill
    target: Decode
    sent: Prefilled
    running: Running
    fault: Fault

    @property
    def name(self) -> str:
        """The id that both sides know it by."""
        return f"{self.sent.job.request}-kv"

    def begin(self) -> None:
        """The sender issues it."""
        request, tokens, pool = self.sent.job.request, self.sent.tokens, self.source.pool
        self.source.tracer.transfer_begin(
            self.name,
            request,
            src_pool=pool.name,
            src_pages=self.sent.table,
            dst_pool=self.target.pool.name,
            dst_pages=self._pages,
            tokens=tokens,
        )
        pool.digest(self.sent.table, request, tokens, "send", self.name)
        self.source.tracer.read(pool.name, self.sent.table, request, tok=(0, tokens), op="transfer", transfer=self.name)
        self._write("begin")

    def land(self) -> None:
        """The bytes arrive, and the sender is told."""
        if self.fault is not Fault.DROPPED_PAGES:
            layers = slice(0, 1) if self.fault is Fault.DROPPED_LAYER else slice(None)
            arriving = self.source.pool.kv[layers, :, self.sent.table]
            self.target.pool.kv[layers, :, self._pages] = arriving
        if self.fault is not Fault.UNSEEN_WRITE:
            self._write("end")
        self.source.tracer.transfer_done(self.name, observer="sender", tokens=self.sent.tokens)

    def received(self) -> None:
        """The receiver is told, and looks at what has arrived."""
        self.target.tracer.transfer_done(self.name, observer="receiver", tokens=self.sent.tokens)
        self.target.pool.digest(self._pages, self.sent.job.request, self.sent.tokens, "receive", self.name)

    @property
    def _pages(self) -> list[int]:
        return covering(self.running.table, 0, self.sent.tokens)

    def _write(self, phase: str) -> None:
        self.target.tracer.write(
            self.target.pool.name,
            self._pages,
            self.sent.job.request,
            tok=(0, self.sent.tokens),
            op="transfer",
            phase=phase,
            transfer=self.name,
        )
