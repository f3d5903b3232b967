"""Attaching to an engine, shown on one that is made up: nothing that goes wrong reaches it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvwitness.audit.rules import RULES
from kvwitness.audit.trace import KINDS
from kvwitness.gpu_tracer.attach_cli import known, report, told
from kvwitness.gpu_tracer.engines.base import Guard, Hook, attach, detach, survey


class Made:
    """An engine."""

    def give(self, n: int) -> int:
        if n < 0:
            raise ValueError("none left")
        return n * 2


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    class Fresh(Made):
        give = Made.give

    module = ModuleType("made_up_engine")
    module.Made = Fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_engine", module)
    return Fresh


GIVE = Hook("made_up_engine:Made.give", ("page.alloc",), unproven=("double-ownership",))


def test_observers_see_the_call_and_its_result(engine: type[Made]) -> None:
    seen: list[Any] = []
    hook = replace(
        GIVE,
        before=lambda made, n: seen.append(("before", n)) or n + 1,
        after=lambda context, result, made, n: seen.append(("after", context, result)),
    )
    attach([hook], Guard())
    attach([hook], Guard())
    assert engine().give(4) == 8
    assert seen == [("before", 4), ("after", 5, 8)]
    detach([hook])
    assert engine().give(4) == 8
    assert len(seen) == 2


def test_an_observer_that_raises_is_counted_and_said_once(engine: type[Made], caplog: pytest.LogCaptureFixture) -> None:
    def broken(*args: Any) -> None:
        raise KeyError("secret")

    guard, gaps = Guard(), []
    guard.gap = gaps.append
    attach([replace(GIVE, before=broken, after=broken)], guard)
    assert [engine().give(n) for n in (1, 2)] == [2, 4]
    assert guard.errors == {"Made.give: KeyError": 4}
    assert len(gaps) == 4
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_what_the_engine_raises_is_the_engines(engine: type[Made]) -> None:
    calls: list[str] = []
    hook = replace(
        GIVE, before=lambda *_: calls.append("before"), after=lambda *_: calls.append("after"),
        raised=lambda: calls.append("raised"),
    )  # fmt: skip
    attach([hook], Guard())
    with pytest.raises(ValueError, match="none left"):
        engine().give(-1)
    assert calls == ["before", "raised"]


def test_what_is_not_there_is_named_with_its_consequences(engine: type[Made]) -> None:
    hooks = [
        GIVE,
        replace(GIVE, target="made_up_engine:Made.take", kinds=("page.free",), unproven=("late-read",)),
        replace(GIVE, target="no_such_engine:Made.give"),
        replace(GIVE, target="made_up_engine:Made.may", optional=True, kinds=("page.copy",)),
    ]
    for outcome in (survey(hooks), attach(hooks, Guard())):
        assert [hook.name for hook in outcome.attached] == ["Made.give"]
        assert [m.reason for m in outcome.missing] == [
            "this version does not have it",
            "there is no module no_such_engine",
            "this version does not have it",
        ]
        assert outcome.unseen == ("page.free", "page.alloc")
        assert outcome.unproven == ("double-ownership", "late-read")


def test_adapters_speak_the_vocabulary() -> None:
    for engine in known():
        for hook in engine.hooks:
            assert set(hook.kinds) <= set(KINDS), hook.name
            assert set(hook.unproven) <= set(RULES), hook.name


def test_the_check_tells_an_engine_that_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    (vllm,) = (one for one in known() if one.name == "vllm")
    fake = SimpleNamespace(**{name: getattr(vllm, name) for name in ("name", "hooks", "tested", "how", "limits")})
    fake.installed = lambda: ("vllm", "9.9.9")
    monkeypatch.setitem(sys.modules, "vllm", None)
    said = report(fake)  # type: ignore[arg-type]
    text = "\n".join(told(said))
    assert said["tested"] is False
    assert said["attached"] == []
    assert "BlockPool.touch: " in text
    assert "page.share" in text
    assert "foreign-page-read" in text
