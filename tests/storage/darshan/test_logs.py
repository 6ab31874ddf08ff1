"""Names of logs, damage, jobs of many ranks, and what a log may hold that the real ones do not."""

from __future__ import annotations

import gzip
import io
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from made_logs import START_NS, MadeLog, reads_in_order

from iobench.errors import FileFormatError, MissingExtraError, StorageError
from iobench.storage import darshan_reader
from iobench.storage.darshan_files import check_log, pid_of_log
from iobench.storage.darshan_log import joined_counters
from iobench.storage.darshan_reader import ReaderProcess, read_darshan_logs
from iobench.storage.run_traces import read_traces
from iobench.storage.storage_trace import COUNTER_DTYPE, ModuleState, is_of_interpreter

if TYPE_CHECKING:
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

DATA = Path(__file__).parents[2] / "data" / "darshan"
(WORKER,) = (DATA / "s1_raw_fork").glob("*-24153_*.darshan")
(LEFTOVER,) = (DATA / "s5_sigkill").glob("*.gz")
MPI = DATA / "public" / "sample-dxt-simple.darshan"


@pytest.mark.parametrize(
    ("name", "pid"),
    [
        (WORKER.name, 24153),
        (WORKER.name + ".gz", 24153),
        (LEFTOVER.name, -1),
        ("a_id7-8_x_id12-34_1-2-3-4_5.darshan", 34),
        ("me_python3.11_id12-34_1-2-3-4.darshan_partial", -1),
        ("treddy_a.out_id4233209_4-22-36691-17437.darshan", -1),
        ("mine.darshan", -1),
    ],
)
def test_the_process_stands_in_the_name_of_a_log(name: str, pid: int) -> None:
    assert pid_of_log(name) == pid


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("/opt/py/lib/python3.11/json/__init__.py", True),
        ("/env/lib/python3.11/site-packages/torch/_meta/list.txt", True),
        ("/usr/lib/x86_64/libz.so.1.2.13", True),
        ("/tmp/pyvenv.cfg", True),
        ("/x/__pycache__/a.cpython-311.pyc.139", True),
        ("/data/python/sample_1.npy", False),
        ("/data/so.nc", False),
        ("/data/python3.11/a.grib", False),
    ],
)
def test_files_of_python_itself(name: str, own: bool) -> None:
    assert is_of_interpreter(name) == own


@pytest.mark.parametrize("log", [WORKER, MPI], ids=["one process", "16 ranks, old format"])
def test_a_log_cut_anywhere_is_refused(log: Path, tmp_path: Path) -> None:
    whole = log.read_bytes()
    check_log(log)
    cut = tmp_path / "cut.darshan"
    for length in range(0, len(whole), 59):
        cut.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"is empty|not a Darshan log|cut short"):
            check_log(cut)


@given(
    places=st.lists(st.integers(0, len(WORKER.read_bytes()) - 1), min_size=1, max_size=4),
    values=st.lists(st.integers(1, 255), min_size=4, max_size=4),
)
def test_changed_bytes_of_the_parts_are_found(places: list[int], values: list[int]) -> None:
    whole = WORKER.read_bytes()
    content = bytearray(whole)
    for place, value in zip(set(places), values, strict=False):
        content[place] ^= value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *_args: io.BytesIO(content))
        try:
            check_log(WORKER)
        except FileFormatError:
            return
    # The header has no checksum, and some bits of the parts mean nothing.
    assert content[:1328] != whole[:1328] or inflated(content) == inflated(whole)


def inflated(log: bytes | bytearray) -> bytes:
    """Return what the parts of a log hold."""
    left, found = bytes(log[1328:]), b""
    while left:
        stream = zlib.decompressobj()
        found += stream.decompress(left)
        left = stream.unused_data
    return found


