"""Example traces of anomaly rules: a week of the usual, then one hour of something else."""

from __future__ import annotations

from collections.abc import Callable

WEEK_S = 8 * 86_400
USUAL = 600
"""Cases in the week before."""
LATE = 60
"""Cases in the hour that is judged."""

Lines = Callable[[int, float], list[tuple[str, str]]]
"""(number of the case, time) -> (source, JSON of the event without time, number and source)."""


def week_then_hour(usual: Lines, later: Lines, opening: list[tuple[str, str]] | None = None) -> str:
    """A trace in the JSON Lines form; a last event shows that the hour is over."""
    seqs: dict[str, int] = {}
    lines: list[str] = []

    def add(t: float, events: list[tuple[str, str]]) -> None:
        for source, body in events:
            seqs[source] = seqs.get(source, 0) + 1
            lines.append(f'{{"t":{t:.0f},"seq":{seqs[source]},"source":"{source}",{body}}}')

    add(1, opening or [])
    for n in range(USUAL):
        t = 2 + n * (WEEK_S - 10) / USUAL
        add(t, usual(n, t))
    for n in range(LATE):
        t = WEEK_S + 30 * n
        add(t, later(USUAL + n, t))
    add(WEEK_S + 86_400, usual(USUAL + LATE, WEEK_S + 86_400))
    return "\n".join(lines) + "\n"


def steady(lines: Lines, opening: list[tuple[str, str]] | None = None) -> str:
    """A trace in which that hour is like all before."""
    return week_then_hour(lines, lines, opening)


def request(n: int, *, answer: str = '"status":200', received: str = '"prompt_tokens":40') -> list[tuple[str, str]]:
    """A request as the gateway records it."""
    return [
        ("gateway", f'"event":"request.received","request":"r{n}","tenant":"t-a",{received}'),
        ("gateway", f'"event":"request.finished","request":"r{n}",{answer}'),
    ]
