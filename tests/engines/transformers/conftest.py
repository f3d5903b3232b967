"""The adapter attached to the transformers of this environment, recording into a directory of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import transformers as adapter
from kvwitness.gpu_tracer.engines.base import detach
from tests.engines.transformers.engine import tiny_model


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "rings"
    directory.mkdir()
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(directory))
    monkeypatch.setenv("KVWITNESS_ENGINE", "tf")
    adapter.guard.errors.clear()
    adapter.register(lambda request: f"t-{request.partition('-')[0]}")
    yield directory
    detach(adapter.ENGINE.hooks)


@pytest.fixture(scope="session")
def model() -> Any:
    return tiny_model()
