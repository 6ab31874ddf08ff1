"""A web server on loopback that hands out the files of a folder to who knows a secret."""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serve(folder: Path, secret: str) -> Iterator[ThreadingHTTPServer]:
    """Yield a server of files and ranges of them; 401 without the secret, 404 without a file.

    Its ``missing`` is another status for that.

    The secret is the password of any user, or anywhere in the query. The server's ``n_left`` counts
    down answers with bytes; when it is 0 they are refused with 403. Negative: never. Its
    ``n_heads`` counts questions for the state of a file.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # bytes right after their header, not 40 ms later

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            """Answer with the size."""
            server.n_heads += 1
            self.answer(is_whole=False)

        def do_GET(self) -> None:
            """Answer with bytes."""
            self.answer(is_whole=True)

        def answer(self, *, is_whole: bool) -> None:
            path, _, query = self.path.partition("?")
            _, _, encoded = self.headers.get("Authorization", "").partition(" ")
            file = folder / path.lstrip("/")
            if secret not in query + base64.b64decode(encoded).decode():
                self.refuse(401)
            elif not file.is_file():
                self.refuse(server.missing)
            elif is_whole and server.n_left == 0:
                self.refuse(403)
            else:
                server.n_left -= is_whole
                self.send(file.read_bytes(), is_whole=is_whole)

        def refuse(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, data: bytes, *, is_whole: bool) -> None:
            start, _, end = self.headers.get("Range", "bytes=0-")[6:].partition("-")
            first, last = int(start), min(int(end or len(data)), len(data) - 1)
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{zlib.crc32(data):x}"')
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            if is_whole:
                self.wfile.write(data[first : last + 1])

    class Server(ThreadingHTTPServer):
        n_left = -1
        n_heads = 0
        missing = 404
        daemon_threads = True
        request_queue_size = 128  # many ask at once; of more than that who waits tries again in 1 s

        def handle_error(self, *_: object) -> None:
            """Say nothing of who hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
