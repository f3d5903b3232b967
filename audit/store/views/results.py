"""Views of the newest audit: its findings, and what the replay made of the reads."""

from __future__ import annotations

from kvwitness.audit.store.views.model import LIFE_COMMENT, ResultView

_TEXTS = "VARCHAR[]"
_NUMBERS = "BIGINT[]"
_PAGES = "UINTEGER[]"
_EVENT = "STRUCT(source VARCHAR, seq BIGINT)[]"
_VERDICT = "`leak`, `integrity`, `exposure`, `unproven`, `shared` or `clean`: see rules.md."
_SOUNDNESS = (
    "`foreign`, `unwritten`, `not_ready`, `open_read_hit`, `late_read`, `tainted`, `uncovered` or `unknown` (see reads)"
)
_NS = "[ns since the Unix epoch]"

FINDINGS = ResultView(
    "findings",
    "One row per finding of the newest audit: one rule, one request (or engine, or tenant), one cause.",
    {
        "rule": ("VARCHAR", "Rule that found it: see rules.md."),
        "verdict": ("VARCHAR", _VERDICT),
        "request": ("VARCHAR", "Request that it befell; null: it is about an engine or a tenant."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "tenant": ("VARCHAR", "Tenant that it befell: on a leak, the one who could read."),
        "engine": ("VARCHAR", "Engine that it is about, where there is no request."),
        "other_requests": (_TEXTS, "Requests on the other side: those that wrote what was read."),
        "other_tenants": (_TEXTS, "Tenants whose content was readable; filled only where that is shown."),
        "pool": ("VARCHAR", "Pool of `pages`."),
        "pages": (_PAGES, "Pages that it is about."),
        "gens": (_NUMBERS, "Generations of `pages`, parallel to them; empty where unknown."),
        "evs": (_NUMBERS, "The audit's own numbers of the proving events; they change from audit to audit."),
        "time_ns": ("BIGINT", f"Reference time (clock offsets taken off) of the first proving event. {_NS}"),
        "why": ("VARCHAR", "One sentence of facts."),
        "missing": ("VARCHAR", "Of `unproven`: the telemetry that would decide."),
        "seqs": (_EVENT, "The proving events, as (source, seq)."),
        "places": (
            "STRUCT(ingest VARCHAR, ingest_row BIGINT)[]",
            "The same events, parallel to `seqs`, by the place at which they arrived in this store: unique, also where "
            "two records use the same source names and numbers.",
        ),
    },
    {"ts": "time_ns"},
)

INCIDENTS = ResultView(
    "incidents",
    "One row per incident of the newest audit: all findings of one request (or engine, or tenant) together.",
    {
        "incident": ("VARCHAR", "Id; the same in every audit."),
        "verdict": ("VARCHAR", f"Strongest of its findings. {_VERDICT}"),
        "request": ("VARCHAR", "Request that it befell; null: an engine or a tenant."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "tenant": ("VARCHAR", "Tenant that it befell: on a leak, the one who could read."),
        "engine": ("VARCHAR", "Engine that it is about."),
        "rules": (_TEXTS, "Rules of its findings, those of the strongest verdict first."),
        "other_requests": (_TEXTS, "Requests on the other side."),
        "other_tenants": (_TEXTS, "Tenants whose content was readable."),
        "pools": (
            "STRUCT(pool VARCHAR, pages UINTEGER[], gens BIGINT[])[]",
            "Pages of the findings that carry the verdict, per pool.",
        ),
        "first_ns": ("BIGINT", f"Earliest of the findings that carry the verdict. {_NS}"),
        "last_ns": ("BIGINT", f"Latest of them. {_NS}"),
        "findings": ("BIGINT", "How many findings."),
        "evs": (_NUMBERS, "The audit's own numbers of the proving events; they change from audit to audit."),
    },
    {"first_ts": "first_ns", "last_ts": "last_ns"},
)

REQUEST_VERDICTS = ResultView(
    "request_verdicts",
    "One row per request on record at the newest audit.",
    {
        "request": ("VARCHAR", "Request id, minted by the engine."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "tenant": ("VARCHAR", "Tenant, as the audit settled it."),
        "verdict": ("VARCHAR", _VERDICT),
        "missing": ("VARCHAR", "Of `unproven`: the telemetry that would decide."),
    },
)

UNDECIDED = ResultView(
    "undecided",
    "Rules whose input never arrived, so that the newest audit could not apply them at all.",
    {
        "rule": ("VARCHAR", "The rule: see rules.md."),
        "missing": ("VARCHAR", "Kinds of event that it needs and that are not on record."),
    },
)

AUDIT_RUN = ResultView(
    "audit_run",
    "One row: the newest audit, whose results the other views show. Empty before the first one.",
    {
        "run_id": ("VARCHAR", "Id of the run: when it began, in UTC."),
        "version": ("VARCHAR", "Version of kvwitness that ran it."),
        "started_ns": ("BIGINT", f"When it began. {_NS}"),
        "events": ("BIGINT", "Events that it looked at."),
        "page_events": ("BIGINT", "Pages that those touched."),
        "requests": ("BIGINT", "Requests on record."),
        "leak_incidents": ("BIGINT", "Incidents with verdict `leak`."),
        "integrity_incidents": ("BIGINT", "Incidents with verdict `integrity`."),
        "exposure_incidents": ("BIGINT", "Incidents with verdict `exposure`."),
        "unproven_requests": ("BIGINT", "Requests with verdict `unproven`."),
    },
    {"started_ts": "started_ns"},
    loud=False,
)

RULE_PARAMS = ResultView(
    "rule_params",
    "What the rules of the newest audit were judged by: one row per parameter of a rule. The findings are those of "
    "these values, and of no others.",
    {
        "rule": ("VARCHAR", "The rule: see rules.md."),
        "param": ("VARCHAR", "Name of its parameter."),
        "value": ("VARCHAR", "Its value, as text."),
        "default_value": ("VARCHAR", "The value that it has unless somebody names another."),
        "unit": ("VARCHAR", "Unit of both; empty: a plain number or a word."),
        "origin": ("VARCHAR", "Where the value was named, such as a configuration of alerts; null: it is the default."),
    },
)

AUDIT_MARKS = ResultView(
    "audit_marks",
    "How far the newest audit read: an event is judged when its ingest_row is at most last_row of its ingest. Empty "
    "before the first audit.",
    {
        "ingest": ("VARCHAR", "Who brought the rows in, as in events."),
        "last_row": ("BIGINT", "Highest ingest_row that was judged."),
    },
    loud=False,
)

GAPS = ResultView(
    "gaps",
    "One row per known loss of telemetry, as of the newest audit: holes in the numbering, declared losses, lives "
    "before the record began.",
    {
        "source": ("VARCHAR", "Whose events are missing."),
        "reason": ("VARCHAR", "`hole`, `declared`, or `midlife` (the source had a life before the record)."),
        "from_seq": ("BIGINT", "First missing number, where known."),
        "to_seq": ("BIGINT", "Last missing number, where known."),
        "dropped": ("BIGINT", "How many events are missing, where known."),
        "before_seq": ("BIGINT", "Last number on record before the loss."),
        "before_ns": ("BIGINT", f"Reference time of that event; null: lost from the beginning. {_NS}"),
        "after_seq": ("BIGINT", "First number on record after it."),
        "after_ns": ("BIGINT", f"Reference time of that event; null: lost at the end. {_NS}"),
    },
    {"before_ts": "before_ns", "after_ts": "after_ns"},
)

READ_CAUSES = ResultView(
    "read_causes",
    "What reads met that was not plainly their own, as of the newest audit: one row per request, pool, kind of fault, "
    "way of reading and other side, over all its reads. Facts of the replay: whether they are proved, findings say.",
    {
        "request": ("VARCHAR", "Request that read."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "tenant": ("VARCHAR", "Its tenant."),
        "pool": ("VARCHAR", "Pool of `pages`."),
        "soundness": ("VARCHAR", f"{_SOUNDNESS}; or `shared`: another tenant's pages, as the sharing policy allows."),
        "op": ("VARCHAR", "What read: `decode`, `prefill`, `transfer`, `offload`, `copy`."),
        "other_request": ("VARCHAR", "Who had written last; null: nobody on record, or no request."),
        "other_tenant": ("VARCHAR", "Its tenant: whose content the pages still held."),
        "other_holder": ("VARCHAR", "Who held them, where that was no request."),
        "pages": (_PAGES, "The pages, each once, in ascending order."),
        "gens": (_NUMBERS, "Their generations when read, parallel to `pages`; empty where unknown."),
        "positions": ("BIGINT", "Token positions concerned at the read with most of them; 0: whole pages. [positions]"),
        "reads": ("BIGINT", "How many reads met it."),
        "first_ns": ("BIGINT", f"Reference time of the first of them. {_NS}"),
        "last_ns": ("BIGINT", f"Reference time of the last of them. {_NS}"),
        "first_source": ("VARCHAR", "Source of the first of them."),
        "first_seq": ("BIGINT", "Number of the first of them."),
        "written_ns": ("BIGINT", f"Reference time of the earliest write that it refers to; null: none. {_NS}"),
        "written_source": ("VARCHAR", "Source of that write."),
        "written_seq": ("BIGINT", "Number of that write."),
    },
    {"first_ts": "first_ns", "last_ts": "last_ns", "written_ts": "written_ns"},
)

UNSOUND_READS = ResultView(
    "unsound_reads",
    "One row per page read that was not sound and kind of fault, as of the newest audit. The pages stand in "
    "read_causes; reads joins this to the events.",
    {
        "request": ("VARCHAR", "Request that read."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "pool": ("VARCHAR", "Pool that it read."),
        "source": ("VARCHAR", "Source of the read; empty for one that names nobody."),
        "seq": ("BIGINT", "Number of the read."),
        "line": ("BIGINT", "Line of the file that the read came from."),
        "time_ns": ("BIGINT", f"When it was observed, by the clock of its source. {_NS}"),
        "op": ("VARCHAR", "What read: `decode`, `prefill`, `transfer`, `offload`, `copy`."),
        "soundness": ("VARCHAR", f"{_SOUNDNESS}."),
        "page_count": ("BIGINT", "Pages concerned. [pages]"),
        "positions": ("BIGINT", "Token positions concerned; 0: whole pages. [positions]"),
    },
    {"ts": "time_ns"},
)

REQUEST_INDEX = ResultView(
    "request_index",
    "One row per request on record at the newest audit: what it asked, the limit that counted for it, how it ended. "
    "For questions about all requests; requests has what came in since as well.",
    {
        "request": ("VARCHAR", "Request id, minted by the engine."),
        "incarnation": ("INTEGER", LIFE_COMMENT),
        "tenant": ("VARCHAR", "Tenant, as the audit settled it."),
        "model": ("VARCHAR", "Model that was asked for. OpenTelemetry: gen_ai.request.model."),
        "traffic": ("VARCHAR", "`user`, `warmup`, `health`, `capture` or `probe`."),
        "prompt_tokens": ("BIGINT", "True prompt length, by the most trusted reception. [tokens]"),
        "max_new_tokens": ("BIGINT", "Most tokens to generate. [tokens]"),
        "received_ns": ("BIGINT", f"When the most trusted reception saw it. {_NS}"),
        "rejected_ns": ("BIGINT", f"First refusal by anybody. {_NS}"),
        "aborted_ns": ("BIGINT", f"First abort by anybody. {_NS}"),
        "finished_ns": ("BIGINT", f"Final answer. {_NS}"),
        "status": ("BIGINT", "Status of the final answer."),
        "finish_reason": ("VARCHAR", "Finish reason of the final answer."),
        "answered_prompt_tokens": ("BIGINT", "Prompt length that the final answer states. [tokens]"),
        "completion_tokens": ("BIGINT", "Tokens that the final answer states. [tokens]"),
        "limit_tokens": (
            "BIGINT",
            "Smallest enforced input limit among the engines that served or refused it, as announced before they did; "
            "null: none is on record. [tokens]",
        ),
        "limit_engine": ("VARCHAR", "The engine that enforced it."),
        "outcome": ("VARCHAR", "`answered` (with success), else `refused`, `aborted`, `failed` or `none on record`."),
        "verdict": ("VARCHAR", _VERDICT),
    },
    {
        "received_ts": "received_ns",
        "rejected_ts": "rejected_ns",
        "aborted_ts": "aborted_ns",
        "finished_ts": "finished_ns",
    },
)

KINDS_SEEN = ResultView(
    "kinds_seen",
    "One row per source, pool and kind of event, as of the newest audit: how many came, and when. What is not in it "
    "was not observed.",
    {
        "source": ("VARCHAR", "Who observed; empty for events that name nobody."),
        "event": ("VARCHAR", "Kind of event."),
        "pool": ("VARCHAR", "Pool that it names; null: none."),
        "events": ("BIGINT", "How many."),
        "first_ns": ("BIGINT", f"Reference time of the first. {_NS}"),
        "last_ns": ("BIGINT", f"Reference time of the last. {_NS}"),
    },
    {"first_ts": "first_ns", "last_ts": "last_ns"},
)

RESULTS = (
    FINDINGS, INCIDENTS, REQUEST_VERDICTS, UNDECIDED, AUDIT_RUN, AUDIT_MARKS, GAPS, READ_CAUSES, UNSOUND_READS,
    REQUEST_INDEX, KINDS_SEEN, RULE_PARAMS,
)  # fmt: skip
