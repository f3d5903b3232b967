"""Many processes in one store: killed at random, and left in peace."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.store.kill_test import ROLES, run, run_quietly


@pytest.mark.kills
def test_kills_lose_nothing_double_nothing_and_never_make_an_answer_wrong(tmp_path: Path) -> None:
    kills = int(os.environ.get("KVWITNESS_KILLS", "12"))
    seed = random.randrange(2**32)
    outcome = run(tmp_path, kills, seed)
    print(f"seed {seed}: {outcome}")  # pytest -s shows it
    assert outcome.wrong == [], f"seed {seed}"
    assert outcome.kills.total() == kills
    if kills >= 12:
        assert outcome.events_acknowledged > 0
        assert outcome.files_acknowledged > 0
    if kills >= 50:
        assert {"polars right", "sql right", "held_open right", "results right"} <= set(outcome.answers)
        assert set(outcome.kills) == set(ROLES)


def test_two_writers_an_importer_a_compactor_and_three_readers(tmp_path: Path) -> None:
    """Side by side, with a grace period: every answer is right, and none fails, not even from old
    connections."""
    roles = ("writer", "writer-2", "importer", "compactor", "reader-1", "reader-2", "reader-3")
    outcome = run_quietly(tmp_path, roles, 3.0)
    print(outcome)
    assert outcome.wrong == []
    assert set(outcome.answers) == {"polars right", "sql right", "held_open right", "results right"}
    assert outcome.events_acknowledged > 0
    assert outcome.files_acknowledged > 0
