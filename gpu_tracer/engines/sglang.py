"""SGLang: attached as a `sglang.srt.plugins` plug-in when KVWITNESS_RING_DIR is set.

SGLang calls `register` once in each of its processes; what is watched happens in the scheduler processes. SGLang's own
hook registry logs a target that is not there and goes on, and lets a hook that raises end the scheduler. So the hooks
here are those of every other adapter: they know what they did not attach to, and nothing gets out of them.

Classes and names move between versions, and a hook on the wrong method would record something untrue. A version that is
not in `VERSIONS` is therefore refused: the engine goes on, nothing is recorded, and the record and the log say so.

What a step writes and reads is put down before it runs, from the request table that the step is going to use.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer.engines._sglang_transfers import Transfers
from kvwitness.gpu_tracer.engines._sglang_view import Seen, View, committed, over
from kvwitness.gpu_tracer.engines.base import ENGINE_VARIABLE, Attachment, Engine, Guard, Hook, attach
from kvwitness.gpu_tracer.engines.identity import Identity
from kvwitness.gpu_tracer.tracer import Tracer

_log = logging.getLogger("kvwitness.gpu_tracer")

_SRT = "sglang.srt"
_SCHEDULER = f"{_SRT}.managers.scheduler:Scheduler"
_REQ = f"{_SRT}.managers.schedule_batch:Req"
_STREAMER = f"{_SRT}.managers.scheduler_components.output_streamer:SchedulerOutputStreamer"
_PAGED = f"{_SRT}.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"
_TOKEN = f"{_SRT}.mem_cache.allocator.token:TokenToKVPoolAllocator"
_ROWS = f"{_SRT}.mem_cache.memory_pool:ReqToTokenPool"
_TREE, _UNIFIED = f"{_SRT}.mem_cache.radix_cache:RadixCache", f"{_SRT}.mem_cache.unified_radix_cache:UnifiedRadixCache"
_PREFILL = f"{_SRT}.disaggregation.prefill:SchedulerDisaggregationPrefillMixin"
_DECODE = f"{_SRT}.disaggregation.decode"
_CONN = f"{_SRT}.disaggregation.common.conn"

guard = Guard()
attachment: Attachment | None = None
"""What is attached in this process; None before that."""
view: View | None = None
"""The scheduler of this process; None where there is none."""
transfers: Transfers | None = None


def register() -> None:
    """The plug-in's entry. Raises nothing: whatever goes wrong, the engine starts."""
    global attachment
    if not os.environ.get(DIRECTORY_VARIABLE):
        return
    try:
        _, version = ENGINE.installed() or ("", "?")
        if version in VERSIONS:
            attachment = attach(ENGINE.hooks, guard)
        else:
            _say(f"SGLang {version} is not known to this adapter ({VERSIONS[0]} to {VERSIONS[-1]})")
    except Exception as error:
        _log.warning("not attached to SGLang: %s", type(error).__name__)


def _say(why: str) -> None:
    """Put down, loudly, that nothing is recorded of this engine."""
    _log.error("nothing is recorded: %s", why)
    tracer = Tracer.from_environment(f"{os.environ.get(ENGINE_VARIABLE) or 'sglang'}/0")
    tracer.gap(dropped=1, reason=f"nothing is recorded: {why}")


def _watched() -> View | None:
    """The view, where pages can be followed."""
    return view if view is not None and view.blind is None else None


# -- the engine ---------------------------------------------------------------------------------------------


