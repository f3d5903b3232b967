"""transformers' continuous batching with a two-layer model of random weights, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PAGE_TOKENS = 16


def tiny_model() -> Any:
    """A model whose greedy tokens depend on all of the context, so that any wrong page changes them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=32, vocab_size=512, max_position_embeddings=384, tie_word_embeddings=False, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@contextmanager
def batching(model: Any, *, pages: int = 32, sharing: bool = True, children: int = 1, **more: Any) -> Iterator[Any]:
    """A manager that takes requests; it ends with the block."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    generation = GenerationConfig(
        max_new_tokens=16, do_sample=children > 1, eos_token_id=-1, pad_token_id=0, num_return_sequences=children
    )
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=pages, use_cuda_graph=False, use_async_batching=False,
        auto_switch_to_flash=False, allow_block_sharing=sharing, max_batch_tokens=256, **more,
    )  # fmt: skip
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=config
    ) as manager:
        yield manager


def answers(manager: Any, count: int, seconds: float = 300) -> dict[str, Any]:
    """The next so many outputs, by request."""
    out: dict[str, Any] = {}
    while len(out) < count:
        result = manager.get_result(timeout=seconds)
        assert result is not None, f"{len(out)} of {count} answers came"
        if result.is_finished():
            out[result.request_id] = result
    return out


def ask(manager: Any, *prompts: tuple[str, Sequence[int]], new: int = 16, each: int = 1) -> dict[str, Any]:
    """Send prompts (id, tokens) together; the outputs by id."""
    for name, tokens in prompts:
        manager.add_request(list(tokens), request_id=name, max_new_tokens=new)
    return answers(manager, len(prompts) * each)


def tokens(seed: int, length: int) -> list[int]:
    """A prompt."""
    return [5 + (seed * 97 + n * 7 + n * n % 13) % 490 for n in range(length)]
