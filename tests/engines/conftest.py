"""Tests on real engines: each runs where its engine is installed, and says so where it is not."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="WARNING")

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands below an engine's folder, and skip it without the engine."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        engine = item.path.relative_to(HERE).parts[0]
        item.add_marker(pytest.mark.engines)
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # the engine's own
        if importlib.util.find_spec(engine) is None:
            reason = f"{engine} is not installed here; tests/engines/run {engine} makes an environment that has it"
            item.add_marker(pytest.mark.skip(reason=reason))
