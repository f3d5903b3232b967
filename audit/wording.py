"""Numbers, lists, pages and times as they are said in a sentence, one by one or for a whole column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import polars as pl

from kvwitness.audit.trace import compress_pages

_NS, _MS = 1_000_000_000, 1_000_000


def several(n: int, thing: str, things: str | None = None) -> str:
    """`1 page`, `1,024 pages`."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {things or thing + 's'}"


def number_of(count: str | pl.Expr) -> pl.Expr:
    """A column of counts as they are said: `1,024`."""
    digits = _counts(count).cast(pl.Int64).cast(pl.String).str.reverse()
    return digits.str.replace_all(r"(\d{3})", "${1},").str.strip_suffix(",").str.reverse()


def several_of(count: str | pl.Expr, thing: str, things: str | None = None) -> pl.Expr:
    """`several` for a column of counts; null where a count is null."""
    many = pl.format(f"{{}} {things or thing + 's'}", number_of(count))
    return pl.when(_counts(count) == 1).then(pl.lit(f"1 {thing}")).otherwise(many)


def for_one(count: str | pl.Expr, one: str, more: str) -> pl.Expr:
    """The word that goes with a count: `it` or `them`, `was` or `were`."""
    return pl.when(_counts(count) == 1).then(pl.lit(one)).otherwise(pl.lit(more))


def _counts(count: str | pl.Expr) -> pl.Expr:
    return pl.col(count) if isinstance(count, str) else count


def listing(items: Iterable[str], most: int = 6) -> str:
    """`a`, `a and b`, `a, b and c`; beyond `most`, `a, b and 7 more`."""
    names = list(items)
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1:,} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def first_few(names: Sequence[str], most: int = 4) -> str:
    """`a`, `a and b`, ... as long as there are at most `most`; else the first two: `a, b +5 more`."""
    return listing(names, most) if len(names) <= most else f"{', '.join(names[:2])} +{len(names) - 2:,} more"


def page_text(pages: Sequence[int], most: int = 6) -> str:
    """Page ids in ascending order, runs as ranges: `3, 17-37`; the rest beyond `most` is only hinted at."""
    return runs_text(compress_pages(sorted(set(pages))), most)


def runs_text(runs: Sequence[int | list[int]], most: int = 6) -> str:
    """Page ids and inclusive ranges as given: `3, 17-37`; the rest beyond `most` is only hinted at."""
    told = [str(run) if isinstance(run, int) else f"{run[0]}-{run[1]}" for run in runs[: most + 1]]
    return ", ".join(told) if len(told) <= most else f"{', '.join(told[:most])}, ..."


def counted_pages(pages: Sequence[int], most: int = 6) -> str:
    """`1 page (7)`, `22 pages (3, 17-37)`."""
    return f"{several(len(set(pages)), 'page')} ({page_text(pages, most)})"


def positions_text(first: int, end: int) -> str:
    """The half-open range of token positions as it is said: `position 600`, `positions 0-608`."""
    return f"position {first:,}" if end - first == 1 else f"positions {first:,}-{end - 1:,}"


def span_text(span: Sequence[int] | None) -> str:
    """A half-open range of token positions in short, inclusive: `600`, `0-608`; none is the empty text."""
    if not span:
        return ""
    return str(span[0]) if span[1] - span[0] == 1 else f"{span[0]}-{span[1] - 1}"


def day(time_ns: int) -> str:
    """The UTC date: `2026-09-01`."""
    return f"{_utc(time_ns):%Y-%m-%d}"


def moment(time_ns: int, *, day_of: int | None = None) -> str:
    """UTC to the millisecond, rounded down: `2026-09-01 14:31:12.345Z`.

    The date is left out when it is that of `day_of` (nanoseconds since the epoch, too).
    """
    when = _utc(time_ns)
    same = day_of is not None and _utc(day_of).date() == when.date()
    clock = f"{when:%H:%M:%S}.{time_ns % _NS // _MS:03d}Z"
    return clock if same else f"{when:%Y-%m-%d} {clock}"


def clock_for(times_ns: Iterable[int]) -> tuple[str, Callable[[int], str]]:
    """What the times of a table have in common, to stand in its title, and how to write the rest of each.

    (` on 2026-09-01`, time of day), (` in 2026`, month, day and time of day) or (nothing, all of it).
    """
    days = sorted({day(time_ns) for time_ns in times_ns})
    if len(days) == 1:
        return f" on {days[0]}", lambda time_ns: moment(time_ns).partition(" ")[2]
    years = {one[:4] for one in days}
    if len(years) == 1:
        return f" in {years.pop()}", lambda time_ns: moment(time_ns)[5:]
    return "", moment


def second(time_ns: int) -> str:
    """UTC to the second, rounded down: `2026-09-01 14:31:12Z`."""
    return f"{_utc(time_ns):%Y-%m-%d %H:%M:%S}Z"


def duration(ns: int) -> str:
    """A length of time in its two largest units: `13 d 0 h`, `1 min 21 s`, `0.347 s`."""
    seconds = ns / _NS
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, unit, rest, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // rest} {smaller}"
    raise AssertionError("unreachable")


def _utc(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns // _NS, UTC)
