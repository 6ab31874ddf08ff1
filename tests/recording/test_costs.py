import os

import pytest

from iobench.errors import StorageError
from iobench.recording.costs import unit_costs
from iobench.recording.this_process import ProcessIoReader, read_process_io
from iobench.testing import FakeClock


def test_costs_are_exact_under_a_fake_clock():
    # Each light span reads the clock twice, and each round once before it.
    costs = unit_costs(FakeClock(step_ns=10))
    assert (costs["light_ns"], costs["full_ns"]) == (20, 20)


def test_costs_are_measured_where_asked(tmp_path):
    unit_costs(FakeClock(), directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="missing: no scratch directory"):
        unit_costs(directory=tmp_path / "missing")


def test_looking_at_the_io_is_unknown_where_nothing_counts_it(monkeypatch):
    monkeypatch.setattr("iobench.recording.costs.ProcessIoReader", lambda: lambda: None)
    assert unit_costs(FakeClock())["io_ns"] is None


def test_bytes_read_are_counted(tmp_path):
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    before = read_process_io()
    (tmp_path / "file").read_bytes()
    after = read_process_io()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] >= 1 << 16
    assert after[1] >= before[1]


def test_no_count_is_unknown(monkeypatch):
    def missing(path, flags):
        raise FileNotFoundError(path)

    monkeypatch.setattr("iobench.recording.this_process._open", missing)
    assert read_process_io() is None


def test_a_reader_survives_that_its_descriptor_is_closed(tmp_path):
    (tmp_path / "other").write_bytes(b"another file under the same number\n" * 20)
    read = ProcessIoReader()
    first = read()
    os.close(read._descriptor)
    with (tmp_path / "other").open("rb") as other:
        assert other.fileno() == read._descriptor
        assert read() >= first
        assert read._descriptor != other.fileno()
        read.close()
        assert other.read(7) == b"another"
    assert read() >= first
    os.close(read._descriptor)
    assert read() >= first


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_reads_counts_of_its_own(tmp_path):
    (tmp_path / "file").write_bytes(bytes(1 << 24))
    read = ProcessIoReader()
    read()
    (tmp_path / "file").read_bytes()
    child = os.fork()
    if not child:
        os._exit(0 if read()[0] < 1 << 24 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read()[0] >= 1 << 24
