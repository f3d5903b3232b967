"""What fingerprints of pages cost on the CPU: GB/s, beside a plain copy of the same pages and a cryptographic hash.

    python benchmarks/fingerprint.py
    python benchmarks/fingerprint.py --megabytes 64 --json out.json
    python benchmarks/fingerprint.py --compiled         # the Triton kernel's machine code for A100, H100 and B200

Everything is measured in one run, in turns, in one thread, and the best of the rounds counts. A *gather* copies the
pages out of the cache in the order of a request's table, which is what any look at them has to do. Canaries are counted
by the bytes of the pages that they mark, of which they touch 16 in each row.

Nothing here is measured on a GPU. `--compiled` needs none either: it compiles the kernel for several layouts, counts
the instructions that go to 8 bytes of the cache, and says whether registers are spilled; status 1 where there are more
than the limit, or any are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import _compiled  # noqa: E402
from kvwitness.gpu_tracer.content.canary import Canaries  # noqa: E402
from kvwitness.gpu_tracer.content.fingerprint import Fingerprints  # noqa: E402
from kvwitness.gpu_tracer.content.layout import by_page  # noqa: E402

SECRET = b"a secret of the benchmark"
LAYERS, PAGE_TOKENS = 4, 16
SHAPES = {"MHA, 8 heads of 128, bfloat16": (8, 128), "MHA, 1 head of 128, bfloat16": (1, 128), "MLA, 576": (1, 576)}
Row = dict[str, Any]


def measured(heads: int, dim: int, megabytes: int, rounds: int) -> Row:
    """GB/s of each way to go over the pages of one request."""
    per_page = LAYERS * PAGE_TOKENS * heads * dim * 2
    pages = max(2, megabytes * 1_000_000 // per_page)
    bits = torch.randint(-(2**15), 2**15, (LAYERS, pages, PAGE_TOKENS, heads, dim), dtype=torch.int16)
    cache = bits.view(torch.bfloat16)
    parts = [by_page(layer, f"layer {layer} K", cache[layer]) for layer in range(LAYERS)]
    fingerprints, canaries = Fingerprints(parts, SECRET), Canaries(parts, SECRET)
    longer = Fingerprints(parts, SECRET, bits=128)
    table = torch.randperm(pages)
    generations, chosen = [1] * pages, table.tolist()
    target, raw = torch.empty_like(cache), bits.numpy().tobytes()

    def gather() -> None:
        for layer in range(LAYERS):
            cache[layer].index_select(0, table)

    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(cache),
        "gather": gather,
        "fingerprints": lambda: fingerprints.cells(table),
        "fingerprints, 128 bits": lambda: longer.cells(table),
        "digests, layers apart": lambda: fingerprints.digests(chosen),
        "canaries planted": lambda: canaries.plant(chosen, generations),
        "canaries checked": lambda: canaries.present(chosen, generations),
        "blake2b": lambda: hashlib.blake2b(raw),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - started)
    size = pages * per_page
    return {"megabytes": size / 1e6, "row_bytes": heads * dim * 2} | {way: size / s / 1e9 for way, s in best.items()}


def on_cpu(megabytes: int, rounds: int) -> dict[str, Row]:
    """Measure and print."""
    torch.set_num_threads(1)
    results = {name: measured(*shape, megabytes, rounds) for name, shape in SHAPES.items()}
    print(f"torch {torch.__version__} on the CPU, one thread; GB/s, best of {rounds}")
    for name, row in results.items():
        print(f"\n{name}: rows of {row['row_bytes']} bytes, {row['megabytes']:.0f} MB")
        for way, speed in list(row.items())[2:]:
            print(f"  {way:22} {speed:8.2f}   {speed / row['copy']:6.3f} of the copy")
    return results


def as_compiled() -> list[_compiled.Compiled]:
    """Compile, count and print."""
    import triton

    print(f"Triton {triton.__version__}; at most {_compiled.MOST} instructions per 8 bytes where it says so\n")
    print(f"{'layout':42} GPU     bits  per 8 B  limit  in all  registers  spilled")
    rows = []
    for one in _compiled.every():
        rows.append(one)
        most = _compiled.MOST if one.limited else "-"
        print(
            f"{one.layout:42} sm_{one.capability:<4} {one.bits:4}  {one.per_word:7.1f}  {most:>5}  {one.instructions:6}"
            f"  {one.registers:9}  {one.spilled:7}",
            flush=True,
        )
    return rows


def main() -> int:
    """Measure, or compile, and print."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=32, help="bytes of the pages that are gone over")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiled", action="store_true", help="compile the kernel and count, instead of measuring")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args()
    wrong: list[str] = []
    figures: Any
    if options.compiled:
        rows = as_compiled()
        wrong = [said for one in rows if (said := one.wrong)]
        spilled = {capability: _compiled.roll_up(capability) for capability in _compiled.CAPABILITIES}
        print(f"rolling cells up to pages: {len(spilled)} compiled, {sum(spilled.values())} spilled")
        wrong += [f"rolling up, sm_{capability}: registers are spilled" for capability, bad in spilled.items() if bad]
        figures = [asdict(one) for one in rows]
    else:
        figures = on_cpu(options.megabytes, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    for said in wrong:
        print(said, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
