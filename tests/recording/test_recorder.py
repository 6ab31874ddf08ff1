"""What recorders and stages write: of threads, forks, processes that end, and on full disks."""

import errno
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from iobench.errors import OptionError
from iobench.recording import process_io
from iobench.recording import span_file as layout
from iobench.recording.activation import activate
from iobench.recording.clocks import (
    MARKER_NAME,
    SYSTEM_CLOCK,
    now_ns,
    process_start_ns,
    wait_until_ns,
)
from iobench.recording.kinds import Kind
from iobench.recording.outside import OutsideSpan
from iobench.recording.process_io import ProcessIo, read_process_io, unit_costs
from iobench.recording.recorder import Recorder
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file
from iobench.recording.span_writer import read_stopped
from iobench.recording.stages import stage
from iobench.testing import FakeClock

pytestmark = [
    pytest.mark.timeout(60),
    # Forking with threads alive is what these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture
def clock():
    return FakeClock(start_ns=1000, wall_offset_ns=1_000_000)


@pytest.fixture
def recorder(tmp_path, clock):
    with Recorder(tmp_path, role="worker", worker=3, rank=2, clock=clock) as recorder:
        yield recorder


def test_emit_writes_exactly_what_it_is_given(recorder):
    label, detail = recorder.string("augment"), recorder.string("t2m")
    recorder.emit(
        Kind.PREPROCESS, 5, 9, nbytes=1 << 40, cpu_ns=3, batch=7, epoch=1, sample=99,
        label=label, detail=detail, flags=Flag.SUMMED, pieces=70_000,
    )  # fmt: skip
    recorder.emit(Kind.READ, 5, 9)
    assert read_span_file(recorder.path).spans.tolist() == [
        (5, 9, 1 << 40, 3, 99, 7, 1, detail, label, 5, 1, 65535, 1),
        (5, 9, -1, -1, -1, -1, -1, 0, 0, 2, 0, 1, 2),
    ]


def test_spans_have_exact_times_and_the_position_and_full_ones_cpu_time(recorder, clock):
    recorder.position(4, 1, 12)
    with recorder.span(Kind.READ, "header", detail="a.grib") as span:
        clock.advance(250)
        span.nbytes = 77
    recorder.position(1 << 40)  # does not fit, so it is unknown
    with recorder.full_span(Kind.DECODE, nbytes=5):
        clock.advance(100, cpu_ns=40)
    file = read_span_file(recorder.path)
    names = ["start_ns", "end_ns", "nbytes", "cpu_ns", "batch", "epoch", "sample"]
    assert file.spans[names].tolist() == [
        (1000, 1250, 77, -1, 4, 1, 12),
        (1250, 1350, 5, 40, -1, -1, -1),
    ]
    texts = [file.strings[number] for number in file.spans[["label", "detail"]][0]]
    assert texts == ["header", "a.grib"]


def test_the_header_says_who_and_when_and_closing_cuts_the_file(recorder, clock):
    recorder.emit(Kind.READ, 1, 2)
    clock.advance(500)
    with recorder.span(Kind.READ):
        recorder.close()
        recorder.close()
    recorder.emit(Kind.READ, 3, 4)
    assert recorder.lost == 2, "spans after closing harm nothing"
    file = read_span_file(recorder.path)
    assert (file.role, file.worker, file.rank, len(file.spans)) == ("worker", 3, 2, 1)
    anchors = [(each.monotonic_ns, each.wall_ns) for each in (file.start, file.end)]
    assert anchors == [(1000, 1_001_000), (1500, 1_001_500)]
    assert recorder.path.stat().st_size == layout.HEADER_NBYTES + layout.CHUNK_NBYTES


def test_more_spans_than_a_step_holds_keep_their_order(recorder):
    n = 20 * layout.SPANS_PER_CHUNK + 5
    for index in range(n):
        recorder.emit(Kind.READ, index, index + 1)
    file = read_span_file(recorder.path)
    assert np.array_equal(file.spans["start_ns"], np.arange(n))
    assert (file.damaged, file.missing_nbytes, file.lost) == (0, 0, 0)


def test_a_value_that_does_not_fit_loses_its_span_only(recorder, caplog):
    recorder.emit(Kind.READ, 1, 2)
    recorder.emit(Kind.READ, 3, 4, batch=1 << 40)
    recorder.emit(Kind.READ, 5, 6)
    file = read_span_file(recorder.path)
    assert file.spans["start_ns"].tolist() == [1, 5]
    assert (file.lost, file.damaged) == (1, 0)
    assert "does not fit" in caplog.text


def test_threads_write_to_chunks_of_their_own(recorder):
    def work(index):
        recorder.position(index)
        for _ in range(1500):
            with recorder.span(Kind.READ):
                pass

    threads = [threading.Thread(target=work, args=(i,), name=f"reader-{i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = read_span_file(recorder.path)
    assert sorted(file.thread_names) == ["reader-0", "reader-1", "reader-2"]
    for index, name in enumerate(file.thread_names):
        assert file.spans["batch"][file.threads == index].tolist() == [int(name[-1])] * 1500


def test_a_foreign_lane_is_a_thread_of_its_own(recorder):
    lanes = [recorder.foreign_lane(name) for name in ("reader", "reader", "")]
    for number, lane in enumerate(lanes):
        recorder.emit_on(lane, Kind.READ, 10 + number, 20, batch=number, nbytes=5)
    recorder.emit(Kind.WAIT, 30, 31)
    file = read_span_file(recorder.path)
    assert file.thread_names[:3] == ("reader", "reader", "foreign")
    assert file.spans["batch"].tolist() == [0, 1, 2, -1]
    assert file.threads.tolist() == [0, 1, 2, 3]


def test_texts_come_back_cut_between_characters_and_readable(recorder):
    texts = [f"variable-{index}-" + "ü" * 100 for index in range(2000)]
    numbers = [recorder.string(text) for text in texts]
    assert [recorder.string(text) for text in texts] == numbers
    long, undecodable = recorder.string("ä" * 5000 + "x"), recorder.string("bad\udcff")
    strings = read_span_file(recorder.path).strings
    assert [strings[number] for number in numbers] == texts
    assert (strings[long], strings[undecodable]) == ("ä" * 2048, "bad\\udcff")
    assert (recorder.string(""), strings[0]) == (0, "")


@pytest.mark.parametrize("preloaded", ["/soft/lib/libdarshan.so:/a/liba.so", "/a/liba.so"])
@pytest.mark.parametrize("can_be_made", [True, False])
def test_a_marker_is_read_where_darshans_runtime_is_loaded(
    tmp_path, clock, monkeypatch, preloaded, can_be_made
):
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    if not can_be_made:
        (tmp_path / MARKER_NAME).mkdir()
    with Recorder(tmp_path, role="worker", clock=clock) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    assert (tmp_path / MARKER_NAME).is_file() == ("darshan" in preloaded and can_be_made)
    assert (recorder.failure, recorder.lost) == (None, 0)


@pytest.mark.parametrize("before", [0, layout.SPANS_PER_CHUNK - 1, layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("others", [0, 3, layout.SPANS_PER_CHUNK, 3 * layout.SPANS_PER_CHUNK])
@pytest.mark.parametrize("nbytes", [None, -1, 7])
def test_a_span_knows_what_was_read_inside_it_across_chunks(tmp_path, before, others, nbytes):
    recorder = Recorder(tmp_path / "a.spans", role="worker", clock=FakeClock())
    for _ in range(before):
        recorder.emit(Kind.READ, 0, 1, nbytes=9)
    with OutsideSpan(recorder.lane(), Kind.DECODE, "", False, False) as span:
        assert not span.holds_spans
        assert not span.holds_bytes
        if nbytes is not None:
            recorder.emit(Kind.READ, 0, 1, nbytes=nbytes)
        for _ in range(others if nbytes is not None else 0):
            recorder.emit(Kind.DECODE, 0, 1)
        assert span.holds_spans == (nbytes is not None)
        if nbytes != -1 or others < layout.SPANS_PER_CHUNK:
            assert span.holds_bytes == (nbytes == 7)
    recorder.close()


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


def test_waiting_sleeps_again_when_woken_early_and_is_never_short(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    deadline_ns = now_ns() + 100_000
    assert wait_until_ns(deadline_ns) >= deadline_ns
    assert len(slept) > 1
    slept.clear()
    assert wait_until_ns(now_ns() - 1)
    assert not slept


def test_a_process_began_when_the_system_says():
    age_s = (now_ns() - process_start_ns()) / 1e9
    since_s = SYSTEM_CLOCK.wall_ns() / 1e9 - psutil.Process().create_time()
    assert age_s == pytest.approx(since_s, abs=1)


SLACK = 4 << 20
"""The kernel adds up what each CPU counts, and only now and then."""


def test_costs_are_exact_under_a_fake_clock_and_leave_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # Each light span reads the clock twice, and each round once before it.
    costs = unit_costs(FakeClock(step_ns=10))
    assert (costs["light_ns"], costs["full_ns"]) == (20, 20)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert unit_costs() == {}
    assert "no scratch directory" in caplog.text


def test_bytes_read_are_a_counter_of_the_batch(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1 << 16))
    run = RunDirectory.create(tmp_path / "run", {})
    counter = ProcessIo()
    with run.recorder(role="worker", worker=0) as recorder:
        (tmp_path / "data").read_bytes()
        counter.emit(recorder, 4, 1)
    (span,) = read_span_file(run.span_files()[0]).spans
    assert (span["flags"], span["kind"], span["batch"], span["epoch"]) == (Flag.IO, Kind.READ, 4, 1)
    assert span["nbytes"] >= 1 << 16


def test_no_count_is_unknown(monkeypatch):
    def missing(path, flags):
        raise FileNotFoundError(path)

    monkeypatch.setattr(process_io, "_open", missing)
    assert (read_process_io(), ProcessIo().delta()) == (None, None)
    assert unit_costs(FakeClock())["io_ns"] is None


def test_a_fork_reads_counts_of_its_own(tmp_path):
    (tmp_path / "file").write_bytes(bytes(1 << 24))
    read = ProcessIo().read
    read()
    (tmp_path / "file").read_bytes()
    child = os.fork()
    if not child:
        os._exit(0 if read()[0] < 1 << 24 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read()[0] >= 1 << 24


def written(recorder):
    file = read_span_file(recorder.path)
    return [(Kind(s["kind"]), file.strings[s["label"]], int(s["nbytes"])) for s in file.spans]


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [
        ("read", Kind.READ, ""),
        ("submit_queue", Kind.SUBMIT_QUEUE, ""),
        ("augment", Kind.PREPROCESS, "augment"),
        ("H2D", Kind.PREPROCESS, "H2D"),
        ("read+decode", Kind.FUSED, "read+decode"),
        ("forward+backward", Kind.PREPROCESS, "forward+backward"),
        ("read+", Kind.PREPROCESS, "read+"),
    ],
)
def test_a_kind_goes_by_its_name_and_anything_else_is_a_label(recorder, name, kind, label):
    with stage(name) as idle:
        idle.nbytes = 3
    with activate(recorder):
        with stage(name, nbytes=5):
            pass
        with stage(name) as timed:
            timed.nbytes = 6
    assert (idle.nbytes, stage(name).nbytes) == (-1, -1), "nothing is recorded"
    assert written(recorder) == [(kind, label, 5), (kind, label, 6)]


def test_nested_stages_carry_the_position_and_exact_times(recorder, clock):
    with activate(recorder):
        recorder.position(3, 1, 8)
        with stage("read"):
            clock.advance(5)
            with stage("open"):
                clock.advance(2)
    spans = read_span_file(recorder.path).spans
    assert spans[["start_ns", "end_ns"]].tolist() == [(1005, 1007), (1000, 1007)]
    assert spans[["batch", "epoch", "sample"]].tolist() == [(3, 1, 8)] * 2


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_decorated_function_is_timed_while_recording(recorder, when):
    def depth(number: int) -> int:
        """Doc."""
        return number and 1 + depth(number=number - 1)

    if when == "before":
        depth = stage("augment", nbytes=4)(depth)
    with activate(recorder):
        if when == "during":
            depth = stage("augment", nbytes=4)(depth)
        assert depth(2) == 2
    assert depth(number=5) == 5
    assert (depth.__name__, depth.__doc__) == ("depth", "Doc.")
    assert written(recorder) == [(Kind.PREPROCESS, "augment", 4)] * 3


def generator():
    yield 1


async def coroutine():
    return 1


@pytest.mark.parametrize("function", [generator, coroutine])
def test_functions_whose_call_does_no_work_are_refused(function):
    with pytest.raises(OptionError, match=r"cannot decorate .*use 'with stage"):
        stage("read")(function)


def test_exceptions_pass_untouched_and_the_span_is_written(recorder):
    error = KeyError("the user's own")
    with activate(recorder), pytest.raises(KeyError) as caught, stage("augment"):
        raise error
    assert caught.value is error
    assert written(recorder) == [(Kind.PREPROCESS, "augment", -1)]
