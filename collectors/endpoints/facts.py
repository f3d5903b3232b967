"""What an engine's metrics and information pages say about its limits and its pool.

Sources: vLLM's `/metrics`, `/v1/models`, `/version`; SGLang's `/metrics`, `/v1/models`, `/server_info`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_VLLM_RESERVE = 1
"""vLLM refuses a prompt that leaves no room for one token of output."""
_VLLM_NULL_BLOCKS = 1
"""Block 0 of vLLM is never given to a request."""
_MAX_RANKS = 4096
"""Pools of one engine that are kept apart; no engine has as many."""
_MAX_KNOWN = 65_536
_SGLANG_ROLES = {"prefill": "prefill", "decode": "decode", "null": "unified"}


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass
class EngineFacts:
    """What is known of one engine; None and absent: not said."""

    limits: dict[str, Any] = field(default_factory=dict)
    """Fields of `engine.limits`."""
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rank -> fields of `engine.pool`."""

    def events(self, engine: str, source: str) -> list[tuple[str, dict[str, Any]]]:
        """The events that say it: kind and fields."""
        out: list[tuple[str, dict[str, Any]]] = [
            ("engine.pool", {"source": source, "pool": f"{engine}/{rank}/kv", **fields})
            for rank, fields in sorted(self.pools.items())
            if {"page_tokens", "pages_total"} <= set(fields)
        ]
        if self.limits:
            out.append(("engine.limits", {"source": source, "engine": engine, **self.limits}))
        return out


def from_metrics(samples: Iterable[Sample], facts: EngineFacts) -> int:
    """Add what metrics say; how many of them said something."""
    used = 0
    for sample in samples:
        name = sample.name.replace(".", ":").replace("sglang_", "sglang:", 1).replace("vllm_", "vllm:", 1)
        if name == "vllm:cache_config_info":
            used += _vllm_cache(sample.labels, facts)
        elif name in ("sglang:max_total_num_tokens", "sglang:page_size", "sglang:num_pages"):
            used += _sglang_pool(name, sample, facts)
    return used


def _vllm_cache(labels: Mapping[str, str], facts: EngineFacts) -> int:
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    if not blocks or not size:
        return 0
    pool: dict[str, Any] = {"page_tokens": size, "pages_total": blocks, "kind": "kv", "reserved": [0]}
    caching = labels.get("enable_prefix_caching", "").lower()
    if caching in ("true", "false"):
        pool["prefix_caching"] = caching == "true"
        if caching == "false":
            pool["sharing"] = "none"
    rank = labels.get("engine", "0")
    if not _room(rank, facts):
        return 0
    facts.pools[rank] = pool
    facts.limits["pool_tokens"] = (blocks - _VLLM_NULL_BLOCKS) * size
    return 1


def _sglang_pool(name: str, sample: Sample, facts: EngineFacts) -> int:
    rank = sample.labels.get("tp_rank", "0")
    if not math.isfinite(sample.value) or sample.value < 1 or not _room(rank, facts):
        return 0
    value = int(sample.value)
    pool = facts.pools.setdefault(rank, {"kind": "kv"})
    if name == "sglang:page_size":
        pool["page_tokens"] = value
    elif name == "sglang:num_pages":
        pool["pages_total"] = value
    else:
        facts.limits["pool_tokens"] = value
        if "page_tokens" in pool:
            pool.setdefault("pages_total", value // pool["page_tokens"])
    return 1


def _room(rank: str, facts: EngineFacts) -> bool:
    return rank in facts.pools or len(facts.pools) < _MAX_RANKS


def from_models(document: Any, facts: EngineFacts) -> None:
    """Add what `/v1/models` says."""
    models = document.get("data") if isinstance(document, dict) else None
    for model in models if isinstance(models, list) else []:
        if not isinstance(model, dict) or model.get("parent"):
            continue  # an adapter is listed beside its base
        if isinstance(model.get("id"), str):
            facts.limits["model"] = model["id"]
        length = _whole(model.get("max_model_len"))
        if length:
            facts.limits["advertised_tokens"] = length
            if model.get("owned_by") == "vllm":
                facts.limits["input_limit_tokens"] = length - _VLLM_RESERVE
        return


def from_vllm_version(document: Any, facts: EngineFacts) -> None:
    """Add what vLLM's `/version` says."""
    if isinstance(document, dict) and isinstance(document.get("version"), str):
        facts.limits["version"] = document["version"]


def from_sglang_info(document: Any, facts: EngineFacts) -> None:
    """Add what SGLang's `/server_info` says: its arguments, and the state of its scheduler."""
    if not isinstance(document, dict):
        return
    states = document.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    said = {**state, **document}
    limits = facts.limits
    if length := _whole(said.get("max_req_input_len")):
        limits["input_limit_tokens"] = length - 1  # `len >= max_req_input_len` is refused
    if tokens := _whole(said.get("max_total_num_tokens")):
        limits["pool_tokens"] = tokens
    if length := _whole(said.get("context_length") or said.get("context_len")):
        limits.setdefault("advertised_tokens", length)
    if isinstance(said.get("version"), str):
        limits["version"] = said["version"]
    role = _SGLANG_ROLES.get(str(said.get("disaggregation_mode", "")).lower())
    if role:
        limits["role"] = role
    size = _whole(said.get("page_size"))
    if size and tokens:
        pool = {"page_tokens": size, "pages_total": tokens // size + 1, "kind": "kv", "reserved": [0]}
        if isinstance(said.get("disable_radix_cache"), bool):
            pool["prefix_caching"] = not said["disable_radix_cache"]
        facts.pools["0"] = pool


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None
    return value if isinstance(value, int) and value > 0 else None


class Changes:
    """Of what engines say again and again, only what is new."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, Any]] = {}

    def new(self, kind: str, fields: dict[str, Any]) -> bool:
        """Whether an event says anything that the last one of its kind and subject did not."""
        key = (kind, str(fields.get("pool") or fields.get("engine")))
        if self._last.get(key) == fields:
            return False
        if len(self._last) >= _MAX_KNOWN:
            self._last.clear()
        self._last[key] = fields
        return True
