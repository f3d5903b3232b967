"""A KV connector with a fault: it says that it has a prompt's pages and then loads nothing."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

CLAIMED = 96
"""Tokens that it says it has, of every prompt that is longer."""


class ClaimsAndLoadsNothing(KVConnectorBase_V1):
    """The least that vLLM takes for a connector."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        claimed = CLAIMED - num_computed_tokens
        return (claimed, False) if claimed > 0 and request.num_prompt_tokens > CLAIMED else (0, False)

    def update_state_after_alloc(self, *args: Any) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass
