"""Whole vLLM engines in processes of their own, joined by a KV connector, and asked one thing after another.

Run as a script it is such an engine: one JSON object per line in, one per line out.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_START_S = 900.0
_ANSWER_S = 300.0


@dataclass
class Reply:
    """What a client got."""

    tokens: list[int]
    cached: int
    finish: str | None
    handover: dict[str, Any] | None
    """What the other side needs in order to fetch the pages."""


class Peer:
    """An engine in a process of its own; `options` are those of `vllm.LLM`."""

    def __init__(self, log: Path, env: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.vllm.peers", json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            )  # fmt: skip

    def ready(self) -> Peer:
        """Wait until it has started."""
        self._answer(_START_S)
        return self

    def ask(
        self, name: str, tokens: Sequence[int], salt: str, *, new: int = 8, transfer: dict[str, Any] | None = None
    ) -> Reply:
        """Tokens for a prompt, under a request id of the client's choosing."""
        assert self._process.stdin is not None
        wanted = {"name": name, "tokens": list(tokens), "salt": salt, "new": new, "transfer": transfer}
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()
        return Reply(**self._answer(_ANSWER_S))

    def _answer(self, within_s: float) -> Any:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(within_s) else b""
        assert line, self.log.read_text(errors="replace")[-4000:]
        return json.loads(line)

    def stop(self) -> None:
        """End it, as an operating system does that has run out of memory."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def serve(options: dict[str, Any]) -> None:
    """Be an engine: answer what comes in, and go on stepping, as a server does, while nothing comes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the engine talks on standard output
    from tests.engines.vllm.model import Whole

    engine = Whole(**options)
    print("{}", file=out, flush=True)
    pending = b""
    os.set_blocking(0, False)
    while True:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            engine.idle()
            time.sleep(0.005)
            continue
        if not data:
            return
        pending += data
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            print(json.dumps(engine.answer(**json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
