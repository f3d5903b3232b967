"""`kvwitness dashboard`: the pages, in a browser."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kvwitness.audit.cli.options import DEFAULT_STORE, StoreOption
from kvwitness.audit.cli.output import say
from kvwitness.audit.errors import KvwitnessError
from kvwitness.dashboards import settings

app = typer.Typer(add_completion=False)

OPTIONS = {
    "logger.level": "warning",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "browser.gatherUsageStats": "false",  # nothing is sent anywhere
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",  # errors are told in sentences
    "client.showErrorLinks": "false",
    "runner.magicEnabled": "false",
    "theme.light.primaryColor": "#0b5fa5",
    "theme.dark.primaryColor": "#7cc4ff",
    "theme.light.linkColor": "#0b5fa5",
    "theme.dark.linkColor": "#9ad1ff",
}
"""Settings of Streamlit that are not the user's to make."""


@app.command("dashboard")
def dashboard(
    store: StoreOption = DEFAULT_STORE,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8501,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Others than loopback need --roles.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser", help="Open a browser, too.")] = False,
    pseudonyms: Annotated[
        bool, typer.Option("--pseudonyms", help="Show tenants under pseudonyms that last as long as the process.")
    ] = False,
    roles: Annotated[
        Path | None,
        typer.Option("--roles", exists=True, dir_okay=False, help="TOML file with the login and who has which role."),
    ] = None,
) -> None:
    """Show a store in the browser, until Ctrl-C. The store may be written to meanwhile, and need not exist yet."""
    check_installed()
    if roles is None and not _loopback(host):
        raise KvwitnessError(
            f"{host} can be reached from other machines, and there is no login.",
            "Leave --host away and forward the port (ssh -L), or give --roles FILE: see docs/dashboard.md.",
        )
    if roles is not None:
        from kvwitness.dashboards.roles import read_roles

        read_roles(roles)  # what is wrong with it is said here, and not on every page
    environment = os.environ | {
        settings.STORE: str(store.expanduser().absolute()),
        settings.PSEUDONYMS: "1" if pseudonyms else "0",
        settings.ROLES: str(roles.absolute()) if roles else "",
    }
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port} shows {store}; Ctrl-C ends it")
    sys.stderr.flush()
    # In the place of this process, so that signals reach the server, and its end is ours.
    os.execve(sys.executable, command(host, port, roles, browser=browser), environment)


def check_installed() -> None:
    """Raises `KvwitnessError` that says what to install where Streamlit is missing."""
    if find_spec("streamlit") is None:
        raise KvwitnessError(
            "The dashboard needs Streamlit, which is not installed here.", "pip install 'kvwitness[dashboard]'"
        )


def command(host: str, port: int, roles: Path | None, *, browser: bool = False) -> list[str]:
    """How Streamlit is started."""
    told = OPTIONS | {"server.address": host, "server.port": str(port), "server.headless": str(not browser).lower()}
    if roles is not None:
        told["secrets.files"] = str(roles.absolute())
    options = [f"--{name}={value}" for name, value in told.items()]
    return [sys.executable, "-m", "streamlit", "run", str(settings.APP), *options]


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