def test_bad_files_get_a_line_each_and_the_others_are_read(tmp_path: Path) -> None:
    whole = WORKER.read_bytes()
    for name, content in {
        "empty.darshan": b"",
        "text.darshan": b"not a log, and long enough to be one",
        "cut.darshan": whole[:2000],
        "flipped.darshan": whole[:2500] + b"\0\1\2" + whole[2503:],
        "newer.darshan": b"9.99\0\0\0\0" + whole[8:],
        "packed.darshan.gz": gzip.compress(whole)[:-20],
        "busy_id1-2_1-2-3-4.darshan_partial": whole,
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "gone.darshan").symlink_to(tmp_path / "nowhere")
    shutil.copy(WORKER, tmp_path)
    trace = read_traces([tmp_path, tmp_path / "missing.darshan", DATA / "s1_raw_fork"])
    lines = {Path(line.split(": ")[0]).name: line for line in trace.refused}
    for name, said in {
        "empty.darshan": "is empty",
        "text.darshan": "is not a Darshan log",
        "cut.darshan": "is cut short: 2000 B of 3641 B",
        "flipped.darshan": "is damaged in bytes 1889 to 3009",
        "newer.darshan": "format '9.99'; known are",
        "packed.darshan.gz": "is cut short or damaged",
        "busy_id1-2_1-2-3-4.darshan_partial": "is not finished",
        "gone.darshan": "cannot be read: No such file",
        "missing.darshan": "cannot be read: No such file",
        WORKER.name: f"is of the same process as {tmp_path / WORKER.name}",
    }.items():
        assert said in lines.pop(name)
    assert lines == {}
    assert sorted(each.pid for each in trace.processes) == [24135, 24153, 24154]


def test_a_folder_without_logs(tmp_path: Path) -> None:
    trace = read_traces([tmp_path])
    assert trace.refused == (f"{tmp_path}: no log of Darshan in this folder",)
    assert trace.processes == ()


