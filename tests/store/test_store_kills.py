"""The kill test: a few kills by default, as many as KVWITNESS_KILLS says."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.store.kill_test import ROLES, run


@pytest.mark.kills
def test_kills_lose_nothing_double_nothing_and_never_make_an_answer_wrong(tmp_path: Path) -> None:
    kills = int(os.environ.get("KVWITNESS_KILLS", "12"))
    seed = random.randrange(2**32)
    outcome = run(tmp_path, kills, seed)
    print(f"seed {seed}: {outcome}")
    assert outcome.wrong == [], f"seed {seed}"
    assert outcome.kills.total() == kills
    if kills >= 12:
        assert outcome.events_acknowledged > 0
        assert outcome.files_acknowledged > 0
        assert {"polars right", "sql right", "held_open right", "results right"} <= set(outcome.answers)
    if kills >= 50:
        assert set(outcome.kills) == set(ROLES)
