"""A relay in front of a server that stops to answer after some requests, as one that dies does."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Relay(ThreadingHTTPServer):
    """Passes requests on to a port of this machine, up to ``limit`` of them.

    ``after`` says whether the request over the limit still reaches the server, its answer being
    what is lost.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.limit: int | None = None
        self.after = False
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, limit: int | None, *, after: bool = False) -> None:
        self.limit, self.after, self.seen = limit, after, []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error of a test."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        relay = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        over = relay.limit is not None and len(relay.seen) >= relay.limit
        relay.seen.append((self.command, self.path, dict(self.headers)))
        self.close_connection = True
        if over and not relay.after:
            return
        upstream = http.client.HTTPConnection("127.0.0.1", relay.target, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if over:
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        """Say nothing."""
