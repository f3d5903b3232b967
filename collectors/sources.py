"""Which collectors there are: every module beside this one, or in `logs`, that can recognise a file and read it.

A new kind of file is one new module with the two functions of `FileCollector`; nothing lists it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import pyarrow as pa

import kvwitness.collectors
import kvwitness.collectors.logs
from kvwitness.audit.trace import ImportReport
from kvwitness.audit.trace.stream import Progress, opened, read_lines
from kvwitness.collectors import trace_file
from kvwitness.collectors.logs.calls import NOTHING, Given

STDIN = "-"
_HEAD_BYTES = 16_384
_FAR_BYTES = 16 << 20
"""So much of a file, unpacked, is looked through where its beginning tells nothing."""


class Reader(Protocol):
    """Batches of events, and an account of every line that is complete after the last batch."""

    report: ImportReport

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the event schema."""


class FileCollector(Protocol):
    """What a module has to offer in order to be a collector of files.

    Where its lines may come after a good many of others, as in the log of a server that says at length how it starts,
    it has a third function, `recognise_line(line: bytes) -> bool`, which is asked where no beginning is recognised.
    """

    def recognise(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is of this kind."""

    def read(self, path: str | Path, progress: Progress | None = None, given: Given = NOTHING, skip: int = 0) -> Reader:
        """Read a file of this kind; `progress` is called with raw bytes read and their total, if known.

        `given` is what a person says about the file, `skip` how many of its lines are in the store already.
        """


@cache
def file_collectors() -> dict[str, FileCollector]:
    """Name of the module -> the collector that it is."""
    logs = [f"logs.{module.name}" for module in pkgutil.iter_modules(kvwitness.collectors.logs.__path__)]
    names = [module.name for module in pkgutil.iter_modules(kvwitness.collectors.__path__)]
    # Logs first: a line of SGLang's names an event, as a line of a trace does.
    modules = {
        name: importlib.import_module(f"kvwitness.collectors.{name}") for name in [*sorted(logs), *sorted(names)]
    }
    found = {name: m for name, m in modules.items() if hasattr(m, "recognise") and hasattr(m, "read")}
    return cast(dict[str, FileCollector], found)


def kind_of(collector: FileCollector) -> str:
    """What a collector takes a file for, in the words of its module's name."""
    name: str = cast(ModuleType, collector).__name__
    return name.rpartition(".")[2].replace("_", " ")


def collector_for(source: str | Path) -> FileCollector:
    """The collector that recognises the file.

    It is the one for traces where none does, whose report then says what is wrong with each line, and for
    what can be read only once: standard input and pipes.
    """
    path = Path(source)
    if str(source) == STDIN or not path.is_file():
        return cast(FileCollector, trace_file)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    recognising = [c for c in file_collectors().values() if c.recognise(head)]
    return recognising[0] if recognising else _further_on(path) or cast(FileCollector, trace_file)


def _further_on(path: Path) -> FileCollector | None:
    """The collector that knows the first line that anyone knows."""
    asked = [(c, c.recognise_line) for c in file_collectors().values() if hasattr(c, "recognise_line")]
    left = _FAR_BYTES
    with opened(path) as (stream, size):
        for lines in read_lines(stream, size, ImportReport()):
            for line in lines:
                left -= len(line)
                for collector, recognise_line in asked:
                    if recognise_line(line):
                        return collector
            if left <= 0:
                break
    return None
