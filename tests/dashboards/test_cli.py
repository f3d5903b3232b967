"""`kvwitness dashboard`: to whom it is open, and how it is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwitness.audit.cli.app import run
from kvwitness.dashboards import cli


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the command would have become: its arguments and environment."""
    calls: list[tuple[list[str], dict[str, str]]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        calls.append((arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", execve)
    return calls


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "dashboard.example.com"])
def test_without_a_login_it_is_not_open_to_others(
    host: str, started: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dashboard", "--host", host]) == 2
    assert "there is no login" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_this_machine_may_look(host: str, started: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    assert run(["dashboard", "--host", host, "--store", str(tmp_path)]) == 0
    ((arguments, environment),) = started
    assert f"--server.address={host}" in arguments
    assert environment["KVWITNESS_STORE"] == str(tmp_path)
    assert "--browser.gatherUsageStats=false" in arguments


def test_with_a_login_it_is_open_and_takes_the_file_as_secrets(
    started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text("[auth]\n[roles]\nviewer = ['*']\n")
    assert run(["dashboard", "--host", "0.0.0.0", "--roles", str(roles)]) == 0
    ((arguments, environment),) = started
    assert f"--secrets.files={roles}" in arguments
    assert environment["KVWITNESS_DASHBOARD_ROLES"] == str(roles)


def test_without_streamlit_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert run(["dashboard"]) == 2
    assert "kvwitness[dashboard]" in capsys.readouterr().err
