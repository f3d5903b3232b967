"""The methods of the tracer for what happens less often than page events: engines, requests, transfers and the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvwitness.gpu_tracer.arena import PageIds
from kvwitness.gpu_tracer.base import Recorder

_Name = str | int


class Lifecycle(Recorder):
    """Each method records one event; the names and meanings are those of the trace format."""

    __slots__ = ()

    def engine_pool(
        self,
        pool: str,
        *,
        page_tokens: int,
        pages_total: int,
        kind: str | None = None,
        reserved: PageIds | None = None,
        scrub: str | None = None,
        sharing: str | None = None,
        **more: Any,
    ) -> None:
        """A pool of `pages_total` pages of `page_tokens` positions, and its policy; again when that changes.

        `reserved` are null and padding pages; `scrub` is `never`, `on_free` or `on_alloc`; `sharing` is `none`,
        `tenant` or `global`. Say it before anything else about the pool, with `reason="start"` if the process has just
        made it, so that nothing is held against an earlier life of the pool.
        """
        fields = {"pool": pool, "page_tokens": page_tokens, "pages_total": pages_total, "kind": kind}
        self._event("engine.pool", {**fields, "reserved": reserved, "scrub": scrub, "sharing": sharing, **more})

    def engine_limits(
        self,
        engine: str,
        *,
        role: str | None = None,
        advertised_tokens: int | None = None,
        input_limit_tokens: int | None = None,
        pool_tokens: int | None = None,
        version: str | None = None,
        model: str | None = None,
        **more: Any,
    ) -> None:
        """What an engine promises and can hold, in tokens; `input_limit_tokens` is the limit that it enforces."""
        fields = {"engine": engine, "role": role, "advertised_tokens": advertised_tokens, "version": version}
        limits = {"input_limit_tokens": input_limit_tokens, "pool_tokens": pool_tokens, "model": model}
        self._event("engine.limits", {**fields, **limits, **more})

    def engine_clock(
        self, engine: str, *, offset_s: float | None = None, uncertainty_s: float | None = None, **more: Any
    ) -> None:
        """How far the engine's clock is ahead of the reference, and how far that may be off, in seconds."""
        self._event("engine.clock", {"engine": engine, "offset_s": offset_s, "uncertainty_s": uncertainty_s, **more})

    def engine_epoch(self, engine: str, epoch: int, **more: Any) -> None:
        """Weights or cache semantics changed."""
        self._event("engine.epoch", {"engine": engine, "epoch": epoch, **more})

    def request_received(
        self,
        request: str,
        tenant: str,
        *,
        prompt_tokens: int | None = None,
        max_new_tokens: int | None = None,
        salt_hmac: str | None = None,
        adapter: _Name | None = None,
        model: str | None = None,
        traffic: str | None = None,
        **more: Any,
    ) -> None:
        """A request arrived; `prompt_tokens` is its true length, before the engine rewrites anything."""
        fields = {"request": request, "tenant": tenant, "prompt_tokens": prompt_tokens, "model": model}
        rest = {"max_new_tokens": max_new_tokens, "salt_hmac": salt_hmac, "adapter": adapter, "traffic": traffic}
        self._event("request.received", {**fields, **rest, **more})

    def request_rejected(
        self, request: str, *, reason: str | None = None, status: int | None = None, **more: Any
    ) -> None:
        """A refusal, recorded by any party."""
        self._event("request.rejected", {"request": request, "reason": reason, "status": status, **more})

    def request_aborted(self, request: str, *, by: str | None = None, reason: str | None = None, **more: Any) -> None:
        """An abort, recorded by any party."""
        self._event("request.aborted", {"request": request, "by": by, "reason": reason, **more})

    def request_preempted(self, request: str, *, reason: str | None = None, **more: Any) -> None:
        """The request is set aside and will come back."""
        self._event("request.preempted", {"request": request, "reason": reason, **more})

    def request_resumed(self, request: str, **more: Any) -> None:
        """A preempted request is back."""
        self._event("request.resumed", {"request": request, **more})

    def response(
        self,
        request: str,
        *,
        status: int | None = None,
        finish_reason: str | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
        answered_by: str | None = None,
        **more: Any,
    ) -> None:
        """`request.finished`: what the client received, or with `answered_by` what that engine answered."""
        fields = {"request": request, "status": status, "finish_reason": finish_reason, "answered_by": answered_by}
        counts = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        self._event("request.finished", {**fields, **counts, "completion_tokens": completion_tokens, **more})

    def transfer_offer(
        self,
        transfer: _Name,
        request: str,
        *,
        src_pool: str | None = None,
        src_pages: PageIds | None = None,
        tokens: int | None = None,
        **more: Any,
    ) -> None:
        """The source side announces pages that may be fetched."""
        fields = {"transfer": transfer, "request": request, "src_pool": src_pool, "src_pages": src_pages}
        self._event("transfer.offer", {**fields, "tokens": tokens, **more})

    def transfer_begin(
        self,
        transfer: _Name,
        request: str,
        *,
        src_pool: str | None = None,
        src_pages: PageIds | None = None,
        dst_pool: str | None = None,
        dst_pages: PageIds | None = None,
        dst_announced: PageIds | None = None,
        tokens: int | None = None,
        tok: Sequence[int] | None = None,
        writers: Sequence[int] | None = None,
        **more: Any,
    ) -> None:
        """Bytes begin to move. `tokens` counts positions from 0; `dst_pages` begin at position 0, or at `tok[0]`."""
        source = {"transfer": transfer, "request": request, "src_pool": src_pool, "src_pages": src_pages}
        target = {"dst_pool": dst_pool, "dst_pages": dst_pages, "dst_announced": dst_announced}
        self._event("transfer.begin", {**source, **target, "tokens": tokens, "tok": tok, "writers": writers, **more})

    def transfer_done(
        self,
        transfer: _Name,
        *,
        observer: str | None = None,
        tokens: int | None = None,
        pages_ok: int | None = None,
        **more: Any,
    ) -> None:
        """One party (`observer`: `sender`, `receiver`, `scheduler`) was told that a transfer is complete.

        `tokens` and `pages_ok` are what it was told has landed; leave them out where it was told nothing.
        """
        fields = {"transfer": transfer, "observer": observer, "tokens": tokens, "pages_ok": pages_ok}
        self._event("transfer.done", {**fields, **more})

    def transfer_failed(
        self,
        transfer: _Name,
        *,
        observer: str | None = None,
        tokens: int | None = None,
        pages_ok: int | None = None,
        reason: str | None = None,
        **more: Any,
    ) -> None:
        """One party was told that a transfer failed; as `transfer_done`."""
        fields = {"transfer": transfer, "observer": observer, "tokens": tokens, "pages_ok": pages_ok}
        self._event("transfer.failed", {**fields, "reason": reason, **more})

    def transfer_drained(self, transfer: _Name, *, rank: int | None = None, **more: Any) -> None:
        """A writer confirms that nothing is in flight."""
        self._event("transfer.drained", {"transfer": transfer, "rank": rank, **more})

    def transfer_lease(self, transfer: _Name, *, until: float | int | None = None, **more: Any) -> None:
        """Source pages are held until a time (s since the Unix epoch, or integer ns)."""
        self._event("transfer.lease", {"transfer": transfer, "until": until, **more})

    def aux_write(
        self, slot: _Name, request: str, *, rank: int | None = None, length: int | None = None, **more: Any
    ) -> None:
        """Metadata that travels beside the pages was written to a slot."""
        self._event("aux.write", {"slot": slot, "request": request, "rank": rank, "length": length, **more})

    def aux_read(
        self, slot: _Name, request: str, *, rank: int | None = None, length: int | None = None, **more: Any
    ) -> None:
        """A slot was read; `length` 0 is a poll that found nothing."""
        self._event("aux.read", {"slot": slot, "request": request, "rank": rank, "length": length, **more})

    def step_begin(
        self, step: int, pool: str, pages: PageIds | None = None, *, dummy: bool | None = None, **more: Any
    ) -> None:
        """A device step was dispatched with these pages; `dummy`: it runs padding only."""
        self._event("step.begin", {"step": step, "pool": pool, "pages": pages, "dummy": dummy, **more})

    def step_end(
        self, step: int, pool: str, pages: PageIds | None = None, *, dummy: bool | None = None, **more: Any
    ) -> None:
        """A device step has finished."""
        self._event("step.end", {"step": step, "pool": pool, "pages": pages, "dummy": dummy, **more})

    def canary_planted(self, marker: _Name, request: str, **more: Any) -> None:
        """A unique marker, here its keyed hash, was sent in a prompt."""
        self._event("canary.planted", {"marker": marker, "request": request, **more})

    def canary_seen(self, marker: _Name, request: str, **more: Any) -> None:
        """A marker was found in an output; or, with `pool` and `pages`, what it stands for on pages of the request."""
        self._event("canary.seen", {"marker": marker, "request": request, **more})

    def content_digest(
        self,
        pool: str,
        pages: PageIds,
        *,
        digests: Sequence[str] | None = None,
        at: str | None = None,
        **more: Any,
    ) -> None:
        """Fingerprints of page bytes, parallel to `pages`, taken `at` `alloc`, `free`, `read`, `send` or `receive`."""
        self._event("content.digest", {"pool": pool, "pages": pages, "digests": digests, "at": at, **more})

    def shadow_finding(
        self,
        reason: str,
        *,
        request: str | None = None,
        pool: str | None = None,
        pages: PageIds | None = None,
        **more: Any,
    ) -> None:
        """What the live shadow said (see `kvwitness.gpu_tracer.shadow`); the audit takes no verdict from it."""
        fields = {"reason": reason, "request": request, "pool": pool, "pages": pages}
        self._event("shadow.finding", {**fields, **more})

    def device_state(
        self,
        device: str | None = None,
        *,
        parent: str | None = None,
        facts: Mapping[str, Any] | None = None,
        absent: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """What the driver said of the GPU with the UUID `device`; `absent` has what it did not say, and why."""
        fields = {"device": device, "parent": parent, "facts": facts, "absent": absent}
        self._event("device.state", {**fields, **more})

    def gap(
        self,
        *,
        dropped: int | None = None,
        reason: str | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        **more: Any,
    ) -> None:
        """`telemetry.gap`: events of the host that are known to be missing from the record."""
        fields = {"dropped": dropped, "reason": reason, "from_seq": from_seq, "to_seq": to_seq}
        self._event("telemetry.gap", {**fields, **more})
