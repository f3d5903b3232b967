"""The Grafana dashboard can be imported anywhere, and asks for metrics of ours alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import kvwitness.dashboards

FILE = Path(kvwitness.dashboards.__file__).parent / "grafana" / "kvwitness.json"


def test_every_panel_says_what_it_shows_and_asks_for_our_metrics() -> None:
    document = json.loads(FILE.read_text())
    assert {"datasource"} == {variable["name"] for variable in document["templating"]["list"]}
    for panel in document["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            names = re.findall(r"[a-z]\w+(?=\[|\))", target["expr"].replace("sum by (", "").replace("min by (", ""))
            asked = [name for name in names if "_" in name]
            assert asked, target
            assert all(name.startswith("kvwitness_collect_") for name in asked), target
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in document["panels"]]
    assert len(set(places)) == len(places)
