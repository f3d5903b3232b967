"""What really happened: the answer that an audit of the trace has to give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvwitness.audit.scenarios.incident_155.content import Exposure
from kvwitness.audit.scenarios.incident_155.deployment import DECODE_POOL
from kvwitness.audit.scenarios.incident_155.traffic import Request

TITLE = "155 over-long prompts answered from other tenants' pages"

ABOUT = (
    "Over thirteen days 155 prompts longer than the prefill engine's enforced limit of 681,274 tokens, "
    "but within the advertised 1,048,576, are refused by prefill and handed off all the same as one-token"
    " placeholders. Decode has pages for the true length, is told that one token arrived, and reads every"
    " position: apart from position 0 they hold what earlier requests of other tenants left in the "
    "recycled pages. Each of these requests is answered 200 with a usage of one prompt token. Near-limit "
    "prompts, common prefixes, aborts, preemptions, health probes and the over-long prompts that got "
    "their 400 are ordinary."
)

REPORTS = ("sgl-project/sglang#30233", "sgl-project/sglang#35421")
"""Public reports of the bug that this scenario enlarges."""

RULES = (
    "over-limit-success",
    "served-after-refusal",
    "uncovered-read",
    "unwritten-page-read",
    "false-transfer-complete",
    "status-mismatch",
)
"""Rules that must fire for every faulty request."""

ALLOWED = ("foreign-page-read", "capacity-drift", "near-limit-successes", "prompt-length-shift")
"""Rules that may fire besides."""


@dataclass(frozen=True)
class Incident:
    """One faulty request, and what its read met."""

    request: str
    tenant: str
    prompt_tokens: int
    exposure: Exposure

    @property
    def verdict(self) -> str:
        """`leak` when another tenant's content was met, else `integrity`."""
        return "leak" if self.exposure.tenants else "integrity"

    def expected(self) -> dict[str, Any]:
        """The incident as the test cases state it."""
        met = self.exposure
        pages = [a if a == b else [a, b] for a, b in met.pages]
        return {
            "request": self.request,
            "verdict": self.verdict,
            "rules": list(RULES),
            "may": list(ALLOWED),
            "other_tenants": list(met.tenants),
            "pages": {DECODE_POOL: pages} if pages else {},
            "truth": {
                "tenant": self.tenant,
                "prompt_tokens": self.prompt_tokens,
                "covered_tokens": 1,
                "foreign_tokens": met.tokens,
                "never_written_tokens": met.never_written,
                "foreign_requests": met.requests,
            },
        }


@dataclass
class Truth:
    """The ground truth of one generated trace; lists of request ids are in the order in which it happened."""

    seed: int
    ordinary: int
    requests: list[Request] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    near_limit: list[str] = field(default_factory=list)
    answered_400: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    """Requests that shared a prefix which another tenant had computed, as the policy allows."""
    health: list[str] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    sha256: str = ""
    """Of the trace."""

    @property
    def clean(self) -> list[str]:
        """Requests that nothing happened to."""
        faulty = {incident.request for incident in self.incidents}
        return [request.id for request in self.requests if request.id not in faulty]

    def expectation(self) -> dict[str, Any]:
        """The ground truth as the test cases state it, ready for JSON."""
        return {
            "title": TITLE,
            "kind": "K01",
            "reports": list(REPORTS),
            "about": ABOUT,
            "incidents": [i.expected() for i in sorted(self.incidents, key=lambda i: i.request)],
            "clean_requests": self.clean,
            "engine_findings": ["capacity-drift"],
            "truth": {
                "seed": self.seed,
                "ordinary": self.ordinary,
                "requests": len(self.requests),
                "lines": self.lines,
                "bytes": self.bytes,
                "sha256": self.sha256,
                "leaked": len(self.incidents),
                "near_limit_served": self.near_limit,
                "answered_400": self.answered_400,
                "aborted": sorted(self.aborted),
                "preempted": sorted(self.preempted),
                "shared_across_tenants": sorted(self.shared),
                "health": self.health,
            },
        }
