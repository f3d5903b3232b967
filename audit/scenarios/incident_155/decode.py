"""The decode engine: receives pages, generates, gives way under pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.content import PageContent
from kvwitness.audit.scenarios.incident_155.pool import PagePool, covering
from kvwitness.audit.scenarios.incident_155.traffic import Request

if TYPE_CHECKING:
    from kvwitness.audit.scenarios.incident_155.simulation import Deployment

_PATIENCE = 300_000  # microseconds that the head of the queue waits before somebody has to give way
_TOKEN_TIME = 22_000  # microseconds per generated token


class Decode:
    """Reserves pages for a request's full length before its prompt is computed, and reads them to answer."""

    def __init__(self, deployment: Deployment, content: PageContent) -> None:
        self._all = deployment
        self._world = deployment.world
        self._truth = deployment.truth
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self.pool = PagePool(site.DECODE_PAGES)
        self.content = content

    def queue(self, request: Request) -> None:
        """Wait for pages."""
        request.queued = self._world.now
        self._waiting.append(request)
        self._try()

    def receive(self, request: Request) -> None:
        """Prefill has begun to send the whole prompt."""
        duration = 12_000 + request.prompt // 6
        if request.abort == "transfer":
            self._truth.aborted.append(request.id)
            self._emit_write(request, 0, request.prompt, "transfer", phase="begin")
            self._world.after(duration // 2, self._abort_transfer, request, duration)
        else:
            self._world.after(duration, self._received, request)

    def landed(self, request: Request, tokens: int) -> None:
        """The first `tokens` positions are here, and decode is told so."""
        self._wrote(request, 0, tokens, "transfer")
        self._transferred("transfer.done", request, tokens)

    def start(self, request: Request) -> None:
        """Read the whole prompt and generate."""
        request.decoding = True
        request.turn += 1
        self._running.append(request)
        self._world.emit(
            site.DECODE,
            "page.read",
            pool=site.DECODE_POOL,
            pages=covering(request.decode_pages, 0, request.prompt),
            request=request.id,
            op="decode",
            tok=(0, request.prompt),
        )
        if request.abort == "decode":
            self._truth.aborted.append(request.id)
            tokens = max(1, request.output // 3)
            self._world.after(tokens * _TOKEN_TIME, self._abort, request, request.turn, tokens)
        else:
            self._world.after(request.output * _TOKEN_TIME, self._answer, request, request.turn)

    # ------------------------------------------------------------------------------------- waiting for pages

    def _try(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            need = site.pages_for(request.prompt + request.max_new)
            if need > self.pool.available:
                if self._world.now - request.queued > _PATIENCE:
                    self._make_room()
                self._world.after(250_000, self._try)
                return
            self._waiting.pop(0)
            request.decode_pages = self.pool.take(need)
            if request.preempted:
                self._resume(request)
                continue
            self._emit_alloc(request)
            if request.kind == "over":
                self._all.placeholder.accepted(request)
            else:
                self._all.prefill.queue(request)

    def _make_room(self) -> None:
        """Preempt the youngest ordinary request; it will be resumed from a copy in host memory."""
        candidates = [
            r for r in self._running if r.kind == "ordinary" and not r.preempted and r.abort is None and r.decoding
        ]
        if not candidates:
            return
        request = max(candidates, key=lambda r: r.index)
        request.preempted, request.decoding = True, False
        request.turn += 1
        self._running.remove(request)
        self._truth.preempted.append(request.id)
        self._world.emit(site.DECODE, "request.preempted", request=request.id)
        self._release(request, "preempt")
        request.queued = self._world.now
        self._waiting.append(request)

    def _resume(self, request: Request) -> None:
        self._world.emit(site.DECODE, "request.resumed", request=request.id)
        self._emit_alloc(request)
        self._world.after(15_000 + request.prompt // 8, self._reloaded, request)

    def _reloaded(self, request: Request) -> None:
        self._wrote(request, 0, request.prompt, "load")
        self.start(request)

    # ------------------------------------------------------------------------------------- the transfer's end

    def _received(self, request: Request) -> None:
        self.landed(request, request.prompt)
        self._world.after(20_000, self._all.prefill.release, request, "finish")
        self._world.after(30_000, self.start, request)

    def _abort_transfer(self, request: Request, duration: int) -> None:
        self._all.gateway.disconnected(site.DECODE, request)
        self._world.after(900, self._all.gateway.finished, request, 499, "abort", request.prompt, 0, 0)
        self._world.after(duration // 2, self._drain, request)

    def _drain(self, request: Request) -> None:
        """What was under way still lands; only then may the pages be released."""
        self._wrote(request, 0, request.prompt, "transfer", phase="end")
        self._world.after(2_000, self._drained, request)

    def _drained(self, request: Request) -> None:
        self._world.emit(site.PREFILL, "transfer.drained", transfer=request.transfer, rank=0)
        self._world.after(2_000, self._release_aborted, request)

    def _release_aborted(self, request: Request) -> None:
        self._transferred("transfer.failed", request, request.prompt)
        self._release(request, "abort")
        self._all.prefill.release(request, "abort")

    # ------------------------------------------------------------------------------------- the request's end

    def _answer(self, request: Request, turn: int) -> None:
        if turn != request.turn:
            return
        self._generated(request, request.output)
        reason = "length" if request.output == request.max_new else "stop"
        prompt = 1 if request.kind == "over" else request.prompt
        self._all.gateway.finished(request, 200, reason, prompt, _cached(request), request.output)
        self._world.after(2_000, self._release, request, "finish")

    def _abort(self, request: Request, turn: int, tokens: int) -> None:
        if turn != request.turn:
            return
        self._generated(request, tokens)
        self._all.gateway.disconnected(site.DECODE, request)
        self._release(request, "abort")
        gateway = self._all.gateway
        self._world.after(700, gateway.finished, request, 499, "abort", request.prompt, _cached(request), tokens)

    def _generated(self, request: Request, tokens: int) -> None:
        self._wrote(request, request.prompt, request.prompt + tokens, "forward")
        self._running.remove(request)

    def _release(self, request: Request, reason: str) -> None:
        self._world.emit(
            site.DECODE,
            "page.free",
            pool=site.DECODE_POOL,
            pages=request.decode_pages,
            request=request.id,
            reason=reason,
        )
        self.pool.give(request.decode_pages)
        self._world.after(400, self._try)

    # ------------------------------------------------------------------------------------- records

    def _emit_alloc(self, request: Request) -> None:
        self._world.emit(
            site.DECODE,
            "page.alloc",
            pool=site.DECODE_POOL,
            pages=request.decode_pages,
            request=request.id,
            tenant=request.tenant,
        )

    def _wrote(self, request: Request, first: int, end: int, op: str, **phase: str) -> None:
        self._emit_write(request, first, end, op, **phase)
        self.content.wrote(request.decode_pages, first, end, request.index)

    def _emit_write(self, request: Request, first: int, end: int, op: str, **phase: str) -> None:
        self._world.emit(
            site.DECODE,
            "page.write",
            pool=site.DECODE_POOL,
            pages=covering(request.decode_pages, first, end),
            request=request.id,
            op=op,
            tok=(first, end),
            **phase,
        )

    def _transferred(self, event: str, request: Request, tokens: int) -> None:
        self._world.emit(
            site.DECODE,
            event,
            transfer=request.transfer,
            tokens=tokens,
            pages_ok=site.pages_for(tokens),
            bytes=tokens * site.KV_BYTES_PER_TOKEN,
            observer=site.DECODE,
        )


def _cached(request: Request) -> int:
    """Prompt tokens that came from the reuse index."""
    return site.PREFIXES[request.prefix] if request.shared and request.prefix is not None else 0
