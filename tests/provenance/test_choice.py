"""Which form of the kernel runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.choice import INTERPRET_BELOW, at_hand, compiled_for


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """As in a fresh process."""
    before = at_hand.is_set()
    at_hand.clear()
    yield
    if before:
        at_hand.set()


@pytest.mark.parametrize(("wanted", "compiled"), [("compiled", True), ("python", False)])
@pytest.mark.parametrize("page_events", [0, 10**9])
def test_the_environment_decides(
    wanted: str, compiled: bool, page_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWITNESS_KERNEL", wanted)
    assert compiled_for(page_events) is compiled


@pytest.mark.parametrize("wanted", [None, "", "auto"])
@pytest.mark.parametrize(("page_events", "compiled"), [(INTERPRET_BELOW + 1, True), (INTERPRET_BELOW, False)])
def test_size_decides_otherwise(
    wanted: str | None, page_events: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wanted is None:
        monkeypatch.delenv("KVWITNESS_KERNEL", raising=False)
    else:
        monkeypatch.setenv("KVWITNESS_KERNEL", wanted)
    assert compiled_for(page_events) is compiled


def test_what_is_compiled_already_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVWITNESS_KERNEL", raising=False)
    at_hand.set()
    assert compiled_for(1)


def test_a_word_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWITNESS_KERNEL", "Compiled")
    with pytest.raises(KvwitnessError, match="KVWITNESS_KERNEL is 'Compiled'") as refused:
        compiled_for(1)
    assert "`python`" in str(refused.value.advice)
