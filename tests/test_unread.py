"""Lines that cannot be read, and files that are cut: what was lost accuses nobody."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvwitness.audit.api import as_document, judge_trace
from kvwitness.audit.runs import audit_store
from kvwitness.audit.store import Store
from kvwitness.audit.unread import Unread, losses_of
from kvwitness.collectors.importing import import_file

CASES = Path(__file__).parent / "cases"
HEALTHY = sorted(path.stem for path in CASES.glob("[fht][0-9]*.jsonl"))
SHARING, TRANSFER = "f01-common-system-prompt", "f24-late-read-of-intact-page"
ACCUSING = {"leak", "integrity", "exposure"}
Lines = list[bytes]
SECOND = 1_000_000_000


def lines_of(case: str) -> Lines:
    return (CASES / f"{case}.jsonl").read_bytes().splitlines()


def accused(lines: Lines) -> list[tuple[Any, ...]]:
    """Who is accused of what; a trace without any event accuses nobody."""
    document = judge_trace(io.BytesIO(b"\n".join(lines)))
    found = [*document["findings"], *document["engine_findings"]]
    return [(f["request"], f["rule"], f["verdict"], f["why"]) for f in found if f["verdict"] in ACCUSING]


def newly_accused(lines: Lines, whole: Lines) -> list[tuple[Any, ...]]:
    """Who is accused of what that the whole file does not show."""
    return [found for found in accused(lines) if found[:3] not in known(tuple(whole))]


@cache
def known(whole: tuple[bytes, ...]) -> set[tuple[Any, ...]]:
    return {found[:3] for found in accused([*whole])}


def bad_field(line: bytes) -> bytes:
    event = json.loads(line)
    return json.dumps(event | {"pages" if "pages" in event else "t": "oops"}).encode()


def unnamed(line: bytes) -> bytes:
    return b"{" + line[:1]


SPOILT: dict[str, Callable[[bytes], bytes]] = {"field": bad_field, "nothing left": unnamed}


def one_spoilt(lines: Lines, spoil: Callable[[bytes], bytes]) -> Iterator[Lines]:
    for n, line in enumerate(lines):
        yield [*lines[:n], spoil(line), *lines[n + 1 :]]


def cut(lines: Lines, step: int) -> Iterator[Lines]:
    """Without its end, without its beginning, each also within a line, and without a stretch or some lines."""
    chance = random.Random(7)
    for n in range(1, len(lines), step):
        whole = len(lines[n]) // 2
        yield lines[:n]
        yield [*lines[:n], lines[n][:whole]]
        yield lines[n:]
        yield [lines[n][whole:], *lines[n + 1 :]]
        yield [*lines[:n], *lines[n + chance.randrange(1, 9) :]]
        yield [line for line in lines if chance.random() > 0.1]


def without_numbers(lines: Lines) -> Lines:
    return [json.dumps({k: v for k, v in json.loads(line).items() if k != "seq"}).encode() for line in lines]


@pytest.mark.parametrize("how", SPOILT)
def test_one_spoilt_line_in_any_place_accuses_nobody(how: str) -> None:
    whole = lines_of(SHARING)
    for lines in one_spoilt(whole, SPOILT[how]):
        assert newly_accused(lines, whole) == []


def test_a_cut_file_accuses_nobody() -> None:
    whole = lines_of(TRANSFER)
    for lines in cut(whole, step=6):
        assert newly_accused(lines, whole) == []


def test_nor_does_a_spoilt_line_where_sources_do_not_count() -> None:
    whole = without_numbers(lines_of(SHARING))
    for lines in one_spoilt(whole, unnamed):
        assert newly_accused(lines, whole) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", HEALTHY)
def test_of_any_healthy_case(case: str) -> None:
    lines = lines_of(case)
    for spoil in SPOILT.values():
        for spoilt in one_spoilt(lines, spoil):
            assert newly_accused(spoilt, lines) == []
    for rest in cut(lines, step=5):
        assert newly_accused(rest, lines) == []


def test_what_a_spoilt_line_cannot_explain_stays_proved() -> None:
    lines = lines_of("k02-decode-abort-late-write")
    before = [found for found in accused(lines) if found[2] == "leak"]
    assert before
    assert [found for found in accused([lines[0], b"# by hand", *lines[1:]]) if found[2] == "leak"] == before
    assert [found for found in accused([*lines, b'{"t":1}']) if found[2] == "leak"] == before


def test_a_reader_of_a_spoilt_write_is_unproven_and_told_which_line_is_missing() -> None:
    lines = lines_of(SHARING)
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "page.write")
    document = judge_trace(io.BytesIO(b"\n".join([*lines[:at], bad_field(lines[at]), *lines[at + 1 :]])))
    found = [f for f in document["findings"] if f["rule"] == "unwritten-page-read"]
    number = json.loads(lines[at])["seq"]
    assert {(f["verdict"], f["missing"]) for f in found} == {("unproven", f"events {number} to {number} of eng-1/0")}


@pytest.mark.parametrize("numbered", [True, False])
def test_a_store_judges_a_spoilt_file_as_the_file_is_judged(tmp_path: Path, numbered: bool) -> None:
    lines = lines_of(SHARING) if numbered else without_numbers(lines_of(SHARING))
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "page.write")
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"\n".join([*lines[:at], bad_field(lines[at]), *lines[at + 1 :], b"{", b"{"]))
    store = Store.create(tmp_path / "store")
    import_file(store, trace)
    assert as_document(audit_store(store).judgement) == judge_trace(trace)


# -- where it was --------------------------------------------------------------------------------------------------


def places(lines: list[Unread], *events: tuple[str, int | None]) -> list[tuple[Any, ...]]:
    """The losses of unread lines among events of (source, seq), one a second."""
    rows = [(row, source, seq, row * SECOND) for row, (source, seq) in enumerate(events)]
    frame = pl.DataFrame(rows, schema=["row", "source", "seq", "time_ns"], orient="row")
    found = losses_of(lines, frame)
    return [] if found is None else found.rows()


def test_a_line_with_a_number_is_where_its_number_is() -> None:
    assert places([("a", 2, 1)], ("a", 1), ("a", 3)) == [("a", 2, None, None)]


def test_a_line_that_a_hole_shows_needs_no_place() -> None:
    assert places([("a", None, 1), (None, None, 1)], ("a", 1), ("a", 3)) == []


def test_a_line_of_nobody_is_of_those_whose_numbers_end_there() -> None:
    assert places([(None, None, 2)], ("a", 1), ("b", 1), ("b", 2)) == [("a", 2, None, None)]


def test_a_line_of_nobody_is_of_those_who_do_not_count() -> None:
    assert places([(None, None, 2)], ("a", 1), ("b", None), ("a", 2), ("b", None)) == [
        ("b", None, SECOND, 3 * SECOND),
    ]


def test_a_line_that_fits_nobody_may_be_of_a_source_of_which_nothing_is_left() -> None:
    told = [("a", None, 0, SECOND)]
    assert places([(None, None, 1)], ("a", 1), ("a", 2)) == told
    assert places([("z", 1, 1)], ("a", 1), ("a", 2)) == told


def test_no_unread_line_no_loss() -> None:
    assert places([], ("a", 1)) == []
