"""Tests of the lab and of fingerprints need torch: they run where it is, and say so where it is not.

The Triton kernel runs in Triton's interpreter here, GPU or not. Triton decides on that when it is imported.

Fixtures: the stand-in for NVIDIA's library.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.gpu_tracer.nvml_shim import State, compiled

os.environ["TRITON_INTERPRET"] = "1"
HERE = Path(__file__).parent
TRITON = "Triton is not installed here; tests/gpu_tracer/lab/run makes an environment that has it"
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


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An older driver's."""
    return compiled(tmp_path_factory.mktemp("nvml-old"), "-DOLD")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """Says what the shim is to do from now on."""
    file = tmp_path / "state"

    def write(**values: int) -> None:
        new = file.with_suffix(".new")
        new.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        new.replace(file)

    write()
    monkeypatch.setenv("NVML_SHIM", str(file))
    return write
