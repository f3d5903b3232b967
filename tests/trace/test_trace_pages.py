from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwitness.audit.trace import compress_pages, expand_pages
from kvwitness.audit.trace.pages import MAX_LIST, MAX_PAGE

IDS = st.integers(0, MAX_PAGE)


def test_order_is_kept_and_ranges_include_their_end() -> None:
    assert expand_pages([[14, 16], 50, 3, [7, 7]]).tolist() == [14, 15, 16, 50, 3, 7]
    assert compress_pages([14, 15, 16, 50, 3, 7]) == [[14, 16], 50, 3, 7]


def test_ids_that_repeat_stay_repeated() -> None:
    assert expand_pages([5, 5, [5, 6]]).tolist() == [5, 5, 5, 6]
    assert compress_pages([5, 5, 5, 6]) == [5, 5, [5, 6]]


@given(st.lists(IDS | st.integers(0, 30), max_size=60))
def test_expanding_undoes_compressing(pages: list[int]) -> None:
    assert expand_pages(compress_pages(pages)).tolist() == pages


RANGES = st.tuples(IDS, st.integers(0, 40)).map(lambda r: [r[0], min(MAX_PAGE, r[0] + r[1])])


@given(st.lists(IDS | RANGES, max_size=40))
def test_expansion_is_what_the_ranges_say(items: list[Any]) -> None:
    plain = [x for i in items for x in (range(i[0], i[1] + 1) if isinstance(i, list) else [i])]
    assert expand_pages(items).tolist() == plain
    assert expand_pages(compress_pages(plain)).tolist() == plain


@pytest.mark.parametrize("padding", [[], list(range(20))], ids=["short", "long"])
@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([-1], "outside"),
        ([MAX_PAGE + 1], "outside"),
        ([[0, MAX_PAGE + 1]], "outside"),
        ([[-2, 3]], "outside"),
        ([2**64 - 1], "outside"),
        ([[9, 8]], "reversed"),
        ([[1, 2, 3]], "pair"),
        ([[1]], "pair"),
        ([[]], "pair"),
        ([[1, "2"]], "pair"),
        ([[True, 2]], "pair"),
        ([[[1], 2]], "pair"),
        ([True], "neither"),
        ([1.0], "neither"),
        (["1"], "neither"),
        ([None], "neither"),
        ([{}], "neither"),
        ([[0, MAX_LIST]], "more than"),
    ],
)
def test_malformed_lists_are_refused_with_a_reason(items: list[Any], reason: str, padding: list[int]) -> None:
    with pytest.raises(ValueError, match=reason):
        expand_pages(padding + items)


def test_the_largest_list_and_the_largest_id_are_taken() -> None:
    assert len(expand_pages([[0, MAX_LIST - 1]])) == MAX_LIST
    assert expand_pages([[MAX_PAGE - 1, MAX_PAGE]]).tolist() == [MAX_PAGE - 1, MAX_PAGE]


@pytest.mark.parametrize("pages", [[-1], [MAX_PAGE + 1]])
def test_compressing_refuses_what_is_no_page_id(pages: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        compress_pages(pages)
