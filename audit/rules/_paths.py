"""What the engines on record could have taken, for requests of which no page event says which of them served.

A prompt goes through one unified engine, or through a prefill and a decode engine. Where spans or logs are all there
is, it is not known which; but what none of them enforces as its limit can hold, none of them can have served. An engine
whose pages are on record from some time on is none of them from then on: it would have been seen at work.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import polars as pl

from kvwitness.audit.relations import KEY, keyed
from kvwitness.audit.rules._frames import acting_engine, of_requests, site_of
from kvwitness.audit.rules.model import Context

SERVICE = ["page.alloc", "page.write", "transfer.begin", "page.read"]
"""What an engine does when it serves a request."""

_SPLIT = ("prefill", "decode")


@dataclass(frozen=True)
class Limit:
    """An enforced limit, and the event that announced it."""

    tokens: int
    engine: str
    ev: int


@dataclass(frozen=True)
class Path:
    """The ways that a request may have gone."""

    widest: Limit
    """What the way that takes most can take: a longer prompt has no way at all."""
    narrowest: Limit
    """What the way that takes least can take."""


@dataclass
class _Engine:
    name: str
    role: str | None
    model: str | None
    times: list[int]
    limits: list[Limit]
    watched_ns: int | None
    """Since when its pages are on record."""

    def unwatched(self, moment: int) -> bool:
        """Whether it could serve a request at that moment without a page event of it on record."""
        return self.watched_ns is None or moment < self.watched_ns

    def at(self, moment: int) -> Limit | None:
        """The limit in force, if one was announced by then."""
        index = bisect_right(self.times, moment)
        return self.limits[index - 1] if index else None


class Paths:
    """The engines of a record and the limits that they announced."""

    def __init__(self, context: Context) -> None:
        self._engines = _engines(context)
        self._known: dict[tuple[object, ...], Path | None] = {}
        watched = {engine.watched_ns for engine in self._engines if engine.watched_ns is not None}
        self._moments = sorted({moment for engine in self._engines for moment in engine.times} | watched)

    def of(self, model: str | None, answered_by: str | None, moment: int) -> Path | None:
        """The ways open to a request for `model` that arrived at `moment`; None where no limit was known by then.

        `answered_by` is the engine that says that it answered, where one does.
        """
        key = (model, answered_by, bisect_right(self._moments, moment))
        if key not in self._known:
            self._known[key] = self._find(model, answered_by, moment)
        return self._known[key]

    def _find(self, model: str | None, answered_by: str | None, moment: int) -> Path | None:
        serving = [e for e in self._engines if e.unwatched(moment)]
        able = [e for e in serving if model is None or e.model is None or e.model == model]
        said = next((e for e in self._engines if e.name == answered_by), None)
        if said is not None:
            able = [e for e in able if e.role in _SPLIT and said.role in _SPLIT and e.role != said.role] + [said]
        limits = [(e.role, limit) for e in able if (limit := e.at(moment)) is not None]
        whole = [limit for role, limit in limits if role not in _SPLIT]
        sides = [[limit for role, limit in limits if role == side] for side in _SPLIT]
        split = [side for side in sides if side]
        widest = [*whole, *([min((_most(side) for side in split), key=_tokens)] if split else [])]
        narrowest = [*whole, *([min((_least(side) for side in split), key=_tokens)] if split else [])]
        return Path(_most(widest), _least(narrowest)) if widest else None


def _tokens(limit: Limit) -> int:
    return limit.tokens


def _most(limits: list[Limit]) -> Limit:
    return max(limits, key=_tokens)


def _least(limits: list[Limit]) -> Limit:
    return min(limits, key=_tokens)


def _engines(context: Context) -> list[_Engine]:
    """Engines that announced an input limit, gateways apart."""
    said = (
        context.events.filter((pl.col("event") == "engine.limits") & pl.col("engine").is_not_null())
        .select("ev", "ref_ns", "role", "model", "input_limit_tokens", engine=site_of("engine"))
        .sort("ev")
        .with_columns(pl.col("role", "model", "input_limit_tokens").forward_fill().over("engine"))
        .filter(pl.col("input_limit_tokens").is_not_null() & (pl.col("role").fill_null("unified") != "gateway"))
        .sort("ref_ns", "ev")
        .collect()
    )
    pages = context.acts.filter(pl.col("event").is_in(SERVICE))
    first = pages.group_by(engine=acting_engine(context)).agg(pl.col("first_ns").min()).collect()
    watched: dict[str, int] = dict(first.drop_nulls().iter_rows())
    out = []
    for (name,), own in said.group_by("engine", maintain_order=True):
        last = own.row(-1, named=True)
        rows = own.select("input_limit_tokens", "ev").iter_rows()
        limits = [Limit(tokens, str(name), ev) for tokens, ev in rows]
        times = own["ref_ns"].to_list()
        out.append(_Engine(str(name), last["role"], last["model"], times, limits, watched.get(str(name))))
    return out


def unseen(context: Context, wanted: pl.DataFrame) -> pl.DataFrame:
    """Those of the requests in `wanted` of which no event shows an engine at work."""
    shown = of_requests(context, wanted).filter(pl.col("event").is_in(SERVICE)).select(KEY).unique().collect()
    return wanted.join(shown, on=KEY, how="anti", maintain_order="left")


def answerers(context: Context) -> pl.DataFrame:
    """request, incarnation, `answerer`: the last engine that says that it answered."""
    answers = keyed(
        context.events.filter((pl.col("event") == "request.finished") & pl.col("answered_by").is_not_null())
    )
    last = answers.sort("ev").group_by(KEY, maintain_order=True).last()
    return last.select(*KEY, answerer=site_of("answered_by")).collect()


def with_paths(context: Context, requests: pl.DataFrame) -> pl.DataFrame:
    """Requests (of `Context.requests`) that have a way, with `limit`, `limit_ev`, `engine` of the widest one, and
    `least`, `least_engine` of the narrowest."""
    paths = Paths(context)
    rows = requests.join(answerers(context), on=KEY, how="left", maintain_order="left")
    found = [paths.of(*row) for row in rows.select("model", "answerer", "received_ns").iter_rows()]
    columns = {
        "limit": [path and path.widest.tokens for path in found],
        "limit_ev": [path and path.widest.ev for path in found],
        "engine": [path and path.widest.engine for path in found],
        "least": [path and path.narrowest.tokens for path in found],
        "least_engine": [path and path.narrowest.engine for path in found],
    }
    types = {"limit": pl.Int64, "limit_ev": pl.Int64, "engine": pl.String, "least": pl.Int64, "least_engine": pl.String}
    added = pl.DataFrame(columns, schema=types)
    return pl.concat([rows.drop("engine", strict=False), added], how="horizontal").filter(pl.col("limit").is_not_null())
