"""vLLM's own scheduler, page manager and page pool, without a model: what a model runner would answer is made up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self

PAGE_TOKENS = 32
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def tiny_model(directory: Path) -> str:
    """A directory that describes a two-layer model; its weights are dummies."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    return str(directory)


class Core:
    """A scheduler with `pages` pages (one of them the null page), and made-up outputs."""

    def __init__(self, model: str, *, pages: int, caching: bool = True, batch_tokens: int = 256, **more: Any) -> None:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        init_none_hash(sha256)
        config = EngineArgs(
            model=model, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, block_size=PAGE_TOKENS,
            max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=batch_tokens, dtype="bfloat16",
            enable_prefix_caching=caching, num_gpu_blocks_override=pages, kv_cache_memory_bytes=64 << 20, **more,
        ).create_engine_config()  # fmt: skip
        config.cache_config.num_gpu_blocks = pages
        spec = FullAttentionSpec(block_size=PAGE_TOKENS, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
        self._scheduler = partial(
            Scheduler,
            vllm_config=config,
            kv_cache_config=KVCacheConfig(pages, [], [KVCacheGroupSpec(["l0"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=PAGE_TOKENS,
            log_stats=True,
        )
        self._hasher = get_request_block_hasher(PAGE_TOKENS, sha256)
        self._begin()

    def anew(self) -> Self:
        """Another one of the same configuration, at its beginning."""
        other = copy(self)
        other._begin()
        return other

    def _begin(self) -> None:
        self.scheduler = self._scheduler()
        self._numbers = itertools.count()
        self._tokens = itertools.count(7)

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        new: int = 16,
        extra: Any = None,
        **more: Any,
    ) -> str:
        """Send a request; its id, as the engine knows it."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        rid = f"{name}-{next(self._numbers):08x}"
        params = SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False, extra_args=extra)
        self.scheduler.add_request(
            Request(
                request_id=rid, prompt_token_ids=list(tokens), sampling_params=params, pooling_params=None,
                cache_salt=salt, block_hasher=self._hasher, **more,
            )
        )  # fmt: skip
        return rid

    def step(self) -> Any:
        """Plan a step and take in what a model runner might have answered; the plan."""
        plan = self.plan()
        self.take(plan)
        return plan

    def plan(self) -> Any:
        """Plan a step."""
        return self.scheduler.schedule()

    def take(self, plan: Any, **more: Any) -> Any:
        """End a step: each request whose prompt has been computed gets a token."""
        return self.scheduler.update_from_output(plan, self.output(plan, **more))

    def output(self, plan: Any, **more: Any) -> Any:
        """What a model runner might have answered."""
        from vllm.v1.outputs import ModelRunnerOutput

        rids = list(plan.num_scheduled_tokens)
        sampled = [[next(self._tokens) % 500] if self._sampling(rid) else [] for rid in rids]
        return ModelRunnerOutput(
            req_ids=rids, req_id_to_index={rid: n for n, rid in enumerate(rids)}, sampled_token_ids=sampled, **more
        )

    def _sampling(self, rid: str) -> bool:
        request = self.scheduler.requests[rid]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def run(self, steps: int = 10_000) -> int:
        """Step until nothing is left to do; how many steps that took."""
        for n in range(steps):
            if not self.scheduler.has_unfinished_requests():
                return n
            self.step()
        raise AssertionError("the engine does not come to an end")

    def abort(self, rid: str) -> None:
        """What the engine core does when a client hangs up."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(rid, RequestStatus.FINISHED_ABORTED)

    def table(self, rid: str) -> list[int]:
        """The engine's own table of a request."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(rid)[0])
