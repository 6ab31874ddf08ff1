import errno
import os
import shutil
import subprocess
import sys

import pytest

from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
from iobench.recording.span_writer import read_stopped

STEP_SPANS = 16 * layout.SPANS_PER_CHUNK


@pytest.fixture
def disk(monkeypatch):
    """A disk with ``disk[0]`` bytes left, as ``posix_fallocate`` sees it."""
    left = [1 << 40]
    allocate = os.posix_fallocate

    def limited(descriptor, start, nbytes):
        if nbytes > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= nbytes
        allocate(descriptor, start, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    return left


def test_the_loop_goes_on_when_the_disk_fills(tmp_path, disk, caplog):
    disk[0] = 3 << 20
    with Recorder(tmp_path, role="consumer") as recorder:
        steps = []
        for step in range(3 * STEP_SPANS):
            with recorder.span(Kind.READ):
                steps.append(step)
        assert read_span_file(recorder.path).lost == STEP_SPANS, "before it is closed"
    file = read_span_file(recorder.path)
    assert len(steps) == 3 * STEP_SPANS
    assert len(file.spans) == 2 * STEP_SPANS
    assert len(file.spans) + file.lost == len(steps)
    assert (file.damaged, file.missing_nbytes, file.closed) == (0, 0, True)
    assert "No space left" in recorder.failure
    assert len(caplog.records) == 1


def test_no_space_even_for_the_header_leaves_an_empty_mark(tmp_path, disk):
    disk[0] = 0
    with Recorder(tmp_path, role="consumer", rank=3) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    assert recorder.lost == 1
    [mark] = tmp_path.iterdir()
    assert mark.stat().st_size == 0
    [stopped] = read_stopped([tmp_path])
    assert (stopped.pid, stopped.rank, stopped.lost) == (os.getpid(), 3, 1)
    assert stopped.reason == os.strerror(errno.ENOSPC)


def test_a_text_without_space_is_said_to_be_unknown(tmp_path, disk):
    with Recorder(tmp_path, role="consumer") as recorder:
        for _ in range(15 * layout.SPANS_PER_CHUNK + 1):
            recorder.emit(Kind.READ, 1, 2)
        disk[0] = 0
        label = recorder.string("too late")
        recorder.emit(Kind.READ, 1, 2, label=label)
    file = read_span_file(recorder.path)
    assert file.strings[label] == "unknown"
    assert (file.damaged, file.lost) == (1, 0)


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_space_is_reserved_before_it_is_written(tmp_path, monkeypatch, code):
    def refuse(descriptor, start, nbytes):
        raise OSError(code, "no")

    if code is not None:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    with Recorder(tmp_path, role="consumer") as recorder:
        recorder.emit(Kind.READ, 1, 2)
        assert recorder.path.stat().st_blocks * 512 >= 1 << 20
    assert len(read_span_file(recorder.path).spans) == 1


LOOP = """
import sys
from pathlib import Path
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), role="consumer")
for step in range(50_000):
    with recorder.span(Kind.READ):
        pass
recorder.close()
print(recorder.lost, recorder.path)
"""


def loop_ended(command, directory):
    """Run the loop; return its spans and losses, read while its file system is there."""
    reading = (
        "from iobench.recording.span_reader import read_span_file; "
        "file = read_span_file(recorder.path); "
        "print(len(file.spans), file.lost, file.damaged, file.closed)"
    )
    ended = subprocess.run(
        [*command, sys.executable, "-c", LOOP + reading, str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    n_spans, lost, damaged, closed = ended.stdout.splitlines()[1].split()
    return int(n_spans), int(lost), int(damaged), closed


@pytest.mark.timeout(60)
def test_the_kernel_itself_may_refuse(tmp_path):
    limit = "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (2 << 20, 2 << 20)); "
    command = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])"]
    n_spans, lost, damaged, closed = loop_ended(command, tmp_path)
    assert (n_spans, lost) == (STEP_SPANS, 50_000 - STEP_SPANS)
    assert (damaged, closed) == (0, "True")


@pytest.mark.timeout(60)
def test_a_small_file_system_fills_and_the_loop_goes_on(tmp_path):
    mount = f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None:
        pytest.skip("a small file system needs unshare(1)")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a small file system needs user namespaces, which this system forbids")
    n_spans, lost, damaged, closed = loop_ended(command, tmp_path)
    assert n_spans + lost == 50_000
    assert lost > 0
    assert (damaged, closed) == (0, "True")
