"""The Grafana dashboard can be imported anywhere, and asks for metrics of ours alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import kvwitness.dashboards
from kvwitness.audit.alerts.metrics import exposition
from kvwitness.audit.alerts.status import status
from kvwitness.audit.store import Store

FILE = Path(kvwitness.dashboards.__file__).parent / "grafana" / "kvwitness.json"


def test_every_panel_says_what_it_shows_and_asks_for_our_metrics(tmp_path: Path) -> None:
    document = json.loads(FILE.read_text())
    told = exposition(status(Store.create(tmp_path / "s")))
    alerts = {line.split()[2] for line in told.splitlines() if line.startswith("# TYPE")}
    everything = json.dumps(document)
    assert all(name in everything for name in alerts if not name.startswith("kvwitness_sink_delivered"))
    assert {"datasource"} == {variable["name"] for variable in document["templating"]["list"]}
    for panel in document["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            asked = re.findall(r"kvwitness_\w+", target["expr"])
            assert asked, target
            assert all(name.startswith("kvwitness_collect_") or name in alerts for name in asked), target
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in document["panels"]]
    assert len(set(places)) == len(places)
