"""The referee against the product, trace by trace.

    python tests/referee/compare.py TRACE.jsonl ...          given traces
    python tests/referee/compare.py --seeds 0 200            generated traces: healthy, one fault each in turn
    python tests/referee/compare.py --seeds 0 50 --fault double-alloc

Prints every (request, rule) on which the strongest verdicts differ. `soft` marks a difference in the choice
of rule only: the other side reports the same request, as strongly, under a rule that may stand beside it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    __package__ = "referee"

from .generate import FAULTS, generate
from .oracle import PAGE_RULES, audit, strongest
from .state import RANK
from .timeline import load

# rules that look at one fault from different sides and may fire together
FAMILIES = (
    {"foreign-page-read", "unwritten-page-read", "read-before-ready", "uncovered-read"},
    {"uncovered-read", "false-transfer-complete"},
    {"late-write", "double-ownership", "reserved-page-use"},
    {"late-read", "foreign-page-read", "unwritten-page-read"},
)
Verdicts = dict[tuple[str | None, str], str]


def product(path: str) -> dict[str, Any]:
    """What the product says about a trace: through its Python entry if it has one, else its command line."""
    try:
        judge = importlib.import_module("kvwitness.audit.api").judge_trace
    except (ImportError, AttributeError):
        command = ["kvwitness", "audit", "--trace", path, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            raise SystemExit(f"no answer from the product on {path}: {done.stderr[-2000:]}") from None
    return dict(judge(path))


def product_verdicts(answer: dict[str, Any]) -> Verdicts:
    """(request, rule) -> strongest verdict, page-level rules only."""
    rows = [*answer.get("findings", []), *answer.get("engine_findings", [])]
    rows = [{**f, "request": f.get("request")} for f in rows if f["rule"] in PAGE_RULES and f["verdict"] in RANK]
    return strongest(rows)


def soft(key: tuple[str | None, str], verdict: str, other: Verdicts) -> bool:
    """The other side says the same of this request under a neighbouring rule."""
    request, rule = key
    near = {r for family in FAMILIES if rule in family for r in family}
    return any(other.get((request, r)) is not None and RANK[other[(request, r)]] >= RANK[verdict] for r in near)


def differences(mine: Verdicts, theirs: Verdicts) -> list[tuple[tuple[str | None, str], str, str, bool]]:
    """((request, rule), the referee's verdict or '-', the product's or '-', soft?)"""
    out = []
    for key in sorted(set(mine) | set(theirs), key=str):
        a, b = mine.get(key), theirs.get(key)
        if a != b:
            easy = (b is None and a is not None and soft(key, a, theirs)) or (
                a is None and b is not None and soft(key, b, mine)
            )
            out.append((key, a or "-", b or "-", easy))
    return out


def compare(path: str, label: str, tally: Counter[str]) -> int:
    """Prints the differences on one trace; returns how many are not soft."""
    found = differences(strongest(audit(load(path))), product_verdicts(product(path)))
    for (request, rule), a, b, easy in found:
        print(f"{label}: {request or 'engine'} {rule}: referee {a}, product {b}{'  (soft)' if easy else ''}")
        tally[f"{rule}: {a} / {b}{' (soft)' if easy else ''}"] += 1
    return sum(not easy for *_, easy in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "END"))
    parser.add_argument("--fault", choices=sorted(FAULTS))
    parser.add_argument("--keep", help="folder for the generated traces that differ")
    args = parser.parse_args()
    tally: Counter[str] = Counter()
    hard = sum(compare(path, Path(path).stem, tally) for path in args.traces)
    names = [args.fault] if args.fault else [None, *sorted(FAULTS)]
    for seed in range(*(args.seeds or (0, 0))):
        fault = names[seed % len(names)]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace.jsonl"
            generate(seed, fault).write(path)
            differs = compare(path, f"seed {seed} {fault or 'healthy'}", tally)
            if differs and args.keep:
                Path(args.keep).mkdir(parents=True, exist_ok=True)
                Path(args.keep, f"{seed}-{fault or 'healthy'}.jsonl").write_bytes(Path(path).read_bytes())
        hard += differs
    for line, n in tally.most_common():
        print(f"{n:6d}  {line}")
    print(f"{hard} differences that are not soft")
    return 1 if hard else 0


if __name__ == "__main__":
    raise SystemExit(main())
