"""The ratios of benchmarks are right where the answer is known, and say how sure they are."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._paired import ratio


def test_a_known_ratio_lies_in_a_narrow_interval_whatever_disturbs_single_rounds() -> None:
    noise = np.random.default_rng(7)
    steps = noise.uniform(50, 150, 200)
    off = steps * noise.normal(1, 0.02, (40, 200))
    on = steps * 1.1 * noise.normal(1, 0.02, (40, 200))
    on[3] *= 5  # another program had the machine
    off[11:14] *= 3
    found = ratio(off, on)
    assert found.low < 1.1 < found.high
    assert found.high - found.low < 0.01


def test_what_costs_nothing_is_not_told_from_one() -> None:
    noise = np.random.default_rng(8)
    off, on = noise.normal(100, 5, (2, 30, 100))
    found = ratio(off, on)
    assert found.low < 1 < found.high


@pytest.mark.parametrize(("rounds", "steps"), [(5, 10), (40, 9)])
def test_tables_that_cannot_be_compared_are_refused(rounds: int, steps: int) -> None:
    with pytest.raises(ValueError, match="not the same steps"):
        ratio(np.ones((rounds, 10)), np.ones((rounds, steps)))
