"""What the tracer costs vLLM's scheduler: steps with and without it, in turns, in one process.

    tests/engines/run vllm --python benchmarks/vllm_core.py
    tests/engines/run vllm --python benchmarks/vllm_core.py --rounds 40 --json out.json

There is no model: a step is vLLM's own planning and its taking in of made-up tokens, a fraction of a millisecond. With
a model the cost is the same, and a step takes ten to a thousand times as long; so this is the hardest case. Two
schedulers get the same requests, one with the hooks on and a ring to write to, one with the hooks taken off. CPU time
is measured, so that a busy machine disturbs little, and the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from kvwitness.gpu_tracer.engines import vllm as adapter  # noqa: E402
from kvwitness.gpu_tracer.engines.base import detach  # noqa: E402
from tests.engines.vllm.core import Core, tiny_model  # noqa: E402

PAGES = 512


class Traffic:
    """A batch that is kept full: whoever is done is followed by another."""

    def __init__(self, core: Core, batch: int, prompt: int, new: int) -> None:
        self._core, self._batch, self._prompt, self._new = core, batch, prompt, new
        self._sent = 0

    def run(self, steps: int) -> tuple[float, int]:
        """CPU seconds of so many steps, and the tokens they computed; sending requests is not part of either."""
        seconds, tokens = 0.0, 0
        for _ in range(steps):
            while len(self._core.scheduler.requests) < self._batch:
                self._send()
            began = time.process_time_ns()
            plan = self._core.step()
            seconds += (time.process_time_ns() - began) * 1e-9
            tokens += plan.total_num_scheduled_tokens
        return seconds, tokens

    def _send(self) -> None:
        n = self._sent
        self._sent += 1
        prompt = [2 + (n * 31 + at * 7) % 490 for at in range(self._prompt)]
        # ends are spread over the steps, as they are in a server
        self._core.add(f"cmpl-{n}", prompt, salt=f"t{n % 4}", new=self._new // 2 + n * 37 % self._new)


def measured(batch: int, prompt: int, new: int, steps: int, rounds: int) -> dict[str, Any]:
    """Microseconds per step with the tracer off and on."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVWITNESS_BENCH_DIR")) as work:
        model = tiny_model(Path(work) / "model")
        os.environ["KVWITNESS_RING_DIR"] = str(Path(work) / "rings")
        off = Traffic(Core(model, pages=PAGES), batch, prompt, new)
        adapter.register()
        on = Traffic(Core(model, pages=PAGES), batch, prompt, new)
        times: dict[str, list[float]] = {"off": [], "on": []}
        for number in range(rounds + 2):
            for name, traffic in (("off", off), ("on", on)):
                if name == "on":
                    adapter.register()
                else:
                    detach(adapter.ENGINE.hooks)
                seconds, _ = traffic.run(steps)
                if number >= 2:  # the first two fill caches
                    times[name].append(seconds / steps * 1e6)
    assert not adapter.guard.errors, adapter.guard.errors
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "engine": " ".join(adapter.ENGINE.installed() or ()),
        "batch": batch, "prompt_tokens": prompt, "steps_per_round": steps, "rounds": rounds,
        "off_us": median["off"], "on_us": median["on"], "added_us": median["on"] - median["off"],
        "ratio": median["on"] / median["off"],
        "ratio_of_best": min(times["on"]) / min(times["off"]),
    }  # fmt: skip


def main() -> None:
    """Measure, and print a line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, nargs="*", default=[16])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    out = []
    for batch in args.batch:
        out.append(measured(batch, 96, 300, args.steps, args.rounds))
        print(
            "batch {batch}: {off_us:.0f} us per step without, {on_us:.0f} with, +{added_us:.0f} us, "
            "ratio {ratio:.3f} ({ratio_of_best:.3f} of the best rounds)".format(**out[-1]),
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
