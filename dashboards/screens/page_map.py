"""Page map: one pool as it was at any moment; a click on a page tells its life."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import streamlit as st

from kvwitness.audit.telling.history import collapsed
from kvwitness.audit.telling.pagemap import STATES, PageMap, Pool
from kvwitness.audit.wording import duration, several, span_text
from kvwitness.dashboards import charts, desk, look

_STEPS = {"-1 h": -3600.0, "-1 min": -60.0, "-1 s": -1.0, "+1 s": 1.0, "+1 min": 60.0, "+1 h": 3600.0}
_NS = 1_000_000_000


def page() -> None:
    """The page."""
    st.title("Page map", anchor=False)
    pools = desk.pools()
    if not pools and not desk.answer().judged:
        look.nothing("Which pools there are is listed by an audit, and there was none.", "`kvwitness audit` runs one.")
        return
    if not pools:
        look.nothing(
            "No page events are on record, so there is no map to draw.",
            "The tracer records them (`kvwitness attach check` says what it would see); the page Limits works without.",
        )
        return
    pool = _pool(pools)
    at = _moment(pool)
    first, last = _range(pool)
    shown = desk.page_map(pool, at)
    with look.told():
        _map(shown, first, last)
    with look.told():
        _life(pool)


def _pool(pools: list[Pool]) -> Pool:
    names = [pool.name for pool in pools]
    name = st.selectbox("Pool", names, key="pool", bind="query-params")
    pool = pools[names.index(str(name))]
    scrub, sharing = pool.scrub or "not on record", pool.sharing or "not on record"
    look.small(
        f"{several(pool.pages_total, 'page')} of {pool.page_tokens or 'an unknown number of'} tokens; scrubbing: "
        f"{scrub}; prefix sharing: {sharing}"
    )
    return pool


def _moment(pool: Pool) -> int:
    """The moment to show: from the address, moved by the slider and by steps."""
    asked = look.number("at")
    at = asked if asked is not None else desk.moment_of_interest(pool.name) or pool.last_ns
    at = min(max(at, pool.first_ns), pool.last_ns)
    begin, end = _time(pool.first_ns), _time(pool.last_ns)
    if begin < end:
        moved = st.slider("Moment (UTC)", begin, end, _time(at), format="YYYY-MM-DD HH:mm:ss", step=_step(pool))
        if abs((moved - _time(at)) / timedelta(microseconds=1)) > 1:
            _go_to(_ns(moved))
    with st.container(horizontal=True):
        for label, seconds in _STEPS.items():
            if st.button(label, key=f"step{label}"):
                _go_to(min(max(at + int(seconds * _NS), pool.first_ns), pool.last_ns))
    st.markdown(f"**{look.exact(at)}**{look.elsewhere(at)}")
    return at


def _go_to(at: int) -> None:
    st.query_params["at"] = str(at)
    st.rerun()


def _step(pool: Pool) -> timedelta:
    return (
        timedelta(seconds=max(1, (pool.last_ns - pool.first_ns) // _NS // 1000))
        if _long(pool)
        else timedelta(milliseconds=10)
    )


def _long(pool: Pool) -> bool:
    return pool.last_ns - pool.first_ns > 600 * _NS


def _time(time_ns: int) -> datetime:
    return datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(microseconds=time_ns // 1000)


def _ns(time: datetime) -> int:
    return (time - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000


def _range(pool: Pool) -> tuple[int, int]:
    most = pool.pages_total - 1
    with st.container(horizontal=True):
        first = st.number_input("From page", 0, most, 0, key="from", bind="query-params", width=160)
        last = st.number_input("To page", 0, most, most, key="to", bind="query-params", width=160)
    return (int(first), int(last)) if first <= last else (int(last), int(first))


def _map(shown: PageMap, first: int, last: int) -> None:
    pages = shown.pages.filter(pl.col("page").is_between(first, last))
    back = "its beginning" if shown.whole else f"{duration(shown.at_ns - shown.since_ns)} before"
    what = (
        f"Pages {first:,} to {last:,} of {shown.pool.name}, in rows from the top left, by the tenant that holds them "
        "or whose content is in them. A line across: held by one tenant, with content that another wrote last. The "
        f"record was read back to {back}. Click on a page for its life."
    )
    content = st.segmented_control(
        "Colour by", ["holder", "content"], default="holder", key="colour", required=True, bind="query-params"
    )
    picked = look.chart(
        charts.page_grid(shown, frozenset(), first, last, content=content == "content"),
        look.timed(charts.page_table(shown, first, last), {"held_ns": "since", "written_ns": "written"}),
        what,
        key="map",
        select=True,
    )
    _counts(pages)
    if (number := _clicked(picked)) is not None and str(number) != look.parameter("page"):
        st.query_params["page"] = str(number)
        st.rerun()


def _counts(pages: pl.DataFrame) -> None:
    counts = dict(pages["state"].value_counts().iter_rows())
    told = [f"{counts[state]:,} {state} ({meaning})" for state, meaning in STATES.items() if state in counts]
    old = int(pages["foreign"].sum())
    told += [f"{old:,} held with another tenant's content still in them, until they are written"] if old else []
    look.small("; ".join(told))


def _clicked(picked: Any) -> int | None:
    chosen = picked.selection.get("page") if picked and "selection" in picked else None
    return int(chosen[0]["page"]) if chosen else None


def _life(pool: Pool) -> None:
    asked = look.number("page")
    known = asked if asked is not None and asked < pool.pages_total else None
    st.subheader("The life of one page", anchor=False)
    number = st.number_input("Page", 0, pool.pages_total - 1, known, placeholder="Click above, or type", width=200)
    if number is None:
        return
    if int(number) != known:
        st.query_params["page"] = str(int(number))
    rows = desk.history(pool.name, int(number))
    telling = [row for row in rows if row["findings"] or not row["event"].startswith("step.")]
    told = collapsed(telling, ["generation", "source", "event", "who", "findings"], "positions")
    table = [
        {
            "generation": row["generation"],
            "time_ns": row["time_ns"],
            "event": row["event"],
            "who": row["who"],
            "tenant": row["tenant"],
            "positions": span_text(row["positions"]),
            "what": row["note"] + (f" {row['times']} times" if row["until_ns"] else ""),
            "findings": "; ".join(row["findings"]),
            "source": row["source"],
            "seq": row["seq"],
        }
        for row in told
    ]
    what = f"Everything on record about page {int(number)} of {pool.name}, in order"
    look.rows(look.timed(pl.DataFrame(table, infer_schema_length=None), {"time_ns": "time"}), what, key="life")
    look.small(f"{several(len(rows), 'event')}; steps are shown only where a finding names them.")


if __name__ == "__main__":
    look.show(page)
