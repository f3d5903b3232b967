"""What replay and audit cost: page-events per second and core, and peak memory, beside what else could do it.

    python benchmarks/audit.py --size 5M
    python benchmarks/audit.py --size 5M --size 50M --size 500M --json out.json

Every measure runs in a process of its own on the same synthetic trace of aged pools (`benchmarks/pools.py`),
with 155 planted reads. Compilation and the making of the trace are not in the times. Rates are per second of
CPU time, which is per core whatever the number of threads; several repeats give the median. The data frame
formulations of the one-rule referees run at 5M, and at 50M where 12 GiB of memory are free, never beyond.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"200k": 200_000, "1M": 1_000_000, "5M": 5_000_000, "50M": 50_000_000, "500M": 500_000_000}
FRAMES = ("polars", "duckdb")
MEASURES = {
    "ids": "reading the page ids alone",
    "shadow": "least shadow, one rule, one word per page",
    "replay": "replay kernel, full shadow state, lists in memory",
    "replay-arrow": "the same from Arrow: order, encode, replay",
    "polars": "one rule, Polars forward_fill().over, exploded in memory",
    "duckdb": "one rule, DuckDB ASOF, exploded in memory",
    "ingest": "writing the trace into a store",
    "audit": "whole audit from the store on disk",
}
PACKAGES = ("numpy", "numba", "polars", "pyarrow", "duckdb", "kvwitness")
FRAME_LIMIT = 50_000_000
FRAME_MEMORY_GIB = 12

Result = dict[str, Any]


def machine() -> Result:
    """Facts without which the numbers mean little."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(_memory_gib("MemTotal"), 1),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def measure(name: str, page_events: int, seed: int, work: Path, repeat: int) -> Result:
    """Run one measure `repeat` times, each in a fresh process, and summarise by medians."""
    runs: list[Result] = []
    for _ in range(repeat):
        command = [sys.executable, "-m", "benchmarks._measures", name, str(page_events), str(seed), str(work)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return {"error": lines[-1] if lines else f"ended with status {done.returncode}"}
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    medians = ("cpu_s", "wall_s", "peak_mib", "base_mib")
    result = runs[0] | {key: statistics.median(run[key] for run in runs) for key in medians}
    return result | {"runs": [{key: run[key] for key in ("cpu_s", "wall_s", "peak_mib")} for run in runs]}


def measure_size(label: str, names: list[str], seed: int, repeat: int | None, work: Path) -> dict[str, Result]:
    """All measures at one size."""
    page_events = SIZES[label]
    times = repeat or (3 if page_events <= 5_000_000 else 2 if page_events <= 50_000_000 else 1)
    out: dict[str, Result] = {}
    for name in names:
        if name in FRAMES and not _fits(page_events):
            continue
        once = name in ("ingest", "audit") and repeat is None
        print(f"{label}: {MEASURES[name]} ...", file=sys.stderr, flush=True)
        out[name] = measure(name, page_events, seed, work, 1 if once else times)
    for result in out.values():
        if "error" not in result:
            result["ns_per_event"] = result["cpu_s"] / result["page_events"] * 1e9
            result["million_per_s_core"] = 1e3 / result["ns_per_event"]
            result["million_per_s_wall"] = result["page_events"] / result["wall_s"] / 1e6
    return out


def print_size(label: str, results: dict[str, Result]) -> None:
    """The table of one size, with every cost as a multiple of reading the ids."""
    some = next((r for r in results.values() if "error" not in r), None)
    if some:
        print(f"\n{label}: {some['page_events']:,} page-events in {some['rows']:,} events")
    print(f"{'':58}{'ns/event':>9}{'M/s core':>10}{'M/s wall':>10}{'peak MiB':>10}{'x ids':>8}")
    bound = results.get("ids", {}).get("ns_per_event")
    for name, r in results.items():
        if "error" in r:
            print(f"{MEASURES[name]:58}  {r['error']}")
            continue
        ratio = f"{r['ns_per_event'] / bound:8.1f}" if bound else f"{'':>8}"
        print(
            f"{MEASURES[name]:58}{r['ns_per_event']:9.2f}{r['million_per_s_core']:10.1f}"
            f"{r['million_per_s_wall']:10.1f}{r['peak_mib']:10.0f}{ratio}"
        )
    for line in notes(results):
        print("  " + line)


def notes(results: dict[str, Result]) -> list[str]:
    """What the numbers of one size say about each other."""
    good = {name: r for name, r in results.items() if "error" not in r}
    out = []
    frames = {name: good[name]["ns_per_event"] for name in FRAMES if name in good}
    if frames:
        best = min(frames, key=frames.__getitem__)
        for name in ("replay", "shadow"):
            if name in good:
                ratio = frames[best] / good[name]["ns_per_event"]
                out.append(f"{name}: {ratio:.1f}x the rate of the better data frame formulation ({best})")
    judged = {name: r for name, r in good.items() if "as_planted" in r}
    if judged:
        same = len({r["digest"] for r in judged.values()}) == 1
        right = all(r["as_planted"] for r in judged.values())
        told = "exactly the planted reads" if right else "NOT the planted reads"
        out.append(f"{', '.join(judged)}: {'same answer' if same else 'DIFFERENT ANSWERS'}, {told}")
    for name, what in (("replay", "events noted"), ("audit", "requests named")):
        if name in good:
            r = good[name]
            found = f"{r['planted_found']} of {r['planted']} planted reads"
            out.append(f"{name}: {found}, {r['others']} other {what}")
    if "ingest" in good:
        r = good["ingest"]
        rate = r["rows"] / r["wall_s"]
        each = r["bytes"] / r["page_events"]
        out.append(
            f"ingest: {rate:,.0f} rows/s, {r['bytes_per_row']:.1f} B/row, {each:.2f} B/page-event, "
            f"{r['segments']} segments"
        )
    return out


def print_flatness(sizes: dict[str, dict[str, Result]]) -> dict[str, float]:
    """How much the cost per event grows from the smallest size to the largest; 1.0 is flat."""
    growth: dict[str, float] = {}
    for name in MEASURES:
        costs = [r[name]["ns_per_event"] for r in sizes.values() if "ns_per_event" in r.get(name, {})]
        if len(costs) > 1:
            growth[name] = max(costs) / min(costs)
    if growth:
        print(f"\nlargest over smallest cost per event, {' / '.join(sizes)}:")
        for name, value in growth.items():
            print(f"  {MEASURES[name]:58}{value:6.2f}x")
    return growth


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure replay and audit on synthetic aged pools.")
    add = parser.add_argument
    add("--size", action="append", choices=SIZES, help="page-events; may be given several times")
    add("--only", action="append", choices=MEASURES, help="measure only this; may be repeated")
    add("--repeat", type=int, help="runs of each measure (default: 3 at 5M, 2 at 50M, 1 beyond)")
    add("--seed", type=int, default=1)
    add("--work", type=Path, help="where stores are written (default: a temporary directory)")
    add("--json", type=Path, help="write everything measured to this file")
    options = parser.parse_args(argv)
    report: Result = {"machine": machine(), "seed": options.seed, "sizes": {}}
    print(json.dumps(report["machine"]))
    with tempfile.TemporaryDirectory(prefix="kvwitness-bench-", dir=options.work) as work:
        for label in options.size or ["5M"]:
            names = options.only or list(MEASURES)
            results = measure_size(label, names, options.seed, options.repeat, Path(work))
            report["sizes"][label] = results
            print_size(label, results)
    report["flatness"] = print_flatness(report["sizes"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _fits(page_events: int) -> bool:
    """Whether the data frame formulations may run at this size here."""
    if page_events <= 5_000_000:
        return True
    return page_events <= FRAME_LIMIT and _memory_gib("MemAvailable") >= FRAME_MEMORY_GIB


def _memory_gib(field: str) -> float:
    for line in _lines("/proc/meminfo"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) / (1 << 20)
    return 0.0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
