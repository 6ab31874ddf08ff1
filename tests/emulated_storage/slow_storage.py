"""A folder on storage of known latency, bandwidth, jitter and opens a second: see `SlowStorage`.

A test asks for the fixture ``slow_storage`` (``tests/conftest.py``); it skips, with the reason,
where the kernel mounts no FUSE file system for us.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("slow_server.py")
START_S = 30.0


class SlowStorage:
    """Makes slow folders below ``root``; each is a FUSE mount (``fuse.slow``), empty at first.

    Call it for a folder (all are optional, and what is left out costs nothing):

    latency_s : float
        Each request to read waits so long, whatever the others do, and so does each look at a
        name or open. A request has 1 MiB at most; a longer read is several. No page cache answers.
    nbytes_per_s : float
        What all readers get together.
    jitter_s : float
        Each request waits further, a random time of this mean (exponential, at most ten times it).
    opens_per_s : float
        Opens and first looks at a name, by all together. The first open of a name that was not
        looked at before is one, not two. What was looked at is known to the kernel from then on.
    quota_nbytes : int
        What may be written; more is refused as beyond a quota (``EDQUOT``).

    Writing, and listing but for the open of the folder, cost nothing, so that a test can fill it.
    ``change(folder, latency_s=...)`` sets it anew.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.servers: dict[Path, subprocess.Popen[str]] = {}

    def __call__(self, **settings: Any) -> Path:
        """Return a new folder."""
        if not Path("/dev/fuse").exists() or os.geteuid():
            pytest.skip("no FUSE on this system, or not for us: storage cannot be made slow")
        base = self.root / f"slow-{len(self.servers)}"
        backing, point = base / "backing", base / "mount"
        backing.mkdir(parents=True)
        point.mkdir()
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", SERVER, backing, point, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.servers[point] = server
        said = _line(server)
        if said != "ready":
            pytest.skip(said or "the server of slow storage did not start")
        return point

    def change(self, folder: Path, **settings: Any) -> None:
        """Make a folder slower or faster from now on."""
        server = self.servers[folder]
        assert server.stdin is not None
        server.stdin.write(json.dumps(settings) + "\n")
        server.stdin.flush()
        assert _line(server) == "changed"

    def close(self) -> None:
        """Unmount all; whoever still reads gets an error at once, and does not hang."""
        for point, server in self.servers.items():
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)
            for pipe in (server.stdin, server.stdout):
                if pipe is not None:
                    pipe.close()
            if server.returncode:  # killed: the mount is there, and dead
                command = [sys.executable, "-I", "-S", "-c", UNMOUNT, SERVER.parent, point]
                subprocess.run(command, timeout=30, check=False)


UNMOUNT = (
    "import sys; sys.path.append(sys.argv[1]); import slow_server as s; s.unmount(sys.argv[2])"
)


def _line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], START_S)
    return server.stdout.readline().strip() if ready else ""


@contextmanager
def slow_folders(root: Path) -> Iterator[SlowStorage]:
    """Give what makes slow folders, and unmount them in the end."""
    storage = SlowStorage(root)
    try:
        yield storage
    finally:
        storage.close()
