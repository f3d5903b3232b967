"""Traces in the JSON Lines form, as `kvwitness import FILE` takes them: plain, gzip or zstd."""

from __future__ import annotations

from kvwitness.audit.trace import TraceReader, read_jsonl
from kvwitness.audit.trace.stream import Progress, Source
from kvwitness.collectors.heads import beginning
from kvwitness.collectors.logs.calls import NOTHING, Given


def recognise(head: bytes) -> bool:
    """Whether a file that begins with `head` (a few KiB are plenty) is a JSON Lines trace.

    It is one when its first line, blank ones aside, is the beginning of a JSON object that names an event.
    """
    first = beginning(head).lstrip().split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"event"' in first


def read(path: Source, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> TraceReader:
    """Batches of a trace file (`-`: standard input); `.report` of the result is complete after the last.

    A trace says itself who observed what, and is read whole: nothing that is given changes it.

    Raises TraceError, while batches are taken, where the file cannot be read.
    """
    return read_jsonl(path, progress=progress)
