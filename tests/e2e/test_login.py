"""The login: through a real OpenID Connect provider on this machine, in a real browser, to what each role may see."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvwitness.audit.scenarios.recorded import SGLANG_PLACEHOLDER
from kvwitness.audit.store import Store
from tests.dashboards.conftest import judged
from tests.e2e.conftest import Served, Visit, ended, free_port, serve

Open = Callable[..., Visit]

PEOPLE = {
    "ada": {"email": "ada@example.com", "email_verified": True},
    "victor": {"email": "Victor@Example.com", "email_verified": True},
    "eve": {"email": "eve@elsewhere.test", "email_verified": True},
    "mallory": {"email": "ada@example.com", "email_verified": False},
}
ROLES = """\
[roles]
responder = ["ada@example.com"]
viewer = ["@example.com"]
"""


@dataclass
class Provider:
    """An OpenID Connect provider that knows `PEOPLE`."""

    url: str

    def registered(self, redirect_uri: str) -> dict[str, str]:
        """A client of it that may be sent back to this address alone."""
        asked = json.dumps({"redirect_uris": [redirect_uri], "scope": "openid email profile"}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/oauth2/clients", asked, headers)) as answer:
            client: dict[str, str] = json.load(answer)
        return client


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    if importlib.util.find_spec("oidc_provider_mock") is None:
        pytest.skip("no OpenID Connect provider here: tests/e2e/run installs one")
    port = free_port()
    people = [f"--user-claims={json.dumps({'sub': name, **claims})}" for name, claims in PEOPLE.items()]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *people]
    process = subprocess.Popen([*command, "--require-registration", "true", "--require-nonce", "true"])
    found = Provider(f"http://127.0.0.1:{port}")
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{found.url}/.well-known/openid-configuration", timeout=5).close()
            break
        except OSError:
            continue
    assert process.poll() is None
    yield found
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def guarded(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard behind that login, on a store with two leaks."""
    root, port = tmp_path_factory.mktemp("login"), free_port()
    store = judged(root / "store", SGLANG_PLACEHOLDER)
    back = f"http://127.0.0.1:{port}/oauth2callback"
    client = provider.registered(back)
    auth = {
        "redirect_uri": back,
        "cookie_secret": "of this test alone, and of nobody else",
        "client_id": client["client_id"],
        "client_secret": client["client_secret"],
        "server_metadata_url": f"{provider.url}/.well-known/openid-configuration",
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in auth.items()]
    roles = root / "roles.toml"
    roles.write_text("\n".join(["[auth]", *lines, ROLES]))
    served = serve(store.path, "--roles", str(roles), port=port)
    yield served
    ended(served)


def logged_in(visit: Open, guarded: Served, who: str) -> Visit:
    """A browser in which somebody has logged in, as a person does: the button, the provider's form, and back."""
    seen = visit(guarded)
    seen.go()
    assert "Log in to see what this store holds." in text(seen)
    seen.page.get_by_role("button", name="Log in").click()
    seen.page.get_by_role("button", name=who, exact=True).click(timeout=60_000)
    seen.page.wait_for_url(f"{guarded.url}/**", timeout=60_000)
    seen.page.get_by_text("Log out").first.wait_for(timeout=60_000)
    seen.whole()
    seen.errors.clear()  # the provider's page asks for a style sheet from elsewhere
    return seen


def text(seen: Visit) -> str:
    """Everything that stands on the page."""
    found: str = seen.page.inner_text("body")
    return found


def names(store: Path) -> set[str]:
    """The tenants on record."""
    return set(Store.open(store).result("request_verdicts")["tenant"].drop_nulls().to_list())


def places(store: Path) -> list[str]:
    """Every page, and one incident and one request."""
    row = Store.open(store).result("incidents").drop_nulls("request").row(0, named=True)
    detail = [f"incident?incident={row['incident']}", f"requests?request={row['request']}"]
    return ["", "incidents", "page-map", "requests", "limits", "tenants", "ask", "health", *detail]


def test_nothing_is_shown_before_the_login(guarded: Served, visit: Open) -> None:
    seen = visit(guarded)
    for path in places(guarded.store):
        seen.go(path)
        assert "Log in to see what this store holds." in text(seen)
        assert not [name for name in names(guarded.store) if name in text(seen)]


def test_a_responder_sees_names_and_may_write(guarded: Served, visit: Open) -> None:
    seen = logged_in(visit, guarded, "ada")
    assert "ada@example.com: responder" in text(seen)
    assert [name for name in names(guarded.store) if name in text(seen)]
    seen.go(places(guarded.store)[-2])
    assert seen.page.get_by_role("button", name="Write it down").count() == 1
    seen.go("ask")
    assert seen.page.get_by_role("button", name="Ask", exact=True).count() == 1


def test_a_viewer_sees_no_name_of_a_tenant_and_writes_nothing(guarded: Served, visit: Open) -> None:
    seen = logged_in(visit, guarded, "victor")
    assert "Victor@Example.com: viewer" in text(seen)
    for path in places(guarded.store):
        seen.go(path)
        # Beyond the words: tables and charts are drawn from data that the page holds.
        shown = text(seen) + str(seen.page.content())
        assert not [name for name in names(guarded.store) if name in shown], path
        assert seen.page.get_by_role("button", name="Write it down").count() == 0
    assert seen.errors == []


@pytest.mark.parametrize("who", ["eve", "mallory"])
def test_who_is_in_no_list_or_unverified_sees_nothing(guarded: Served, visit: Open, who: str) -> None:
    """mallory has a responder's address, of which the provider says that nobody verified it."""
    seen = visit(guarded)
    seen.go()
    seen.page.get_by_role("button", name="Log in").click()
    seen.page.get_by_role("button", name=who, exact=True).click(timeout=60_000)
    seen.page.wait_for_url(f"{guarded.url}/**", timeout=60_000)
    refused = "eve@elsewhere.test has no role here" if who == "eve" else "Log in to see what this store holds."
    seen.page.get_by_text(refused).first.wait_for(timeout=60_000)
    for path in places(guarded.store)[:3]:
        seen.go(path)
        assert not [name for name in names(guarded.store) if name in text(seen)]


def test_after_the_logout_nothing_is_shown(guarded: Served, visit: Open) -> None:
    seen = logged_in(visit, guarded, "ada")
    seen.page.get_by_text("Log out").first.click()
    seen.page.get_by_role("button", name="End session").click(timeout=60_000)  # the provider asks as well
    seen.page.get_by_role("button", name="Log in").wait_for(timeout=60_000)
    seen.go("incidents")
    assert not [name for name in names(guarded.store) if name in text(seen)]
