"""The emulation waits as it says, is a folder like another, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.emulated_storage.slow_server import Slowness

KIB = 1 << 10


@pytest.mark.parametrize(
    ("settings", "requests", "waits_s"),
    [
        ({"latency_s": 0.02}, [{}, {}], [0.02, 0.02]),
        ({"nbytes_per_s": 1000}, [{"nbytes": 500}, {"nbytes": 250}, {"opens": 1}], [0.5, 0.75, 0]),
        ({"opens_per_s": 50}, [{"opens": 1}, {"opens": 1}, {"nbytes": 9}], [0.02, 0.04, 0]),
    ],
)
def test_requests_that_arrive_together_wait_as_long_as_is_said(
    monkeypatch: pytest.MonkeyPatch, settings: Any, requests: Any, waits_s: list[float]
) -> None:
    waits: list[float] = []
    slow_server = "tests.emulated_storage.slow_server.time"
    monkeypatch.setattr(f"{slow_server}.sleep", waits.append)
    monkeypatch.setattr(f"{slow_server}.monotonic", lambda: 7.0)
    slowness = Slowness(**settings)
    for request in requests:
        slowness.delay(7.0, **request)
    assert waits == pytest.approx(waits_s)


def test_it_is_a_folder_like_another(slow_storage: Any) -> None:
    """Written, renamed, mapped, listed and removed; a file removed while open is readable still."""
    folder = slow_storage()
    (folder / "a").mkdir()
    (folder / "a" / "part").write_bytes(b"12345678" * KIB)
    (folder / "a" / "part").replace(folder / "a" / "whole")
    (folder / "a").rename(folder / "b")
    os.link(folder / "b" / "whole", folder / "b" / "other")
    assert sorted(each.name for each in (folder / "b").iterdir()) == ["other", "whole"]
    with (folder / "b" / "whole").open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[8:16] == b"12345678"
        file.truncate(8)
        (folder / "b" / "whole").unlink()
        (folder / "b" / "other").unlink()
        assert os.fstat(file.fileno()).st_size == 8
        assert file.read() == b"12345678"
    (folder / "times").touch()
    os.utime(folder / "times", (5, 7))
    assert (folder / "times").stat().st_mtime == 7
    assert os.statvfs(folder).f_blocks > 0
    with pytest.raises(FileNotFoundError):
        (folder / "b" / "whole").stat()


def test_a_test_that_is_killed_leaves_no_mount(slow_storage: Any, tmp_path: Path) -> None:
    """Its server goes with it, and takes the mount away."""
    slow_storage()  # skips where none can be made
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        f"sys.path.append({str(Path(__file__).parent)!r})\n"
        "from slow_storage import SlowStorage\n"
        f"folder = SlowStorage(Path({str(tmp_path / 'killed')!r}))(latency_s=0.01)\n"
        "(folder / 'file').write_bytes(b'x'); print(folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    # Its server holds the other end of the pipe of its errors until it has ended.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = Path(done.stdout.strip())
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert list(folder.iterdir()) == []


def test_a_reader_gets_an_error_and_does_not_hang_where_the_server_dies(slow_storage: Any) -> None:
    """And the dead mount is taken away at the end all the same."""
    folder = slow_storage()
    (folder / "file").write_bytes(bytes(KIB))
    fd = os.open(folder / "file", os.O_RDONLY)
    slow_storage.change(folder, latency_s=600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(os.pread, fd, KIB, 0)
        slow_storage.servers[folder].kill()
        with pytest.raises(OSError, match=r"abort|connected|I/O|Transport"):
            waiting.result(30)
    with suppress(OSError):
        os.close(fd)
    slow_storage.close()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
