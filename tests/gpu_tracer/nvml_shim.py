"""A stand-in for the library of NVIDIA's driver, compiled from `shims/nvml.c`, and what it says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kvwitness.gpu_tracer.nvml import LIBRARY

SHIM = Path(__file__).parent / "shims" / "nvml.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here (cc, gcc)")
FIRST, SECOND = "GPU-11111111-aaaa-4bbb-8ccc-000000000001", "GPU-22222222-aaaa-4bbb-8ccc-000000000002"
PARTS = ["MIG-33333333-aaaa-5bbb-8ccc-000000000003", "MIG-44444444-aaaa-5bbb-8ccc-000000000004"]
GIB = 1 << 30
State = Callable[..., None]
"""Says what the shim is to do from now on."""


def compiled(into: Path, *options: str) -> Path:
    library = into / LIBRARY
    assert COMPILER is not None
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")
    subprocess.run([COMPILER, *flags, *options, "-o", str(library), str(SHIM)], check=True)
    return library
