"""Whom a sink trusts: the authorities of the machine, or those of a file that configuration names."""

from __future__ import annotations

import ssl

from kvwitness.audit.alerts.reading import Section


def context(section: Section) -> ssl.SSLContext:
    """Verifies by `ca_file` where the table has one; raises `ConfigError` where that is no file of certificates."""
    file = section.readable("ca_file")
    try:
        return ssl.create_default_context(cafile=file)
    except ssl.SSLError as exc:
        raise section.error("ca_file", f"names {file}, which holds no certificates in PEM") from exc
