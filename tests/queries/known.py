"""What the queries must answer, from what is known of the cases (their .expect.json and their events)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STUB = "k01-oversize-stub-handoff"
"""r1003 of t-ash, 284,937 tokens against a limit of 284,922, reads what t-birch (r1001) and t-cedar (r1002) left."""
RECORDED = "real-sglang-0519-placeholder"
"""Recorded: r1017 reads content of t-ash and t-birch, r1020 content of t-birch and t-cedar."""
HEALTHY = "real-vllm-healthy"
ANSWERED_400 = "t01-oversize-answered-400"


@dataclass(frozen=True)
class Known:
    """One question with its answer."""

    query: str
    case: str
    rows: list[dict[str, Any]]
    """The rows in order, of each the columns that matter; none at all is an answer too."""
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the report of the tests."""
        return f"{self.query}-{self.case}-{len(self.rows)}"


def _customer(case: str, tenant: str, *, until: str = "2100-01-01", **counts: int) -> Known:
    topics = ["leaked", "leak", "integrity", "exposure", "unproven", "shared", "clean", "unjudged", "policy", "losses"]
    return Known(
        "customer_exposure", case, [{"count": counts.get(t, 0)} for t in topics], {"tenant_id": tenant, "until": until}
    )


KNOWN = [
    Known("over_limit_successes", STUB, [{"request": "r1003", "engine": "pf-1", "input_limit_tokens": 284922,
          "tokens_over": 15, "limit_source": "pf-1/0", "limit_seq": 2, "status": 200}]),
    Known("over_limit_successes", RECORDED, [{"request": "r1017", "tokens_over": 95}, {"request": "r1020"}]),
    Known("over_limit_successes", RECORDED, [{"request": "r1017"}], {"until": "2026-11-30 17:48:00"}),
    Known("over_limit_successes", "k14-limit-in-force-when-served",
          [{"request": "r1563", "input_limit_tokens": 20000}]),
    Known("over_limit_successes", ANSWERED_400, []),
    Known("over_limit_successes", STUB, [], {"until": "2026-09-01"}),
    Known("foreign_decodes", STUB, [
        {"request": "r1003", "content": "another tenant", "other_tenant": "t-birch", "verdict": "leak",
         "first_page": 1, "last_page": 1882},
        {"request": "r1003", "content": "another tenant", "other_tenant": "t-cedar", "last_page": 2847},
        {"request": "r1003", "content": "never written", "page_count": 1607, "positions": 102777},
    ]),
    Known("foreign_decodes", "u01-hole-hides-the-write", [{"request": "r0012", "verdict": "unproven"}]),
    Known("foreign_decodes", "k02-abort-waiting-remote-same-tenant", []),
    Known("foreign_decodes", HEALTHY, []),
    Known("page_touches", STUB, [
        {"generation": 1, "event": "page.alloc", "request": "r1001", "tenant": "t-birch", "role": "page"},
        {"generation": 1, "event": "transfer.begin", "role": "destination"},
        {"generation": 1, "event": "page.write", "op": "transfer", "tenant": "t-birch"},
        {"generation": 1, "event": "page.read", "op": "decode", "request": "r1001"},
        {"generation": 1, "event": "page.free", "request": "r1001"},
        {"generation": 2, "event": "page.alloc", "request": "r1003", "tenant": "t-ash"},
        {"generation": 2, "event": "page.read", "op": "decode", "request": "r1003"},
        {"generation": 2, "event": "page.free", "request": "r1003"},
    ], {"pool_name": "dec-1/0/full", "page_id": 17}),
    Known("page_touches", STUB, [{"generation": 2, "event": "page.read"}], {"pool_name": "dec-1/0/full",
          "page_id": 17, "since": "2026-09-01 00:09:40.1", "until": "2026-09-01 00:09:41"}),
    Known("page_touches", HEALTHY, [], {"pool_name": "vu-1/0/full", "page_id": 1247}),
    Known("could_have_read", "k04-zero-byte-success",
          [{"page": page, "soundness": "unwritten", "content": "nobody on record"} for page in range(1500, 1564)],
          {"request_id": "r4021"}),
    Known("could_have_read", STUB, [], {"request_id": "r1001"}),
    Known("readers_of_tenant", STUB, [{"request": "r1003", "tenant": "t-ash", "proved": True, "page_count": 965}],
          {"tenant_id": "t-cedar"}),
    Known("readers_of_tenant", RECORDED, [{"request": "r1017", "proved": True}, {"request": "r1020", "proved": True}],
          {"tenant_id": "t-birch"}),
    Known("readers_of_tenant", "f01-common-system-prompt", [
        {"request": "r0102", "proved": False, "soundness": ["shared"], "verdict": "shared"},
        {"request": "r0103", "proved": False},
    ], {"tenant_id": "t-ash"}),
    Known("readers_of_tenant", "k06-abort-in-step-reallocated", [{"request": "r6001", "rules": ["freed-in-step"]}],
          {"tenant_id": "t-birch"}),
    Known("readers_of_tenant", STUB, [], {"tenant_id": "t-ash"}),
    Known("request_timeline", STUB, [
        {"source": "gateway", "event": "request.received", "prompt_tokens": 284937},
        {"source": "dec-1/0", "role": "decode", "event": "page.alloc"},
        {"source": "pf-1/0", "role": "prefill", "event": "request.rejected", "status": 400},
        {"source": "pf-1/0", "event": "page.alloc"},
        {"source": "pf-1/0", "event": "page.write"},
        {"source": "pf-1/0", "event": "transfer.begin", "transfer": "x-3c03", "tokens": 1},
        {"source": "dec-1/0", "event": "page.write", "op": "transfer"},
        {"source": "dec-1/0", "event": "transfer.done", "tokens": 1},
        {"source": "pf-1/0", "event": "page.free"},
        {"source": "dec-1/0", "event": "page.read", "tok_end": 284937, "page_count": 4453},
        {"source": "dec-1/0", "event": "page.write", "op": "forward"},
        {"source": "gateway", "event": "request.finished", "status": 200},
        {"source": "dec-1/0", "event": "page.free"},
    ], {"request_id": "r1003"}),
    Known("short_transfers", STUB, [{"request": "r1003", "transfer": "x-3c03", "tokens": 1, "done_tokens": 1,
          "landed_tokens": 1, "read_tokens": 284937, "positions_missing": 284936, "verdict": "leak"}]),
    Known("short_transfers", "k04-zero-byte-success", [{"request": "r4021", "landed_tokens": 0}]),
    Known("short_transfers", ANSWERED_400, []),
    Known("refused_but_served", STUB, [{"request": "r1003", "verdict": "integrity", "refused_by": "pf-1/0",
          "refusal_status": 400, "reason": "input_too_long", "status": 200}]),
    Known("refused_but_served", RECORDED, [{"request": "r1017"}, {"request": "r1020"}]),
    Known("refused_but_served", ANSWERED_400, []),
    Known("limit_contradictions", "k14-limit-in-force-when-served", [
        {"input_limit_tokens": 30000, "contradictions": []},
        {"contradictions": ["advertised 30000 before, 20000 now", "enforced 30000 before, 20000 now"]},
    ]),
    Known("limit_contradictions", STUB, [
        {"engine": "dec-1", "contradictions": ["enforces 1048570, pf-1 enforces 284922"]},
        {"engine": "pf-1", "contradictions": ["enforces 284922, dec-1 enforces 1048570",
                                              "promises 1048576, its pool holds 284928"]},
    ]),
    Known("limit_contradictions", HEALTHY, [{"engine": "vu-1", "contradictions": []}]),
    Known("limit_contradictions", HEALTHY, [], {"until": "2020-01-01"}),
    Known("freed_in_use", "k06-abort-in-step-reallocated", [
        {"rule": "freed-in-step", "verdict": "integrity", "request": "r6001", "first_page": 80, "last_page": 101},
        {"verdict": "leak", "request": "r6001", "last_page": 97, "other_tenants": ["t-birch"]},
    ]),
    Known("freed_in_use", HEALTHY, []),
    Known("orphaned_pages", "k15-disconnect-leaves-pages-held", [
        {"request": "r1621", "pool": "dec-1/0/full", "page_count": 20},
        {"request": "r1621", "pool": "pf-1/0/full", "page_count": 20},
        {"request": "r1621", "pool": "dec-1/0/full", "first_page": 100, "last_page": 123},
        {"request": "r1621", "pool": "pf-1/0/full", "first_page": 30, "last_page": 49},
    ]),
    Known("orphaned_pages", STUB, []),
    Known("shared_across_tenants", "f01-common-system-prompt", [
        {"request": "r0102", "tenant": "t-birch", "other_tenant": "t-ash", "sharing": "global", "page_count": 16},
        {"request": "r0103", "tenant": "t-cedar", "other_tenant": "t-ash"},
    ]),
    Known("shared_across_tenants", HEALTHY, []),
    Known("near_limit", "f18-reserve-between-limits", [
        {"request": "r1801", "outcome": "answered", "engine": "eng-1", "input_limit_tokens": 32762},
        {"request": "r1802", "share": 1.0, "outcome": "answered"},
        {"request": "r1803", "outcome": "refused", "status": 400},
    ]),
    Known("near_limit", "f18-reserve-between-limits", [{"request": "r1802"}, {"request": "r1803"}],
          {"near_share": 1.0}),
    Known("near_limit", "k06-abort-in-step-reallocated", []),
    Known("unobserved", "u01-hole-hides-the-write", [
        {"kind": "loss", "source": "eng-1/0", "from_seq": 9, "to_seq": 11, "events": 3, "requests": ["r0012"]},
        {"kind": "rule without input", "rule": "false-transfer-complete"},
        {"kind": "rule without input", "rule": "freed-in-step"},
        {"kind": "rule without input", "rule": "uncovered-read"},
        {"kind": "unproven request", "rule": "telemetry-gap", "requests": ["r0012"]},
        {"kind": "unproven request", "rule": "unwritten-page-read", "requests": ["r0012"]},
    ]),
    Known("unobserved", RECORDED, []),
    Known("tenants_to_notify", STUB, [
        {"tenant": "t-birch", "readers": ["t-ash"], "requests": ["r1003"], "incidents": ["inc-fda2e644f1c4"],
         "page_count": 1882,
         "evidence": ["dec-1/0:6", "dec-1/0:8", "dec-1/0:12", "dec-1/0:14", "dec-1/0:19"]},
        {"tenant": "t-cedar", "readers": ["t-ash"], "page_count": 965},
    ]),
    Known("tenants_to_notify", RECORDED, [
        {"tenant": "t-ash", "requests": ["r1017"], "readers": ["t-cedar"]},
        {"tenant": "t-birch", "requests": ["r1017", "r1020"], "readers": ["t-ash", "t-cedar"]},
        {"tenant": "t-cedar", "requests": ["r1020"], "readers": ["t-ash"]},
    ]),
    Known("tenants_to_notify", HEALTHY, []),
    Known("first_and_last_by_version", "k14-limit-in-force-when-served", [
        {"rule": "capacity-drift", "verdict": "exposure", "engine": "eng-1"},
        {"rule": "over-limit-success", "verdict": "integrity", "engine": "eng-1", "request_count": 1},
    ]),
    Known("first_and_last_by_version", HEALTHY, []),
    _customer(STUB, "t-birch", leaked=1, clean=1),
    _customer(STUB, "t-ash", leak=1),
    _customer("f01-common-system-prompt", "t-ash", policy=2, clean=1),
    _customer(HEALTHY, "t-ash", until="2020-01-01"),
    Known("count_disagreements", STUB, [{"request": "r1003", "tenant": "t-ash", "received_prompt_tokens": 284937,
          "answered_prompt_tokens": 1, "differs": ["prompt"]}]),
    Known("count_disagreements", RECORDED, [
        {"request": "r1017", "received_prompt_tokens": 600, "engine_prompt_tokens": 1},
        {"request": "r1020", "received_prompt_tokens": 560, "engine_prompt_tokens": 1},
    ]),
    Known("count_disagreements", HEALTHY, []),
    Known("long_prompts", STUB, [{"request": "r1003", "prompt_tokens": 284937, "status": 200, "ok": True,
          "answered_prompt_tokens": 1}], {"over": 284936}),
    Known("long_prompts", ANSWERED_400, [], {"over": 100, "of_model": "another"}),
    Known("long_prompts", STUB, [], {"over": 284937}),
]  # fmt: skip
