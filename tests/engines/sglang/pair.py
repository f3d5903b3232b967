"""Two real SGLang servers on this machine, prefill and decode, with Mooncake over TCP between them, and a client."""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
PAGE_TOKENS = 16
PREFILL_TOKENS, DECODE_TOKENS = 512, 1200
"""Positions in the pools. A prompt that decode can hold and prefill cannot is what the bug needs."""
LIMIT = PREFILL_TOKENS - 1 - 5 - 1
"""Longest prompt that this prefill server takes: SGLang keeps 5 tokens, and refuses what is as long as its limit."""
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Answer:
    """What a server answered: the HTTP status and, of a success, what it says of itself."""

    status: int
    meta: dict[str, Any]

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the prompt that was served."""
        return self.meta.get("prompt_tokens")


class Server:
    """One SGLang server in a process group of its own."""

    def __init__(self, name: str, work: Path, rings: Path, *flags: str, **environment: str) -> None:
        model = work / "tiny-llama"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(_CONFIG))
        self.port = free_port()
        self.log = work / f"{name}.log"
        libs = Path(sys.prefix) / "lib/debian"
        paths = [libs / "usr/lib/x86_64-linux-gnu", libs / "lib/x86_64-linux-gnu"]
        packages = [HERE / "shims", HERE.parents[2], os.environ.get("PYTHONPATH", "")]
        set_up = {
            "KVWITNESS_RING_DIR": str(rings), "KVWITNESS_ENGINE": name, "KVWITNESS_CLOCK_UNCERTAINTY_S": "1e-6",
            "SGLANG_USE_CPU_ENGINE": "1", "MC_FORCE_TCP": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1",
            "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "LD_LIBRARY_PATH": os.pathsep.join([*map(str, paths), os.environ.get("LD_LIBRARY_PATH", "")]),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(self.port),
            "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32", "--load-format", "dummy",
            "--skip-tokenizer-init", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
            "--disable-overlap-schedule", "--page-size", str(PAGE_TOKENS), "--mem-fraction-static", "0.3",
            "--grammar-backend", "none", "--skip-server-warmup", *flags,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "10", *command], env={**os.environ, **set_up, **environment}, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = 600) -> None:
        """Until it answers. Raises RuntimeError with the end of its log when it does not."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/model_info", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"no server after {seconds} s:\n{self.log.read_text(errors='replace')[-4000:]}")

    def post(self, body: dict[str, Any], seconds: float = 240) -> Answer:
        """Send a request to `/generate`; status 0 where no answer comes in time."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Answer(response.status, json.load(response)["meta_info"])
        except urllib.error.HTTPError as error:
            return Answer(error.code, {})
        except (TimeoutError, urllib.error.URLError):
            return Answer(0, {})

    def stop(self) -> None:
        """End it and its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class Pair:
    """Prefill and decode; what a router does is done here: each prompt goes to both, with a room to meet in."""

    def __init__(self, work: Path, rings: Path, *flags: str, **environment: str) -> None:
        bootstrap = free_port()
        common = (
            "--disaggregation-transfer-backend",
            "mooncake",
            "--disaggregation-bootstrap-port",
            str(bootstrap),
            *flags,
        )
        self.bootstrap = bootstrap
        self.prefill = Server(
            "prefill-1", work, rings, *common, "--disaggregation-mode", "prefill",
            "--max-total-tokens", str(PREFILL_TOKENS), **environment,
        )  # fmt: skip
        self.decode = Server(
            "decode-1", work, rings, *common, "--disaggregation-mode", "decode",
            "--max-total-tokens", str(DECODE_TOKENS), "--disaggregation-decode-retraction-backup", "cpu_tensor",
            **environment,
        )  # fmt: skip
        self._room = 1000

    def __enter__(self) -> Self:
        try:
            self.prefill.wait()
            self.decode.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End both."""
        self.decode.stop()
        self.prefill.stop()

    def ask(
        self, name: str, tokens: Sequence[int], *, new: int = 8, seconds: float = 240, **more: Any
    ) -> tuple[Answer, Answer]:
        """Send a prompt to both; what prefill and decode answered."""
        body = self.body(name, tokens, new=new, **more)
        with ThreadPoolExecutor(2) as both:
            sent = [both.submit(server.post, body, seconds) for server in (self.prefill, self.decode)]
            return sent[0].result(), sent[1].result()

    def body(self, name: str, tokens: Sequence[int], *, new: int = 8, **more: Any) -> dict[str, Any]:
        """What is sent to each of the two for a prompt, which they meet for in a room of its own."""
        self._room += 1
        return {
            "input_ids": list(tokens), "rid": name, "sampling_params": {"max_new_tokens": new, "temperature": 0,
            "ignore_eos": True}, "bootstrap_host": "127.0.0.1", "bootstrap_port": self.bootstrap,
            "bootstrap_room": self._room, **more,
        }  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
