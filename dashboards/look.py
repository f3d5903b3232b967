"""How things look on every page: words, colours, times, tables, links, and a table beside each chart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import altair as alt
import polars as pl
import streamlit as st

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.wording import moment, second

OVERVIEW, INCIDENTS, INCIDENT = "screens/overview.py", "screens/incidents.py", "screens/incident.py"
PAGE_MAP, REQUESTS, LIMITS = "screens/page_map.py", "screens/requests.py", "screens/limits.py"
TENANTS, ASK, HEALTH = "screens/tenants.py", "screens/ask.py", "screens/health.py"

COLOURS = {
    "leak": "red",
    "integrity": "orange",
    "exposure": "yellow",
    "unproven": "violet",
    "shared": "blue",
    "clean": "green",
    "observed": "green",
    "in part": "violet",
    "blind": "red",
    "open": "red",
    "changed since closed": "red",
    "acknowledged": "blue",
    "closed": "gray",
    "unjudged": "gray",
    "empty": "gray",
    "settled": "blue",
}
"""Word -> colour of its badge. The word itself always stands there too."""
ICONS = {
    "leak": ":material/report:",
    "integrity": ":material/broken_image:",
    "exposure": ":material/visibility:",
    "unproven": ":material/help:",
    "shared": ":material/group:",
    "clean": ":material/check_circle:",
    "observed": ":material/check_circle:",
    "in part": ":material/help:",
    "blind": ":material/visibility_off:",
    "unjudged": ":material/hourglass_empty:",
    "empty": ":material/inbox:",
    "settled": ":material/task_alt:",
}
"""Word -> symbol, so that no meaning hangs on a colour."""
TENANT_COLOURS = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"]
"""Told apart by people with any of the usual kinds of colour blindness (Okabe and Ito)."""

_SPACES = re.compile(r"\s+")
_MARKS = re.compile(r"([\\`*_\[\]<>~$:&!|#])")
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,19}")
_JOINER = "\u2060"
"""Not to be seen, and no place to break a line. Browsers make a link of an address, escaped or not; of this, none."""


def bare(text: object) -> str:
    """Text from a record for Markdown. Names are somebody else's: none becomes a link to elsewhere, or an image."""
    return _MARKS.sub(r"\\\1", _ADDRESS.sub(_JOINER, _SPACES.sub(" ", str(text))))


# -- times -------------------------------------------------------------------------------------------


def zone() -> ZoneInfo | None:
    """The zone of the viewer's browser; None where it is UTC or not told."""
    name = st.context.timezone
    if not name or name in ("UTC", "Etc/UTC", "GMT", "Etc/GMT"):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


def when(time_ns: int | None) -> str:
    """A moment in UTC, and in the viewer's zone where that is another."""
    if time_ns is None:
        return "not on record"
    return f"{second(time_ns)}{elsewhere(time_ns)}"


def elsewhere(time_ns: int) -> str:
    """The same moment in the viewer's zone, in brackets; nothing where that is UTC."""
    local = zone()
    if local is None:
        return ""
    here = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    there = here.astimezone(local)
    day = "" if there.date() == here.date() else f"{there:%Y-%m-%d} "
    return f" ({day}{there:%H:%M:%S} {there.tzname()})"


def exact(time_ns: int | None) -> str:
    """A moment in UTC to the millisecond."""
    return "not on record" if time_ns is None else moment(time_ns)


