"""Who asks for what, and when: the plan of thirteen days."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.pool import Table
from kvwitness.audit.scenarios.incident_155.rng import SplitMix64

_HOUR, _DAY = 3600, 86_400
# fmt: off
_HOURS = (0, 2, 5, 7, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11,
          12, 13, 13, 14, 14, 14, 15, 15, 16, 17, 18, 19, 20, 22)
# fmt: on
"""Hours of the day in which bursts begin; the working day more often than the night."""
_BURSTS_PER_DAY = 78

Slot = tuple[int, str]
"""(arrival in microseconds since the start, kind of request)"""


@dataclass(eq=False, slots=True)
class Request:
    """One request: what was asked for, and how far it has come."""

    index: int
    id: str
    kind: str
    """`ordinary`, `over`, `near`, `gate400`, `dec400` or `health`."""
    arrival: int
    tenant: str
    max_new: int
    prompt: int = 0
    """Prompt tokens."""
    output: int = 0
    """Tokens that it will generate unless it is cut short."""
    prefix: int | None = None
    """Which common prefix the prompt begins with."""
    abort: str | None = None
    """When the client goes away: `queued`, `transfer` or `decode`."""
    transfer: str = ""
    prefill_pages: Table = field(default_factory=list)
    decode_pages: Table = field(default_factory=list)
    shared: Table = field(default_factory=list)
    own: Table = field(default_factory=list)
    """Prefill pages that were allocated for it; `prefill_pages` is `shared` followed by these."""
    entry: str | None = None
    """Key of the cache entry that it uses or fills."""
    fills: bool = False
    """It computes the prefix that `entry` will hold."""
    queued: int = 0
    """When it began to wait for decode pages."""
    turn: int = 0
    """Counts its spells in decode, so that a timer of an earlier spell is known to be stale."""
    decoding: bool = False
    preempted: bool = False
    done: bool = False


def plan(rng: SplitMix64, ordinary: int) -> list[Request]:
    """All requests in the order of their arrival; `ordinary` counts everything but the health probes."""
    slots = _ordinary_slots(rng, _burst_times(rng), ordinary)
    for count, kind in (
        (site.OVER_LIMIT, "over"),
        (site.NEAR_LIMIT, "near"),
        (site.REFUSED_BY_GATEWAY, "gate400"),
        (site.REFUSED_BY_DECODE, "dec400"),
    ):
        _replace(rng, slots, count, kind)
    slots += [
        ((day * _DAY + hour * _HOUR + 17) * site.MICROSECONDS, "health")
        for day in range(site.DAYS)
        for hour in range(0, 24, 6)
    ]
    slots.sort()
    planner = _Planner(rng)
    return [planner.request(index, arrival, kind) for index, (arrival, kind) in enumerate(slots)]


def _burst_times(rng: SplitMix64) -> list[int]:
    times = []
    for day in range(site.DAYS):
        for _ in range(_BURSTS_PER_DAY):
            second = day * _DAY + rng.pick(_HOURS) * _HOUR + rng.between(0, _HOUR - 1)
            time = second * site.MICROSECONDS + rng.between(0, site.MICROSECONDS - 1)
            if time < (site.DAYS * _DAY - 2 * _HOUR) * site.MICROSECONDS:
                times.append(time)
    return sorted(times)


def _ordinary_slots(rng: SplitMix64, bursts: list[int], count: int) -> list[Slot]:
    slots: list[Slot] = []
    n = 0
    while len(slots) < count:
        time = bursts[n % len(bursts)]
        for _ in range(rng.between(3, 8)):
            time += rng.between(150_000, 7_000_000)
            slots.append((time, "ordinary"))
        n += 1
    return sorted(slots)


def _replace(rng: SplitMix64, slots: list[Slot], count: int, kind: str) -> None:
    """Turn so many ordinary requests into another kind, none of them among the very first."""
    while count:
        n = rng.between(len(slots) // 60, len(slots) - 1)
        if slots[n][1] == "ordinary":
            slots[n] = (slots[n][0], kind)
            count -= 1


class _Planner:
    """Fills requests in, one after the other."""

    def __init__(self, rng: SplitMix64) -> None:
        self._rng = rng
        self._over_tenants = [t for t in site.TENANTS if t not in site.SALTED][:14]
        self._exactly_at_limit = 3

    def request(self, index: int, arrival: int, kind: str) -> Request:
        """The request of one slot."""
        rng = self._rng
        tenant = rng.pick(site.TENANTS)
        request = Request(index, f"r{index + 1:06d}", kind, arrival, tenant, rng.pick((128, 256, 512, 512, 1024)))
        request.output = min(request.max_new, rng.low_end(6, 900))
        if kind == "ordinary":
            self._ordinary(request)
        elif kind == "near":
            self._near(request)
        elif kind == "over":
            self._over(request)
        elif kind == "gate400":
            request.prompt = rng.between(site.ADVERTISED + 1, site.ADVERTISED + 400_000)
        elif kind == "dec400":
            request.prompt = rng.between(site.DECODE_LIMIT + 1, site.ADVERTISED)
        else:
            request.tenant, request.prompt, request.output, request.max_new = "t-internal", 4, 1, 1
        return request

    def _ordinary(self, request: Request) -> None:
        rng = self._rng
        size = rng.between(0, 99)
        if size < 55:
            request.prompt = rng.low_end(300, 9_000)
        elif size < 85:
            request.prompt = rng.low_end(8_000, 60_000)
        elif size < 97:
            request.prompt = rng.low_end(60_000, 200_000)
        else:
            request.prompt = rng.low_end(200_000, 600_000)
        if rng.chance(380):
            prefix = rng.between(0, len(site.PREFIXES) - 1)
            if request.prompt > site.PREFIXES[prefix] + 40:
                request.prefix = prefix
        if rng.chance(24):
            request.abort = rng.pick(("queued", "transfer", "decode", "decode"))

    def _near(self, request: Request) -> None:
        """Up to 10 % below the prefill limit; the first few exactly at it."""
        if self._exactly_at_limit:
            self._exactly_at_limit -= 1
            request.prompt = site.PREFILL_LIMIT
        else:
            request.prompt = self._rng.between(613_147, site.PREFILL_LIMIT)

    def _over(self, request: Request) -> None:
        """Between the two limits; one in ten just above the lower one."""
        rng = self._rng
        request.tenant = rng.pick(self._over_tenants)
        if rng.between(0, 9) == 0:
            request.prompt = rng.between(site.PREFILL_LIMIT + 1, site.PREFILL_LIMIT + 4_000)
        else:
            request.prompt = rng.low_end(site.PREFILL_LIMIT + 1, site.DECODE_LIMIT)
        request.output = min(request.max_new, rng.low_end(6, 400))
