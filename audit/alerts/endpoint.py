"""`/metrics` and `/healthz` of a running watch, on an address of one's own choice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvwitness.audit.errors import KvwitnessError

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def endpoint(address: str, metrics: Callable[[], str]) -> Iterator[int]:
    """Serve while the block runs; yields the port. `address` is HOST:PORT.

    Raises `KvwitnessError` for an address that cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise KvwitnessError(f"{address!r} is no address of the form HOST:PORT.", "127.0.0.1:9464 is one.")

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Answer the two paths that there are."""
            if self.path == "/metrics":
                self._answer(200, metrics())
            elif self.path == "/healthz":
                self._answer(200, "watching\n")
            else:
                self._answer(404, "there is /metrics and /healthz\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Whoever scrapes is not worth a line."""

    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as exc:
        raise KvwitnessError(f"{address} cannot be listened on: {exc.strerror}.") from exc
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
