"""Records that are dropped, and the numbers by which the others are found from then on."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvwitness.audit.provenance.kernel import layout as k
from kvwitness.audit.provenance.reclaim import gather, publications, reads, renumber, shares, transfers


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[bool, int]]:
    """Records with the link of each to an older one (-1: none), and whether it is kept."""
    return [(draw(st.booleans()), draw(st.integers(-1, n - 1))) for n in range(draw(st.integers(0, 12)))]


@given(chains())
def test_renumber(records: list[tuple[bool, int]]) -> None:
    kept = [number for number, (keep, _) in enumerate(records) if keep]
    expected = []
    for number in range(len(records)):
        at = number
        while at >= 0 and not records[at][0]:
            at = records[at][1]
        expected.append(kept.index(at) if at >= 0 else -1)
    got = renumber(np.array([r[0] for r in records], bool), np.array([r[1] for r in records], np.int64))
    assert got.tolist() == [*expected, -1]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=12))
def test_gather(lists: list[tuple[int, int]]) -> None:
    rows, offsets = gather(np.array([s for s, _ in lists], np.int64), np.array([n for _, n in lists], np.int64))
    assert rows.tolist() == [row for start, n in lists for row in range(start, start + n)]
    assert offsets.tolist() == [sum(n for _, n in lists[:at]) for at in range(len(lists))]


def table(dtype: np.dtype[np.void], *rows: dict[str, int]) -> np.ndarray:
    made = np.zeros(len(rows), dtype)
    for number, row in enumerate(rows):
        for name, value in row.items():
            made[name][number] = value
    return made


ENDED = np.array([False, True, False, True])
"""Of actors 0 to 3."""


def test_transfers_of_ended_requests_go_with_their_pages() -> None:
    records = table(
        k.TRANSFER,
        {"actor": 1, "s_off": 0, "s_n": 2, "d_off": 2, "d_n": 1, "older": -1},
        {"actor": 2, "s_off": 3, "s_n": 1, "d_off": 4, "d_n": 2, "older": 0},
        {"actor": 3, "s_off": 6, "s_n": 0, "d_off": 6, "d_n": 1, "older": 1},
        {"actor": 0, "s_off": 7, "s_n": 1, "d_off": 8, "d_n": 0, "older": 2},
    )
    pages = table(k.TRANSFER_PAGE, *({"page": n} for n in range(8)))
    kept, entries, numbers = transfers(records, pages, ENDED)
    assert entries["page"].tolist() == [3, 4, 5, 7]
    assert kept[["actor", "s_off", "d_off", "older"]].tolist() == [(2, 0, 1, -1), (0, 3, 4, 0)]
    assert numbers.tolist() == [-1, 0, 0, 1, -1]


def test_a_share_stays_while_a_page_is_held_through_it() -> None:
    records = table(
        k.SHARE,
        {"actor": 1, "off": 0, "n": 2, "next": -1},
        {"actor": 1, "off": 2, "n": 2, "next": 0},
        {"actor": 2, "off": 4, "n": 1, "next": 1},
        {"actor": 3, "off": 5, "n": 0, "next": 0},
    )
    pages = table(k.SHARE_PAGE, *({"page": n, "gen": gen} for n, gen in enumerate([-1, -1, -1, 4, -1])))
    kept, entries, numbers = shares(records, pages, ENDED)
    assert entries["page"].tolist() == [2, 3, 4]
    assert kept[["actor", "off", "next"]].tolist() == [(1, 0, -1), (2, 2, 0)]
    assert numbers.tolist() == [-1, 0, 1, -1, -1]


def test_reads_that_are_over_go() -> None:
    records = table(
        k.READ,
        {"actor": 2, "off": 0, "n": 1, "open": 1, "older": -1},
        {"actor": 2, "off": 1, "n": 2, "open": 0, "older": 0},
        {"actor": 1, "off": 3, "n": 1, "open": 1, "older": -1},
        {"actor": 0, "off": 4, "n": 1, "open": 1, "older": 1},
    )
    pages = table(k.READ_PAGE, *({"page": n} for n in range(5)))
    kept, entries, numbers = reads(records, pages, ENDED)
    assert entries["page"].tolist() == [0, 4]
    assert kept[["actor", "off", "older"]].tolist() == [(2, 0, -1), (0, 1, 0)]
    assert numbers.tolist() == [0, 0, -1, 1, -1]


def test_a_publication_stays_while_it_describes_a_live_generation() -> None:
    state = table(k.PAGE, *({"gen": gen} for gen in (5, 5, 7, 1, 1)))
    records = table(
        k.PUBLICATION,
        {"off": 0, "n": 2, "older": -1},
        {"off": 2, "n": 1, "older": 0},
        {"off": 3, "n": 0, "older": 1},
        {"off": 3, "n": 2, "older": 1},
    )
    entries = ((0, 0, 4), (0, 2, 7), (1, 0, 9), (1, 1, 2), (1, 0, 1))
    pages = table(k.PUBLICATION_PAGE, *({"pool": pool, "page": page, "gen": gen} for pool, page, gen in entries))
    kept, left, numbers = publications(records, pages, state, np.array([0, 3]))
    assert left[["pool", "page", "gen"]].tolist() == [(0, 0, 4), (0, 2, 7), (1, 1, 2), (1, 0, 1)]
    assert kept[["off", "n", "older"]].tolist() == [(0, 2, -1), (2, 2, 0)]
    assert numbers.tolist() == [0, 0, 0, 1, -1]


def test_a_publication_stays_while_another_pool_holds_what_it_stands_for() -> None:
    state = table(k.PAGE, *({"gen": 9, "writer": writer} for writer in (0, 4, 0, 3, 0, 2)))
    records = table(
        k.PUBLICATION,
        {"off": 0, "n": 1, "actor": 3, "older": -1},
        {"off": 1, "n": 1, "actor": 4, "older": -1},
        {"off": 2, "n": 2, "actor": 5, "older": -1},
        {"off": 4, "n": 1, "actor": 0, "older": -1},
        {"off": 5, "n": 1, "pool": 1, "actor": 2, "older": -1},
    )
    entries = ((0, -1), (0, 4), (0, 2), (0, 5), (0, -1), (1, 2))
    pages = table(k.PUBLICATION_PAGE, *({"pool": pool, "writer": writer} for pool, writer in entries))
    kept, left, _ = publications(records, pages, state, np.array([0, 3]))
    assert kept["actor"].tolist() == [3, 5]
    assert left["writer"].tolist() == [-1, 2, 5]
