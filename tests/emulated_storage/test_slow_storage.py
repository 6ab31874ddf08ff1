"""The emulation itself is as slow as it says, by its own clock, and leaves nothing behind.

Lower bounds are what its server waits for at least; upper ones allow a machine that is busy twice
as long again and more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

KIB, MIB = 1 << 10, 1 << 20


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _filled(folder: Path, n: int, nbytes: int) -> list[Path]:
    files = [folder / f"{number:03}.bin" for number in range(n)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number % 256]) * nbytes)
    return files


def _read_each(file: Path, n: int, nbytes: int) -> None:
    fd = os.open(file, os.O_RDONLY)
    for number in range(n):
        assert len(os.pread(fd, nbytes, number * nbytes)) == nbytes
    os.close(fd)


@pytest.mark.thorough
def test_each_request_waits_and_requests_of_several_readers_wait_together(
    slow_storage: Any,
) -> None:
    """Known truth: 20 reads one after another, and then by 10 threads at once."""
    folder = slow_storage(latency_s=0.02)
    (file,) = _filled(folder, 1, 20 * 4 * KIB)
    one = _seconds(lambda: _read_each(file, 20, 4 * KIB))
    assert 0.4 <= one < 1.6

    with ThreadPoolExecutor(10) as pool:
        parts = [(file, 2, 4 * KIB)] * 10
        many = _seconds(lambda: list(pool.map(lambda part: _read_each(*part), parts)))
    assert 0.04 <= many < 0.75 * one
    assert _seconds(lambda: _read_each(file, 20, 4 * KIB)) >= 0.4  # no page cache in between


@pytest.mark.thorough
def test_bandwidth_is_that_of_all_readers_together(slow_storage: Any) -> None:
    """Known truth: 8 MiB at 16 MiB a second, by one reader and by four."""
    folder = slow_storage(nbytes_per_s=16 * MIB)
    files = _filled(folder, 4, 2 * MIB)
    one = _seconds(lambda: [file.read_bytes() for file in files])
    with ThreadPoolExecutor(4) as pool:
        four = _seconds(lambda: list(pool.map(Path.read_bytes, files)))
    assert 0.4 <= one < 1.5
    assert 0.4 <= four < 1.5


@pytest.mark.thorough
def test_opens_a_second_are_limited_and_reads_are_not(slow_storage: Any) -> None:
    """Known truth: 25 files at 50 opens a second take half a second, their bytes nothing."""
    folder = slow_storage(opens_per_s=50)
    files = _filled(folder, 25, KIB)
    with ThreadPoolExecutor(5) as pool:
        opened = _seconds(lambda: list(pool.map(Path.read_bytes, files)))
    assert 0.4 <= opened < 1.5
    assert _seconds(lambda: [file.stat() for file in files]) < 0.25  # known to the kernel by now
    (large,) = _filled(folder, 1, 100 * KIB)
    assert _seconds(lambda: _read_each(large, 100, KIB)) < 0.4


@pytest.mark.thorough
def test_jitter_is_spread_and_settings_change_under_way(slow_storage: Any) -> None:
    """Known truth: an exponential time of 10 ms on the mean, then none."""
    folder = slow_storage(jitter_s=0.01)
    (file,) = _filled(folder, 1, KIB)
    fd = os.open(file, os.O_RDONLY)
    times = sorted(_seconds(lambda: os.pread(fd, KIB, 0)) for _ in range(60))
    assert 0.2 < sum(times) < 2.4
    assert times[54] > 3 * times[6]
    slow_storage.change(folder, jitter_s=0)
    assert _seconds(lambda: [os.pread(fd, KIB, 0) for _ in range(60)]) < sum(times) / 2
    os.close(fd)


def test_the_page_cache_answers_again_where_it_was_asked_for(slow_storage: Any) -> None:
    """What was read once costs nothing the second time, until it is dropped."""
    folder = slow_storage(latency_s=0.05, page_cache=True)
    (file,) = _filled(folder, 1, 64 * KIB)
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    first = _seconds(lambda: os.pread(fd, 64 * KIB, 0))
    again = _seconds(lambda: os.pread(fd, 64 * KIB, 0))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    dropped = _seconds(lambda: os.pread(fd, 64 * KIB, 0))
    os.close(fd)
    assert first >= 0.05
    assert again < 0.04
    assert dropped >= 0.05


def test_it_is_a_folder_like_another(slow_storage: Any) -> None:
    """Written, renamed, mapped, listed and removed; a file removed while open is readable still."""
    import mmap

    folder = slow_storage()
    (folder / "a").mkdir()
    (folder / "a" / "part").write_bytes(b"12345678" * KIB)
    (folder / "a" / "part").replace(folder / "a" / "whole")
    (folder / "a").rename(folder / "b")
    (folder / "link").symlink_to("b/whole")
    os.link(folder / "b" / "whole", folder / "b" / "other")
    assert sorted(each.name for each in folder.iterdir()) == ["b", "link"]
    assert sorted(each.name for each in (folder / "b").iterdir()) == ["other", "whole"]
    with (folder / "link").open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[8:16] == b"12345678"
        file.truncate(8)
        (folder / "b" / "whole").unlink()
        (folder / "b" / "other").unlink()
        assert os.fstat(file.fileno()).st_size == 8
        assert file.read() == b"12345678"
        os.posix_fallocate(file.fileno(), 0, 100)
        assert os.fstat(file.fileno()).st_size == 100
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
    (file,) = _filled(folder, 1, KIB)
    fd = os.open(file, os.O_RDONLY)
    slow_storage.change(folder, latency_s=600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(os.pread, fd, KIB, 0)
        server = slow_storage.servers[folder]
        server.kill()
        with pytest.raises(OSError, match=r"abort|connected|I/O|Transport"):
            waiting.result(30)
    with suppress(OSError):
        os.close(fd)
    slow_storage.close()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
