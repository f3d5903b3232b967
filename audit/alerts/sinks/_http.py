"""Sending JSON over HTTP, for all sinks that do: one time limit, one meaning of each status."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kvwitness import __version__
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._tls import context
from kvwitness.audit.alerts.sinks.model import Refused, Unreachable
from kvwitness.audit.errors import KvwitnessError

_WAIT_S = 10.0
_MOST_BYTES = 65_536
"""So much of an answer is read: the other side may send without end."""
_FOR_GOOD = frozenset({400, 413, 422})
"""Refusals of this message. Any other says that the address, a key or the server is not as it should be: that can be
put right, and the message waits for it."""


class Poster:
    """Posts bodies to one address."""

    def __init__(
        self, url: str, *, context: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        try:
            import urllib3
        except ImportError as exc:
            raise KvwitnessError("Sinks over HTTP need the package urllib3.", "Install kvwitness[alerts].") from exc
        self.url = url
        self._headers = {"User-Agent": f"kvwitness/{__version__}", **(headers or {})}
        self._errors = urllib3.exceptions.HTTPError
        limits = urllib3.Timeout(connect=_WAIT_S, read=_WAIT_S)
        # No redirect is followed: a message goes to the address that was configured, or nowhere.
        settings: dict[str, Any] = {"retries": False, "timeout": limits}
        proxy = _proxy(url)
        if context is not None and url.startswith("https:"):
            settings["ssl_context"] = context
        self._pool = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)

    @classmethod
    def of(cls, section: Section, key: str = "url", *, default: str | None = None) -> Poster:
        """From configuration: the address, `ca_file`, and `headers`, whose values may be secrets."""
        url = section.url(key) if default is None else section.url(key, default)
        headers = section.section("headers")
        return cls(
            url,
            context=context(section),
            headers={name: _header(headers, name) for name in headers.names()},
        )

    def post(self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = "") -> bytes:
        """Send JSON; returns what came back. Raises `Unreachable` or `Refused`; neither holds the address, which may be
        secret, beyond its host."""
        host = urlsplit(self.url).hostname
        sent = {**self._headers, "Content-Type": "application/json", **(headers or {})}
        address = self.url.rstrip("/") + path if path else self.url
        try:
            answer = self._pool.request("POST", address, body=body, headers=sent, preload_content=False)
            try:
                told = answer.read(_MOST_BYTES, decode_content=False)
            finally:
                answer.close()
                answer.release_conn()
        except self._errors as exc:
            raise Unreachable(f"{host} could not be reached: {type(exc).__name__}") from exc
        if answer.status < 300:
            return told
        why = f"{host} answered {answer.status}"
        if answer.status in _FOR_GOOD:
            raise Refused(why)
        raise Unreachable(why, _seconds(answer.headers.get("Retry-After")))


def _header(section: Section, name: str) -> str:
    """A value that HTTP can carry. What is wrong with it is said here, where the value, perhaps a secret, is not."""
    value: str = section.secret(name)
    if not (value.isascii() and value.isprintable()):
        raise section.error(name, "has to be printable ASCII on one line")
    return value


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address, unless it excepts its host."""
    import urllib.request

    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; its form as a date is not worth trusting two clocks."""
    try:
        return None if text is None else min(3600.0, max(0.0, float(text)))
    except ValueError:
        return None
