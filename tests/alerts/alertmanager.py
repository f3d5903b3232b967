"""A real Alertmanager on loopback, that tells a receiver of ours what it would tell a person; and a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.alerts.support import Receiver, receiver

PROMETHEUS = shutil.which("prometheus")
NAMES = ("prometheus-alertmanager", "alertmanager")


def program() -> str | None:
    """Where Alertmanager is installed; KVWITNESS_ALERTMANAGER names another place."""
    return os.environ.get("KVWITNESS_ALERTMANAGER") or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Alertmanager:
    """A running one."""

    url: str
    pages: Receiver
    """What it told people."""

    def alerts(self) -> list[dict[str, Any]]:
        """What it holds for active."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts") as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def told(self, name: str) -> list[str]:
        """Status of each message about alerts of that name, in order."""
        groups = [got.json for got in list(self.pages.received) if got.path == "/"]
        return [group["status"] for group in groups if group["commonLabels"]["alertname"] == name]


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition; two minutes mean that it will not come."""
    pause = threading.Event()
    for _ in range(2400):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError(f"waited in vain: {what}")


@contextmanager
def alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Tells every alert at once, again only when something changed, and its end."""
    found = program()
    assert found is not None
    with receiver() as pages, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        config = folder / "alertmanager.yml"
        config.write_text(
            "route: {receiver: people, group_by: ['...'], group_wait: 100ms, group_interval: 200ms,"
            " repeat_interval: 365d}\n"
            f"receivers: [{{name: people, webhook_configs: [{{url: '{pages.url}', send_resolved: true}}]}}]\n"
        )
        options = [f"--config.file={config}", f"--storage.path={folder}/data", f"--web.listen-address={address}"]
        with (folder / "alertmanager.log").open("w") as log:
            process = subprocess.Popen([found, *options, "--cluster.listen-address="], stdout=log, stderr=log)
        running = Alertmanager(f"http://{address}", pages)
        try:
            until(lambda: process.poll() is not None or _ready(running.url), "Alertmanager is ready")
            assert process.poll() is None, f"Alertmanager ended: {(folder / 'alertmanager.log').read_text()[-2000:]}"
            yield running
        finally:
            process.terminate()
            process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _named(labels: dict[str, str]) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in ("__name__", "job", "instance"))


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Callable[[str], dict[str, float]]]:
    """A Prometheus that scrapes one target every 200 ms; yields a function that asks it: sample labels -> value."""
    assert PROMETHEUS is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: kvwitness, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )

    def ask(query: str) -> dict[str, float]:
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url) as answer:
                result = json.load(answer)["data"]["result"]
        except OSError:
            return {}
        return {_named(one["metric"]): float(one["value"][1]) for one in result}

    options = [f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([PROMETHEUS, *options], stdout=log, stderr=log)
    try:
        yield ask
    finally:
        process.terminate()
        process.wait()
