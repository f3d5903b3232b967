from __future__ import annotations

from pathlib import Path

import pytest

from kvwitness.audit.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")
