"""`kvwitness watch`; see `kvwitness.audit.cli.check`."""

from __future__ import annotations

from kvwitness.audit.cli.check import watching as app

__all__ = ["app"]
