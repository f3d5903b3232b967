"""What SGLang's own reporter of its KV canary writes, in the form in which it logs, is what the import understands.

The reporter is SGLang's; the violations in its ring are put there by hand, since its kernels need a GPU.
"""

from __future__ import annotations

import io
import json
import logging
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kvwitness.collectors.logs.sglang")
reporting = pytest.importorskip("sglang.srt.kv_canary.runner.violation_reporter")

import torch  # noqa: E402

from kvwitness.collectors.logs import sglang as collector  # noqa: E402

MASKED = "[%(asctime)s TP1] %(message)s"
"""As SGLang's `configure_logger` has it."""
ROWS = [
    [2, 1237, 40, 31337, -1, 0xDEADBEEF, 0xC0FFEE, 0b000011],  # verify: chain hash and position
    [0, 9, 3, 31337, 31338, 0xDEADBEEF, 4, 0b001000],  # write: token
]


def device_state() -> Any:
    log = SimpleNamespace(
        violation_ring=torch.tensor(ROWS, dtype=torch.int64), violation_write_index=torch.tensor([len(ROWS)])
    )
    return SimpleNamespace(violation_log=log)


def reporter(mode: str) -> Any:
    config = SimpleNamespace(mode=reporting.CanaryMode(mode))
    return reporting.ViolationReporter(config=config, device_state=device_state())


def imported(path: Path) -> tuple[list[dict[str, Any]], Any]:
    assert collector.recognise(path.read_bytes()[:16_384])
    reader = collector.read(path)
    rows = [row for batch in reader for row in batch.to_pylist()]
    return rows, reader.report


@pytest.mark.parametrize("mode", ["log", "raise"])
def test_the_import_understands_the_canarys_reports(mode: str, tmp_path: Path) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(MASKED, datefmt="%Y-%m-%d %H:%M:%S"))
    log = logging.getLogger("sglang.srt.kv_canary.runner.violation_reporter")
    log.addHandler(handler)
    try:
        reporter(mode).log_or_raise_violation(outer_step_counter=812)
    except RuntimeError:
        log.error(f"Scheduler hit an exception: {traceback.format_exc()}")  # as the scheduler does
    finally:
        log.removeHandler(handler)
    file = tmp_path / "server.log"
    file.write_text(out.getvalue())
    rows, report = imported(file)
    assert [(row["event"], row["reason"]) for row in rows] == [
        ("shadow.finding", "SGLang's KV canary: verify_chain_hash+verify_position"),
        ("shadow.finding", "SGLang's KV canary: write_token"),
    ]
    assert [(json.loads(row["extra"]), row["tok_first"]) for row in rows] == [
        ({"launch": "TAIL_K_FULL", "slot_index": 1237}, 40),
        ({"launch": "HEAD_K_FULL", "slot_index": 9}, 3),
    ]
    assert report.bad == []
    assert "31337" not in str(rows)