def test_a_log_that_ends_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gets what it crashes with; the next log is read all the same."""
    monkeypatch.setattr(darshan_reader, "check_log", lambda _: None)
    crash = tmp_path / "a.darshan"
    crash.write_bytes(WORKER.read_bytes()[:1328])
    shutil.copy(WORKER, tmp_path)
    trace = read_traces([tmp_path])
    (line,) = trace.refused
    assert line.startswith(f"{crash}: is damaged: PyDarshan's process ended while it read it, ")
    assert [each.pid for each in trace.processes] == [24153]


def test_a_log_that_takes_too_long() -> None:
    with (
        ReaderProcess(patience_s=0.0) as reader,
        pytest.raises(FileFormatError, match="did not read it in 0 s"),
    ):
        reader.read(WORKER, WORKER)


def test_a_reader_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(darshan_reader, "__name__", "iobench.storage.no_reader")
    with pytest.raises(StorageError, match=r"did not start: with status 1 .*no_reader"):
        read_darshan_logs([WORKER])


def test_without_pydarshan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "darshan.py").write_text("raise ImportError('no library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"no library.*pip install 'iobench\[darshan\]'"):
        read_darshan_logs([WORKER])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StorageTrace:
    """Return what is read of a job of 300 ranks, a partial log, and two logs of one process."""
    folder = tmp_path_factory.mktemp("made")
    names = [b"/data/shared.nc", b"/data/own.nc", b"<STDIN>", b"/x/a.py"]
    log = MadeLog([*names, b"/runs/a/spans/iobench-clock-marker"], n_ranks=300)
    log.count(0, rank=-1, OPENS=1000, READS=4000, BYTES_READ=4_000_000, MMAPS=-1, READ_TIME=2.5)
    for rank in range(300):
        log.trace(0, reads_in_order(20), rank)
        log.trace(4, reads_in_order(4, nbytes=rank), rank)
    log.count(4, rank=-1, OPENS=300, READS=1200)
    log.count(1, rank=7, OPENS=1, READS=2, BYTES_READ=100)
    log.count(2, rank=7, READS=5, BYTES_READ=55)
    log.count(3, rank=8, READS=3, BYTES_READ=33)
    log.trace(1, reads_in_order(3), rank=7, n_writes=1)
    log.write(folder / "me_train_id42-77_1-2-3-4_5.darshan")

    log = MadeLog([b"/data/a", b"/data/b"], partial=frozenset({1}))
    log.count(0, OPENS=1)
    log.trace(0, reads_in_order(3))
    log.write(folder / "partial.darshan")

    MadeLog([]).write(folder / "me_true_id42-79_1-2-3-4_5.darshan")

    log = MadeLog([b"/data/a"], posix_version=9)
    log.count(0, READS=1)
    log.trace(0, reads_in_order(3))
    log.write(folder / "newer.darshan")

    log = MadeLog([b"/data/a"])
    log.count(0, READS=1)
    log.write(folder / "me_sh_id42-78_1-2-3-4_5.darshan")
    log.count(0, READS=2)  # other content, same time: a copy that something changed
    log.write(folder / "me_sh_id42-78_1-2-3-5_5.darshan")
    log.start_ns += 10**9  # the shell became another program
    log.write(folder / "me_sh_id42-78_1-2-4-4_5.darshan")
    return read_traces([folder])


def of_log(trace: StorageTrace, start: str) -> list[ProcessTrace]:
    return [each for each in trace.processes if each.path.name.startswith(start)]


def test_ranks_of_a_job_and_their_sums(made: StorageTrace) -> None:
    traces = {each.rank: each for each in of_log(made, "me_train")}
    assert sorted(traces) == list(range(-1, 300))
    assert {rank: each.pid for rank, each in traces.items() if each.pid >= 0} == {0: 77}
    sums, seventh = traces[-1], traces[7]
    assert sums.files == ("/data/shared.nc", "/data/own.nc")
    assert len(sums.segments) == 0
    (row,) = sums.counters
    assert (row["posix_reads"], row["posix_mmaps"]) == (4000, -1)
    assert (row["stdio_reads"], row["stdio_first_read_ns"]) == (0, -1)
    assert sum(len(each.segments) for each in traces.values()) == 6_002
    assert seventh.host == "node-7"
    assert len(seventh.segments) == 22  # the call that wrote is left out
    assert seventh.counters["posix_read_nbytes"].tolist() == [100]
    assert len(traces[8].counters) == 0
    for rank in range(300):
        assert traces[rank].marks["offset"].tolist() == [n * rank for n in range(4)]
    assert len(sums.marks) == 0


def test_times_keep_their_nanoseconds(made: StorageTrace) -> None:
    (trace,) = of_log(made, "partial")
    starts = trace.segments["start_ns"] - START_NS
    assert starts.tolist() == [1_000_000, 1_020_000, 1_040_000]
    assert np.diff(trace.segments["offset"]).tolist() == [4096, 4096]
    assert trace.partial_modules == ("POSIX",)
    assert (trace.start_ns, trace.pid, trace.job_id) == (START_NS, -1, 42)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    log = MadeLog([b"/data/own-\xff.nc"]).write(tmp_path / "a.darshan")
    (line,) = read_traces([tmp_path]).refused
    assert line.startswith(f"{log}: cannot be read by PyDarshan: 'utf-8' codec can't decode")


def test_a_process_that_opened_nothing(made: StorageTrace) -> None:
    (trace,) = of_log(made, "me_true")
    assert (trace.pid, trace.modules, trace.files, len(trace.counters)) == (79, (), (), 0)


def test_counters_of_an_unknown_version(made: StorageTrace) -> None:
    (trace,) = of_log(made, "newer")
    (problem,) = trace.problems
    assert problem.startswith("POSIX version 9 cannot be read by PyDarshan")
    assert (len(trace.counters), len(trace.segments)) == (0, 3)


@pytest.mark.parametrize(
    ("state", "reads"),
    [
        (ModuleState("POSIX", 4), 0),
        (ModuleState("POSIX", 4, partial=True), -1),
        (ModuleState("POSIX", 9, problem="too new"), -1),
        (ModuleState("HEATMAP", 1), 0),
    ],
)
def test_what_a_file_of_streams_has_by_other_calls(state: ModuleState, reads: int) -> None:
    rows = np.full(1, -1, COUNTER_DTYPE)
    rows["file"], rows["stdio_reads"] = 3, 7
    (row,) = joined_counters({"STDIO": [rows]}, (ModuleState("STDIO", 2), state))
    assert (row["file"], row["stdio_reads"], row["posix_reads"]) == (3, 7, reads)


def test_several_logs_of_one_process(made: StorageTrace) -> None:
    traces = of_log(made, "me_sh")
    assert [each.start_ns - START_NS for each in traces] == [0, 10**9]
    (line,) = made.refused
    assert "is of the same process as" in line


def test_the_reader_is_not_traced_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/lib/libdarshan.so:/opt/lib/libjemalloc.so")
    monkeypatch.setenv("DARSHAN_ENABLE_NONMPI", "1")
    monkeypatch.setenv("IOBENCH_RUN", "/runs/a")
    inside = darshan_reader.child_environment()
    assert inside["LD_PRELOAD"] == "/opt/lib/libjemalloc.so"
    assert not {"DARSHAN_ENABLE_NONMPI", "IOBENCH_RUN"} & set(inside)
