"""The numbers of the deployment and of its traffic."""

PAGE_TOKENS = 64
MICROSECONDS = 1_000_000
START = 1_787_788_800  # 2026-08-27T00:00:00Z
DAYS = 13

ADVERTISED = 1_048_576
PREFILL, DECODE, GATEWAY = "pf-1/0", "dec-1/0", "gateway"
PREFILL_POOL, DECODE_POOL = "pf-1/0/full", "dec-1/0/full"
# Page 0 of each pool is reserved, which leaves 681,280 and 1,572,864 usable tokens.
PREFILL_PAGES, DECODE_PAGES = 10_646, 24_577
PREFILL_LIMIT, DECODE_LIMIT = 681_274, 1_048_570
KV_BYTES_PER_TOKEN = 1152

OVER_LIMIT, NEAR_LIMIT = 155, 40
REFUSED_BY_GATEWAY, REFUSED_BY_DECODE = 5, 4

_TREES = """
alder ash aspen beech birch cedar elm fir hazel holly ivy juniper larch laurel linden maple
oak olive pine poplar rowan spruce sumac willow yew
"""
TENANTS = tuple(f"t-{tree}" for tree in _TREES.split())
SALTED = frozenset({"t-beech", "t-ivy", "t-olive", "t-rowan"})
"""Tenants that salt their prefix cache, and so share with nobody."""

PREFIXES = (2048, 3072, 1024, 5120, 768, 4096, 1536, 8192)
"""Common system prompts, in tokens (whole pages)."""


def pages_for(tokens: int) -> int:
    """How many pages hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)
