"""transformers, continuous batching: attached by a call, since transformers has no plug-ins of its own.

    from kvwitness.gpu_tracer.engines import transformers as tracing
    tracing.register()                        # records when KVWITNESS_RING_DIR is set
    model.generate_batch(...)                 # or init_continuous_batching, or continuous_batching_context_manager

`python -m kvwitness.gpu_tracer.engines.transformers serve ...` does it for `transformers serve`.

What a step reads and writes is taken from the indices that the engine hands to its kernels, not from its tables, and
put down when they are made, before the step runs. Where writes are looked at (see `_transformers_content`), what a
prompt's step does is put down right after it, when it is known which pages hold what they should.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from kvwitness.audit.trace.ring import DIRECTORY_VARIABLE
from kvwitness.gpu_tracer.engines._transformers_view import Part, Seen, TenantOf, View, is_dummy
from kvwitness.gpu_tracer.engines.base import Attachment, Engine, Guard, Hook, attach
from kvwitness.gpu_tracer.engines.identity import Identity

_log = logging.getLogger("kvwitness.gpu_tracer")
_VIEW = "_kvwitness"
_BATCHING = "transformers.generation.continuous_batching"
_PROCESSOR = f"{_BATCHING}.continuous_api:ContinuousBatchProcessor"
_ROUTER = f"{_BATCHING}.continuous_api:OutputRouter"
_SCHEDULER = f"{_BATCHING}.scheduler:Scheduler"
_CACHE = f"{_BATCHING}.cache:PagedAttentionCache"
_POOL = f"{_BATCHING}.cache_allocators.cache_pool:CachePool"
_ALLOCATOR = f"{_BATCHING}.cache_allocators.cache_allocator:CacheAllocator"
_FULL = f"{_BATCHING}.cache_allocators.full_attention:FullAttentionCacheAllocator"
_INPUTS = f"{_BATCHING}.input_outputs:ContinuousBatchingIOs"
_OFFLOADING = f"{_BATCHING}.offloading_manager:OffloadingManager"

guard = Guard()
attachment: Attachment | None = None
"""What is attached in this process; None before that."""
_tenant_of: TenantOf | None = None


def register(tenant_of: TenantOf | None = None) -> None:
    """Attach to the transformers of this process, where KVWITNESS_RING_DIR is set. Raises nothing; may be repeated.

    `tenant_of` is asked once for each request whose it is, by the id under which it was added; from then on it is the
    one that is asked. Without it, or where it returns None, an id of the form `ATTESTED/ID` tells, in which ATTESTED
    was made with `Identity.attest`.
    """
    global attachment, _tenant_of
    if tenant_of is not None:
        _tenant_of = tenant_of
    if not os.environ.get(DIRECTORY_VARIABLE):
        return
    try:
        attachment = attach(ENGINE.hooks, guard)
    except Exception as error:
        _log.warning("not attached to transformers: %s", type(error).__name__)


def _any_view(owner: Any) -> View | None:
    view: View | None = getattr(owner, _VIEW, None)
    return view


def _view(owner: Any) -> View | None:
    """The view that an object of the engine belongs to; None for one whose pages are not watched, as a host pool's."""
    view = _any_view(owner)
    return view if view is None or view.blind is None else None


# -- the engine ---------------------------------------------------------------------------------------------


def _processor_made(_: None, result: None, processor: Any, *args: Any, **kwargs: Any) -> None:
    if not os.environ.get(DIRECTORY_VARIABLE):
        return  # attached, and then told not to record
    view = View(
        processor, Identity.from_environment(), " ".join(ENGINE.installed() or ("transformers", "?")), _tenant_of
    )
    view.unseen = attachment.unseen if attachment is not None else ()
    guard.gap = view.gap
    cache = processor.cache
    owners = [processor, processor.scheduler, processor.output_router, processor.offloading_manager, cache, cache.pool]
    for owner in (*owners, *cache.cache_allocators.values()):
        setattr(owner, _VIEW, view)


# -- requests -----------------------------------------------------------------------------------------------


def _request_added(scheduler: Any, state: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _any_view(scheduler)) is not None:
        view.admit(state)


