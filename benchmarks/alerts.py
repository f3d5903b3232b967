"""False alarms of the anomaly rules on healthy fleets, and how soon they find what is planted.

    python benchmarks/alerts.py                    # five fleets of 30 days, and one with a change for each rule
    python benchmarks/alerts.py --fleets 20 --requests 200

A fleet is made up, not recorded: engines behind a gateway, tenants of very different size, days and weeks, nightly
batch jobs of long prompts, lengths that drift, and rates that vary from hour to hour far more than chance would have it
(gamma distributed, coefficient of variation 0.3 to 0.6). `--requests` is the mean per hour. The rules see the events; a
page is what a person would get: findings of one rule with less than 24 hours between them are one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kvwitness.audit.pipeline import context_of  # noqa: E402
from kvwitness.audit.provenance.order import ordered  # noqa: E402
from kvwitness.audit.rules import RULES  # noqa: E402
from kvwitness.audit.rules.model import Context  # noqa: E402
from kvwitness.audit.trace import polars_schema  # noqa: E402

DAYS, CHANGE_H, LIMIT = 30, 20 * 24 + 10, 32_768
START = 1_790_035_200  # Tuesday, 2026-09-22T00:00:00Z
HOUR_NS = 3_600 * 10**9
CALM_H = 24
PROMISED = 1.0
"""False pages per rule and month, at most."""

F64 = npt.NDArray[np.float64]


@dataclass
class Rates:
    """What is usual, and by what it is multiplied from the change on."""

    near: float = 0.015
    empty: float = 0.006
    refused: float = 0.012
    failed: float = 0.006
    across: float = 0.08
    orphaned: float = 0.004
    factors: dict[str, float] = field(default_factory=dict)
    longer: float = 1.0
    """Prompt lengths of the largest tenant, from the change on."""
    accept: float = 1.0
    probing: bool = False
    silent: bool = False


PLANTED = {
    "near-limit-successes": Rates(factors={"near": 15.0}),
    "prompt-length-shift": Rates(longer=8.0),
    "refusals-stopped": Rates(factors={"refused": 0.0}),
    "zero-token-successes": Rates(factors={"empty": 20.0}),
    "silent-transfer-failures": Rates(factors={"failed": 20.0}),
    "sharing-growth": Rates(factors={"across": 6.0}),
    "acceptance-collapse": Rates(accept=0.4),
    "orphan-growth": Rates(factors={"orphaned": 25.0}),
    "prefix-probing": Rates(probing=True),
    "source-silence": Rates(silent=True),
}
"""Rule -> a change that it has to find."""


class Fleet:
    """Thirty days of one fleet as events."""

    def __init__(self, seed: int, per_hour: float, rates: Rates) -> None:
        self.rng, self.rates = np.random.default_rng(seed), rates
        self.hours = np.arange(DAYS * 24)
        self.engines = int(self.rng.integers(2, 4))
        self.tenants = int(self.rng.integers(6, 15))
        self._parts: list[pl.DataFrame] = []
        self._requests(per_hour)

    def _wild(self, mean: float, variation: float, name: str) -> F64:
        """A rate for every hour."""
        shape = 1 / variation**2
        rate = mean * self.rng.gamma(shape, 1 / shape, len(self.hours))
        rate[CHANGE_H:] *= self.rates.factors.get(name, 1.0)
        return np.clip(rate, 0, 0.95)

    def _requests(self, per_hour: float) -> None:
        rng = self.rng
        day, hour = self.hours // 24, self.hours % 24
        usual = per_hour * (1 + 0.6 * np.sin((hour - 8) * np.pi / 12)) * np.where(day % 7 >= 5, 0.5, 1.0)
        count = rng.poisson(usual * rng.gamma(16, 1 / 16, len(usual)))
        at_hour = np.repeat(self.hours, count)
        n = len(at_hour)
        weights = rng.pareto(1.5, self.tenants) + 0.2
        tenant = rng.choice(self.tenants, n, p=weights / weights.sum())
        largest = int(weights.argmax())
        batch = rng.random(n) < np.where((at_hour % 24 == 2), 0.4, 0.0)  # a nightly job
        engine = rng.integers(0, self.engines, n)
        second = at_hour * 3600 + rng.uniform(0, 3600, n)
        drift = np.cumsum(rng.normal(0, 0.05, (DAYS, self.tenants)), axis=0)
        typical = rng.uniform(5.5, 8.0, self.tenants)
        length = np.exp(rng.normal(typical[tenant] + drift[at_hour // 24, tenant], 0.9))
        changed = at_hour >= CHANGE_H
        length = np.where(changed & (tenant == largest), length * self.rates.longer, length)
        length = np.where(batch, rng.uniform(0.3, 0.95, n) * LIMIT, length)
        near = rng.random(n) < self._wild(self.rates.near, 0.4, "near")[at_hour]
        length = np.clip(np.where(near, rng.uniform(0.9, 1.0, n) * LIMIT, length), 8, LIMIT).astype(np.int64)
        refused = rng.random(n) < self._wild(self.rates.refused, 0.4, "refused")[at_hour]
        length = np.where(refused, rng.integers(LIMIT + 1, 4 * LIMIT, n), length)
        errors = ~refused & (rng.random(n) < self._wild(0.004, 0.6, "errors")[at_hour])
        empty = rng.random(n) < self._wild(self.rates.empty, 0.5, "empty")[at_hour]
        failed = rng.random(n) < self._wild(self.rates.failed, 0.6, "failed")[at_hour]
        across = rng.random(n) < self._wild(self.rates.across, 0.3, "across")[at_hour]
        orphaned = rng.random(n) < self._wild(self.rates.orphaned, 0.5, "orphaned")[at_hour]
        accept = np.clip(rng.normal(2.8, 0.5, n) * np.where(changed, self.rates.accept, 1.0), 1.0, 5.0)
        frame = pl.DataFrame(
            {
                "request": [f"r{i}" for i in range(n)],
                "tenant": [f"t-{i}" for i in tenant],
                "engine_number": engine,
                "second": second,
                "length": length,
                "status": np.where(refused, 400, np.where(errors, 503, 200)),
                "completion": np.where(refused | errors | empty, 0, rng.integers(1, 600, n)),
                "accept": accept.round(2),
                "refused": refused,
                "failed": failed,
                "across": across & (tenant != 0),
                "orphaned": orphaned,
                "page": rng.permutation(n) + 1,
            }
        )
        self.common = n + 1
        self._gateway(frame)
        self._engines(frame.filter(~pl.col("refused")))
        self._opening()
        if self.rates.probing:
            self._probes()

    def _opening(self) -> None:
        """Limits and pools; and pages of a prompt of one tenant, which all may share."""
        for number in range(self.engines):
            name, pool = f"e{number}", f"e{number}/0/kv"
            self._add(
                [
                    {"event": "engine.pool", "pool": pool, "page_tokens": 64, "pages_total": self.common + 100},
                    {"event": "engine.limits", "engine": name, "input_limit_tokens": LIMIT},
                    {"event": "page.alloc", "pool": pool, "pages": [self.common], "request": f"common{number}"},
                    {
                        "event": "page.publish",
                        "pool": pool,
                        "pages": [self.common],
                        "key": "common",
                        "request": f"common{number}",
                    },
                ],
                f"e{number}/0",
            )
        common = [{"event": "request.received", "request": f"common{i}", "tenant": "t-0"} for i in range(self.engines)]
        self._add(common, "gateway")

    def _add(self, rows: list[dict[str, object]], source: str, second: float = 0.0) -> None:
        frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(source=pl.lit(source), second=pl.lit(second))
        self._parts.append(frame)

    def _gateway(self, frame: pl.DataFrame) -> None:
        source = pl.lit("gateway").alias("source")
        received = frame.select(
            "request", "tenant", "second", source, event=pl.lit("request.received"), prompt_tokens="length",
            max_new_tokens=pl.lit(600),
        )  # fmt: skip
        rejected = frame.filter("refused").select(
            "request", pl.col("second") + 0.01, source, event=pl.lit("request.rejected"),
            reason=pl.lit("input_too_long"), status=pl.lit(400),
        )  # fmt: skip
        finished = frame.select(
            "request", pl.col("second") + 20, source, "status", event=pl.lit("request.finished"),
            completion_tokens="completion",
            extra=pl.concat_str(pl.lit('{"accept_length":'), "accept", pl.lit("}")),
        )  # fmt: skip
        self._parts += [received, rejected, finished]

    def _engines(self, frame: pl.DataFrame) -> None:
        name = pl.concat_str(pl.lit("e"), "engine_number")
        pool = pl.concat_str(name, pl.lit("/0/kv"))
        frame = frame.with_columns(
            pool=pool, source=pl.concat_str(name, pl.lit("/0")), transfer=pl.concat_str(pl.lit("x"), "request")
        )
        if self.rates.silent:
            gone = (pl.col("engine_number") == 0) & (pl.col("second") >= CHANGE_H * 3600)
            frame = frame.filter(~gone)
        page, at = pl.concat_list("page"), pl.col("second")
        alloc = frame.select("request", "tenant", "pool", "source", at + 1, pages=page, event=pl.lit("page.alloc"))
        share = frame.filter("across").select(
            "request", "pool", "source", at + 1.1, event=pl.lit("page.share"), key=pl.lit("common"),
            pages=pl.concat_list(pl.lit(self.common)),
            tok_first=pl.lit(0), tok_end=pl.lit(64),
        )  # fmt: skip
        begin = frame.select(
            "request", "transfer", "source", at + 1.2, event=pl.lit("transfer.begin"), dst_pool="pool", dst_pages=page
        )
        end = frame.select(
            "transfer", "source", at + 2, observer=pl.lit("receiver"),
            event=pl.when("failed").then(pl.lit("transfer.failed")).otherwise(pl.lit("transfer.done")),
        )  # fmt: skip
        free = frame.filter(~pl.col("orphaned")).select(
            "request", "pool", "source", at + 21, pages=page, event=pl.lit("page.free"), reason=pl.lit("finish")
        )
        self._parts += [alloc, share, begin, end, free]

    def _probes(self) -> None:
        """One tenant walks the common prompt, page by page."""
        base = CHANGE_H * 3600.0
        for n in range(12):
            request, at = f"probe{n}", base + 600 + 4 * n
            asked = {"event": "request.received", "request": request, "tenant": "t-5"}
            self._add([asked | {"prompt_tokens": 16 * n + 20, "max_new_tokens": 1}], "gateway", at)
            hit = {"event": "page.share", "request": request, "pool": "e0/0/kv", "key": "common", "tok_first": 0}
            self._add([hit | {"tok_end": 16 * (n + 1), "pages": [self.common]}], "e0/0", at + 0.1)

    def events(self) -> pl.DataFrame:
        """In the columns of a trace, numbered per source."""
        schema = polars_schema()
        rows = pl.concat(
            [
                part.with_columns(
                    *[pl.col(c).cast(schema[c], strict=False) for c in part.columns if c in schema],
                    pl.col("second").cast(pl.Float64),
                )
                for part in self._parts
            ],
            how="diagonal",
        )
        rows = rows.sort("second", maintain_order=True).with_columns(
            time_ns=START * 10**9 + (pl.col("second") * 1e9).cast(pl.Int64),
            seq=pl.int_range(1, pl.len() + 1).over("source"),
        )
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in rows.columns]
        return rows.with_columns(missing).select(list(schema))


def context(seed: int, per_hour: float, rates: Rates) -> Context:
    """What the rules look at."""
    return context_of(ordered(Fleet(seed, per_hour, rates).events()), overrides={})[0]


def windows(context: Context, rule: str) -> list[float]:
    """When each finding of a rule could be said: hours since the start, ascending."""
    chosen = RULES[rule]
    settings = chosen.settings(context)
    found = chosen.query(context, settings)
    window = float(settings.get("window_s", 0)) * 1e9
    late = float(settings.get("late_s", 0)) * 1e9
    said = []
    for at in found["time_ns"].to_list():
        if rule == "source-silence":
            said.append((context.horizon_ns - START * 10**9) / HOUR_NS)
        else:
            end = (at // window + 1) * window + late if window else at
            said.append((end - START * 10**9) / HOUR_NS)
    return sorted(said)


def pages(hours: list[float]) -> int:
    """Messages to a person: findings with less than a day of calm between them are one."""
    return sum(1 for n, at in enumerate(hours) if n == 0 or at - hours[n - 1] > CALM_H)


def silence_delay_h(context: Context) -> float | None:
    """When the silence of a source could be said: its record is long, so three times its longest pause, at least 15
    minutes."""
    settings = RULES["source-silence"].settings(context)
    spoken = context.events.filter(pl.col("source") == "e0/0").select("ref_ns").sort("ref_ns").collect()["ref_ns"]
    pause = float(spoken.diff().max() or 0)  # type: ignore[arg-type]
    wait = max(float(settings["min_silence_s"]) * 1e9, float(settings["factor"]) * pause)
    last = float(spoken.max() or 0)  # type: ignore[arg-type]
    return (last + wait - START * 10**9) / HOUR_NS - CHANGE_H


def main() -> int:
    """Print both tables; status 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description="False alarms and delays of the anomaly rules.")
    parser.add_argument("--fleets", type=int, default=5, help="healthy fleets, 30 days each")
    parser.add_argument("--requests", type=float, default=150, help="mean requests per hour")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    os.environ["KVWITNESS_KERNEL"] = "compiled"
    rules = [rule.id for rule in RULES.values() if rule.anomaly]
    false = dict.fromkeys(rules, 0)
    began, events = time.perf_counter(), 0
    for n in range(chosen.fleets):
        healthy = context(chosen.seed + n, chosen.requests, Rates())
        events += int(healthy.events.select(pl.len()).collect().item())
        for rule in rules:
            false[rule] += pages(windows(healthy, rule))
    kept = True
    print(f"{chosen.fleets} healthy fleets of {DAYS} days, {events:,} events, {chosen.requests:g} requests per hour")
    print(f"{'rule':28}{'false pages':>12}{'per month':>11}{'delay':>12}  of a planted change")
    for n, rule in enumerate(rules):
        per_month = false[rule] / chosen.fleets * 30 / DAYS
        changed = context(chosen.seed + 1000 + n, chosen.requests, PLANTED[rule])
        said = [at for at in windows(changed, rule) if at >= CHANGE_H]
        found = silence_delay_h(changed) if rule == "source-silence" and said else said[0] - CHANGE_H if said else None
        told = "not found" if found is None else f"{found:.1f} h"
        kept &= per_month <= PROMISED and found is not None
        print(f"{rule:28}{false[rule]:>12}{per_month:>11.2f}{told:>12}")
    promise = f"at most {PROMISED:g} false page per rule and month, and every planted change found"
    print(f"promised: {promise}; {'kept' if kept else 'NOT KEPT'}")
    print(f"{time.perf_counter() - began:.0f} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
