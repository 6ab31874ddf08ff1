"""What a span costs, and what this process counts of itself: bytes read."""

import os

import pytest

from iobench.recording import process_io
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo, read_process_io, unit_costs
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock

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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
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
