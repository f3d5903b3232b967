"""vLLM's own API server in processes of its own, as `vllm serve` starts it, and a client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[3]
TENANT_HEADER = "x-tenant-id"


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    tokens: list[int]
    finish: str | None
    usage: dict[str, Any]


class ApiServer:
    """A server that takes the tenant from a header, by the tracer's middleware; `rings` None: without a tracer."""

    def __init__(self, model: str, work: Path, rings: Path | None, *flags: str, **environment: str) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self.log = work / "api.log"
        env = {
            "KVWITNESS_RING_DIR": str(rings or ""), "KVWITNESS_ENGINE": "api-0",
            "KVWITNESS_TENANT_HEADER": TENANT_HEADER, "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": str(ROOT), **environment,
        }  # fmt: skip
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1",
            "--port", str(self.port), "--served-model-name", "tiny", "--skip-tokenizer-init", "--enforce-eager",
            "--block-size", "32", "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(64 << 20),
            "--max-num-seqs", "8", "--max-num-batched-tokens", "512",
            "--middleware", "kvwitness.gpu_tracer.engines.asgi.TenantMiddleware", *flags,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **env}, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        try:
            self._wait(600)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError(f"no server:\n{self.log.read_text(errors='replace')[-4000:]}")

    def complete(self, name: str, tokens: Sequence[int], tenant: str, *, new: int = 8, **more: Any) -> Answer:
        """Ask for a completion under a request id of the client's choosing."""
        body = {
            "model": "tiny", "prompt": list(tokens), "max_tokens": new, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **more,
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "X-Request-Id": name, TENANT_HEADER: tenant}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                document = json.load(response)
                (choice,) = document["choices"]
                return Answer(response.status, choice["token_ids"], choice["finish_reason"], document["usage"])
        except urllib.error.HTTPError as error:
            return Answer(error.code, [], None, {})
