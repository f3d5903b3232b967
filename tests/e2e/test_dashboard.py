"""The dashboard as a person meets it: in a real browser, on five stores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from tests.dashboards.conftest import CASES, judged
from tests.e2e.conftest import Served, Visit, ended, serve

PAGES = ["", "incidents", "page-map", "requests", "limits", "tenants", "ask", "health"]
STORES = ["incident", "lab", "placeholder", "nothing", "gaps"]
_BOXES = "[data-testid=stException], [data-testid=stAlertContentError]"

Open = Callable[..., Visit]


def faults(page: Any) -> list[str]:
    """What axe-core finds that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe  # with the driver of the browser, where there is one

    found = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:300]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def paths(served: Served) -> list[str]:
    """Every page, and on a store with incidents one of them and its request."""
    store = Store.open(served.store)
    if not store.result_runs():
        return [*PAGES, "incident"]
    of_requests = store.result("incidents").drop_nulls("request")
    if of_requests.is_empty():
        return PAGES
    row = of_requests.row(0, named=True)
    return [*PAGES, f"incident?incident={row['incident']}", f"requests?request={quote(row['request'])}"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_whole_and_can_be_used_by_everybody(
    store: str, scheme: str, visit: Open, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(store)
    seen = visit(served, color_scheme=scheme)
    wrong = []
    for path in paths(served):
        seen.go(path)
        wrong += [f"{path}: {box.inner_text()}" for box in seen.page.query_selector_all(_BOXES)]
        wrong += [f"{path}: {fault}" for fault in faults(seen.page)]
        seen.shot(f"{store}-{scheme}-{path.replace('?', '-').replace('=', '-') or 'overview'}")
    assert not wrong, "\n".join(wrong)
    assert seen.errors == []
    assert seen.elsewhere == []


def test_four_clicks_from_the_overview_to_the_victim_and_the_proof(incident: Served, visit: Open) -> None:
    """Somebody who has never seen the tool reads the names that matter after at most four clicks."""
    truth = Store.open(incident.store).result("incidents").row(0, named=True)
    seen = visit(incident)
    seen.go()
    assert "155 requests leaked" in seen.page.inner_text("[data-testid=stMain]")
    clicks = 0
    seen.page.get_by_role("link", name=f"{truth['request']} of {truth['tenant']}").first.click()
    clicks += 1
    seen.page.get_by_role("heading", name=f"Incident {truth['incident']}").wait_for(timeout=60_000)
    seen.whole()
    told = seen.page.inner_text("[data-testid=stMain]")
    assert f"Request {truth['request']} of tenant {truth['tenant']} read content of" in told
    for victim in truth["other_tenants"][:3]:
        assert victim in told
    assert "The events that prove it" in told
    seen.page.get_by_role("link", name=truth["other_tenants"][0], exact=True).click()
    clicks += 1
    seen.page.get_by_role("heading", name="Tenants", exact=True).wait_for(timeout=60_000)
    seen.whole()
    assert truth["request"] in seen.page.inner_text("[data-testid=stMain]")
    assert clicks <= 4


def test_the_first_incident_is_reached_by_keyboard_alone(lab: Served, visit: Open) -> None:
    seen = visit(lab)
    seen.go()
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        on = seen.page.evaluate("[document.activeElement.tagName, document.activeElement.innerText]")
        if on[0] == "A" and "r1017 of" in on[1]:
            break
    seen.page.keyboard.press("Enter")
    seen.page.get_by_role("heading", name="Incident inc-").wait_for(timeout=60_000)


def test_whatever_becomes_of_the_store_is_seen_without_touching_anything(visit: Open, tmp_path: Path) -> None:
    """It appears, is filled, judged and written to by somebody else, loses a tenant, goes, and is another."""
    served = serve(tmp_path / "store")
    try:
        seen = visit(served)
        seen.go()
        seen.page.get_by_text("No store yet").wait_for()
        store = Store.create(tmp_path / "store")
        _told(seen, "nothing has come in")
        reader = TraceReader(CASES / "k01-oversize-stub-handoff.jsonl")
        store.import_batches(reader, sha256=lambda: reader.report.sha256, name="late.jsonl")
        _told(seen, "none has been judged yet")
        audit_store(store)
        _told(seen, "1 request leaked")
        row = store.result("incidents").drop_nulls("request").row(0, named=True)
        seen.go(f"incident?incident={row['incident']}")
        store.casebook.add(row["incident"], "note", by="ada", text="somebody else saw it")
        _told(seen, "somebody else saw it")
        seen.go()
        store.retain(tenant="t-birch")
        _told(seen, "none has been judged yet")
        shutil.rmtree(store.path)
        _told(seen, "No store yet")
        judged(tmp_path / "store", CASES / "u01-hole-hides-the-write.jsonl")
        _told(seen, "unproven, which is not the same as clean")
        assert seen.errors == []
    finally:
        ended(served)


def _told(seen: Visit, text: str) -> None:
    seen.page.get_by_text(text).first.wait_for(timeout=60_000)


def test_names_that_are_markup_do_nothing_on_any_page(visit: Open, tmp_path: Path) -> None:
    names = {
        "t-ash": "<script>alert(1)</script><img src=x onerror=alert(2)>",
        "t-birch": "**b** [x](http://evil.example) ![i](http://evil.example/i.png) www.evil.example",
        "t-cedar": "t-" + "verylong" * 40,
        "r1003": "r1003 http://evil.example <b>x</b>",
    }
    lines = []
    for line in (CASES / "k01-oversize-stub-handoff.jsonl").read_text().splitlines():
        event = json.loads(line)
        lines.append(json.dumps({key: names.get(str(value), value) for key, value in event.items()}))
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    served = serve(judged(tmp_path / "store", tmp_path / "trace.jsonl").path)
    try:
        seen = visit(served)
        opened: list[str] = []
        seen.page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
        for path in paths(served):
            seen.go(path)
            assert not seen.page.query_selector_all(
                f"a[href^='http://evil'], a[href*='//www.evil'], img[src*='evil'], {_BOXES}"
            ), path
        assert (opened, seen.errors, seen.elsewhere) == ([], [], [])
    finally:
        ended(served)


def test_a_click_on_the_map_tells_the_life_of_a_page(lab: Served, visit: Open) -> None:
    row = Store.open(lab.store).result("incidents").drop_nulls("request").row(0, named=True)
    pool = row["pools"][0]["pool"]
    seen = visit(lab)
    seen.go(f"page-map?pool={pool}&at={row['first_ns']}")
    drawn = seen.page.locator("[data-testid=stVegaLiteChart] canvas").first
    box = drawn.bounding_box()
    assert box is not None
    seen.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6)
    seen.page.get_by_text("Everything on record about page").or_(
        seen.page.get_by_text("steps are shown only")
    ).first.wait_for(timeout=60_000)
    assert "page=" in seen.page.url
