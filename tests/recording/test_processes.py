import os
import signal
import subprocess
import sys
import threading

import pytest

from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
from iobench.recording.stages import stage

pytestmark = [
    pytest.mark.timeout(60),
    # Forking with threads alive is what these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

SCRIPT = """
import os, signal, sys
from pathlib import Path
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.stages import stage
recorder = Recorder(Path(sys.argv[1]), role="worker", worker=1)
activate(recorder)
for index in range(1200):
    recorder.position(index)
    with stage("augment"):
        pass
"""


def in_child(work):
    """Run ``work`` in a forked child that leaves as torch's workers do; return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", ""])
def test_a_process_that_ends_leaves_its_spans_and_their_names(tmp_path, end):
    ended = subprocess.run([sys.executable, "-c", SCRIPT + end, str(tmp_path)], check=False)
    assert ended.returncode == (-signal.SIGKILL if end else 0)
    (path,) = tmp_path.iterdir()
    file = read_span_file(path)
    assert file.spans["batch"].tolist() == list(range(1200))
    assert {file.strings[label] for label in file.spans["label"].tolist()} == {"augment"}
    assert (file.closed, file.end is None) == (not end, bool(end))
    assert (file.damaged, file.missing_nbytes) == (0, 0)


def test_a_fork_writes_to_a_file_of_its_own(tmp_path):
    with Recorder(tmp_path, role="consumer") as recorder, activate(recorder):
        label = recorder.string("before the fork")

        def work():
            with stage("after the fork"):
                pass
            recorder.emit(Kind.READ, 1, 2, label=label)

        with stage("parent"):
            pid = in_child(work)
    parent = read_span_file(recorder.path)
    (path,) = set(tmp_path.iterdir()) - {recorder.path}
    child = read_span_file(path)
    assert [parent.strings[span] for span in parent.spans["label"].tolist()] == ["parent"]
    assert [child.strings[span] for span in child.spans["label"].tolist()] == [
        "after the fork",
        "before the fork",
    ]
    assert (child.pid, child.ppid, child.role, child.worker) == (pid, os.getpid(), "child", -1)


def test_a_span_begun_before_the_fork_stays_out_of_the_parents_file(tmp_path):
    with Recorder(tmp_path, role="consumer") as recorder:
        recorder.emit(Kind.READ, 1, 2)
        span = recorder.span(Kind.DECODE)
        span.__enter__()
        in_child(lambda: None)
        in_child(lambda: span.__exit__(None, None, None))
    assert read_span_file(recorder.path).spans["kind"].tolist() == [Kind.READ]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_fork_while_a_thread_holds_the_lock_does_not_hang(tmp_path):
    held, release = threading.Event(), threading.Event()
    with Recorder(tmp_path, role="consumer") as recorder:

        def hold():
            with recorder._lock:
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        in_child(lambda: recorder.emit(Kind.READ, 1, 2))
        release.set()
        thread.join()
    assert len(list(tmp_path.iterdir())) == 2
