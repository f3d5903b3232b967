"""Rules are tested on small traces, for which the replay need not be compiled.

With `KVWITNESS_KERNEL=compiled` in the environment the same tests run on the compiled replay.
"""

from __future__ import annotations

import importlib
import os

_given = os.environ.get("KVWITNESS_KERNEL")
os.environ.setdefault("KVWITNESS_KERNEL", "python")
importlib.import_module("kvwitness.audit.provenance.replay")
if _given is None:
    # The choice is made at the first import; programs that other tests start make their own.
    del os.environ["KVWITNESS_KERNEL"]
