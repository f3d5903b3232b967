"""A whole vLLM engine in this process, with a real model small enough for anything: two layers, random weights."""

from __future__ import annotations

import os
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

    def close(self) -> None:
        """Give the engine up."""
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
