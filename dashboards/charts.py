"""The charts: from a table that the audit made to what is drawn. What it means stands beside each, on its page."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from kvwitness.audit.telling.pagemap import FREE, RESERVED, UNKNOWN, PageMap
from kvwitness.dashboards import look

_BANDS = alt.Scale(domain=["over the limit", "near the limit"], range=["#D55E00", "#56B4E9"])
_OUTCOMES = alt.Scale(
    domain=["answered", "refused", "aborted", "failed", "none on record"],
    range=["#0072B2", "#E69F00", "#CC79A7", "#D55E00", "#8A8F98"],
)
_STANDINGS = alt.Scale(domain=["forbidden", "unproven", "allowed"], range=["#D55E00", "#CC79A7", "#56B4E9"])
_EMPTY = {FREE: "#E4E6EA", RESERVED: "#3B4048", UNKNOWN: "#F7F7F9"}
_EMPTY_IN_THE_DARK = {FREE: "#33373F", RESERVED: "#A3A9B4", UNKNOWN: "#202329"}
_CANVAS = {"embedOptions": {"renderer": "canvas"}}
"""Thousands of cells as one picture, not as an element of the page each."""
_NAMED = 40
"""Up to so many events each have their name on the axis."""
_CHART_PX, _LETTER_PX = 860, 6.5
"""About how wide a chart is, and a letter of a name in it. [pixels]"""
_AROUND_MATRIX_PX = 290
"""What the longest names, the title and the legend take beside the rows of a matrix, which share what is left."""
_LABELLED_SHARE, _LABELS = 0.03, 16
"""A bar is named where it covers this share of the pages that are drawn; at most so many are."""
_CELLS = 4_096
"""Up to so many pages are drawn one by one; of more, neighbours that are alike are drawn as one."""


def over_time(frame: pl.DataFrame) -> Any:
    """Requests (time_ns, band, requests) as bars over time."""
    dated = look.as_datetime(frame)
    return (
        alt.Chart(dated)
        .mark_bar()
        .encode(
            x=look.axis_time(dated),
            y=alt.Y("requests:Q", title="answered requests", axis=alt.Axis(tickMinStep=1)),
            color=alt.Color("band:N", title=None, scale=_BANDS, legend=alt.Legend(orient="top")),
            tooltip=[alt.Tooltip("time:T", format="%Y-%m-%d %H:%M"), "band:N", "requests:Q"],
        )
        .properties(height=320)
    )


def lengths(frame: pl.DataFrame, limits: pl.DataFrame) -> Any:
    """Prompts (from_tokens, until_tokens, outcome, requests) as bars, and limits (engine, tokens, label) as rules."""
    bars = (
        alt.Chart(frame.sort("requests", descending=True))  # the small ones in front of the large ones
        .mark_bar()
        .encode(
            x=alt.X("from_tokens:Q", title="prompt length (tokens)", bin="binned", scale=alt.Scale(zero=True)),
            x2="until_tokens:Q",
            y=alt.Y("requests:Q", title="requests (logarithmic)", scale=alt.Scale(type="symlog"), stack=None),
            color=alt.Color("outcome:N", title=None, scale=_OUTCOMES, legend=alt.Legend(orient="top")),
            tooltip=["from_tokens:Q", "until_tokens:Q", "outcome:N", "requests:Q"],
        )
    )
    rules = (
        alt.Chart(limits)
        .mark_rule(strokeDash=[5, 3], strokeWidth=2)
        .encode(x="tokens:Q", tooltip=["engine:N", "tokens:Q"], color=alt.value("#8A5A00"))
    )
    names = (
        alt.Chart(limits)
        .mark_text(align="right", dx=-4, baseline="top", angle=270)
        .encode(x="tokens:Q", y=alt.value(4), text="label:N", color=alt.value("#8A5A00"))
    )
    return (bars + rules + names).properties(height=420)


def limits(frame: pl.DataFrame) -> Any:
    """Figures of engines (engine, figure, tokens, time, until) as lines over time."""
    scale = look.tenant_scale(frame["engine"].to_list())
    shaded = look.with_others(frame, scale, "engine")
    x, y = look.axis_time(frame), alt.Y("tokens:Q", title="tokens", scale=alt.Scale(zero=False))
    drawn = alt.Chart(shaded).encode(
        x=x,
        x2="until:T",
        y=y,
        color=alt.Color("shade:N", title="engine", scale=scale),
        strokeDash=alt.StrokeDash("figure:N", title="figure"),
        tooltip=["engine:N", "figure:N", "tokens:Q", "time:T", "until:T"],
    )
    others = shaded.filter(pl.col("shade") == look.OTHERS).unique("engine", keep="last", maintain_order=True)
    named = _names(others.head(_LABELS), x, y, "engine", align="left", dy=-7)
    return alt.layer(drawn.mark_rule(strokeWidth=3), *named).properties(height=360)


def _names(frame: pl.DataFrame, x: Any, y: Any, column: str, **where: Any) -> list[Any]:
    """Names beside what has no colour of its own, readable on any ground; nothing where there is none of such."""
    if frame.is_empty():
        return []
    words = alt.Chart(frame).encode(x=x, y=y, text=f"{column}:N")
    told = {"fontSize": 10, "clip": True, **where}
    halo = words.mark_text(stroke=look.ground(), strokeWidth=3, strokeJoin="round", color=look.ground(), **told)
    return [halo, words.mark_text(color=look.ink(), **told)]


def matrix(frame: pl.DataFrame) -> Any:
    """Pairs (tenant, other_tenant, standing, requests, pages) as a grid."""
    base = alt.Chart(frame).encode(
        x=alt.X(
            "other_tenant:N", title="whose content", axis=alt.Axis(labelAngle=-60, orient="top", labelOverlap=False)
        ),
        y=alt.Y("tenant:N", title="who read it", axis=alt.Axis(labelOverlap=False)),
        tooltip=["tenant:N", "other_tenant:N", "standing:N", "requests:Q", "pages:Q"],
    )
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color("standing:N", title=None, scale=_STANDINGS, legend=alt.Legend(orient="bottom"))
    )
    ink = alt.condition(alt.datum.standing == "allowed", alt.value("#10202E"), alt.value("#FFFFFF"))
    return (cells + base.mark_text(fontSize=11).encode(text="requests:Q", color=ink)).properties(
        height=26 * frame["tenant"].n_unique() + _AROUND_MATRIX_PX
    )


def lanes(frame: pl.DataFrame, *, by_time: bool) -> Any:
    """Marks on ranges of pages (`kvwitness.audit.telling.lanes`), from first to last event; one panel for each pool."""
    scale = look.tenant_scale(frame["tenant"].to_list())
    drawn = look.as_datetime(look.with_others(frame, scale)).with_columns(
        step=pl.format("{} {}", "order", "kind"), at=pl.col("order")
    )
    if by_time:
        x: alt.X = alt.X("time:T", title="time (UTC)", scale=alt.Scale(type="utc"))
    else:
        steps = drawn.unique("step", maintain_order=True)["step"].to_list()
        x = alt.X(
            "step:N",
            title="events in their order",
            sort=steps,
            axis=alt.Axis(labelAngle=-60, labelLimit=160, labelOverlap=len(steps) > _NAMED),
        )
    mark = alt.Chart().mark_bar(strokeWidth=1.5, size=7) if by_time else alt.Chart().mark_bar(strokeWidth=1.5)
    bars = mark.encode(
        x=x,
        y=alt.Y("first_page:Q", title="page", scale=alt.Scale(zero=False)),
        y2="end_page:Q",
        color=alt.Color("shade:N", title="tenant whose deed it is", scale=scale, legend=alt.Legend(orient="top")),
        stroke=alt.condition("datum.proof", alt.value(look.ink()), alt.value("transparent")),
        tooltip=[
            "kind:N",
            "shows:N",
            "tenant:N",
            "request:N",
            "source:N",
            "seq:Q",
            "first_page:Q",
            "end_page:Q",
            "time:T",
        ],
    )
    panels = []
    for pool in frame["pool"].unique(maintain_order=True).to_list():
        here = drawn.filter(pl.col("pool") == pool)
        named = [
            words.properties(data=_data(_named_bars(here)))
            for words in _names(_named_bars(here), x, alt.Y("first_page:Q"), "tenant", angle=270, align="left", dy=-9)
        ]
        mine = alt.layer(bars.properties(data=_data(here)), *named).properties(height=520, title=pool)
        panels.append(mine.interactive() if by_time else mine.interactive(bind_x=False))
    return alt.vconcat(*panels) if len(panels) > 1 else panels[0]


def _named_bars(drawn: pl.DataFrame) -> pl.DataFrame:
    """Of each tenant without a colour of its own the largest bar, where it is large enough to be named."""
    size = pl.col("end_page") - pl.col("first_page")
    span = max(1, int(drawn["end_page"].max() or 0) - int(drawn["first_page"].min() or 0))  # type: ignore[arg-type]
    others = drawn.filter((pl.col("shade") == look.OTHERS) & pl.col("tenant").is_not_null())
    largest = others.sort(size, descending=True, maintain_order=True).unique(
        "tenant", keep="first", maintain_order=True
    )
    return largest.filter(size >= span * _LABELLED_SHARE).head(_LABELS)


def _data(frame: pl.DataFrame) -> Any:
    return alt.InlineData(values=frame.with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ")).to_dicts())


def page_grid(shown: PageMap, marked: frozenset[int], first: int, last: int, *, content: bool = False) -> Any:
    """Pages `first` to `last` as cells, coloured by the tenant that holds them, or whose content is in them.

    Those in `marked` have a frame.
    """
    pages = shown.pages.filter(pl.col("page").is_between(first, last))
    whose = "writer_tenant" if content else "tenant"
    if content:
        unwritten = pl.when(pl.col("writer").is_null() & pl.col("writer_tenant").is_null()).then(pl.lit(UNKNOWN))
        shaded = pl.when(pl.col("state") == RESERVED).then(pl.lit(RESERVED)).otherwise(unwritten)
    else:
        shaded = pl.when(pl.col("state").is_in(list(_EMPTY))).then("state").otherwise(None)
    pages = pages.with_columns(empty=shaded)
    scale = look.tenant_scale(pages.filter(pl.col("empty").is_null())[whose].to_list())
    cells = cells_of(look.with_others(pages, scale, whose), first, marked).drop("held_ns", "written_ns")
    domain = [*scale.domain, *_EMPTY]
    colours = alt.Scale(domain=domain, range=[*scale.range, *(_EMPTY_IN_THE_DARK if look.dark() else _EMPTY).values()])
    tip = ["pages:N", "generation:Q", "state:N", "tenant:N", "request:N", "writer:N", "writer_tenant:N"]
    picked = alt.selection_point(name="page", fields=["page"], on="click", clear=False)
    base = alt.Chart(cells).encode(
        x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, _width(first, last)], nice=False)),
        x2="x2:Q",
        y=alt.Y(
            "y:Q",
            title="page",
            scale=alt.Scale(reverse=True, nice=False, domain=[0, _height(first, last)]),
            axis=alt.Axis(grid=False, labelExpr=f"format({first} + datum.value * {_width(first, last)}, ',')"),
        ),
        y2="y2:Q",
        tooltip=tip,
    )
    fill = (
        base.mark_rect(strokeWidth=0)
        .encode(
            color=alt.Color(
                "shade:N",
                title="content of" if content else "held by",
                scale=colours,
                legend=alt.Legend(orient="top", columns=6),
            )
        )
        .add_params(picked)
    )
    small = last - first < _CELLS
    old = base.transform_filter("datum.foreign").mark_rule(
        strokeWidth=1.6 if small else 1.0, color=look.ink(), opacity=0.75
    )
    framed = base.transform_filter("datum.marked").mark_rect(filled=False, stroke=look.ink(), strokeWidth=1.5)
    words = named_stretches(look.with_others(pages, scale, whose), first, _width(first, last), whose)
    named = _names(words, alt.X("x:Q"), alt.Y("y:Q"), "name")
    drawn = alt.layer(fill, old.encode(y="bottom:Q", y2="bottom:Q"), framed, *named)
    return drawn.properties(height=min(620, max(220, 14 * _height(first, last))), usermeta=_CANVAS)


def named_stretches(pages: pl.DataFrame, first: int, width: int, whose: str) -> pl.DataFrame:
    """x, y, name: the middle of the longest stretch of each tenant without a colour of its own, where its name fits."""
    at = pl.col("page").cast(pl.Int64) - first
    grey = pages.filter((pl.col("shade") == look.OTHERS) & pl.col("empty").is_null() & pl.col(whose).is_not_null())
    placed = grey.select(name=whose, row=at // width, column=at % width).sort("row", "column")
    new = pl.any_horizontal(
        pl.col("name").ne_missing(pl.col("name").shift()),
        pl.col("row").ne_missing(pl.col("row").shift()),
        pl.col("column").ne_missing(pl.col("column").shift() + 1),
    )
    runs = placed.with_columns(run=new.cast(pl.Int64).cum_sum()).group_by("run", maintain_order=True)
    found = runs.agg(pl.col("name", "row").first(), start=pl.col("column").min(), end=pl.col("column").max() + 1)
    length = pl.col("end") - pl.col("start")
    fits = length * (_CHART_PX / width) >= (pl.col("name").str.len_chars() + 1) * _LETTER_PX
    longest = found.sort(length, descending=True, maintain_order=True).unique("name", keep="first", maintain_order=True)
    return longest.filter(fits).select("name", x=(pl.col("start") + pl.col("end")) / 2, y=pl.col("row") + 0.5)


def _width(first: int, last: int) -> int:
    """Pages in a row: a power of two about twice the number of rows."""
    count, width = last - first + 1, 16
    while width * width < 2 * count:
        width *= 2
    return width


def _height(first: int, last: int) -> int:
    return -(-(last - first + 1) // _width(first, last))


def page_table(shown: PageMap, first: int, last: int) -> pl.DataFrame:
    """What `page_grid` draws, as a table: one row for each page, or, of many, for each run of pages that are alike."""
    pages = shown.pages.filter(pl.col("page").is_between(first, last))
    cells = cells_of(pages.with_columns(empty=pl.lit(""), shade=pl.lit("")), first, frozenset())
    return cells.select(
        "pages", "state", "tenant", "request", "writer", "writer_tenant", "written_ns", "held_ns", "generation"
    ).rename({"writer": "last written for", "writer_tenant": "content of"})


def _if_alike(name: str) -> pl.Expr:
    """What all rows of a group have in a column; null where they differ."""
    alike = (pl.col(name).min() == pl.col(name).max()) & (pl.col(name).null_count() == 0)
    return pl.when(alike).then(pl.col(name).first()).alias(name)


def cells_of(pages: pl.DataFrame, first: int, marked: frozenset[int]) -> pl.DataFrame:
    """Pages as rectangles: one each, or, of many, one for each run of neighbours in a row that are alike."""
    last = max(pages["page"].to_list(), default=first)
    width = _width(first, last)
    at = pl.col("page").cast(pl.Int64) - first
    told = pages.with_columns(
        shade=pl.coalesce("empty", "shade"),
        marked=pl.col("page").is_in(sorted(marked)),
        row=at // width,
        column=at % width,
    )
    same = ["row", "shade", "state", "foreign", "marked", "request", "writer"]
    alone = len(pages) <= _CELLS
    new = pl.any_horizontal([pl.col(name).ne_missing(pl.col(name).shift()) for name in same]).fill_null(True)
    runs = told.with_columns(run=pl.int_range(pl.len()) if alone else new.cast(pl.Int64).cum_sum())
    shown = ("shade", "state", "foreign", "marked", "request", "tenant", "writer", "writer_tenant")
    dated = ("held_ns", "written_ns", "generation")
    grouped = runs.group_by("run", maintain_order=True).agg(
        *[pl.col(name).first() for name in ("page", *shown)],
        *[_if_alike(name) for name in dated],
        last=pl.col("page").last(),
        x=pl.col("column").first(),
        x2=pl.col("column").last() + 1,
        y=pl.col("row").first(),
        y2=pl.col("row").first() + 1,
    )
    span = (
        pl.when(pl.col("page") == pl.col("last"))
        .then(pl.col("page").cast(pl.String))
        .otherwise(pl.format("{} to {}", "page", "last"))
    )
    return grouped.with_columns(pages=span, bottom=pl.col("y") + 0.85).drop("run")
