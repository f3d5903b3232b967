"""Engines and tails that are killed at random moments."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.collectors.ring_kills import Field, lives, overrun, tails

KILLS = int(os.environ.get("KVWITNESS_KILLS", "12"))


def test_an_engine_that_is_quicker_than_its_tail(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    found, lost = overrun(Field(tmp_path, random.Random(seed)), 1.5)
    assert found == [], f"seed {seed}"
    assert lost > 0


@pytest.mark.kills
def test_what_a_killed_engine_had_recorded_is_in_the_store(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    assert lives(Field(tmp_path, random.Random(seed)), KILLS) == [], f"seed {seed}"


@pytest.mark.kills
def test_a_killed_tail_doubles_nothing_and_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    assert tails(Field(tmp_path, random.Random(seed)), KILLS) == [], f"seed {seed}"
