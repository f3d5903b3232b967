"""What two ways of doing the same thing cost beside each other, with how sure that is.

A busy machine disturbs one measurement by more than is to be seen here. So the same steps are done again and again in
both ways, in turns, and each step is timed by itself: of each the median of all rounds counts, which what disturbs one
round does not move. The interval comes from drawing the rounds anew, many times, from those that were measured (a
bootstrap); it supposes nothing about the noise but that one round's is as good as another's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """How much longer one way takes, and between what that lies with a confidence of 95 %."""

    ratio: float
    low: float
    high: float
    rounds: int
    least: float
    """The same of the least times of each step, which other work on the machine disturbs least."""

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} (95 % interval {self.low:.3f} to {self.high:.3f}, {self.least:.3f} of the least times)"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def ratio(without: npt.ArrayLike, with_it: npt.ArrayLike) -> Ratio:
    """The ratio of two tables of times, one row for each round and one column for each step.

    Rows of the same number were measured together. Raises ValueError where the tables differ in shape, or have fewer
    than six rounds.
    """
    off, on = np.asarray(without, np.float64), np.asarray(with_it, np.float64)
    if off.ndim != 2 or off.shape != on.shape or len(off) < 6:
        raise ValueError(f"tables of {off.shape} and {on.shape} are not the same steps in six rounds or more")
    generator = np.random.default_rng(1)

    def of(rounds: npt.NDArray[np.int64]) -> float:
        return float(np.median(on[rounds], 0).sum() / np.median(off[rounds], 0).sum())

    drawn = [of(generator.integers(0, len(off), len(off))) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Ratio(of(np.arange(len(off))), low, high, len(off), float(on.min(0).sum() / off.min(0).sum()))
