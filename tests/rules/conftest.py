"""Rules are tested on small traces, for which the replay need not be compiled.

With `KVWITNESS_KERNEL=compiled` in the environment the same tests run on the compiled replay.
"""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def form_of_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreted replay, unless the environment says otherwise."""
    monkeypatch.setenv("KVWITNESS_KERNEL", os.environ.get("KVWITNESS_KERNEL", "python"))
