"""Which form of the kernel to run: compiling costs seconds in every process, interpreting a lot per page."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from kvwitness.audit.errors import KvwitnessError

INTERPRET_BELOW = 150_000
"""Page events up to which an interpreted replay is quicker than compiling."""

at_hand = threading.Event()
"""Set once this process has the compiled kernel."""


def compiled_for(page_events: int) -> bool:
    """Whether a replay of so many page events should run compiled: if it is large, or compiling is done already.

    The environment variable KVWITNESS_KERNEL (`compiled`, `python`) decides if it is set.
    """
    wanted = os.environ.get("KVWITNESS_KERNEL", "")
    if wanted not in ("", "auto", "compiled", "python"):
        raise KvwitnessError(f"KVWITNESS_KERNEL is {wanted!r}.", "It may be `auto`, `compiled` or `python`.")
    if wanted in ("compiled", "python"):
        return wanted == "compiled"
    return page_events > INTERPRET_BELOW or at_hand.is_set()


def prepare_for(page_events: int) -> None:
    """Begin to compile, if a replay of so many page events will want it, while the caller does something else."""
    if compiled_for(page_events):
        threading.Thread(target=_compile, name="compile-kernel").start()


def _compile() -> None:
    from kvwitness.audit.provenance import native  # the compiler takes a while to load

    with suppress(Exception):  # whoever needs it fails by himself, where it can be told
        native.compiled()
