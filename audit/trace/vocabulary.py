"""Every kind of event of the trace, defined once. Validation and the reference follow from here."""

from __future__ import annotations

from kvwitness.audit.trace.fields import COMMON, FIELDS
from kvwitness.audit.trace.model import Kind

_TRANSFER_END = ("request", "tokens", "pages_ok", "bytes", "observer", "rank", "reason")

_ALL: tuple[Kind, ...] = (
    Kind(
        "engine.pool",
        "A pool of pages and its policy; sent again when it changes. With reason `start` it was made anew, as when an "
        "engine starts again: nobody holds its pages, and nothing is in them.",
        required=("pool", "page_tokens", "pages_total"),
        optional=("kind", "reserved", "scrub", "sharing", "reason"),
    ),
    Kind(
        "engine.limits",
        "What an engine promises and what it can hold; `input_limit_tokens` is the limit it enforces.",
        required=("engine",),
        optional=("role", "advertised_tokens", "input_limit_tokens", "pool_tokens", "version", "model"),
    ),
    Kind(
        "engine.clock",
        "Clock skew of a source against the reference.",
        required=("engine",),
        optional=("offset_s", "uncertainty_s"),
    ),
    Kind("engine.epoch", "Weights or cache semantics changed.", required=("engine", "epoch")),
    Kind(
        "request.received",
        "A request arrived; its true length, measured before the engine rewrites anything. Without `tenant`, nobody "
        "said whose it is.",
        required=("request",),
        optional=("prompt_tokens", "max_new_tokens", "salt_hmac", "adapter", "model", "traffic"),
    ),
    Kind(
        "request.rejected",
        "A refusal recorded by any party.",
        required=("request",),
        optional=("reason", "status"),
    ),
    Kind("request.aborted", "An abort recorded by any party.", required=("request",), optional=("by", "reason")),
    Kind(
        "request.preempted",
        "Set aside; not an end, the same request comes back.",
        required=("request",),
        optional=("reason",),
    ),
    Kind("request.resumed", "A preempted request is back.", required=("request",)),
    Kind(
        "request.finished",
        "What the client or gateway received. With `answered_by` it is that engine's answer, and the "
        "request ends "
        "with the last of them or with the one that has none.",
        required=("request",),
        optional=(
            "status",
            "finish_reason",
            "prompt_tokens",
            "cached_tokens",
            "completion_tokens",
            "answered_by",
        ),
    ),
    Kind(
        "page.alloc",
        "Pages become owned.",
        required=("pool", "pages"),
        one_of=("request", "holder"),
        optional=("gen", "path"),
    ),
    Kind(
        "page.free",
        "The holder lets go; from a sharer it detaches that sharer only; a free by one who holds "
        "nothing releases "
        "nothing. With `to`, ownership passes on and the content stays.",
        required=("pool", "pages"),
        optional=("holder", "reason", "path", "to", "gen"),
    ),
    Kind(
        "page.share",
        "A request attaches, through a cache look-up, to pages that exist already. `key` and `digest` "
        "name the run "
        "of pages listed; `ns` is the sharer's.",
        required=("pool", "pages", "request"),
        optional=("key", "ns", "tok", "tier", "digest", "gen"),
    ),
    Kind(
        "page.publish",
        "Pages become findable under a key.",
        required=("pool", "pages"),
        optional=("key", "ns", "digest", "tok", "tier", "path", "gen"),
    ),
    Kind(
        "page.unpublish",
        "Pages are no longer findable.",
        required=("pool", "pages"),
        optional=("key", "tier", "reason", "path", "gen"),
    ),
    Kind(
        "page.write",
        "Bytes have landed on pages; with `phase` issue and completion are two events.",
        required=("pool", "pages"),
        optional=("op", "tok", "digest", "phase", "step", "transfer", "gen", "path", "rank"),
    ),
    Kind(
        "page.read",
        "Attention or a copier reads pages. Stays open until an event with `phase: end`, the request's "
        "end, or a "
        "`page.free` by that request.",
        required=("pool", "pages", "request"),
        optional=("tok", "op", "step", "phase", "transfer", "gen", "path", "rank"),
    ),
    Kind(
        "page.copy",
        "Content is duplicated with its provenance; the target must have been allocated.",
        required=("pool", "pages", "to_pages"),
        optional=("to_pool", "cause", "tok", "gen"),
        parallel=(("to_pages", "pages"),),
    ),
    Kind(
        "page.move",
        "Content is relocated: alloc of the target, free of the source; publication and the place in "
        "the request "
        "go along.",
        required=("pool", "pages", "to_pages"),
        optional=("to_pool", "cause", "tok", "gen"),
        parallel=(("to_pages", "pages"),),
    ),
    Kind(
        "transfer.offer",
        "The source side announces pages that may be fetched; a `transfer.begin` with the same id is the fetch.",
        required=("transfer", "request"),
        optional=("src_pool", "src_pages", "src_gen", "tokens"),
        parallel=(("src_gen", "src_pages"),),
    ),
    Kind(
        "transfer.begin",
        "Bytes begin to move; a transfer may have several begins (chunks).",
        required=("transfer", "request"),
        optional=(
            "src_pool",
            "src_pages",
            "src_gen",
            "dst_pool",
            "dst_pages",
            "dst_announced",
            "tokens",
            "tok",
            "writers",
        ),
        parallel=(("src_gen", "src_pages"),),
    ),
    Kind(
        "transfer.done",
        "One party was told that a transfer is complete, and how much is known to have landed.",
        required=("transfer",),
        optional=_TRANSFER_END,
    ),
    Kind(
        "transfer.failed",
        "One party was told that a transfer failed, and how much is known to have landed.",
        required=("transfer",),
        optional=_TRANSFER_END,
    ),
    Kind(
        "transfer.drained",
        "A writer confirms that nothing is in flight.",
        required=("transfer",),
        optional=("rank",),
    ),
    Kind(
        "transfer.lease",
        "Source pages are held until a time.",
        required=("transfer",),
        optional=("until",),
    ),
    Kind(
        "aux.write",
        "Metadata that travels beside the pages was written to a slot.",
        required=("slot", "request"),
        optional=("rank", "length", "writer_rank", "transfer"),
    ),
    Kind(
        "aux.read",
        "A slot was read; `length` 0 is a poll that found nothing.",
        required=("slot", "request"),
        optional=("rank", "length", "writer_rank", "transfer"),
    ),
    Kind(
        "step.begin",
        "A device step was dispatched with these pages.",
        required=("step", "pool"),
        optional=("pages", "dummy"),
    ),
    Kind("step.end", "A device step has finished.", required=("step", "pool"), optional=("pages", "dummy")),
    Kind("canary.planted", "A unique marker was sent in a prompt.", required=("marker", "request")),
    Kind(
        "canary.seen",
        "A marker was found in an output; with `pages`, the content that it stands for on those pages of the request.",
        required=("marker", "request"),
        optional=("pool", "pages"),
    ),
    Kind(
        "content.digest",
        "Device-side fingerprints of page bytes.",
        required=("pool", "pages"),
        optional=("digests", "at", "transfer", "gen"),
        parallel=(("digests", "pages"),),
    ),
    Kind(
        "shadow.finding",
        "What the tracer, or a check of the engine's own, said while the engine ran: that a read was about to meet "
        "what it should not, that bytes are not those that were written, or that it gave up looking. The audit judges "
        "for itself. `path` names the engine's check; without it the tracer said it.",
        required=("reason",),
        optional=("pool", "pages", "tok", "transfer", "rank", "path"),
    ),
    Kind(
        "device.state",
        "What the driver said of a GPU, or of a part that MIG made of one. `device` is its UUID, `parent` that of a "
        "part's GPU; `facts` is an object of what is known, `absent` one of what was asked in vain, and why. No "
        "verdict rests on it.",
        loose=("device", "parent", "facts", "absent"),
    ),
    Kind(
        "telemetry.gap",
        "What was not recorded: known loss.",
        optional=("dropped", "from_seq", "to_seq", "reason"),
    ),
)

KINDS: dict[str, Kind] = {k.name: k for k in _ALL}
"""Name -> kind of event."""


def defined_fields(kind: str) -> frozenset[str]:
    """The fields that a kind defines, common ones included; for an unknown kind the common ones."""
    known = KINDS.get(kind)
    if known is None:
        return frozenset(COMMON)
    return frozenset((*COMMON, *known.required, *known.one_of, *known.optional))


__all__ = ["COMMON", "FIELDS", "KINDS", "defined_fields"]
