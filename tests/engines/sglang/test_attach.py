"""The adapter against the SGLang of this environment: what attaches, and what becomes of an unknown version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvwitness.gpu_tracer.engines import sglang as adapter
from kvwitness.gpu_tracer.engines.base import detach, survey
from tests.engines.judged import judged


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "rings"
    directory.mkdir()
    monkeypatch.setenv("KVWITNESS_RING_DIR", str(directory))
    yield directory
    detach(adapter.ENGINE.hooks)


def test_all_hooks_of_this_version_attach() -> None:
    assert [m.hook.name for m in survey(adapter.ENGINE.hooks).missing if not m.hook.optional] == []
    _, version = adapter.ENGINE.installed() or ("", "")
    assert version in adapter.VERSIONS


def test_sglang_finds_the_plug_in() -> None:
    from sglang.srt.plugins import load_plugins_by_group

    found = load_plugins_by_group("sglang.srt.plugins")
    assert found["kvwitness"][0] is adapter.register


def test_an_unknown_version_is_refused_and_the_record_says_so(
    rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    before = Scheduler.run_batch
    monkeypatch.setattr(adapter, "VERSIONS", ("0.5.0",))
    adapter.register()
    assert Scheduler.run_batch is before
    assert "is not known to this adapter" in caplog.text
    (gap,) = judged(rings, tmp_path).rows("telemetry.gap")
    assert "nothing is recorded" in gap["reason"]


def test_an_observer_that_fails_does_not_reach_the_engine(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.schedule_batch import Req

    class Broken:
        """A view of which nothing works."""

        def __getattr__(self, name: str) -> Any:
            raise KeyError("of all things")

    adapter.guard.errors.clear()
    adapter.register()
    monkeypatch.setattr(adapter, "view", Broken())
    request = Req.__new__(Req)
    request.rid = "r1"
    with pytest.raises(AttributeError):  # the engine's own: the object is bare
        request.reset_for_retract()
    assert adapter.guard.errors == {"Req.reset_for_retract: KeyError": 1}


def test_without_a_directory_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    monkeypatch.delenv("KVWITNESS_RING_DIR", raising=False)
    before = Scheduler.run_batch
    adapter.register()
    assert Scheduler.run_batch is before
