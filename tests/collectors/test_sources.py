"""Which collector reads a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from kvwitness.collectors import trace_file
from kvwitness.collectors.sources import collector_for, file_collectors

CASES = Path(__file__).parents[1] / "cases"
TRACE = CASES / "k01-oversize-stub-handoff.jsonl"


def test_modules_that_recognise_and_read_are_collectors() -> None:
    assert file_collectors()["trace_file"] is trace_file
    assert "cli" not in file_collectors()


def test_what_nobody_recognises_goes_to_the_trace_collector(tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    strange.write_bytes(b"\x00\x01")
    assert collector_for(strange) is trace_file
    assert collector_for("-") is trace_file
    assert collector_for(TRACE) is trace_file


def test_pipe_is_not_read_in_order_to_recognise_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeding = threading.Thread(target=pipe.write_bytes, args=(TRACE.read_bytes(),))
    feeding.start()
    reader = collector_for(pipe).read(pipe)
    assert sum(batch.num_rows for batch in reader) == len(TRACE.read_text().splitlines())
    feeding.join()
