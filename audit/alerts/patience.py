"""An end to waiting: time-outs of sockets hold for one read, and a receiver may send its answer byte by byte."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from kvwitness.audit.alerts.sinks.model import Unreachable

MOST_S = 60.0
"""For so long a sink is waited for; those that go through HTTP, SMTP or syslog give up by themselves well before."""


class Patience:
    """Calls to sinks, each with an end. One that is not over by then is left to itself, and until it is over nothing
    else is sent to that sink: so that there is one such call per sink at most."""

    def __init__(self, most_s: float = MOST_S) -> None:
        self._most_s = most_s
        self._busy: WeakKeyDictionary[object, threading.Thread] = WeakKeyDictionary()

    def call(self, sink: object, send: Callable[[], None]) -> None:
        """Run `send`, which goes to `sink`; raises what it raises, and `Unreachable` when it takes too long. What it
        sends may arrive all the same."""
        before = self._busy.get(sink)
        if before is not None and before.is_alive():
            raise Unreachable(f"it has been answering for more than {self._most_s:g} s")
        raised: list[BaseException] = []

        def run() -> None:
            try:
                send()
            except BaseException as exc:
                raised.append(exc)

        thread = threading.Thread(target=run, name="kvwitness-sink", daemon=True)
        thread.start()
        thread.join(self._most_s)
        if thread.is_alive():
            self._busy[sink] = thread
            raise Unreachable(f"no answer was complete within {self._most_s:g} s")
        if raised:
            raise raised[0]


patience = Patience()
"""That of this process."""
