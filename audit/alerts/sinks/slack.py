"""Slack, by an incoming webhook."""

from __future__ import annotations

import orjson

from kvwitness.audit.alerts.model import RESOLVED, Notice
from kvwitness.audit.alerts.reading import Section
from kvwitness.audit.alerts.sinks._http import Poster
from kvwitness.audit.alerts.sinks._wording import headline, lines
from kvwitness.audit.alerts.sinks.model import SinkKind

_COLOURS = {"critical": "#a40000", "high": "#d9480f", "medium": "#e0a800", "low": "#4c6ef5", "info": "#868e96"}
_CALM = "#2b8a3e"
_LONGEST = 2900


def _harmless(text: str) -> str:
    """Names come from records: none of them may be a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Slack:
    """One channel. Slack does not look at keys: after an interruption a message may come twice, and then says so."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def deliver(self, notice: Notice) -> None:
        """Post one message."""
        head = _harmless(headline(notice))
        body = _harmless("\n".join(lines(notice)))[:_LONGEST]
        message = {
            "text": head,
            "attachments": [
                {
                    "color": _CALM if notice.status == RESOLVED else _COLOURS[notice.severity],
                    "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": body}}],
                }
            ],
        }
        self._poster.post(orjson.dumps(message))


def make(section: Section) -> Slack:
    """Keys: `url` (the address of the webhook, a secret), `ca_file`."""
    return Slack(Poster.of(section))


SINK = SinkKind("slack", "Slack, by an incoming webhook", make)
