"""One tenant walks another's prompt forward by cache hits."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kvwitness.audit.relations import KEY
from kvwitness.audit.rules._frames import SECOND_NS, report
from kvwitness.audit.rules._shares import distinct_tenants, shares
from kvwitness.audit.rules.model import Context, Example, Param, Rule, Verdict
from kvwitness.audit.wording import number_of, several_of

ID = "prefix-probing"


def _probes(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Requests for next to no output that matched another tenant's pages up to just before their end."""
    rows = shares(context)
    tail = pl.col("prompt_tokens") - pl.col("tok_end")
    short = pl.col("max_new_tokens") <= int(settings["output_tokens"])
    wanted = rows.filter(distinct_tenants() & (pl.col("traffic") == "user") & short)
    per_request = wanted.sort("ev").group_by(*KEY, "tenant", "pub_tenant", maintain_order=True)
    probes = per_request.agg(
        pl.col("ev", "ref_ns", "site").first(),
        matched=pl.col("tok_end").max(),
        tail=tail.min(),
        pages=pl.col("pages").explode().unique().sort(),
        pool=pl.col("pool").first(),
        published_by=pl.col("pub_request").drop_nulls().unique().sort(),
    )
    return probes.filter(pl.col("tail") <= int(settings["tail_tokens"]))


def query(context: Context, settings: Mapping[str, float | int | str]) -> pl.DataFrame:
    """Find bursts whose matched length keeps growing."""
    pair = ["tenant", "pub_tenant"]
    gap_ns = int(float(settings["burst_gap_s"]) * SECOND_NS)
    pause = (pl.col("ref_ns").diff() > gap_ns).fill_null(False)
    probes = _probes(context, settings).sort("ev")
    probes = probes.with_columns(burst=pause.cast(pl.Int64).cum_sum().over(pair))
    burst = [*pair, "burst"]
    record = pl.col("matched").cum_max().shift().over(burst)
    probes = probes.with_columns(
        rises=(pl.col("matched") > record).fill_null(False),
        holds=(pl.col("matched") >= pl.col("matched").shift().over(burst)).fill_null(True),
    )
    bursts = probes.group_by(burst, maintain_order=True).agg(
        n=pl.len(),
        rises=pl.col("rises").sum(),
        holds=pl.col("holds").mean(),
        low=pl.col("matched").min(),
        high=pl.col("matched").max(),
        evs=pl.col("ev"),
        engine=pl.col("site").first(),
        pool=pl.col("pool").first(),
        pages=pl.col("pages").explode().unique().sort(),
        other_requests=pl.col("published_by").explode().unique().sort(),
    )
    found = bursts.filter(
        (pl.col("n") >= int(settings["min_probes"]))
        & (pl.col("rises") >= int(settings["min_rises"]))
        & (pl.col("holds") >= float(settings["steadiness"]))
    )
    rows = found.with_columns(
        verdict=pl.lit("exposure"),
        other_tenants=pl.concat_list("pub_tenant"),
        why=pl.format(
            "{} sent {} for next to no output that matched pages of {} up to {} and then {}",
            "tenant",
            several_of("n", "prompt"),
            "pub_tenant",
            number_of("low"),
            several_of("high", "token"),
        ),
    )
    return report(context, ID, rows)


def _example(matched: list[int]) -> str:
    """A publication of t-a, then one short request of t-b for each matched length."""
    lines = [
        '{"t":1,"seq":1,"source":"gateway","event":"request.received","request":"r0","tenant":"t-a"}',
        '{"t":2,"seq":1,"source":"e/0","event":"page.publish","pool":"e/0/kv","pages":[[1,9]],"key":"k",'
        '"ns":{},"request":"r0"}',
    ]
    for n, length in enumerate(matched, start=1):
        lines.append(
            f'{{"t":{2 + n},"seq":{1 + n},"source":"gateway","event":"request.received","request":"r{n}",'
            f'"tenant":"t-b","prompt_tokens":{length + 4},"max_new_tokens":1}}'
        )
        lines.append(
            f'{{"t":{2 + n}.5,"seq":{1 + n},"source":"e/0","event":"page.share","pool":"e/0/kv",'
            f'"pages":[[1,{length // 16}]],"key":"k","tok":[0,{length}],"request":"r{n}"}}'
        )
    return "\n".join(lines) + "\n"


RULE = Rule(
    id=ID,
    title="Another tenant's prompt is probed by cache hits",
    verdicts=(Verdict.EXPOSURE,),
    severity="medium",
    meaning=(
        "Within a short time one tenant sends many prompts that ask for next to no output and match "
        "another tenant's cached pages to ever greater lengths, each ending just behind its match. Every "
        "share is allowed; the pattern is how the time saved by a hit tells, step by step, what the other "
        "tenant's prompt says."
    ),
    needs=(),
    false_positives=(
        "A client that feeds a public document in growing pieces for classification, after another tenant "
        "sent the same document."
    ),
    references=("CVE-2025-46570", "vllm-project/vllm#17045"),
    atlas=("AML.T0024", "AML.T0040"),
    cwe=("CWE-208", "CWE-203"),
    query=query,
    anomaly=True,
    params=(
        Param("min_probes", 6, "prompts in one burst"),
        Param("min_rises", 5, "how often the matched length must exceed all before it"),
        Param("steadiness", 0.8, "share of the prompts that match at least as much as the one before"),
        Param("burst_gap_s", 60.0, "a longer pause ends a burst", "s"),
        Param("output_tokens", 1, "largest output that a probe asks for", "tokens"),
        Param("tail_tokens", 64, "largest part of a probe behind its match", "tokens"),
    ),
    positive=Example(
        title="seven prompts, each a page longer",
        verdict="exposure",
        trace=_example([16, 32, 48, 64, 80, 96, 112]),
    ),
    negative=Example(
        title="seven short prompts behind one common prefix",
        trace=_example([64, 64, 64, 64, 64, 64, 64]),
    ),
)
