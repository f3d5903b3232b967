"""Who sees what: names, pseudonyms, nothing."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.store import Store
from kvwitness.dashboards.roles import Role, read_roles, role_of
from tests.dashboards.conftest import PAGES, Open, said

ROLES = {"responder": ["ada@example.com", "@security.example.com"], "viewer": ["*"]}


@pytest.mark.parametrize(
    ("login", "role"),
    [
        ("ada@example.com", Role.RESPONDER),
        ("ADA@Example.com", Role.RESPONDER),
        ("bob@security.example.com", Role.RESPONDER),
        ("bob@notsecurity.example.com", Role.VIEWER),
        ("ada@example.com.evil.example", Role.VIEWER),
        ("", Role.NOBODY),
        (None, Role.NOBODY),
    ],
)
def test_roles_follow_from_the_address(login: str | None, role: Role) -> None:
    assert role_of(login, ROLES) is role


def test_who_is_in_no_list_is_nobody() -> None:
    assert role_of("eve@example.com", {"responder": ["ada@example.com"]}) is Role.NOBODY


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[roles\n", "cannot be read as TOML"),
        ("[roles]\nviewer = ['*']\n", r"needs a table \[auth\]"),
        ("[auth]\n[roles]\nadmin = ['*']\n", "needs a table"),
        ("[auth]\n[roles]\nviewer = '*'\n", "roles.viewer is no list"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "roles.toml"
    file.write_text(text)
    with pytest.raises(KvwitnessError, match=told):
        read_roles(file)


def test_under_pseudonyms_no_page_names_a_tenant(look_at: Open, leaky: Store) -> None:
    names = leaky.result("request_verdicts")["tenant"].drop_nulls().unique().to_list()
    incident = leaky.result("incidents").filter(pl.col("request") == "r1017").row(0, named=True)
    addresses = {
        "incident": {"incident": incident["incident"]},
        "page_map": {"page": incident["pools"][0]["pages"][0]},
        "requests": {"request": "r1017"},
    }
    for page in PAGES:
        app = look_at(leaky, page, pseudonyms=True, **addresses.get(page, {}))
        assert not app.exception
        assert not app.error, [e.value for e in app.error]
        shown = said(app) + "".join(frame.value.to_string() for frame in app.dataframe)
        shown += "".join(str(box.options) for box in app.selectbox) + "".join(c.value for c in app.code)
        shown += "".join(str(link.proto) for link in app.get("page_link"))
        shown += "".join(str(chart.proto) for chart in app.get("vega_lite_chart"))
        for name in names:
            assert name not in shown, (page, name)


def test_a_note_that_names_a_tenant_does_not_give_it_away(look_at: Open, own: Store) -> None:
    row = own.result("incidents").drop_nulls("request").row(0, named=True)
    own.casebook.add(row["incident"], "note", by="ada", text=f"told {row['tenant']} and t-birch, not t-birchwood")
    assert f"told {row['tenant']} and" in said(look_at(own, "incident", incident=row["incident"]))
    told = said(look_at(own, "incident", incident=row["incident"], pseudonyms=True))
    assert "not t-birchwood" in told
    assert f"told {row['tenant']} and" not in told
    assert "t-birch," not in told


def test_a_tenant_under_a_pseudonym_can_still_be_looked_at(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "tenants", pseudonyms=True)
    chosen = app.selectbox(key="tenant").options[0]
    assert chosen.startswith("t-")
    app.selectbox(key="tenant").set_value(chosen)
    app.run()
    assert not app.error
    shown = said(app) + "".join(frame.value.to_string() for frame in app.dataframe)
    assert chosen in shown
    for name in leaky.result("request_verdicts")["tenant"].drop_nulls().unique().to_list():
        assert name not in shown


def test_nobody_asks_in_sql_under_pseudonyms(look_at: Open, leaky: Store) -> None:
    app = look_at(leaky, "ask", pseudonyms=True)
    assert not app.text_area
    assert not app.selectbox
