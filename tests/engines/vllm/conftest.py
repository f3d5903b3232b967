"""The adapter attached to the vLLM of this environment, recording into a directory of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwitness.gpu_tracer.engines import vllm as adapter
from kvwitness.gpu_tracer.engines.base import detach
from tests.engines.vllm.core import tiny_model


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "rings"
    directory.mkdir()
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(directory))
    adapter.guard.errors.clear()
    adapter.register()
    yield directory
    detach(adapter.ENGINE.hooks)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"))
