"""KV events of vLLM and SGLang: from a message to what it says of the prefix cache.

They carry token ids and raw cache salts. Both end here: token ids are counted, salts become keyed hashes. Block hashes
are hashes of content under no key, and are hashed again under ours, lest somebody try out prompts on the record.
Fields by name are of later versions, arrays of earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvwitness.audit.trace.pseudonym import keyed_hash

STORED = ("BlockStored", "BlockStoredWithMetadata")
REMOVED, CLEARED = "BlockRemoved", "AllBlocksCleared"
_STORED_FIELDS = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
)  # fmt: skip
_SGLANG_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "metadata")
_FIELDS = {
    "BlockStored": _STORED_FIELDS,
    "BlockStoredWithMetadata": _SGLANG_FIELDS,
    REMOVED: ("block_hashes", "medium"),
    CLEARED: (),
}


class MalformedError(Exception):
    """A message that is not one; quotes nothing of it."""


@dataclass
class CacheEvent:
    """One change of the prefix cache."""

    kind: str
    """`stored`, `removed` or `cleared`."""
    keys: list[str] = field(default_factory=list)
    """Hashes of blocks, in the order of positions."""
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class CacheBatch:
    """What one message says."""

    time_ns: int
    rank: int
    events: list[CacheEvent]
    token_ids: int = 0
    """How many were dropped."""
    unknown: int = 0
    """Events of kinds that are not known."""


def decoded(payload: bytes, key: bytes) -> CacheBatch:
    """What a payload says. Raises `MalformedError`."""
    try:
        batch = msgspec.msgpack.decode(payload)
        if isinstance(batch, dict):
            time, events, rank = batch["ts"], batch["events"], batch.get("data_parallel_rank")
        else:
            time, events, *rest = batch
            rank = rest[0] if rest else None
        out = CacheBatch(round(float(time) * 1e6) * 1000, int(rank or 0), [])
        for event in events:
            _event(event, out, key)
        return out
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedError(type(error).__name__) from None


def _event(event: Any, out: CacheBatch, key: bytes) -> None:
    said = dict(event) if isinstance(event, dict) else _named(event)
    kind = said.get("type")
    if kind == CLEARED:
        out.events.append(CacheEvent("cleared"))
    elif kind == REMOVED:
        out.events.append(CacheEvent("removed", _keys(said, key), _medium(said)))
    elif kind in STORED:
        tokens = said.get("token_ids")
        out.token_ids += len(tokens) if isinstance(tokens, list) else 0
        out.events.append(CacheEvent("stored", _keys(said, key), _medium(said) | _namespace(said, key)))
    else:
        out.unknown += 1


def _named(event: Sequence[Any]) -> dict[str, Any]:
    kind, *values = event
    names = _FIELDS.get(kind, ())
    return {"type": kind, **dict(zip(names, values, strict=False))}


def _keys(said: dict[str, Any], key: bytes) -> list[str]:
    return [keyed_hash(key, "block", one if isinstance(one, bytes) else str(int(one))) for one in said["block_hashes"]]


def _medium(said: dict[str, Any]) -> dict[str, Any]:
    medium = said.get("medium")
    return {"tier": medium} if isinstance(medium, str) else {}


def _namespace(said: dict[str, Any], key: bytes) -> dict[str, Any]:
    """What separates the blocks from equal ones of others."""
    ns: dict[str, Any] = {}
    metadata = said.get("metadata")
    salt = said.get("cache_salt") or (metadata.get("cache_salt") if isinstance(metadata, dict) else None)
    if salt is None and (extra := said.get("extra_keys")):
        # vLLM: what went into each block's hash besides tokens; the salt stands in the first block's alone
        first = extra[0] if isinstance(extra, list) else None
        texts = [one for one in first if isinstance(one, str)] if isinstance(first, list) else []
        salt = texts[-1] if texts else None
    if isinstance(salt, str):
        ns["salt_hmac"] = keyed_hash(key, "salt", salt)
    adapter = said.get("lora_name") or said.get("lora_id")
    if adapter is not None:
        ns["adapter"] = str(adapter)
    out: dict[str, Any] = {"ns": ns} if ns else {}
    size = said.get("block_size")
    return out | ({"block_size": size} if isinstance(size, int) else {})
