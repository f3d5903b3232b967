"""Pages that a vLLM connector fills: what was announced, what it said, and whether the bytes changed.

A connector says how many tokens of a prompt it has, and later that it is done. Neither is a write. The model runner's
process therefore takes a sample of the bytes of each page that is to be filled, before and after; a page whose sample
is the same, although it held other content before, has not been filled, whatever the connector says. What was seen
travels back with the connector's own output, so that all that concerns a request is put down in one order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvwitness.gpu_tracer.engines._vllm_rows import ROWS, mirror_of
from kvwitness.gpu_tracer.engines._vllm_view import Load, Seen, View, lease_end
from kvwitness.gpu_tracer.engines.base import Guard, runs

TARGETS = "kvwitness_targets"
"""Attribute of a step's plan: request id -> pages that a connector is going to fill."""
LANDED = "kvwitness_landed"
"""Attribute of a step's output: request id -> for each of those pages, whether its bytes changed. Not of the part that
is the connector's, which an executor with workers in other processes makes anew."""
_HELD_BACK = "_kvwitness_landed"
"""Attribute of the model runner: the same, until there is an output to travel with."""
_ROWS_HELD_BACK = "_kvwitness_rows"
_PENDING = "_kvwitness_pending"
"""Attribute of the model runner: request id -> its pages that a connector is filling, and how they were before."""
_LEASE_S = 30
_SAMPLE = 256
"""Values that are looked at, per page and layer."""

Reads = Callable[[View, Seen, int], None]
Write = tuple[Seen, int, int, list[int]]
"""A request, the positions [first, end) that a step writes of it, and the pages."""


# -- the scheduler's side -------------------------------------------------------------------------------------


