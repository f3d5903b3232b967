"""What the tracer costs vLLM's scheduler: the same steps with and without it, in turns, in one process.

    tests/engines/run vllm --python benchmarks/vllm_core.py
    tests/engines/run vllm --python benchmarks/vllm_core.py --rounds 100 --json out.json

There is no model: a step is vLLM's own planning and its taking in of made-up tokens, a fraction of a millisecond. With
a model the cost is the same, and a step takes ten to a thousand times as long; so this is the hardest case. In each
round a new scheduler gets the same requests as the one before, without the hooks and with them and a ring to write to;
so the n-th step does the same each time, and can be compared with itself. Of each step the median of all rounds counts,
and beside it the least time, which a busy machine disturbs less. What exists when the measuring begins is kept from the
garbage collector, as vLLM's engine core does once it has started.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks._paired import ratio  # noqa: E402
from kvwitness.gpu_tracer.engines import vllm as adapter  # noqa: E402
from kvwitness.gpu_tracer.engines.base import detach  # noqa: E402
from tests.engines.vllm.core import Core, tiny_model  # noqa: E402

PAGES, WARM = 512, 200
"""Pages of the pool, and steps before those that are measured: by then it is full, and pages are evicted."""


class Traffic:
    """A batch that is kept full: whoever is done is followed by another."""

    def __init__(self, core: Core, batch: int, prompt: int, new: int) -> None:
        self._core, self._batch, self._prompt, self._new = core, batch, prompt, new
        self._sent = 0

    def run(self, steps: int) -> list[int]:
        """CPU time of so many steps, each in ns; sending requests and making up tokens is not part of it."""
        scheduler, now, out = self._core.scheduler, time.process_time_ns, []
        for _ in range(steps):
            while len(scheduler.requests) < self._batch:
                self._send()
            began = now()
            plan = self._core.plan()
            planned = now()
            output = self._core.output(plan)
            answered = now()
            scheduler.update_from_output(plan, output)
            out.append(now() - answered + planned - began)
        return out

    def _send(self) -> None:
        n = self._sent
        self._sent += 1
        prompt = [2 + (n * 31 + at * 7) % 490 for at in range(self._prompt)]
        # ends are spread over the steps, as they are in a server
        self._core.add(f"cmpl-{n}", prompt, salt=f"t{n % 4}", new=self._new // 2 + n * 37 % self._new)


def measured(batch: int, prompt: int, new: int, steps: int, rounds: int) -> dict[str, Any]:
    """Microseconds per step with the tracer off and on."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVWITNESS_BENCH_DIR", memory)) as work:
        rings = Path(work) / "rings"
        os.environ["KVWITNESS_RING_DIR"] = str(rings)
        first = Core(tiny_model(Path(work) / "model"), pages=PAGES)
        gc.collect()
        gc.freeze()
        times: dict[str, list[list[int]]] = {"off": [], "on": []}
        for number in range(rounds + 1):
            for mode in ("off", "on") if number % 2 else ("on", "off"):
                detach(adapter.ENGINE.hooks)
                if mode == "on":
                    adapter.register()
                core = first.anew()
                taken = Traffic(core, batch, prompt, new).run(WARM + steps)[WARM:]
                if number:  # the first fills caches
                    times[mode].append(taken)
                if (view := getattr(core.scheduler, "_kvwitness", None)) is not None:
                    view.tracer.close()
            for ring in rings.glob("*.ring"):
                ring.unlink()
    assert not adapter.guard.errors, adapter.guard.errors
    off, on = (np.array(times[mode]) / 1e3 for mode in ("off", "on"))
    found = ratio(off, on)
    least = {"off": float(off.min(0).mean()), "on": float(on.min(0).mean())}
    median = {"off": float(np.median(off, 0).mean()), "on": float(np.median(on, 0).mean())}
    return {
        "engine": " ".join(adapter.ENGINE.installed() or ()),
        "batch": batch, "prompt_tokens": prompt, "steps_per_round": steps, "rounds": rounds,
        "off_us": median["off"], "on_us": median["on"], "added_us": median["on"] - median["off"],
        "ratio": found.ratio, "low": found.low, "high": found.high,
        "ratio_of_least": found.least, "added_least_us": least["on"] - least["off"],
    }  # fmt: skip


def main() -> None:
    """Measure, and print a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, nargs="*", default=[16])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    out = []
    for batch in args.batch:
        out.append(measured(batch, 96, 300, args.steps, args.rounds))
        print(
            "batch {batch}: {off_us:.0f} us per step without, {on_us:.0f} with, +{added_us:.0f} us: ratio {ratio:.3f} "
            "(95 % interval {low:.3f} to {high:.3f}); of the least times {ratio_of_least:.3f} "
            "(+{added_least_us:.0f} us)".format(**out[-1]),
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
