"""One audited store per case, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from tests.queries.support import CASES

Stores = Callable[[str], Store]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Case -> its store, audited. Not to be changed."""
    made: dict[str, Store] = {}

    def store(case: str) -> Store:
        if case not in made:
            path = tmp_path_factory.mktemp("case") / "store"
            assert run(["import", str(CASES / f"{case}.jsonl"), "--store", str(path), "--quiet"]) == 0
            made[case] = Store.open(path)
            audit_store(made[case])
        return made[case]

    return store


@pytest.fixture
def fresh(tmp_path: Path) -> Store:
    """A store with one case that nobody audited."""
    path = tmp_path / "store"
    case = CASES / "k01-oversize-stub-handoff.jsonl"
    assert run(["import", str(case), "--store", str(path), "--quiet"]) == 0
    return Store.open(path)
