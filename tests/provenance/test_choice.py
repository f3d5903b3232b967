"""Which form of the kernel runs."""

from __future__ import annotations

import pytest

from kvwitness.audit.errors import KvwitnessError
from kvwitness.audit.provenance.choice import INTERPRET_BELOW, compiled_for


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


def test_a_word_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWITNESS_KERNEL", "Compiled")
    with pytest.raises(KvwitnessError, match="KVWITNESS_KERNEL is 'Compiled'") as refused:
        compiled_for(1)
    assert "`python`" in str(refused.value.advice)
