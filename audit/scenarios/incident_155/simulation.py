"""The deployment put together and run from the first request to the last."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TextIO

from kvwitness.audit.scenarios.incident_155 import deployment as site
from kvwitness.audit.scenarios.incident_155.content import PageContent
from kvwitness.audit.scenarios.incident_155.decode import Decode
from kvwitness.audit.scenarios.incident_155.gateway import Gateway
from kvwitness.audit.scenarios.incident_155.placeholder import Placeholder
from kvwitness.audit.scenarios.incident_155.prefill import Prefill
from kvwitness.audit.scenarios.incident_155.traffic import plan
from kvwitness.audit.scenarios.incident_155.truth import Truth
from kvwitness.audit.scenarios.incident_155.world import World

MIN_ORDINARY = 1_000
"""Fewer requests than this cannot hide the faulty ones among them."""

_CLOCK_EVERY = 6 * 3600 * site.MICROSECONDS
_REPORT_EVERY = 64


class Deployment:
    """The parts, each of which knows the others through this object."""

    def __init__(self, world: World, truth: Truth) -> None:
        self.world = world
        self.truth = truth
        self.gateway = Gateway(self)
        self.prefill = Prefill(self)
        self.decode = Decode(self, PageContent(site.DECODE_PAGES, [r.tenant for r in truth.requests]))
        self.placeholder = Placeholder(self)


def generate(
    out: TextIO,
    seed: int = 155,
    ordinary: int = 11_000,
    progress: Callable[[int, int], None] | None = None,
) -> Truth:
    """Write the trace to `out` as JSON Lines (about 25 MB of ASCII) and return the ground truth.

    `out` must not translate line ends (open files with `newline="\\n"`). `ordinary` is the number of requests
    besides the health probes; the faulty ones are among them. `progress` is called with the requests answered
    so far and their total.

    Raises `ValueError` when `ordinary` is below `MIN_ORDINARY`.
    """
    if ordinary < MIN_ORDINARY:
        raise ValueError(f"at least {MIN_ORDINARY} requests are needed, not {ordinary}")
    world = World(seed, out)
    _describe(world)
    for n in range(site.DAYS * 4):
        world.after(n * _CLOCK_EVERY + 5 * site.MICROSECONDS, _compare_clocks, world)
    truth = Truth(seed, ordinary, requests=plan(world.rng, ordinary))
    deployment = Deployment(world, truth)
    for request in truth.requests:
        world.after(request.arrival, deployment.gateway.arrive, request)
    _run(deployment, progress)
    truth.lines, truth.bytes, truth.sha256 = world.lines, world.bytes, world.sha256
    return truth


def _run(deployment: Deployment, progress: Callable[[int, int], None] | None) -> None:
    world, gateway, total = deployment.world, deployment.gateway, len(deployment.truth.requests)
    reported = 0
    while world.advance():
        if progress and gateway.answered >= reported + _REPORT_EVERY:
            reported = gateway.answered
            progress(reported, total)
    if progress:
        progress(total, total)
    unanswered = [r.id for r in deployment.truth.requests if not r.done]
    if unanswered or deployment.decode.pool.available != site.DECODE_PAGES - 1:
        raise AssertionError(f"the simulation lost requests or pages: {unanswered[:5]}")


def _describe(world: World) -> None:
    """Both engines state their pools and limits; they disagree, and that is where the incident begins."""
    for source, pool, pages, sharing in (
        (site.PREFILL, site.PREFILL_POOL, site.PREFILL_PAGES, "global"),
        (site.DECODE, site.DECODE_POOL, site.DECODE_PAGES, "none"),
    ):
        world.emit(
            source,
            "engine.pool",
            pool=pool,
            page_tokens=site.PAGE_TOKENS,
            pages_total=pages,
            kind="kv",
            scrub="never",
            sharing=sharing,
            reserved=[(0, 0)],
        )
    for source, role, limit, pages in (
        (site.PREFILL, "prefill", site.PREFILL_LIMIT, site.PREFILL_PAGES),
        (site.DECODE, "decode", site.DECODE_LIMIT, site.DECODE_PAGES),
    ):
        world.emit(
            source,
            "engine.limits",
            engine=source.split("/")[0],
            role=role,
            advertised_tokens=site.ADVERTISED,
            input_limit_tokens=limit,
            pool_tokens=(pages - 1) * site.PAGE_TOKENS,
            version="a.31",
        )


def _compare_clocks(world: World) -> None:
    for source in (site.PREFILL, site.DECODE):
        world.emit(
            source,
            "engine.clock",
            engine=source.split("/")[0],
            offset_s=Decimal(world.rng.between(-350, 350)).scaleb(-6),
            uncertainty_s=Decimal("0.0004"),
        )
