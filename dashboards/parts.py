"""Parts that several pages show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvwitness.audit.api import request_name
from kvwitness.audit.wording import first_few
from kvwitness.dashboards import look


def incident_row(row: Mapping[str, Any]) -> None:
    """One incident of a list, as a link to its page."""
    verdict, what, when, standing = st.columns([1.2, 6, 2.6, 1.4], vertical_alignment="center")
    with verdict:
        look.badge(row["verdict"])
    with what:
        look.go(look.INCIDENT, title_of(row), icon=":material/chevron_right:", incident=row["incident"])
    with when:
        look.small(look.when(row["first_ns"]))
    with standing:
        look.badge(row["standing"])


def title_of(row: Mapping[str, Any]) -> str:
    """An incident in a line: whom it befell, and whose content."""
    if row["request"]:
        who = f"{request_name(row['request'], row['incarnation'])} of {row['tenant'] or 'an unknown tenant'}"
    else:
        who = row["engine"] or row["tenant"] or "an engine"
    others = f" · content of {first_few(row['other_tenants'], 2)}" if row["other_tenants"] else f" · {row['rules'][0]}"
    return f"{look.bare(who)}{look.bare(others)}"
