"""The tracer: one method for each kind of event, for engines of one's own and for adapters.

    tracer = Tracer.from_environment("decode-0/0")
    tracer.engine_pool("decode-0/0/full", page_tokens=16, pages_total=4096, sharing="tenant")
    tracer.request_received("r1", "t-ash", prompt_tokens=40)
    tracer.alloc("decode-0/0/full", [14, 15, 50], "r1")
    tracer.write("decode-0/0/full", [14, 15, 50], "r1", tok=(0, 40), op="forward")

The methods mirror `docs/trace-format.md`: the same names, meanings and units. Pages are an id, a range, or any sequence
or array of ids in the order of token positions; arrays of 32-bit integers are the quickest. All methods but the five
quickest take any further field by its name (`incarnation`, `tenant_source`, `t` ...); `event` takes any for any kind.
None of them raises; `Recorder` says what becomes of failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvwitness.gpu_tracer.arena import PageIds
from kvwitness.gpu_tracer.lifecycle import Lifecycle
from kvwitness.gpu_tracer.records import Bound

_Name = str | int


class Tracer(Lifecycle):
    """Records what happens to pages, requests and transfers.

    The five methods that a running engine calls all the time are, in a thread that has a ring, shadowed by functions
    that write into that ring and do nothing else (see `kvwitness.gpu_tracer.records`).
    """

    __slots__ = ()

    def _begin(self) -> dict[str, Any]:
        """Shadow the five methods in the calling thread; what they are now."""
        pen = self._pen()
        names = ("alloc", "free", "write", "read", "decoded")
        quick = {name: _nothing if pen is None else getattr(pen, name) for name in names}
        if pen is not None:
            vars(self).update(quick)
        return quick

    def alloc(
        self,
        pool: str,
        pages: PageIds,
        request: str | None = None,
        *,
        tenant: str | None = None,
        holder: str | None = None,
        gen: int | None = None,
        path: str | None = None,
    ) -> None:
        """Pages become owned, by a request or by a `holder` (`cache`, `session`, `snapshot`).

        `gen` is how often they had been allocated (absent: the audit counts), `path` the code path that acted.
        """
        self._begin()["alloc"](pool, pages, request, tenant=tenant, holder=holder, gen=gen, path=path)

    def free(
        self,
        pool: str,
        pages: PageIds,
        request: str | None = None,
        *,
        reason: str | None = None,
        tenant: str | None = None,
        gen: int | None = None,
        holder: str | None = None,
        to: str | None = None,
        path: str | None = None,
    ) -> None:
        """The holder lets go; `reason` is `finish`, `abort`, `timeout`, `preempt`, `evict` or `window`.

        With `to` (`cache`, `session`, `snapshot`) ownership passes on and the content stays.
        """
        self._begin()["free"](
            pool, pages, request, reason=reason, tenant=tenant, gen=gen, holder=holder, to=to, path=path
        )

    def write(
        self,
        pool: str,
        pages: PageIds,
        request: str | None = None,
        *,
        tok: Sequence[int] | None = None,
        op: str | None = None,
        step: int | None = None,
        phase: str | None = None,
        tenant: str | None = None,
        transfer: _Name | None = None,
        digest: _Name | None = None,
    ) -> None:
        """Bytes have landed on pages.

        `tok` is the half-open span of positions that was written (absent: whole pages); `op` is `forward`, `transfer`,
        `load`, `copy`, `scrub` or `dummy`. With `phase` `begin` and `end`, issue and completion are two events.
        """
        self._begin()["write"](
            pool,
            pages,
            request,
            tok=tok,
            op=op,
            step=step,
            phase=phase,
            tenant=tenant,
            transfer=transfer,
            digest=digest,
        )

    def read(
        self,
        pool: str,
        pages: PageIds,
        request: str,
        *,
        tok: Sequence[int] | None = None,
        op: str | None = None,
        step: int | None = None,
        phase: str | None = None,
        tenant: str | None = None,
        transfer: _Name | None = None,
    ) -> None:
        """Attention or a copier is going to read pages.

        The read stays open until `phase="end"`, the end of the request or its `free`, so an engine need not repeat it
        at each step for pages that it has read before. `op` is `decode`, `prefill`, `transfer`, `offload` or `copy`.
        """
        self._begin()["read"](
            pool, pages, request, tok=tok, op=op, step=step, phase=phase, tenant=tenant, transfer=transfer
        )

    def decoded(self, pool: str, pages: PageIds, request: str, *, tok: Sequence[int], step: int) -> None:
        """A step, or several in a row, of decoding: `write` with op `forward` and `read` with op `decode` in one.

        `tok` are the positions that were computed; each was read by the steps from its own on.
        """
        self._begin()["decoded"](pool, pages, request, tok=tok, step=step)

    def reader(self, pool: str, op: str) -> Bound:
        """A function `(page, request, first, end, step)` for the calling thread: `read` of one page for positions
        [first, end), with pool and op that stand fast, in two thirds of the time."""
        pen = self._pen()
        return _nothing if pen is None else pen.reader(pool, op)

    def writer(self, pool: str, op: str) -> Bound:
        """The same for `write`."""
        pen = self._pen()
        return _nothing if pen is None else pen.writer(pool, op)

    def share(
        self,
        pool: str,
        pages: PageIds,
        request: str,
        *,
        key: _Name | None = None,
        ns: dict[str, Any] | None = None,
        tok: Sequence[int] | None = None,
        **more: Any,
    ) -> None:
        """A request attaches, through a cache look-up, to pages that exist already; `ns` is the sharer's."""
        fields = {"pool": pool, "pages": pages, "request": request, "key": key, "ns": ns, "tok": tok}
        self._event("page.share", {**fields, **more})

    def publish(
        self,
        pool: str,
        pages: PageIds,
        *,
        key: _Name | None = None,
        ns: dict[str, Any] | None = None,
        request: str | None = None,
        **more: Any,
    ) -> None:
        """Pages become findable under a key, for those whose namespace `ns` is the same."""
        self._event("page.publish", {"pool": pool, "pages": pages, "key": key, "ns": ns, "request": request, **more})

    def unpublish(self, pool: str, pages: PageIds, *, key: _Name | None = None, **more: Any) -> None:
        """Pages are no longer findable."""
        self._event("page.unpublish", {"pool": pool, "pages": pages, "key": key, **more})

    def copy(self, pool: str, pages: PageIds, to_pages: PageIds, *, to_pool: str | None = None, **more: Any) -> None:
        """Content is duplicated to `to_pages`, parallel to `pages`, which must have been allocated."""
        self._event("page.copy", {"pool": pool, "pages": pages, "to_pages": to_pages, "to_pool": to_pool, **more})

    def move(self, pool: str, pages: PageIds, to_pages: PageIds, *, to_pool: str | None = None, **more: Any) -> None:
        """Content is relocated to `to_pages`: alloc of the target and free of the source in one."""
        self._event("page.move", {"pool": pool, "pages": pages, "to_pages": to_pages, "to_pool": to_pool, **more})


def _nothing(*_: object, **__: object) -> None:
    """Stand in where nothing is recorded."""


__all__ = ["Tracer"]
