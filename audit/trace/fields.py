"""Every field of the trace, defined once: schemas, validation, the JSON form and the reference follow."""

from __future__ import annotations

from kvwitness.audit.trace.model import Field, Form

_ALL: tuple[Field, ...] = (
    # common to all events
    Field(
        "t",
        Form.TIME,
        "When it was observed, by the clock of `source`; a hint across sources.",
        "s, or ns where 1e12 or more",
        columns=("time_ns",),
        alias="time_unix_nano",
    ),
    Field("event", Form.TEXT, "The kind of event."),
    Field("source", Form.TEXT, "Who observed it: `engine/rank`, `gateway`, `client`."),
    Field(
        "seq",
        Form.INT,
        "Strictly increasing per `source`; a hole is a telemetry gap, a first value above 1 says that "
        "the source "
        "had a life before the trace. Without it the order of the lines is the order.",
        minimum=0,
    ),
    Field("request", Form.TEXT, "Request id, minted by the engine."),
    Field("incarnation", Form.INT32, "Tells two lives of a re-used request id apart; absent means 0.", minimum=0),
    Field("tenant", Form.TEXT, "Opaque tenant id as supplied by a trusted party; never a raw salt or key."),
    Field("tenant_source", Form.TEXT, "Which party supplied `tenant`."),
    # pages
    Field("pool", Form.TEXT, "Id space of physical pages: `engine/rank/group`."),
    Field("pages", Form.PAGES, "Physical pages in the order of token positions."),
    Field("to_pool", Form.TEXT, "Pool of `to_pages`; absent means `pool`."),
    Field("to_pages", Form.PAGES, "Target pages of a copy or move, parallel to `pages`."),
    Field(
        "tok",
        Form.SPAN,
        "Positions of the request that the event covers, half open; absent means whole pages.",
        "token positions",
        columns=("tok_first", "tok_end"),
        minimum=0,
    ),
    Field(
        "gen",
        Form.INT,
        "Generation of the pages: how often they had been allocated; absent means that the reader counts.",
        minimum=0,
    ),
    Field("holder", Form.TEXT, "Who holds pages that no request owns: `cache`, `session`, `snapshot`."),
    Field(
        "reason",
        Form.TEXT,
        "Why: of a free, refusal, abort or gap; `start` of a pool that was made anew.",
        free_text=True,
    ),
    Field("path", Form.TEXT, "The code path that acted, as the engine names it.", free_text=True),
    Field("to", Form.TEXT, "Who takes over freed pages, content kept: `cache`, `session`, `snapshot`."),
    Field(
        "op",
        Form.TEXT,
        "What wrote (`forward`, `transfer`, `load`, `copy`, `scrub`, `dummy`) or read (`decode`, `prefill`, "
        "`transfer`, `offload`, `copy`).",
    ),
    Field("phase", Form.TEXT, "`begin`: issued; `end`: known complete; absent: both at once."),
    Field("key", Form.NAME, "Key under which a run of pages is findable."),
    Field("ns", Form.OBJECT, "Namespace of the key: salt_hmac, adapter, media, epoch, model and the like."),
    Field("digest", Form.NAME, "Fingerprint of the inputs (tokens, media, adapter) or of the bytes written."),
    Field("tier", Form.TEXT, "Tier where shared pages were found."),
    Field("step", Form.INT, "Number of the device step.", minimum=0),
    Field("dummy", Form.BOOL, "The step runs padding only."),
    Field("cause", Form.TEXT, "Why pages were copied or moved.", free_text=True),
    Field(
        "digests",
        Form.TEXTS,
        "Device-side fingerprints of page bytes, parallel to `pages`: any text that is equal for equal bytes. "
        "`SCHEME/SLOTS:LAYER.LAYER...`, with hexadecimal digits for each layer, tells the layers apart, and says that "
        "the first SLOTS slots were looked at; only those with the same scheme and slots are compared. A page that is "
        "named several times has a digest for each stretch of it, one after another.",
    ),
    Field("at", Form.TEXT, "Moment at which digests were taken: `alloc`, `free`, `read`, `send`, `receive`."),
    # transfers
    Field("transfer", Form.NAME, "Room or connector id of a transfer."),
    Field("src_pool", Form.TEXT, "Pool that a transfer reads."),
    Field("src_pages", Form.PAGES, "Pages that a transfer reads."),
    Field(
        "src_gen",
        Form.INTS,
        "Generation of `src_pages`: one for all, or one per expanded page.",
        minimum=0,
    ),
    Field("dst_pool", Form.TEXT, "Pool that a transfer writes."),
    Field("dst_pages", Form.PAGES, "Pages that a transfer writes, from position 0, present ones included."),
    Field(
        "dst_announced",
        Form.PAGES,
        "Destination pages that the consumer made ready, where more than `dst_pages`.",
    ),
    Field(
        "tokens",
        Form.INT,
        "Positions covered from 0; on an end, how much is known to have landed.",
        "tokens",
        minimum=0,
    ),
    Field("pages_ok", Form.INT, "Pages known to have landed.", "pages", minimum=0),
    Field("bytes", Form.INT, "Bytes moved.", "bytes", minimum=0),
    Field("observer", Form.TEXT, "Whose view an end is: `sender`, `receiver`, `scheduler`."),
    Field("rank", Form.INT, "Rank of the worker that acted."),
    Field("writers", Form.INTS, "Ranks that will write; absent means those that are seen to begin."),
    Field("until", Form.TIME, "Until when source pages are held.", "as `t`", columns=("until_ns",)),
    # engines and pools
    Field("engine", Form.TEXT, "Name of an engine, the part of `source` before the first `/`."),
    Field("role", Form.TEXT, "`prefill`, `decode`, `unified` or `gateway`."),
    Field("page_tokens", Form.INT, "Positions per page.", "tokens", minimum=1),
    Field("pages_total", Form.INT, "Size of a pool.", "pages", minimum=0),
    Field(
        "kind",
        Form.TEXT,
        "What a pool's slots hold: `kv` (default), `state`, `draft`, `index`, `aux`, `host`, `encoder`.",
    ),
    Field("reserved", Form.PAGES, "Null and padding pages, never owned."),
    Field("scrub", Form.TEXT, "When pages are cleared: `never`, `on_free`, `on_alloc`."),
    Field("sharing", Form.TEXT, "Who may share pages: `none`, `tenant`, `global`."),
    Field("advertised_tokens", Form.INT, "Context length that an engine promises.", "tokens", minimum=0),
    Field("input_limit_tokens", Form.INT, "Input length that an engine enforces.", "tokens", minimum=0),
    Field("pool_tokens", Form.INT, "Positions that its pool can hold.", "tokens", minimum=0),
    Field("version", Form.TEXT, "Engine version.", free_text=True),
    Field("model", Form.TEXT, "Model name.", free_text=True),
    Field("offset_s", Form.NUMBER, "Clock of the source minus the reference clock.", "s"),
    Field("uncertainty_s", Form.NUMBER, "How far `offset_s` may be off, either way.", "s", minimum=0),
    Field("epoch", Form.INT, "Epoch of weights and cache semantics."),
    # requests
    Field(
        "prompt_tokens",
        Form.INT,
        "Prompt length: on receipt the true one, before any engine rewrites it.",
        "tokens",
        minimum=0,
    ),
    Field("max_new_tokens", Form.INT, "Output length asked for.", "tokens"),
    Field("salt_hmac", Form.TEXT, "Keyed hash of the cache salt; never the salt."),
    Field("adapter", Form.NAME, "Adapter (LoRA) in use."),
    Field("traffic", Form.TEXT, "`user` (default), `warmup`, `health`, `capture`, `probe`."),
    Field("status", Form.INT, "HTTP status that was received."),
    Field("finish_reason", Form.TEXT, "Finish reason that was received.", free_text=True),
    Field("cached_tokens", Form.INT, "Prompt tokens said to have come from the cache.", "tokens", minimum=0),
    Field("completion_tokens", Form.INT, "Tokens generated.", "tokens", minimum=0),
    Field("answered_by", Form.TEXT, "Engine whose answer it is; absent: what the client received."),
    Field("by", Form.TEXT, "Who aborted.", free_text=True),
    # auxiliary slots, canaries, gaps
    Field("slot", Form.NAME, "Auxiliary slot for metadata that travels beside the pages."),
    Field("length", Form.INT, "Length of the record; 0 on a read is a poll that found nothing.", minimum=0),
    Field("writer_rank", Form.INT, "Designated writer of the slot; absent means the first to write."),
    Field("marker", Form.NAME, "Keyed hash of a canary."),
    Field("dropped", Form.INT, "Events known to be lost.", "events", minimum=0),
    Field("from_seq", Form.INT, "First lost `seq`.", minimum=0),
    Field("to_seq", Form.INT, "Last lost `seq`.", minimum=0),
)

FIELDS: dict[str, Field] = {f.name: f for f in _ALL}
"""JSON name -> field, in the order of the columns."""

COMMON: tuple[str, ...] = (
    "t",
    "event",
    "source",
    "seq",
    "request",
    "incarnation",
    "tenant",
    "tenant_source",
)
"""Fields that any event may have; `t` and `event` are required."""
