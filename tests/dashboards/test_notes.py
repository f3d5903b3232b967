"""What people write on the page of an incident stays, with who and when."""

from __future__ import annotations

import polars as pl

from kvwitness.audit.store import Store
from tests.dashboards.conftest import Open, said


def _incident(store: Store) -> str:
    found = store.result("incidents")
    return str(found["incident"][0])


def test_an_acknowledgement_is_kept_with_its_name(look_at: Open, own: Store) -> None:
    app = look_at(own, "incident", incident=_incident(own))
    app.selectbox[0].set_value("acknowledge")
    app.text_input(key="by").set_value("ada")
    app.text_area[0].set_value("known since Tuesday")
    app.button[-1].click().run()
    assert not app.error, app.error
    kept = own.casebook.entries().row(0, named=True)
    assert (kept["incident"], kept["deed"], kept["by"]) == (_incident(own), "acknowledge", "ada")
    assert kept["at_ns"] > 0
    told = said(look_at(own, "incident", incident=_incident(own)))
    assert "known since Tuesday" in told
    assert "**ada**: acknowledge" in told


def test_a_note_without_a_name_is_refused_in_a_sentence(look_at: Open, own: Store) -> None:
    app = look_at(own, "incident", incident=_incident(own))
    app.button[-1].click().run()
    assert "needs a name" in app.error[0].value
    assert own.casebook.entries().is_empty()


def test_an_incident_that_was_taken_up_is_no_longer_urgent(look_at: Open, own: Store) -> None:
    for row in own.result("incidents").iter_rows(named=True):
        own.casebook.add(
            row["incident"], "close", by="ada", text="fixed", verdict=row["verdict"], findings=row["findings"]
        )
    assert "Every incident has been taken up." in said(look_at(own))


def test_markdown_in_a_note_draws_nothing(look_at: Open, own: Store) -> None:
    own.casebook.add(_incident(own), "note", by="eve", text="![](http://evil.example/pixel.png)")
    app = look_at(own, "incident", incident=_incident(own))
    quoted = [m.value for m in app.markdown if "evil" in m.value]
    assert quoted == ["> \\!\\[\\](http\\:\u2060//evil.example/pixel.png)"]
    assert own.casebook.entries().filter(pl.col("by") == "eve").height == 1
