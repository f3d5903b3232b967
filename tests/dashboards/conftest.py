"""Stores to look at, and the app as Streamlit's own test driver runs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from kvwitness.audit.runs import audit_store
from kvwitness.audit.scenarios.recorded import SGLANG_PLACEHOLDER
from kvwitness.audit.store import Store
from kvwitness.audit.trace import TraceReader
from kvwitness.dashboards import settings

CASES = Path(__file__).parents[1] / "cases"
PAGES = ["overview", "incidents", "incident", "page_map", "requests", "limits", "tenants", "ask", "health"]

Open = Callable[..., AppTest]


def judged(path: Path, trace: Path) -> Store:
    """A store that holds one trace, audited."""
    store = Store.create(path)
    reader = TraceReader(trace)
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name=trace.name)
    audit_store(store)
    return store


@pytest.fixture(scope="session")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The recorded incident: two leaks."""
    return judged(tmp_path_factory.mktemp("leaky") / "store", SGLANG_PLACEHOLDER)


@pytest.fixture(scope="session")
def gappy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A record with a hole in it: nothing is proved, and not everything is clean."""
    return judged(tmp_path_factory.mktemp("gappy") / "store", CASES / "u01-hole-hides-the-write.jsonl")


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Nothing came in yet."""
    return Store.create(tmp_path_factory.mktemp("empty") / "store")


@pytest.fixture(scope="session")
def unjudged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Events, and no audit."""
    store = Store.create(tmp_path_factory.mktemp("unjudged") / "store")
    reader = TraceReader(SGLANG_PLACEHOLDER)
    store.import_batches(reader, sha256=lambda: reader.report.sha256, name="recorded.jsonl")
    return store


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One leak, in a few events."""
    return judged(tmp_path_factory.mktemp("small") / "store", CASES / "k01-oversize-stub-handoff.jsonl")


@pytest.fixture
def own(tmp_path: Path, small: Store) -> Store:
    """A judged store that a test may write to."""
    shutil.copytree(small.path, tmp_path / "store")
    copied = Store.open(tmp_path / "store")
    copied.publish()
    return copied


@pytest.fixture
def look_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a page on a store, with what its address says; what an earlier test kept is forgotten."""
    st.cache_resource.clear()
    st.cache_data.clear()

    def opened(store: Store | Path, page: str = "overview", /, *, pseudonyms: bool = False, **query: Any) -> AppTest:
        path = store.path if isinstance(store, Store) else store
        monkeypatch.setenv(settings.STORE, str(path))
        monkeypatch.setenv(settings.PSEUDONYMS, "1" if pseudonyms else "0")
        monkeypatch.delenv(settings.ROLES, raising=False)
        app = AppTest.from_file(str(settings.APP), default_timeout=60)
        app.run()
        app.switch_page(f"screens/{page}.py")
        for name, value in query.items():
            app.query_params[name] = str(value)
        return app.run()

    yield opened
    st.cache_resource.clear()
    st.cache_data.clear()


def said(app: AppTest) -> str:
    """Everything that stands on a page as text."""
    kinds = (app.title, app.subheader, app.markdown, app.caption, app.info, app.success, app.warning, app.error)
    return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")
