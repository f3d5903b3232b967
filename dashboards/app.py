"""The frame around all pages: who looks, which pages there are, and how fresh what they show is."""

from __future__ import annotations

import time
from pathlib import Path

import streamlit as st

from kvwitness.audit.overall.fleet import lag_in_words
from kvwitness.audit.store import NoStore
from kvwitness.dashboards import desk, look
from kvwitness.dashboards.roles import Role, login, role

ICON = Path(__file__).parent / "static" / "icon.png"
FRESH_EVERY_S = 10


def main() -> None:
    """One run of the script: once for every page, click or change."""
    st.set_page_config(page_title="kvwitness", page_icon=str(ICON), layout="wide")
    with look.told():
        if not _welcome():
            return
        shown = st.navigation(_pages())
        with st.sidebar:
            _pulse()
            _who()
        with look.told():
            try:
                desk.store()
            except NoStore as error:
                _no_store(error)
            else:
                shown.run()


def _pages() -> list[st.Page]:
    """In one list: sections would put headings between its items, which screen readers do not expect there."""
    return [
        st.Page(look.OVERVIEW, title="Overview", icon=":material/dashboard:", default=True),
        st.Page(look.INCIDENTS, title="Incidents", icon=":material/report:", url_path="incidents"),
        st.Page(look.INCIDENT, title="Incident", url_path="incident", visibility="hidden"),
        st.Page(look.PAGE_MAP, title="Page map", icon=":material/grid_view:", url_path="page-map"),
        st.Page(look.REQUESTS, title="Requests", icon=":material/swap_horiz:", url_path="requests"),
        st.Page(look.LIMITS, title="Limits", icon=":material/straighten:", url_path="limits"),
        st.Page(look.TENANTS, title="Tenants", icon=":material/group:", url_path="tenants"),
        st.Page(look.ASK, title="Ask", icon=":material/terminal:", url_path="ask"),
        st.Page(look.HEALTH, title="Health", icon=":material/monitor_heart:", url_path="health"),
    ]


def _welcome() -> bool:
    """Whether whoever looks may see anything; else what they have to do."""
    if desk.settings().roles is None:
        return True
    if login() is None:
        st.title("kvwitness")
        st.write("Log in to see what this store holds.")
        st.button("Log in", on_click=st.login, icon=":material/login:")
        return False
    if role() is Role.NOBODY:
        st.title("kvwitness")
        st.error(f"{look.bare(login())} has no role here. Whoever runs this dashboard can give one.")
        st.button("Log out", on_click=st.logout)
        return False
    return True


def _no_store(error: NoStore) -> None:
    st.title("No store yet", anchor=False)
    look.nothing(
        error.message,
        "`kvwitness demo` makes two to look at; `kvwitness import FILE` and `kvwitness tail DIR` fill one of your own. "
        "This page shows it as soon as it is there.",
    )


@st.fragment(run_every=FRESH_EVERY_S)
def _pulse() -> None:
    """How far the audit is behind. When there is something new to see the page is drawn anew; nothing else moves."""
    with look.told():
        try:
            now: desk.Seen | None = desk.seen()
        except NoStore:
            now = None
        before = st.session_state.get("seen", now)
        st.session_state["seen"] = now
        if before != now:
            st.rerun()
        look.small("Waiting for a store" if now is None else lag_in_words(desk.behind(), time.time_ns()))


def _who() -> None:
    """Who looks, and the way out. It is not in the pulse, where a click is lost that meets the next beat."""
    if desk.settings().roles is not None:
        look.small(f"{login()}: {role()}")
        st.button("Log out", on_click=st.logout, type="tertiary")


if __name__ == "__main__":
    main()