def _scheduler_made(_: None, result: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    global view, transfers
    if not os.environ.get(DIRECTORY_VARIABLE):
        return  # attached, and then told not to record
    try:
        made = View(scheduler, Identity.from_environment(), " ".join(ENGINE.installed() or ("sglang", "?")))
    except Exception as error:
        _say(f"this scheduler could not be looked at: {type(error).__name__}")
        raise
    made.unseen = attachment.unseen if attachment is not None else ()
    guard.gap = made.gap
    view, transfers = made, Transfers(made)


# -- requests -----------------------------------------------------------------------------------------------


def _request_arrives(scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> None:
    if view is not None:
        view.admit(received)


def _refusing(request: Any, error_msg: Any = None, status_code: Any = 400, *args: Any, **kwargs: Any) -> None:
    """Before `Req.set_finish_with_abort`, which puts one token in the prompt's place."""
    if view is None or not view.speaks or (seen := view.find(request)) is None:
        return
    # not the engine's words: they may quote what the client sent
    long = "exceeds the maximum allowed length" in str(error_msg) or "too long" in str(error_msg)
    reason = "input_too_long" if long else "refused by the engine"
    view.tracer.request_rejected(seen.name, reason=reason, status=int(status_code))


def _aborting(scheduler: Any, received: Any, *args: Any, **kwargs: Any) -> None:
    """Someone wants requests aborted. Those that run do so for a step yet: that is part of it, and told afterwards."""
    if view is None:
        return
    for seen in list(view.live.values()):
        if (received.abort_all or seen.id.startswith(received.rid)) and not (seen.told or seen.ended):
            seen.aborting = True
            if not seen.table:
                view.aborted(seen)


def _answering(_: None, result: None, streamer: Any, requests: Any, *args: Any, **kwargs: Any) -> None:
    for request in requests or ():
        if over(request) and view is not None and (seen := view.find(request)) is not None and not seen.told:
            _answered(view, seen, request)


def _answered(view: View, seen: Seen, request: Any) -> None:
    seen.told = True
    finish = request.finished_reason
    aborted = type(finish).__name__ == "FINISH_ABORT"
    view.aborted(seen)
    if seen.receiving and transfers is not None:
        transfers.failed(seen)
    code = getattr(finish, "status_code", None)
    if view.speaks:
        view.tracer.response(
            seen.name, status=int(code) if code is not None else (None if aborted else 200),
            finish_reason=str(finish.to_json()["type"]), prompt_tokens=len(request.origin_input_ids),
            cached_tokens=int(getattr(request, "cached_tokens", 0) or 0), completion_tokens=len(request.output_ids),
            answered_by=view.tracer.source,
        )  # fmt: skip
    view.forget_if_over(seen)


def _retracting(request: Any, *args: Any, **kwargs: Any) -> None:
    """The engine has taken a request's pages away; it will come back."""
    if view is not None and (seen := view.find(request)) is not None and not seen.preempted:
        seen.preempted = True
        view.tracer.request_preempted(seen.name)


# -- pages --------------------------------------------------------------------------------------------------


def _pages_back(allocator: Any, *page_ids: Any) -> None:
    """Before `_release_page_ids`: where all ways of giving pages back come together."""
    if (watched := _watched()) is not None and allocator is watched.allocator:
        watched.released([page for ids in page_ids for page in ids.tolist()])


def _slots_back(allocator: Any, free_index: Any, *args: Any, **kwargs: Any) -> None:
    """Before `free` of slots, where there is no other place; while frees are gathered, nothing goes back yet."""
    watched = _watched()
    if watched is None or allocator is not watched.allocator:
        return
    gathered = not getattr(allocator, "is_not_in_free_group", getattr(allocator, "free_group", None) is None)
    if not gathered:
        size = watched.page_tokens
        watched.released(dict.fromkeys(slot // size for slot in free_index.tolist()))


def _emptying(allocator: Any, *args: Any, **kwargs: Any) -> None:
    if (watched := _watched()) is not None and allocator is watched.allocator:
        watched.emptied()


def _row_back(rows: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    """A request gives up its row in the request table, after it has let go of its pages."""
    if (watched := _watched()) is not None and rows is watched.rows and (seen := watched.find(request)) is not None:
        watched.row_given_up(seen)


def _inserting(tree: Any, params: Any, *args: Any, **kwargs: Any) -> None:
    watched = _watched()
    if watched is None or tree is not watched.scheduler.tree_cache or tree.disable or params.value is None:
        return
    slots = params.value[:: watched.page_tokens].tolist()
    watched.inserting = [slot // watched.page_tokens for slot in slots]


def _inserted(_: None, result: Any, tree: Any, params: Any, *args: Any, **kwargs: Any) -> None:
    watched = _watched()
    if watched is None or watched.inserting is None or tree is not watched.scheduler.tree_cache:
        return
    pages, watched.inserting = watched.inserting, None
    watched.inserted(params.key, pages, int(result.prefix_len))


# -- steps --------------------------------------------------------------------------------------------------


def _running(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """A step is about to run: its new pages, its writes, then its reads."""
    watched = _watched()
    mode = batch.forward_mode
    if watched is None or mode.is_prebuilt() or mode.is_idle():
        return
    starts = batch.prefix_lens if mode.is_extend() else None
    watched.step += 1
    planned: list[tuple[Seen, int, int]] = []
    for n, request in enumerate(batch.reqs):
        if (seen := watched.find(request)) is None:
            watched.gap("a step runs for a request that was not seen to arrive")
            continue
        end = committed(request)
        first = end - 1 if starts is None else int(starts[n])
        if first >= end:
            continue
        watched.sync(seen, request, end, whole=starts is not None)
        if seen.preempted:
            seen.preempted = False
            watched.tracer.request_resumed(seen.name)
        planned.append((seen, first, end))
    _put_down(watched, planned)


def _put_down(watched: View, planned: list[tuple[Seen, int, int]]) -> None:
    size, tracer, pool, step = watched.page_tokens, watched.tracer, watched.pool, watched.step
    written = [seen.table[first // size : -(-end // size)] for seen, first, end in planned]
    if watched.in_order:
        watched.running = True
        tracer.step_begin(step, pool, [page for pages in written for page in pages])
    for (seen, first, end), pages in zip(planned, written, strict=True):
        tracer.write(pool, pages, seen.name, tok=(first, end), op="forward", step=step)
    for seen, first, end in planned:  # no layer of a step reads before that layer has written
        was, seen.computed, seen.decoding = seen.decoding, end, first >= seen.prompt
        if not was or not seen.decoding or not end % size:
            watched.reading(seen, first)


def _ran(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """A step has ended, and its outcome is about to be taken in."""
    if (watched := _watched()) is not None and watched.running:
        watched.running = False
        watched.tracer.step_end(watched.step, watched.pool)


# -- prefill and decode apart ---------------------------------------------------------------------------------


def _sending(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    if transfers is not None and _watched() is not None:
        transfers.chunk_begins(request)


def _handed_over(_: None, result: Any, sender: Any, *args: Any, **kwargs: Any) -> None:
    if transfers is not None and _watched() is not None:
        transfers.handed_over(sender, result)


def _status(manager: Any, bootstrap_room: Any, status: Any, *args: Any, **kwargs: Any) -> None:
    if transfers is not None and transfers.sends:
        transfers.concluded(int(bootstrap_room), int(status))


def _announced(_: None, result: Any, queue: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    if transfers is not None and _watched() is not None:
        transfers.announced(request)


def _slot_of(queue: Any, waiting: Any, *args: Any, **kwargs: Any) -> int:
    return int(waiting.metadata_buffer_index)


def _committed(slot: Any, result: Any, queue: Any, waiting: Any, *args: Any, **kwargs: Any) -> None:
    if transfers is not None and _watched() is not None:
        transfers.committed(waiting.req, slot)


_HELD = ("double-ownership", "foreign-page-read", "late-write", "unwritten-page-read")
_READS = ("foreign-page-read", "unwritten-page-read", "position-mismatch", "read-before-ready", "tainted-content")
_SHARES = ("cache-key-alias", "foreign-page-read", "prefix-probing", "salt-crossing")
_TRANSFERS = ("false-transfer-complete", "read-before-ready", "uncovered-read")

VERSIONS = tuple(f"0.5.{n}" for n in range(16, 24))
"""Versions whose classes were looked at, one by one."""
_RUN = ("0.5.19", "0.5.23")
"""Those on which the tests with real servers have run."""


def hooks(version: str) -> tuple[Hook, ...]:
    """The hook map of a version. The names are its own; leading arguments are the same in all of `VERSIONS`."""
    if version == "0.5.16":  # frees end in two methods of slots
        frees = Hook(f"{_PAGED}.free", ("page.free",), before=_slots_back, unproven=(*_HELD, "orphaned-pages"))
    else:
        frees = Hook(
            f"{_PAGED}._release_page_ids", ("page.free",), before=_pages_back, unproven=(*_HELD, "orphaned-pages")
        )
    overrides = ("mori", "nixl") if version in VERSIONS[:4] else ()  # they have their own `update_status`
    return (
        Hook(f"{_SCHEDULER}.__init__", ("engine.pool", "engine.limits"), after=_scheduler_made,
             unproven=("capacity-drift", "over-limit-success", *_HELD)),
        Hook(f"{_SCHEDULER}.handle_generate_request", ("request.received",), before=_request_arrives,
             unproven=("over-limit-success", "salt-crossing")),
        Hook(f"{_REQ}.set_finish_with_abort", ("request.rejected",), before=_refusing,
             unproven=("over-limit-success", "served-after-refusal")),
        Hook(f"{_SCHEDULER}.abort_request", ("request.aborted",), before=_aborting,
             unproven=("served-after-refusal",)),
        Hook(f"{_STREAMER}.stream_output", ("request.finished",), after=_answering,
             unproven=("orphaned-pages", "status-mismatch")),
        Hook(f"{_REQ}.reset_for_retract", ("request.preempted",), before=_retracting,
             unproven=("position-mismatch", "served-after-refusal")),
        Hook(f"{_SCHEDULER}.run_batch", ("page.alloc", "page.share", "page.write", "page.read", "step.begin"),
             before=_running, unproven=("freed-in-step", *_HELD, *_READS)),
        Hook(f"{_SCHEDULER}.process_batch_result", ("step.end",), before=_ran, unproven=("freed-in-step",)),
        frees,
        Hook(f"{_TOKEN}.free", ("page.free",), before=_slots_back, unproven=(*_HELD, "orphaned-pages")),
        Hook(f"{_PAGED}.clear", ("page.free", "page.unpublish"), before=_emptying, unproven=_HELD),
        Hook(f"{_TOKEN}.clear", ("page.free", "page.unpublish"), before=_emptying, unproven=_HELD),
        Hook(f"{_ROWS}.free", ("page.free",), before=_row_back, unproven=(*_HELD, "orphaned-pages")),
        Hook(f"{_DECODE}:DecodeReqToTokenPool.free", ("page.free",), before=_row_back,
             unproven=(*_HELD, "orphaned-pages")),
        Hook(f"{_TREE}.insert", ("page.publish",), before=_inserting, after=_inserted, unproven=_SHARES),
        Hook(f"{_UNIFIED}.insert", ("page.publish",), before=_inserting, after=_inserted, unproven=_SHARES),
        Hook(f"{_PREFILL}.send_kv_chunk", ("transfer.begin",), before=_sending, unproven=_TRANSFERS),
        Hook(f"{_CONN}:CommonKVSender._prepare_send_indices", ("transfer.begin", "page.write"), after=_handed_over,
             unproven=_TRANSFERS),
        Hook(f"{_CONN}:CommonKVManager.update_status", ("transfer.done", "transfer.failed", "page.write"),
             before=_status, unproven=_TRANSFERS),
        *(Hook(f"{_SRT}.disaggregation.{name}.conn:{name.capitalize()}KVManager.update_status",
               ("transfer.done", "transfer.failed"), before=_status, optional=True) for name in overrides),
        Hook(f"{_DECODE}:DecodePreallocQueue._pre_alloc", ("page.alloc", "transfer.begin"), after=_announced,
             unproven=(*_HELD, *_TRANSFERS)),
        Hook(f"{_DECODE}:DecodeTransferQueue._commit_transfer_to_req", ("transfer.done", "aux.read"),
             before=_slot_of, after=_committed, unproven=_TRANSFERS),
    )  # fmt: skip


def _engine() -> Engine:
    bare = Engine(name="sglang", distributions=("sglang",), hooks=(), tested=_RUN, how="")
    _, version = bare.installed() or ("", VERSIONS[-1])
    return Engine(
        name="sglang",
        distributions=("sglang",),
        tested=_RUN,
        how="install kvwitness beside it and set KVWITNESS_RING_DIR; SGLang loads the plug-in by itself",
        limits=(
            "Sliding-window, hybrid, state-space and unified pools, speculative decoding, the hierarchical cache and "
            "decode context parallelism: only requests are recorded.",
            "With overlapped scheduling or pipeline parallelism steps are not recorded, so freed-in-step is undecided.",
            "Requests for which nobody supplies a tenant (cache_salt, extra_key, routing key) have none on record.",
            "What is written where by a transfer is seen with the mooncake backend; others say less.",
            "What kernels do with their tables is not seen.",
        ),
        hooks=hooks(version),
    )


ENGINE = _engine()
