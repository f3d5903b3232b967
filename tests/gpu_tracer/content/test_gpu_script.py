"""The script for a GPU does on a CPU all that can be done there, and says plainly where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_tracer.conftest import REASON, TRITON

torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("triton", reason=TRITON)

from benchmarks import gpu_fingerprint as script  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "benchmarks/gpu_fingerprint.py", *arguments],
        cwd=ROOT,
        env=hidden,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_rehearsal_goes_through_everything_but_what_needs_a_gpu(tmp_path: Path) -> None:
    done = called("--rehearse", "--json", str(tmp_path / "out.json"))
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads((tmp_path / "out.json").read_text())
    assert (figures["rehearsal"], figures["left_out"]) == (True, ["interference: a CPU has no streams"])
    assert [(one["row_bytes"], one["page_tokens"]) for one in figures["bandwidth"]] == script.REHEARSED
    for one in figures["bandwidth"]:
        assert one["bit_exact"]
        assert min(one["gigabytes_per_second"].values()) > 0
    assert [one["pages"] for one in figures["replay"]["replays"]] == [1, 2]
    assert all(one["bit_exact"] and one["rest_untouched"] for one in figures["replay"]["replays"])
    assert not figures["replay"]["captured"]
    assert figures["enqueue"]["bit_exact"]
    assert "by_torch" in figures


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    done = called("--rehearse", "--minutes", "0", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["bandwidth"] == []
    assert len(figures["left_out"]) == len(script.REHEARSED) + 4
    assert "left out: replay" in done.stdout


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    done = called("--json", str(tmp_path / "out.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no GPU here that torch can use" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_numbers_that_differ_are_named() -> None:
    right = {"row_bytes": 256, "page_tokens": 16, "bit_exact": True}
    again = {"pages": 1, "bit_exact": True, "rest_untouched": True}
    assert script.wrong({"bandwidth": [right], "replay": {"replays": [again]}}) == []
    found = script.wrong(
        {
            "bandwidth": [right, {**right, "bit_exact": False}],
            "replay": {"replays": [{**again, "rest_untouched": False}, {**again, "bit_exact": False, "pages": 7}]},
        }
    )
    assert found == ["rows of 256 bytes, pages of 16", "replay of 1 pages", "replay of 7 pages"]
    assert script.wrong({"bandwidth": [], "enqueue": {"bit_exact": False}}) == ["lanes"]
    assert script.wrong({"bandwidth": []}) == []


def test_a_replay_that_leaves_cells_undone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = script.Bench(torch.device("cpu"), 0.01, 1, 0, parts=2)
    from kvwitness.gpu_tracer.content import kernel

    right = kernel.Launch.into
    calls: list[int] = []

    def tired(self: kernel.Launch, out: torch.Tensor, table: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) < 3:  # while it is made, it works
            right(self, out, table)

    monkeypatch.setattr(kernel.Launch, "into", tired)
    assert script.wrong({"bandwidth": [], "replay": script.replay(bench)}) == [
        "replay of 1 pages",
        "replay of 2 pages",
    ]
