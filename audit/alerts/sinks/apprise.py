"""Everything that apprise knows: Teams, Telegram, Matrix, Opsgenie and a hundred more, by one address each."""

from __future__ import annotations

import logging
from typing import Any

from kvwitness.audit.alerts.model import RESOLVED, Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._wording import headline, lines
from kvwitness.audit.alerts.sinks.model import SinkKind, Unreachable

_TYPES = {"critical": "failure", "high": "failure", "medium": "warning", "low": "info", "info": "info"}


class Apprise:
    """A service by its address. apprise says only that something failed, so a failure is tried again."""

    def __init__(self, services: Any) -> None:
        self._services = services

    def deliver(self, notice: Notice) -> None:
        """Send one message to all of them."""
        kind = "success" if notice.status == RESOLVED else _TYPES[notice.severity]
        if not self._services.notify(title=headline(notice), body="\n".join(lines(notice)), notify_type=kind):
            raise Unreachable("apprise could not deliver")


def make(section: Section) -> Apprise:
    """Keys: `url` (an address of apprise, a secret)."""
    try:
        import apprise
    except ImportError:
        raise section.error("type", "needs the package apprise", "Install kvwitness[apprise].") from None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it would print addresses
    services = apprise.Apprise()
    if not services.add(section.secret("url")):
        raise section.error("url", "is no address that apprise knows")
    return Apprise(services)


SINK = SinkKind("apprise", "any service that apprise knows", make)
