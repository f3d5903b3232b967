"""Pages are shared across tenants more often than before."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._anomaly_examples import request, steady, week_then_hour
from kvwitness.audit.rules._baseline import Settings, params, rate_findings, said
from kvwitness.audit.rules._frames import acting_engine
from kvwitness.audit.rules._shares import distinct_tenants, shares
from kvwitness.audit.rules.model import Context, Example, Rule, Verdict

ID = "sharing-growth"


def query(context: Context, settings: Settings) -> pl.DataFrame:
    """Compare the share of an engine's requests that attach to another tenant's pages with all windows before."""
    seen = keyed(context.acts.filter(pl.col("event").is_in(["page.alloc", "page.share"])))
    served = seen.group_by(*KEY, engine=acting_engine(context)).agg(at_ns=pl.col("first_ns").min()).collect()
    across = shares(context).filter(distinct_tenants()).group_by(KEY).agg(ev=pl.col("ev").min())
    cases = served.join(across, on=KEY, how="left").with_columns(hit=pl.col("ev").is_not_null())
    why = pl.format("{} on {}", said("requests", "attached to pages of another tenant"), "engine")
    return rate_findings(context, ID, cases, settings, subject=["engine"], why=why)


def _shared(n: int, tenant: str) -> list[tuple[str, str]]:
    asked = f'"event":"request.received","request":"r{n}","tenant":"{tenant}","prompt_tokens":40'
    taken = f'"event":"page.share","pool":"e/0/kv","pages":[1],"key":"k","tok":[0,16],"request":"r{n}"'
    return [("gateway", asked), ("e/0", taken)]


_OPENING = [
    *request(99999),
    ("e/0", '"event":"page.publish","pool":"e/0/kv","pages":[1],"key":"k","ns":{},"request":"r99999"'),
]

RULE = Rule(
    id=ID,
    title="Sharing of pages across tenants grew",
    verdicts=(Verdict.EXPOSURE,),
    severity="low",
    meaning=(
        "The share of an engine's requests that attach to pages which another tenant filled is far above what it was "
        "in all windows before. Each share may be allowed; a salt that was lost, a policy that changed or a common "
        "prompt that spreads look like this, and every hit tells in its time what the other tenant had sent."
    ),
    needs=(),
    false_positives="A new common system prompt; a client library that sends one.",
    references=("CVE-2025-46570", "vllm-project/vllm#17045"),
    atlas=("AML.T0024",),
    cwe=("CWE-203", "CWE-668"),
    query=query,
    anomaly=True,
    params=params(cases="requests", hits="requests that attach to another tenant's pages"),
    positive=Example(
        title="an hour in which all share what one in twenty did",
        verdict="exposure",
        trace=week_then_hour(
            lambda n, t: _shared(n, "t-b" if n % 20 == 0 else "t-a"), lambda n, t: _shared(n, "t-b"), _OPENING
        ),
    ),
    negative=Example(
        title="one in four, as ever",
        trace=steady(lambda n, t: _shared(n, "t-b" if n % 4 == 0 else "t-a"), _OPENING),
    ),
)
