"""SGLang without a GPU: stand-ins for libraries that need one are found first."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_SHIMS = Path(__file__).parent / "shims"

os.environ.update(SGLANG_USE_CPU_ENGINE="1", TRITON_INTERPRET="1")
if "sglang" not in sys.modules:
    sys.path.insert(0, str(_SHIMS))
    runpy.run_path(str(_SHIMS / "sitecustomize.py"))
