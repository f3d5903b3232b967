"""A whole vLLM engine in this process, with a real model small enough for anything: two layers, random weights."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_TOKENS = 32


def tiny_weights(directory: Path) -> str:
    """A saved model whose greedy tokens depend on all of the context, so that any wrong page changes them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=32, vocab_size=512, max_position_embeddings=2048, tie_word_embeddings=False, initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return str(directory)


@dataclass
class Answer:
    """What a client got."""

    id: str
    tokens: list[int]
    cached: int
    finish: str | None


class Whole:
    """`vllm.LLM` in one process: scheduler, worker and adapter together. Closed by `close`."""

    def __init__(self, model: str, *, pages: int = 40, length: int = 1024, caching: bool = True, **more: Any) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self._asked = 0
        self._llm = LLM(
            model=model, skip_tokenizer_init=True, enforce_eager=True, block_size=PAGE_TOKENS, dtype="bfloat16",
            kv_cache_memory_bytes=64 << 20, num_gpu_blocks_override=pages, max_model_len=length, max_num_seqs=8,
            max_num_batched_tokens=512, enable_prefix_caching=caching, disable_log_stats=True, **more,
        )  # fmt: skip

    def ask(self, *prompts: tuple[Sequence[int], str | None], new: int = 8) -> list[Answer]:
        """Send prompts (token ids, salt) together; the answers in their order."""
        from vllm import SamplingParams

        inputs = [
            {"prompt_token_ids": list(tokens)} | ({"cache_salt": salt} if salt else {}) for tokens, salt in prompts
        ]
        params = SamplingParams(temperature=0, max_tokens=new, detokenize=False, ignore_eos=True)
        told = self._llm.generate(inputs, params, use_tqdm=False)
        return [
            Answer(
                one.request_id, list(one.outputs[0].token_ids), one.num_cached_tokens or 0, one.outputs[0].finish_reason
            )
            for one in told
        ]

    def answer(
        self, name: str, tokens: list[int], salt: str, new: int, transfer: dict[str, Any] | None
    ) -> dict[str, Any]:
        """One request under a name, as an API server sends it; the answer as plain values."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        extra = {"kv_transfer_params": transfer} if transfer is not None else None
        params = SamplingParams(temperature=0, max_tokens=new, detokenize=False, ignore_eos=True, extra_args=extra)
        engine.add_request(name, {"prompt_token_ids": tokens, "cache_salt": salt}, params)
        last: Any = None
        while last is None or not last.finished:
            last = next(iter(engine.step()), last)
        (out,) = last.outputs
        return {
            "tokens": list(out.token_ids), "cached": last.num_cached_tokens or 0, "finish": out.finish_reason,
            "handover": last.kv_transfer_params,
        }  # fmt: skip

    def idle(self) -> None:
        """A step of an engine that has nothing to compute, but pages that wait to be fetched."""
        core = self._llm.llm_engine.engine_core.engine_core
        if core.scheduler.has_requests():
            core.step()

    def times(self, *prompts: tuple[Sequence[int], str], new: int) -> list[float]:
        """CPU seconds of this process for taking in prompts (token ids, salt), and then for each step until the last
        is answered."""
        from vllm import SamplingParams

        engine, out = self._llm.llm_engine, []
        params = SamplingParams(temperature=0, max_tokens=new, detokenize=False, ignore_eos=True)
        began = time.process_time()
        for tokens, salt in prompts:
            self._asked += 1
            engine.add_request(str(self._asked), {"prompt_token_ids": list(tokens), "cache_salt": salt}, params)
        out.append(time.process_time() - began)
        while engine.has_unfinished_requests():
            began = time.process_time()
            engine.step()
            out.append(time.process_time() - began)
        return out

    def empty(self) -> None:
        """Have the prefix cache emptied; nothing may be running."""
        assert self._llm.reset_prefix_cache()

    def close(self) -> None:
        """Give the engine up."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