def timed(frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """A frame with its columns of nanoseconds (keys) as text under other names, in UTC and, if another, local time."""
    local, columns = zone(), []
    for name in frame.columns:
        if name not in names:
            columns.append(pl.col(name))
            continue
        at = pl.from_epoch(pl.col(name).cast(pl.Int64), time_unit="ns")
        columns.append(at.dt.strftime("%Y-%m-%d %H:%M:%S%.3fZ").alias(f"{names[name]} (UTC)"))
        if local is not None:
            there = at.dt.replace_time_zone("UTC").dt.convert_time_zone(local.key)
            columns.append(there.dt.strftime("%Y-%m-%d %H:%M:%S").alias(f"{names[name]} ({local.key})"))
    return frame.select(columns)


def as_time(name: str) -> pl.Expr:
    """A column of nanoseconds as times that say that they are UTC: a chart takes others for local ones."""
    return pl.from_epoch(pl.col(name), time_unit="ns").dt.cast_time_unit("ms").dt.replace_time_zone("UTC")


def as_datetime(frame: pl.DataFrame, name: str = "time_ns") -> pl.DataFrame:
    """A column of nanoseconds as `time`, for a chart."""
    return frame.with_columns(time=as_time(name))


# -- words -------------------------------------------------------------------------------------------


def badge(word: str) -> None:
    """A word with its colour and symbol."""
    st.badge(word, color=COLOURS.get(word, "gray"), icon=ICONS.get(word))  # type: ignore[arg-type]


def dark() -> bool:
    """Whether the viewer looks at light letters on a dark ground."""
    return st.context.theme.type == "dark"


def ink() -> str:
    """The colour of lines that must be seen on any ground."""
    return "#F5F6F8" if dark() else "#10131A"


def ground() -> str:
    """The colour behind a chart."""
    return "#0E1117" if dark() else "#FFFFFF"


def small(text: str) -> None:
    """A remark, in small letters of the full colour: grey ones are hard to read for some."""
    st.markdown(f":small[{bare(text)}]")


def nothing(told: str, next_: str = "") -> None:
    """What stands where there is nothing to show: why, and what to do next."""
    st.info(f"{bare(told)}  \n{next_}" if next_ else bare(told), icon=":material/inbox:")


def go(page: str, label: str, *, icon: str | None = None, help: str | None = None, **query: str) -> None:
    """A link to a page, with what it should show in its address."""
    st.page_link(page, label=label, icon=icon, help=help, query_params=query or None)


def parameter(name: str) -> str | None:
    """What the address says; None when it says nothing."""
    return st.query_params.get(name) or None


def number(name: str) -> int | None:
    """A number in the address; None when there is none that could be a page or a moment."""
    text = parameter(name) or ""
    return int(text) if _NUMBER.fullmatch(text) else None


# -- tables and charts -------------------------------------------------------------------------------


def listed(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame whose lists are text, for people."""
    lists = [
        pl.col(name).cast(pl.List(pl.String)).list.join(", ")
        for name, kind in frame.schema.items()
        if isinstance(kind, pl.List) and not isinstance(kind.inner, pl.Struct | pl.List)
    ]
    return frame.with_columns(lists)


def csv(frame: pl.DataFrame) -> bytes:
    """A frame as a file: lists as text, and what is nested deeper as JSON."""
    flat = listed(frame)
    nested = [
        pl.Series(column.name, [None if value is None else _json(value) for value in column.to_list()], pl.String)
        for column in flat.iter_columns()
        if column.dtype.is_nested()
    ]
    return flat.with_columns(nested).write_csv().encode()


def _json(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def rows(frame: pl.DataFrame, what: str, *, key: str | None = None, height: int | None = None) -> None:
    """A table; `what` says what it holds, for those who cannot see it, too."""
    options: dict[str, Any] = {} if height is None else {"height": height}
    st.dataframe(listed(frame), hide_index=True, alt=what, key=key, **options)


def chart(drawn: Any, table: pl.DataFrame, what: str, *, key: str, select: bool = False) -> Any:
    """A chart, what it shows in words, and the same as a table. With `select`: what was clicked on."""
    options: dict[str, Any] = {"on_select": "rerun"} if select else {}
    event = st.altair_chart(drawn, alt=what, key=key, **options)
    small(what)
    with st.expander("The same as a table", icon=":material/table:"):
        rows(table, what, key=f"{key}-table")
    return event


def axis_time(frame: pl.DataFrame) -> alt.X:
    """The axis of time, for a frame with `time`."""
    ends = pl.concat([frame[name] for name in ("time", "until") if name in frame.columns])
    first, last = ends.min(), ends.max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    span = (last - first).total_seconds()
    form = "%b %d %H:%M" if span > 86_400 else "%H:%M" if span > 600 else "%H:%M:%S"
    axis = alt.Axis(format=form, labelOverlap=True, labelFlush=False, tickCount=8)
    return alt.X("time:T", title=f"time (UTC), from {first:%Y-%m-%d %H:%M}", scale=alt.Scale(type="utc"), axis=axis)


def tenant_scale(tenants: Sequence[str | None]) -> alt.Scale:
    """Colours for tenants, those that come most often first; the rest share grey, and are told apart by their names."""
    seen = pl.Series(list(tenants), dtype=pl.String).drop_nulls().value_counts(sort=True)
    names = seen[seen.columns[0]].to_list()[: len(TENANT_COLOURS)]
    return alt.Scale(domain=[*names, OTHERS], range=[*TENANT_COLOURS[: len(names)], "#8A8F98"])


OTHERS = "others"


def with_others(frame: pl.DataFrame, scale: alt.Scale, column: str = "tenant") -> pl.DataFrame:
    """The same with tenants that have no colour of their own as `others`, in the column `shade`."""
    known = [name for name in scale.domain if name != OTHERS]
    return frame.with_columns(shade=pl.when(pl.col(column).is_in(known)).then(pl.col(column)).otherwise(pl.lit(OTHERS)))


# -- errors ------------------------------------------------------------------------------------------


@contextmanager
def told() -> Iterator[None]:
    """Inside this block an error is shown as a sentence, and what else is on the page stays."""
    try:
        yield
    except KvwitnessError as error:
        advice = f"  \n{bare(error.advice)}" if error.advice else ""
        st.error(f"{bare(error.message)}{advice}", icon=":material/error:")
    except Exception as error:
        st.error(
            f"{bare(type(error).__name__)}: {bare(error)}  \nThis is a fault in kvwitness. The other pages go on; "
            "`KVWITNESS_DEBUG=1` in the environment of the command prints where it happened.",
            icon=":material/bug_report:",
        )
        trace(error)


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar for as long as something takes; what it gives takes the share that is done, from 0 to 1."""
    bar = st.progress(0.0, what)
    try:
        yield lambda share: _advance(bar, share, what)
    finally:
        bar.empty()


def _advance(bar: Any, share: float, what: str) -> None:
    bar.progress(min(1.0, max(0.0, share)), f"{what}: {share:.0%}")


def show(page: Callable[[], None]) -> None:
    """A whole page. An error in it is told like any other."""
    with told():
        page()


def trace(error: Exception) -> None:
    """Print where an error came from, if that was asked for."""
    import os
    import traceback

    if os.environ.get("KVWITNESS_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)


def section(name: str, what: str, show: Callable[[], None]) -> None:
    """A part of a page under a heading. If it fails, the others still stand."""
    st.subheader(name, anchor=False)
    if what:
        small(what)
    with told():
        show()
