"""A web server on loopback that hands out the files of a folder, in one of several manners."""

from __future__ import annotations

import base64
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class FileServer(ThreadingHTTPServer):
    """Hands out files and ranges of them.

    ``manner``: ``"silence"``, ``"elsewhere"`` (redirects to ``other``), ``"no HEAD"``,
    ``"only whole"``, ``"signed for GET"``, ``"cut short"`` or a status. ``n_left``: answers with
    bytes until they are refused with 403; negative: never.
    """

    daemon_threads = True
    request_queue_size = 128  # many ask at once; of more than that who waits tries again in 1 s

    def __init__(self, folder: Path, secret: str = "", **manners: object) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.secret = secret  # password of any user, or in the query; without it the answer is 401
        self.missing = 404  # the status of what is not there
        self.lists = False  # whether a folder is answered with a page of links
        self.whole: Path | None = None  # a file that is handed out wherever one is asked for
        self.manner = self.other = ""
        self.n_left, self.n_heads = -1, 0
        self.requests: list[tuple[str, str | None]] = []
        self.ended = threading.Event()
        self.__dict__.update(manners)

    @property
    def at(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of who hangs up."""


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's attributes say."""

    server: FileServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # bytes right after their header, not 40 ms later

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer with the size."""
        self.server.n_heads += 1
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with bytes."""
        server, manner, is_head = self.server, self.server.manner, self.command == "HEAD"
        path, _, query = self.path.partition("?")
        server.requests.append((self.path, self.headers.get("Authorization")))
        words = base64.b64decode((self.headers.get("Authorization") or "").partition(" ")[2])
        file = server.whole or server.folder / unquote(path).lstrip("/")
        if manner == "silence":
            server.ended.wait(30)
        elif manner == "elsewhere":
            self.answer(302, Location=f"{server.other}{self.path}")
        elif manner.isdigit() or (is_head and manner in ("no HEAD", "signed for GET")):
            self.answer(int(manner) if manner.isdigit() else 405 if manner == "no HEAD" else 403)
        elif server.secret not in query + words.decode():
            self.answer(401)
        elif file.is_dir() and server.lists:
            links = "".join(f'<a href="{each.name}/">' for each in file.iterdir() if each.is_dir())
            self.answer(200, links.encode(), Content_Type="text/html")
        elif not file.is_file():
            self.answer(server.missing)
        elif server.n_left == 0 and not is_head:
            self.answer(403)
        else:
            server.n_left -= not is_head
            self.answer_file(file.read_bytes())

    def answer_file(self, content: bytes) -> None:
        """Answer with a file, or the range of it that is asked for."""
        wanted = "" if self.server.manner == "only whole" else self.headers.get("Range", "")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first or 0), min(int(last or len(content)) + 1, len(content))
        span = {"Content_Range": f"bytes {start}-{stop - 1}/{len(content)}"} if wanted else {}
        etag = f'"{zlib.crc32(content):x}"'
        part = content[start:stop]
        self.answer(206 if wanted else 200, part, Accept_Ranges="bytes", ETag=etag, **span)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer; of a body that is cut short half."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET" and self.server.manner == "cut short":
            self.wfile.write(body[: len(body) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
        elif self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serve(folder: Path, secret: str = "", **manners: object) -> Iterator[FileServer]:
    """Yield a server of the files of a folder; the arguments are attributes of `FileServer`."""
    server = FileServer(folder, secret, **manners)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
