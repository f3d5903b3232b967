"""A real dashboard in a process of its own, and a real browser that looks at it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvwitness.audit import demo
from kvwitness.audit.store import Store
from tests.dashboards.conftest import CASES, judged

SHOTS = os.environ.get("KVWITNESS_SHOTS")
"""Directory for pictures of every page; unset: none are taken."""
_FLAGS = [
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
_PROBED = ("/_stcore/health", "/_stcore/host-config")
"""On a deep link Streamlit's client tries its server below the page's address first, and finds nothing there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser, and time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@dataclass
class Served:
    """A dashboard on a port of this machine."""

    url: str
    store: Path
    process: subprocess.Popen[bytes]


@dataclass
class Visit:
    """A page of a browser, and what went wrong in it."""

    page: Any
    base: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Addresses outside of this machine that were asked for."""

    def go(self, path: str = "") -> None:
        """Open a page, and wait until it is whole."""
        self.page.goto(f"{self.base}/{path}")
        self.whole()

    def whole(self) -> None:
        """Wait until the script has run and everything it sent is there."""
        self.page.wait_for_selector("[data-testid=stMain] h1", timeout=60_000)
        self.page.wait_for_function(
            "() => document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
            " && !document.querySelector('[data-testid=stSpinner], [data-testid=stSkeleton]')",
            timeout=120_000,
        )

    def shot(self, name: str) -> None:
        """Keep a picture of all of it, where pictures are wanted."""
        if SHOTS is None:
            return
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": 1280, "height": min(max(height, 800), 5000)})
        self.page.wait_for_timeout(500)  # charts fit themselves to the new size; only pictures wait for it
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))
        self.page.set_viewport_size({"width": 1280, "height": 900})


def chromium() -> str:
    """The browser of this machine. Skips where there is none."""
    found = os.environ.get("KVWITNESS_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium here: tests/e2e/run installs one, KVWITNESS_CHROMIUM names another")
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window. Skips where there is none, or nothing to drive it with."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no browser driver: tests/e2e/run installs what these tests need"
    )
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium(), args=_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with launched() as started:
        yield started


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens a fresh browser on a dashboard."""
    contexts = []

    def opened(served: Served, **options: Any) -> Visit:
        settings = {"viewport": {"width": 1280, "height": 900}, "timezone_id": "Europe/Berlin"} | options
        context = browser.new_context(**settings)
        contexts.append(context)
        seen = Visit(context.new_page(), served.url)
        seen.page.on("console", lambda message: _heard(seen, message))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("request", lambda request: _asked(seen, request.url))
        return seen

    yield opened
    for context in contexts:
        context.close()


def _heard(seen: Visit, message: Any) -> None:
    where = str(message.location.get("url", ""))
    if message.type == "error" and not where.endswith(_PROBED):
        seen.errors.append(f"{message.text} ({where})")


def _asked(seen: Visit, url: str) -> None:
    if not url.startswith((seen.base, seen.base.replace("http", "ws"), "data:", "blob:")):
        seen.elsewhere.append(url)


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serve(store: Path, *options: str, port: int | None = None) -> Served:
    """Start `kvwitness dashboard`, and wait until it answers."""
    port = port or free_port()
    command = [sys.executable, "-c", "from kvwitness.audit.cli import main; main()", "dashboard"]
    process = subprocess.Popen([*command, "--store", str(store), "--port", str(port), *options])
    served = Served(f"http://127.0.0.1:{port}", store, process)
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{served.url}/_stcore/health", timeout=5) as answer:
                if answer.status == 200:
                    return served
        except OSError:
            continue
    raise AssertionError(f"kvwitness dashboard ended with status {process.returncode}")


def ended(served: Served) -> None:
    """Stop it as a service manager would."""
    served.process.terminate()
    assert served.process.wait(30) in (0, -15)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The trace that was recorded from two real servers."""
    scene = demo.recorded(tmp_path_factory.mktemp("lab"), lambda what, share: None)
    served = serve(scene.store)
    yield served
    ended(served)


@pytest.fixture(scope="session")
def placeholder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """What `kvwitness lab run --fault placeholder` put on record, fingerprints included."""
    trace = Path(__file__).with_name("lab-placeholder.jsonl")
    served = serve(judged(tmp_path_factory.mktemp("placeholder") / "store", trace).path)
    yield served
    ended(served)


@pytest.fixture(scope="session")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Thirteen days with 155 leaks."""
    os.environ["KVWITNESS_KERNEL"] = "compiled"  # fifty million page events
    scene = demo.incident_155(tmp_path_factory.mktemp("incident"), lambda what, share: None)
    served = serve(scene.store)
    yield served
    ended(served)


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A store in which nothing is."""
    served = serve(Store.create(tmp_path_factory.mktemp("nothing") / "store").path)
    yield served
    ended(served)


@pytest.fixture(scope="session")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A record with a hole in it."""
    served = serve(judged(tmp_path_factory.mktemp("gaps") / "store", CASES / "u01-hole-hides-the-write.jsonl").path)
    yield served
    ended(served)
