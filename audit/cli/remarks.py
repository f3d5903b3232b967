"""What a person should know about a file that was read, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvwitness.audit.trace import ImportReport

_SHOWN = 5


def remarks(report: ImportReport) -> list[str]:
    """One sentence for everything that was left out or not understood; empty when all is well."""
    return [
        *_bad_lines(report),
        *[f"damaged: {error}" for error in report.stream_errors],
        *[f"line {line}: {text}" for line, text in report.notes[:_SHOWN]],
        *([f"and {report.notes_total - _SHOWN:,} such lines more"] if report.notes_total > _SHOWN else []),
        *(
            [f"{_count(report.other, 'line')} not about requests, part of another one, or imported before"]
            if report.other
            else []
        ),
        *_names("kind that is not in the vocabulary, kept", report.unknown_kinds),
        *_names("field that is not in the vocabulary, kept", report.unknown_fields),
        *_names("content that a trace must not hold, dropped", report.dropped_content),
    ]


def _bad_lines(report: ImportReport) -> Iterable[str]:
    for reason, count in _most_first(report.bad_by_reason):
        lines = [line for line, why in report.bad if why == reason or why.startswith(f"{reason}: ")]
        where = ", ".join(str(line) for line in lines[:_SHOWN])
        more = ", ..." if count > _SHOWN else ""
        yield f"{_count(count, 'line')} left out: {reason} (line {where}{more})"


def _names(what: str, counts: Mapping[str, int]) -> Iterable[str]:
    for name, count in _most_first(counts):
        yield f"{what}: {name} ({_count(count, 'time')})"


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _count(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