def announce(view: View, seen: Seen, request: Any, table: list[int], first: int, upto: int, asynchronous: bool) -> None:
    """Positions [first, upto) of a request are to be filled by the connector."""
    size = view.page_tokens
    params = request.kv_transfer_params or {}
    remote = params.get("remote_request_id") if params.get("do_remote_prefill") else None
    seen.loads += 1
    transfer = str(remote) if remote else f"{seen.id}/load-{seen.loads}"
    pages = table[first // size : -(-upto // size)]
    load = seen.load = Load(transfer, first, upto, pages, asynchronous)
    held = [view.content.get(page) for page in pages]
    load.prior = [
        content is not None and content == _content(request, n) for n, content in enumerate(held, first // size)
    ]
    source = _pages(params.get("remote_block_ids")) if remote else None
    pool = f"{params.get('remote_engine_id')}/kv" if source else None
    if view.store is not None and (found := view.store.found(seen, request, upto)) is not None:
        pool, source = found
        load.stored = source
    view.tracer.transfer_begin(
        transfer, seen.name, src_pool=pool, src_pages=source or None, dst_pool=view.pool,
        dst_pages=table[: -(-upto // size)], tokens=upto, tok=(first, upto), tenant=seen.tenant,
    )  # fmt: skip
    view.targets[seen.id] = pages


def settle(view: View, scheduler: Any, plan: Any, outcome: Any, reads: Reads) -> None:
    """A step is over: put down what its loads brought, and then what rested on them."""
    landed: dict[str, list[bool]] = getattr(outcome, LANDED, None) or {}
    output = getattr(outcome, "kv_connector_output", None)
    bad = set(getattr(output, "invalid_block_ids", None) or ())
    failed = set(getattr(output, "failed_recving", None) or ())
    for rid in sorted(getattr(output, "finished_recving", None) or ()):
        seen = view.live.get(rid)
        if seen is not None and seen.load is not None:
            _ended(view, seen, landed.get(rid), bad, rid in failed)
    for rid in failed:
        seen = view.live.get(rid)
        if seen is not None and seen.load is not None:
            _ended(view, seen, landed.get(rid), bad, True)
    for seen, first, end, pages in view.waiting.pop(id(plan), ()):
        _ended(view, seen, landed.get(seen.id), bad, False)
        view.tracer.write(view.pool, pages, seen.name, tok=(first, end), op="forward", step=view.step)
        reads(view, seen, first)
    for rid in sorted(getattr(output, "finished_sending", None) or ()):
        seen = view.live.get(rid)
        if seen is not None and seen.until:
            seen.reason = reason(view, seen)
            if seen.reason == "timeout":
                view.tracer.transfer_failed(rid, observer="sender", reason="lease expired", request=seen.name)
            else:
                view.tracer.transfer_done(rid, observer="sender", request=seen.name)


def _ended(view: View, seen: Seen, changed: list[bool] | None, bad: set[int], failed: bool) -> None:
    """A load has ended, for better or worse."""
    load = seen.load
    if load is None:
        return
    seen.load = None
    size = view.page_tokens
    at = load.first // size
    good = next((n for n, page in enumerate(load.pages) if page in bad), len(load.pages))
    filled = [
        n for n in range(good) if not failed and (changed is None or n >= len(changed) or changed[n] or load.prior[n])
    ]
    for start, end in runs(filled):
        first, upto = max(load.first, (at + start) * size), min(load.upto, (at + end) * size)
        view.tracer.write(
            view.pool, load.pages[start:end], seen.name, tok=(first, upto), op="transfer", transfer=load.transfer
        )
    if failed or good < len(load.pages):
        upto = max(load.first, min(load.upto, (at + good) * size)) if not failed else load.first
        view.tracer.transfer_failed(load.transfer, observer="scheduler", tokens=upto, request=seen.name)
    else:
        view.tracer.transfer_done(load.transfer, observer="scheduler", tokens=load.upto, request=seen.name)
    if view.store is not None and load.stored:
        view.store.left(seen, load.stored)


def offer(view: View, seen: Seen, request: Any, result: Any) -> None:
    """A request is over, and the connector was asked whether its pages have to stay for the other side."""
    held, params = result
    if not held or not params or not params.get("remote_block_ids"):
        return
    view.finish_reading(seen)
    transfer = str(params.get("remote_request_id") or seen.id)
    pages = _pages(params["remote_block_ids"])
    view.tracer.transfer_offer(
        transfer, seen.name, src_pool=view.pool, src_pages=pages,
        tokens=int(params.get("remote_num_tokens") or request.num_computed_tokens),
    )  # fmt: skip
    config = view.scheduler.vllm_config.kv_transfer_config
    seen.until = lease_end(float(config.get_from_extra_config("kv_lease_duration", _LEASE_S)))
    view.tracer.transfer_lease(transfer, until=int(seen.until * 1e9))


def reason(view: View, seen: Seen) -> str:
    """Why pages that were held for a fetch go back."""
    return "timeout" if seen.until and time.time() >= seen.until else "finish"


def remember(view: View, seen: Seen, request: Any) -> None:
    """Keep what content the pages of a request are left with."""
    for n, page in enumerate(seen.table):
        content = _content(request, n)
        if content is not None and view.owner.get(page) is seen:
            view.content[page] = content
        else:
            view.content.pop(page, None)


def _content(request: Any, page: int) -> bytes | None:
    """What inputs a page of a request holds, or would hold: vLLM's own hash of them, salt included."""
    hashes = request.block_hashes
    return bytes(hashes[page]) if page < len(hashes) else None


def _pages(given: Any) -> list[int]:
    """Page numbers of the first cache group, from either of the forms that versions use."""
    pages = list(given or ())
    if pages and not isinstance(pages[0], int):
        pages = list(pages[0])
    return [int(page) for page in pages]


# -- the worker's side ----------------------------------------------------------------------------------------


def watching(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`execute_model`, with a look at the pages that are to be filled before and after."""

    def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        mirror = None
        try:
            if (mirror := mirror_of(runner)) is not None:
                mirror.follow(scheduler_output)
            if getattr(scheduler_output, TARGETS, None):
                _look_before(runner, scheduler_output)
        except Exception as error:
            guard.failed("GPUModelRunner.execute_model", error)
        if args or kwargs:
            result = method(runner, scheduler_output, *args, **kwargs)
        else:
            result = method(runner, scheduler_output)
        try:
            if mirror is not None and (differing := mirror.differing(runner, scheduler_output)):
                runner.__dict__[_ROWS_HELD_BACK] = differing
            if _PENDING in runner.__dict__:
                _look_after(runner, result)
            if result is not None:
                _send_along(runner, result)
        except Exception as error:
            guard.failed("GPUModelRunner.execute_model", error)
        return result

    return execute_model


def sampled(_: None, result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """After `sample_tokens`, which makes the step's output where `execute_model` does not."""
    _send_along(runner, result)


def _send_along(runner: Any, result: Any) -> None:
    """Have what was seen travel with the step's output."""
    output = getattr(result, "_model_runner_output", result)
    if getattr(output, "req_ids", None) and (rows := runner.__dict__.pop(_ROWS_HELD_BACK, None)):
        setattr(output, ROWS, rows)
    if getattr(output, "kv_connector_output", None) is None:
        return  # perhaps the one that stands for all steps without one
    if landed := runner.__dict__.pop(_HELD_BACK, None):
        setattr(output, LANDED, landed)


def _look_before(runner: Any, plan: Any) -> None:
    targets: dict[str, list[int]] = getattr(plan, TARGETS)
    pending = runner.__dict__.setdefault(_PENDING, {})
    for rid, pages in targets.items():
        pending[rid] = (pages, _samples(runner, pages), rid in plan.num_scheduled_tokens)


def _look_after(runner: Any, result: Any) -> None:
    pending = runner.__dict__.get(_PENDING)
    if not pending:
        return
    output = getattr(result, "kv_connector_output", None) or getattr(runner, "kv_connector_output", None)
    if output is None:
        return
    finished = set(output.finished_recving or ()) | set(getattr(output, "failed_recving", None) or ())
    seen = {rid for rid, (_, _, inside) in pending.items() if inside} | finished & pending.keys()
    landed = {}
    for rid in seen:
        pages, before, _ = pending.pop(rid)
        landed[rid] = [b != a for b, a in zip(before, _samples(runner, pages), strict=True)]
    if landed:
        runner.__dict__.setdefault(_HELD_BACK, {}).update(landed)


def _samples(runner: Any, pages: Sequence[int]) -> list[bytes]:
    """A fingerprint of each page: some of its values from every layer, spread over all of it."""
    import torch  # the host's own

    hashes = [hashlib.blake2b(digest_size=16) for _ in pages]
    for layer in _layers(runner.kv_caches):
        dim = 1 if layer.dim() > 4 and layer.shape[0] == 2 else 0  # keys and values apart, or together
        rows = layer.transpose(0, dim)[torch.as_tensor(list(pages), device=layer.device)]
        flat = rows.reshape(len(pages), -1)
        part = flat[:, :: max(1, flat.shape[1] // _SAMPLE)].contiguous().view(torch.uint8).cpu().numpy()
        for one, values in zip(hashes, part, strict=True):
            one.update(values.tobytes())
    return [one.digest() for one in hashes]


def _layers(caches: Any) -> list[Any]:
    out = []
    for cache in caches:
        out += _layers(cache) if isinstance(cache, list | tuple) else [cache]
    return out