def _cancelling(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _any_view(scheduler)) is None:
        return
    for rid in list(scheduler._requests_to_cancel):
        if (seen := view.live.get(rid)) is not None and not seen.over:
            seen.reason, seen.over = "abort", True
            view.finish_reading(seen)  # what it read came before
            view.tracer.request_aborted(seen.name, by="engine", reason="asked for by the host")


def _cancelled(_: None, states: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _any_view(scheduler)) is not None:
        for state in states:
            view.live.pop(str(state.request_id), None)


def _finishing(scheduler: Any, request_id: str, *args: Any, **kwargs: Any) -> Seen | None:
    """A request leaves the batch: it is done, has failed, or is set aside."""
    view = _any_view(scheduler)
    if view is None or view.offloading or (seen := view.live.get(request_id)) is None:
        return None
    if seen.state is not scheduler.active_requests.get(request_id, seen.state):
        seen.state = scheduler.active_requests[request_id]  # one that was forked off has a state of its own
    state = seen.state
    if not seen.over:
        tokens = int(state.generated_len()) + max(0, len(state.initial_tokens) - seen.prompt)
        length = state.generated_len() >= state._new_tokens_limit
        view.answered(seen, status=200, finish="length" if length else "stop", tokens=tokens)
    return seen


def _finished(seen: Seen | None, result: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    view = _any_view(scheduler)
    if view is not None and seen is not None:
        view.live.pop(seen.id, None)


def _failing(router: Any, state: Any, error: Any, *args: Any, **kwargs: Any) -> None:
    """A request gets an error for an answer; its pages go back afterwards."""
    view = _any_view(router)
    if view is None or (seen := view.live.get(str(state.request_id))) is None:
        return
    view.answered(seen, status=500, finish="error", tokens=int(state.generated_len()))
    if seen.id not in view.scheduler.active_requests:
        view.live.pop(seen.id, None)


# -- pages --------------------------------------------------------------------------------------------------


def _pages_given(_: None, pages: list[int], pool: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(pool)) is not None:
        view.given.extend(pages)


def _pages_taken(pool: Any, index: int, block_ids: list[int], *args: Any, **kwargs: Any) -> None:
    if (view := _view(pool)) is not None:
        view.taken.extend(block_ids)


def _allocating(allocator: Any, request_id: str, *args: Any, **kwargs: Any) -> None:
    if (view := _view(allocator)) is not None:
        view.strays()
        view.call(None if is_dummy(request_id) else view.find(request_id))


def _allocated(_: None, result: None, allocator: Any, request_id: str, *args: Any, **kwargs: Any) -> None:
    if (view := _view(allocator)) is None:
        return
    seen = view.asking
    if seen is not None:
        _back_again(view, seen)
    view.allocated(seen)
    view.call(None)


def _back_again(view: View, seen: Seen) -> None:
    if seen.preempted:
        seen.preempted = False
        view.tracer.request_resumed(seen.name)


def _freeing(allocator: Any, request_id: str, *args: Any, **kwargs: Any) -> tuple[Seen | None, list[int]] | None:
    view = _view(allocator)
    if view is None:
        return None
    view.strays()
    seen = None if is_dummy(request_id) else view.find(request_id)
    pages = list(allocator.block_table.get(request_id, ()))
    if seen is not None and pages:
        view.finish_reading(seen)
        if view.offloading and not seen.preempted:
            seen.preempted = True
            view.tracer.request_preempted(seen.name)
    return seen, pages


def _freed(
    context: tuple[Seen | None, list[int]] | None, result: None, allocator: Any, *args: Any, **kwargs: Any
) -> None:
    view = _view(allocator)
    if view is None or context is None:
        return
    seen, pages = context
    if seen is None:
        view.strays()
    elif pages:
        view.let_go(seen, pages, pages, "preempt" if view.offloading else seen.reason)
        view.start_over(seen)
    view.call(None)


def _acquired(
    _: None, result: None, allocator: Any, request_id: str, prefix_len: int, *args: Any, **kwargs: Any
) -> None:
    """A prompt begins as what is in the prefix cache."""
    view = _view(allocator)
    if view is None or (seen := view.find(request_id)) is None:
        return
    _back_again(view, seen)
    view.attach(seen, allocator.block_table[request_id])
    seen.computed = prefix_len
    if not seen.started:
        seen.attached = min(prefix_len, seen.prompt)


def _completing(allocator: Any, request_id: str, *args: Any, **kwargs: Any) -> tuple[list[int], set[int]] | None:
    view = _view(allocator)
    if view is None:
        return None
    view.strays()
    table = list(allocator.block_table[request_id])
    return table, {page for page in table if page in allocator.ledger.block_to_hash}


def _completed(
    context: tuple[list[int], set[int]] | None, result: None, allocator: Any, request_id: str, token_ids: list[int],
    *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    """Pages of a request are full: they can be found now, or others with the same content take their place."""
    view = _view(allocator)
    if view is None or context is None or (seen := view.find(request_id)) is None:
        return
    before, findable = context
    given_up = []
    for place, (old, page) in enumerate(zip(before, allocator.block_table[request_id], strict=True)):
        if page != old:
            view.attach(seen, [page], place)
            given_up.append(old)
        elif page not in findable and page in allocator.ledger.block_to_hash:
            view.publish(seen, page, place, token_ids)
    if given_up:
        view.let_go(seen, before, given_up, "replaced")
    view.call(None)


def _forking(allocator: Any, source: str, dest: str, *args: Any, **kwargs: Any) -> None:
    if (view := _view(allocator)) is not None:
        view.strays()
        view.call(view.find(dest))


def _forked(
    _: None, pairs: Any, allocator: Any, source: str, dest: str, past_length: int, *args: Any, **kwargs: Any
) -> None:
    """A request was made out of another: full pages are shared, the rest is to be copied."""
    view = _view(allocator)
    if view is None or (seen := view.asking) is None:
        return
    table = allocator.block_table[dest]
    shared = len(table) - len(pairs[1])
    view.attach(seen, table[:shared])
    view.allocated(seen)
    seen.table, seen.computed = table, past_length
    seen.started, seen.attached = True, shared * view.page_tokens
    view.call(None)


def _copying(allocator: Any, source: list[int], dest: list[int], *args: Any, **kwargs: Any) -> None:
    """Before pages are copied for requests that were forked off: in the name of the one whose the source is."""
    if (view := _view(allocator)) is not None:
        for page, copy in zip(source, dest, strict=True):
            view.copied(page, copy)


def _evicting(cache: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(cache)) is not None:
        view.strays()


def _evicted(_: None, result: bool, cache: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(cache)) is not None:
        view.evicted()


def _emptied(_: None, result: None, pool: Any, *args: Any, **kwargs: Any) -> None:
    """The pool starts over: nobody holds anything, and nothing can be found."""
    if (view := _view(pool)) is not None:
        view.call(None)
        view.emptied()


# -- steps --------------------------------------------------------------------------------------------------


def _choosing(method: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """`_process_candidates`: where reads are refused, a request that would make one does not get into the batch."""

    def process_candidates(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(scheduler, *args, **kwargs)
        try:
            view = _view(scheduler)
            if view is not None and view.refusing:
                return _without_refused(view, scheduler, *result)
        except Exception as error:
            guard.failed("Scheduler._process_candidates", error)
        return result

    return process_candidates


def _without_refused(view: View, scheduler: Any, chosen: list[Any], *rest: Any) -> tuple[Any, ...]:
    """The outcome of choosing a batch, without the requests that would read what is not theirs.

    Those are failed as the engine itself fails requests: the client gets an error, the pages go back.
    """
    failed, fast, queries, cached = rest
    kept = []
    for future in chosen:
        state = future.state
        seen = view.live.get(str(state.request_id))
        if seen is None or not view.would_read_wrongly(seen, int(state.position_offset)):
            kept.append(future)
            continue
        queries, cached = queries - future.query_length, cached - int(state.position_offset)
        _log.warning("request %s is refused: what it would read is not its own", seen.name)
        view.finish_reading(seen)
        view.tracer.request_aborted(seen.name, by="kvwitness", reason="unsound read refused")
        if state in scheduler._requests_to_fork:
            scheduler._requests_to_fork.remove(state)
        view.processor._handle_request_error(RuntimeError("refused: its cached content is not its own"), state)
        scheduler.finish_request(state.request_id)
    return kept, failed, fast, queries, cached


def _offloading(manager: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _any_view(manager)) is not None:
        view.offloading = True


def _offloaded(_: None, result: bool, manager: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _any_view(manager)) is not None:
        view.offloading = False


def _restoring(manager: Any, requests_in_batch: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return [future.state for future in requests_in_batch if future.state.is_cpu_offloaded]


def _restored(states: list[Any] | None, result: None, manager: Any, *args: Any, **kwargs: Any) -> None:
    """Pages come back from the host's memory, as the engine says."""
    if (view := _view(manager)) is None:
        return
    for state in states or ():
        seen, end = view.find(str(state.request_id)), int(state.position_offset)
        if seen is not None and end:
            pages = list(view.allocator.block_table[seen.id][: -(-end // view.page_tokens)])
            view.tracer.write(view.pool, pages, seen.name, tok=(0, end), op="load")


def _preparing(inputs: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(inputs.cache)) is not None:
        view.strays()
        view.parts = []


def _write_indices(
    _: None, indices: list[int], allocator: Any, request_id: str, past_length: int, query_length: int,
    *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    view = _view(allocator)
    if view is None or is_dummy(request_id) or (seen := view.find(request_id)) is None:
        return
    size, stride, end = view.page_tokens, view.stride, past_length + query_length
    ends = [*range(size - past_length % size, query_length, size), query_length]
    rows = [indices[at - 1] for at in ends]
    view.parts.append(Part(seen, past_length, end, [row // stride for row in rows], rows))
    seen.table, seen.computed, seen.started = allocator.block_table[request_id], end, True


def _read_indices(_: None, indices: list[int], allocator: Any, request_id: str, *args: Any, **kwargs: Any) -> None:
    view = _view(allocator)
    if view is None or is_dummy(request_id) or not view.parts or view.parts[-1].seen.id != request_id:
        return
    view.parts[-1].read = [row // view.stride for row in indices[:: view.page_tokens]]


def _table_filled(
    _: None, result: None, allocator: Any, request_id: str, past_length: int, query_length: int,
    *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    """The kernel is given pages instead of indices, and reads and writes them itself."""
    view = _view(allocator)
    if view is None or is_dummy(request_id) or (seen := view.find(request_id)) is None:
        return
    size, end = view.page_tokens, past_length + query_length
    table = allocator.block_table[request_id]
    pages = list(table[: -(-end // size)])
    written = pages[past_length // size :]
    rows = [page * view.stride + (end - 1) % size for page in written]
    view.parts.append(Part(seen, past_length, end, written, rows, pages))
    seen.table, seen.computed, seen.started = table, end, True


def _prepared(_: None, result: None, inputs: Any, *args: Any, **kwargs: Any) -> None:
    """A step has been prepared: its writes, then its reads."""
    if (view := _view(inputs.cache)) is None or not view.parts:
        return
    view.step += 1
    for part in view.parts:
        part.watched = view.content is not None and view.content.watch(part)
        if not part.watched:
            view.writes(part)
    for part in view.parts:  # no layer of a step reads before that layer has written
        if not part.watched:
            view.reads(part)


def _running(processor: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(processor)) is not None and view.content is not None:
        view.content.before()


def _ran(_: None, result: None, processor: Any, *args: Any, **kwargs: Any) -> None:
    if (view := _view(processor)) is None or view.content is None:
        return
    looked = view.content.after()
    for part, written in looked:
        view.writes(part, written)
    for part, _written in looked:
        view.reads(part)


_HELD = ("double-ownership", "foreign-page-read", "late-write", "unwritten-page-read")
_READS = ("foreign-page-read", "unwritten-page-read", "position-mismatch", "read-before-ready", "tainted-content")
_SHARES = ("cache-key-alias", "foreign-page-read", "prefix-probing", "salt-crossing")

ENGINE = Engine(
    name="transformers",
    distributions=("transformers",),
    tested=("5.24.0",),
    how="call kvwitness.gpu_tracer.engines.transformers.register() before the first batch, with KVWITNESS_RING_DIR set",
    limits=(
        "Models with several kinds of attention (sliding windows beside full ones): only requests are recorded.",
        "Requests whose tenant the host does not tell (register(tenant_of=...)) have none on record.",
        "Whether writes land is looked at on CPUs, on accelerators only with KVWITNESS_CONTENT=1 and without "
        "asynchronous batching.",
        "Pages in the host's memory are not followed: what comes back from there is believed.",
    ),
    hooks=(
        Hook(f"{_PROCESSOR}.__init__", ("engine.pool", "engine.limits"), after=_processor_made,
             unproven=("capacity-drift", *_HELD)),
        Hook(f"{_PROCESSOR}._generation_step", ("page.write",), before=_running, after=_ran,
             unproven=("unwritten-page-read",)),
        Hook(f"{_SCHEDULER}.add_waiting_request", ("request.received",), before=_request_added,
             unproven=("over-limit-success",)),
        Hook(f"{_SCHEDULER}.clear_cancelled_requests", ("request.aborted",), before=_cancelling, after=_cancelled,
             unproven=("served-after-refusal",)),
        Hook(f"{_SCHEDULER}.finish_request", ("request.finished",), before=_finishing, after=_finished,
             unproven=("orphaned-pages", "status-mismatch")),
        Hook(f"{_ROUTER}.fail_and_deliver", ("request.finished",), before=_failing, unproven=("status-mismatch",)),
        Hook(f"{_POOL}.get_free_blocks", ("page.alloc",), after=_pages_given, unproven=_HELD),
        Hook(f"{_POOL}.free_blocks", ("page.free",), before=_pages_taken, unproven=(*_HELD, "orphaned-pages")),
        Hook(f"{_POOL}.reset", ("page.free", "page.unpublish"), after=_emptied, unproven=_HELD),
        Hook(f"{_FULL}.allocate_cache_to_request", ("page.alloc",), before=_allocating, after=_allocated,
             unproven=_HELD),
        Hook(f"{_ALLOCATOR}.free_blocks", ("page.free",), before=_freeing, after=_freed, unproven=_HELD),
        Hook(f"{_ALLOCATOR}.acquire_prefix_blocks", ("page.share",), after=_acquired, unproven=_SHARES),
        Hook(f"{_ALLOCATOR}.mark_complete_blocks", ("page.publish", "page.share"), before=_completing,
             after=_completed, unproven=_SHARES),
        Hook(f"{_ALLOCATOR}.fork_blocks", ("page.alloc", "page.share"), before=_forking, after=_forked,
             unproven=_HELD),
        Hook(f"{_ALLOCATOR}.copy_blocks", ("page.copy",), before=_copying, unproven=_READS),
        Hook(f"{_CACHE}.evict_cached_blocks", ("page.unpublish",), before=_evicting, after=_evicted, unproven=_HELD),
        Hook(f"{_SCHEDULER}._process_candidates", ("request.aborted",), replace=_choosing, optional=True),
        Hook(f"{_OFFLOADING}.offload_requests", ("request.preempted",), before=_offloading, after=_offloaded,
             unproven=("position-mismatch", "served-after-refusal")),
        Hook(f"{_OFFLOADING}.restore_scheduled_requests", ("page.write",), before=_restoring, after=_restored,
             unproven=("unwritten-page-read",)),
        Hook(f"{_INPUTS}.prepare_batch_tensors", ("page.write", "page.read"), before=_preparing, after=_prepared,
             unproven=_READS),
        Hook(f"{_FULL}.get_write_indices", ("page.write",), after=_write_indices, unproven=_READS),
        Hook(f"{_FULL}.get_read_indices", ("page.read",), after=_read_indices, unproven=_READS),
        Hook(f"{_FULL}.fill_block_table", ("page.write", "page.read"), after=_table_filled, unproven=_READS),
    ),
)  # fmt: skip
"""How transformers is attached. The names are those of 5.24."""


def main() -> None:
    """Attach, and be the `transformers` command."""
    register()
    from transformers.cli.transformers import main as command

    run: Callable[[], None] = command
    sys.argv[0] = "transformers"
    run()


if __name__ == "__main__":
    main()
