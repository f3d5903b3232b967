"""Asks engines on a schedule for what they say of themselves; what changed becomes an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from kvwitness.collectors.endpoints.facts import (
    Changes,
    EngineFacts,
    Sample,
    from_metrics,
    from_models,
    from_sglang_info,
    from_vllm_version,
)
from kvwitness.collectors.otlp.records import Event

MAX_BYTES = 16 << 20
"""Longest page that is read."""
_PAGES: tuple[tuple[str, Callable[[Any, EngineFacts], None]], ...] = (
    ("/v1/models", from_models),
    ("/server_info", from_sglang_info),
    ("/get_server_info", from_sglang_info),  # SGLang before 0.5
    ("/version", from_vllm_version),
)


class UnreadableError(Exception):
    """A page that cannot be had, or is not what it should be; says why in few words."""


@dataclass
class Scrape:
    """One engine, asked every so many seconds."""

    engine: str
    url: str
    every_s: float = 15.0
    say: Callable[[str], None] = lambda text: None

    def __str__(self) -> str:
        return f"asking {self.engine} at {self.url}"

    def __post_init__(self) -> None:
        self._changes = Changes()
        self._said: str | None = None

    async def run(self, add: Callable[[Event], None]) -> None:
        """Ask until cancelled; `add` takes what is new."""
        timeout = aiohttp.ClientTimeout(total=max(1.0, min(10.0, self.every_s)))
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                for event in await self.ask(session):
                    add(event)
                await asyncio.sleep(self.every_s)

    async def ask(self, session: aiohttp.ClientSession) -> list[Event]:
        """Ask once: the events that say what was not known before."""
        facts, reasons, malformed = EngineFacts(), [], []
        try:
            from_metrics(_samples(await self._page(session, "/metrics")), facts)
        except UnreadableError as error:
            reasons.append(f"/metrics: {error}")
        except (ValueError, KeyError, IndexError) as error:  # as the parser says that it is no page of metrics
            malformed.append(f"/metrics: {error}")
        for path, read in _PAGES:
            try:
                read(orjson.loads(await self._page(session, path)), facts)
            except UnreadableError as error:
                reasons.append(f"{path}: {error}")
            except orjson.JSONDecodeError as error:
                malformed.append(f"{path}: {error}")
        now = time.time_ns()
        told = facts.events(self.engine, f"endpoint/{self.engine}")
        self._tell(bool(told), "; ".join(malformed if told else malformed + reasons))
        return [(kind, now, fields) for kind, fields in told if self._changes.new(kind, fields)]

    async def _page(self, session: aiohttp.ClientSession, path: str) -> bytes:
        try:
            async with session.get(self.url.rstrip("/") + path) as response:
                if response.status != 200:
                    raise UnreadableError(f"status {response.status}")
                body = await response.content.read(MAX_BYTES + 1)
                while len(body) <= MAX_BYTES and (more := await response.content.read(MAX_BYTES)):
                    body += more
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreadableError(type(error).__name__) from None
        if len(body) > MAX_BYTES:
            raise UnreadableError(f"longer than {MAX_BYTES} bytes")
        return body

    def _tell(self, answers: bool, trouble: str) -> None:
        """Say when an engine stops or begins to answer, or to answer what cannot be read, once."""
        if answers and not trouble:
            said = f"{self.engine} answers at {self.url}"
        else:
            what = "says what cannot be read" if answers else "says nothing"
            said = f"{self.engine} {what} at {self.url}, and will be asked again: {trouble}"
        if said != self._said and not (self._said is None and answers and not trouble):
            self.say(said)
        self._said = said


def _samples(body: bytes) -> list[Sample]:
    families = text_string_to_metric_families(body.decode("utf-8", "replace"))
    return [Sample(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
