"""What all tests share: small traces are interpreted, so that no test waits for a compilation."""

from __future__ import annotations

import os

os.environ.setdefault("KVWITNESS_KERNEL", "python")
