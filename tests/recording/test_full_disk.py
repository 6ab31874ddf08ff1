import errno
import os
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
import os, resource, sys
from pathlib import Path
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
recorder = Recorder(Path(sys.argv[1]), role="consumer")
for step in range(50_000):
    with recorder.span(Kind.READ):
        pass
recorder.close()
file = read_span_file(recorder.path)
print(len(file.spans), file.lost, file.damaged, file.closed)
"""


@pytest.mark.timeout(60)
def test_the_kernel_itself_may_refuse(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(STEP_SPANS), str(50_000 - STEP_SPANS), "0", "True"]
