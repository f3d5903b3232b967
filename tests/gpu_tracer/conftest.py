"""Tests of the lab and of fingerprints need torch: they run where it is, and say so where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REASON = "torch is not installed here; tests/gpu_tracer/lab/run makes an environment that has it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in the folders that need torch, and skip it without."""
    for item in items:
        if {HERE / "lab", HERE / "content"}.isdisjoint(item.path.parents):
            continue
        item.add_marker(pytest.mark.lab)
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # torch's own
        if importlib.util.find_spec("torch") is None:
            item.add_marker(pytest.mark.skip(reason=REASON))
