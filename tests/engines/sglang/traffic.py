"""What is sent to a pair of servers: healthy prompts of three tenants, until decode's pages have been used by all of
them, and then prompts that prefill refuses and decode serves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from kvwitness.gpu_tracer.engines.identity import KEY_FILE, Identity
from tests.engines.sglang.pair import LIMIT, Answer, Pair

TENANTS = ("t-ash", "t-birch", "t-cedar")
HEALTHY = 16
"""Enough that decode has handed out all of its pages before the oversize prompts, and hands them out again."""


@dataclass(frozen=True)
class Sent:
    """One prompt and both answers to it."""

    name: str
    tenant: str
    tokens: int
    prefill: Answer
    decode: Answer


class Gateway:
    """Sends prompts to both servers on behalf of tenants, whom it attests, as whoever has the rings' key can."""

    def __init__(self, pair: Pair, rings: Path) -> None:
        self._pair, self._rings = pair, rings
        self._rng = random.Random(5)
        self._number = 1000
        self.sent: list[Sent] = []

    def send(self, tenant: str, tokens: int, *, shared: int = 0, new: int = 8, seconds: float = 240) -> Sent:
        """Send a prompt of random tokens, and wait for so long; the first `shared` of them are the same in all prompts
        of the tenant."""
        self._number += 1
        name = f"r{self._number}"
        common = random.Random(tenant)
        prompt = [common.randrange(2, 500) for _ in range(shared)]
        prompt += [self._rng.randrange(2, 500) for _ in range(tokens - shared)]
        identity = Identity((self._rings / KEY_FILE).read_bytes())
        answers = self._pair.ask(name, prompt, new=new, seconds=seconds, cache_salt=f"salt of {tenant}",
                                 routing_key=identity.attest(tenant))  # fmt: skip
        self.sent.append(Sent(name, tenant, tokens, *answers))
        return self.sent[-1]


def healthy(gateway: Gateway, requests: int = HEALTHY) -> None:
    """Prompts that both servers can hold; every third begins as an earlier one of its tenant did."""
    for n in range(requests):
        tokens = 120 + 37 * n % 180
        gateway.send(TENANTS[n % len(TENANTS)], tokens, shared=64 if n % 2 else 0, new=8 + n % 30)


def oversize(gateway: Gateway, tenant: str, tokens: int, *, seconds: float = 240) -> Sent:
    """A prompt that is longer than prefill takes, and that decode has room for."""
    assert tokens > LIMIT
    return gateway.send(tenant, tokens, new=10, seconds=seconds)
