"""What all tests share: small traces are interpreted, so that no test waits for a compilation, and no time limits."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("KVWITNESS_KERNEL", "python")
settings.register_profile("kvwitness", deadline=None)  # timing never decides a test
settings.load_profile("kvwitness")
