"""One run of the lab, and the same run with another secret: what an answer depends on is shown, not concluded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvwitness.gpu_tracer.lab.cluster import Answer, Cluster
from kvwitness.gpu_tracer.lab.faults import Fault, Guard
from kvwitness.gpu_tracer.lab.traffic import ASH, OTHER_SECRET, SECRET, Script, play, script


@dataclass(frozen=True)
class Outcome:
    """What the clients got."""

    script: Script
    answers: list[Answer]
    otherwise: list[Answer]
    """What they got when all was alike but the secret in the prompts of `ASH`."""

    @property
    def depending(self) -> list[tuple[Answer, Answer]]:
        """Answers to other tenants that another secret of `ASH` changes: each, and what it is then."""
        pairs = zip(self.answers, self.otherwise, strict=True)
        return [(one, other) for one, other in pairs if one.job.tenant != ASH and one != _as(other, one)]

    def tells(self, answer: Answer) -> bool:
        """Whether an answer to another tenant than `ASH` holds its secret."""
        return answer.job.tenant != ASH and SECRET in answer.text


def run(rings: Path, fault: Fault, *, guard: Guard = Guard.NONE, seed: int = 0) -> Outcome:
    """Run the lab and record it into `rings`; then once more with another secret, unrecorded."""
    words = script(SECRET, seed)
    return Outcome(
        words, _answers(rings, fault, guard, words), _answers(None, fault, guard, script(OTHER_SECRET, seed))
    )


def _answers(rings: Path | None, fault: Fault, guard: Guard, words: Script) -> list[Answer]:
    cluster = Cluster(rings, fault, guard)
    try:
        play(cluster, words)
    finally:
        cluster.close()
    return cluster.answers


def _as(other: Answer, one: Answer) -> Answer:
    """The other answer, as if it had been given to the same job."""
    return Answer(one.job, other.status, other.text)
