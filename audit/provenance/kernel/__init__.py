"""The replay kernel: one pass over encoded events that keeps the shadow state of every page.

`layout` names the columns of the state's tables, which all functions reach through the world, `w`; the other modules
hold the handling of one family of events each. Python can run them as they are, and they are written in the small
language that `kvwitness.audit.provenance.compiler` turns into machine code.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def fingerprint() -> str:
    """Of the kernel's source: state that another version of it has kept is not gone on with."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
