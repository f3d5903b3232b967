"""Syslog: RFC 5424 messages over TLS (RFC 5425), or over TCP with the same framing."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress

from kvwitness.audit.alerts.model import Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._tls import context
from kvwitness.audit.alerts.sinks._wording import headline, iso
from kvwitness.audit.alerts.sinks.model import SinkKind, Unreachable

_FACILITY = 13  # log audit
_SEVERITY = {"critical": 2, "high": 3, "medium": 4, "low": 5, "info": 6}
_ENTERPRISE = "kvwitness@32473"
"""Name of our structured data. 32473 is the number that RFC 5612 reserves for examples: we have none of our own."""
_WAIT_S = 10.0


def _value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")


def message(notice: Notice, host: str, process: int) -> bytes:
    """One message of RFC 5424."""
    facts = {
        "key": notice.key,
        "alert": notice.alert,
        "status": notice.status,
        "severity": notice.severity,
        "verdict": notice.verdict,
        "incidents": str(notice.incidents),
        "tenants": str(notice.tenants),
        "rules": ",".join(notice.rules),
        "runbook": notice.runbook,
        "acknowledged": str(notice.acknowledged),
        "assignees": ",".join(notice.assigned_to),
        "repeated": str(notice.repeated).lower(),
    }
    structured = " ".join(f'{name}="{_value(text)}"' for name, text in facts.items())
    priority = _FACILITY * 8 + _SEVERITY[notice.severity]
    text = " ".join(f"{headline(notice)}. {notice.summary}".split())
    head = (
        f"<{priority}>1 {iso(notice.said_ns)} {host} kvwitness {process} {notice.status} [{_ENTERPRISE} {structured}]"
    )
    return head.encode() + b" \xef\xbb\xbf" + text.encode()


class Syslog:
    """One receiver; a connection per message. TCP does not say what arrived, so a message that was handed to the system
    just before the receiver died may be lost: for what must not be, use another sink beside this one."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host, self._port, self._context = host, port, context

    def deliver(self, notice: Notice) -> None:
        """Send one message and wait until the receiver has closed its side, or all is handed over."""
        told = message(notice, socket.gethostname() or "-", os.getpid())
        frame = f"{len(told)} ".encode() + told
        try:
            with socket.create_connection((self._host, self._port), timeout=_WAIT_S) as plain:
                if self._context is None:
                    plain.sendall(frame)
                    plain.shutdown(socket.SHUT_WR)
                    return
                with self._context.wrap_socket(plain, server_hostname=self._host) as secure:
                    secure.sendall(frame)
                    # Many receivers (rsyslog with GnuTLS is one) end the connection without a farewell in TLS. One that
                    # ends in order has taken what was sent; where some of it was not read, a reset comes instead.
                    with suppress(ssl.SSLEOFError):
                        secure.unwrap()
        except (OSError, ssl.SSLError) as exc:
            raise Unreachable(f"{self._host}:{self._port}: {type(exc).__name__}") from exc


def make(section: Section) -> Syslog:
    """Keys: `host`, `port`, `encryption` (`tls` or `none`), `ca_file`, `cert_file` and `key_file` (to be known by)."""
    encryption = section.choice("encryption", ("tls", "none"), "tls")
    trusting = context(section)
    cert_file, key_file = section.readable("cert_file"), section.readable("key_file")
    if cert_file is not None:
        try:
            trusting.load_cert_chain(cert_file, key_file)
        except ssl.SSLError as exc:
            raise section.error("cert_file", f"cannot be used with its key: {exc}") from exc
    port = section.whole("port", 6514 if encryption == "tls" else 601, low=1, high=65535)
    return Syslog(section.text("host"), port, trusting if encryption == "tls" else None)


SINK = SinkKind("syslog", "syslog, RFC 5424 over TLS", make)
