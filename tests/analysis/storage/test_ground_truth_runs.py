"""Darshan's logs beside what the jobs timed themselves: `tests/data/darshan/README.md`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ground_truth_profiles import marked_logs, profile_of_ground_truth
from msgspec.structs import replace

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from iobench.analysis.placement import OtherLogs, place_segments
from iobench.recording.kinds import Kind
from iobench.storage.darshan_reader import read_traces
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from iobench.analysis.placement import Placement, ProcessPlacement
    from iobench.runs.contents import RunData

DATA = Path(__file__).parents[2] / "data" / "darshan"
ALIGNED = ("s1_raw_fork", "s7_cold_fork", "s2_npload_spawn", "s3_netcdf_fork")
MARKED = "s8_marked_fork"


@functools.cache
def logs_of(name: str) -> StorageTrace:
    """Return the logs of a run, with markers where it was recorded without them."""
    return (
        read_traces([DATA / name]) if name == MARKED else marked_logs(DATA / name, profile_of(name))
    )


@functools.cache
def profile_of(name: str) -> RunData:
    return profile_of_ground_truth(DATA / name / "ground_truth.json")


@functools.cache
def placed(name: str) -> Placement:
    return place_segments(profile_of(name), logs_of(name))


def worker(name: str, number: int) -> ProcessPlacement:
    return placed(name).processes[number + 1]


def n_inside(name: str, pid: int) -> int:
    """Return how many reads of a process lie in its stages."""
    told = json.loads((DATA / name / "expected.json").read_text())
    return {each["pid"]: each["contained_max"] for each in told["clock_offset_dxt_to_time_ns"]}[pid]


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("number", [0, 1])
def test_every_read_lies_in_a_stage_of_its_file(name: str, number: int) -> None:
    profile, found = profile_of(name), worker(name, number)
    reads = found.segments[~found.segments["stray"]]
    assert len(reads) == n_inside(name, profile.processes[number + 1].pid)
    spans = profile.spans[reads["span"]]
    assert (reads["span"] >= 0).all()
    assert (spans["process"] == number + 1).all()
    open_ns = found.high_ns - found.low_ns  # what the marker leaves open
    assert (spans["start_ns"] - open_ns <= reads["start_ns"]).all()
    assert (reads["end_ns"] <= spans["end_ns"] + open_ns).all()
    files = [profile.strings[detail] for detail in spans["detail"]]
    assert files == [found.files[file] for file in reads["file"]]


@pytest.mark.parametrize("name", ["s1_raw_fork", "s7_cold_fork", "s3_netcdf_fork"])
def test_a_run_seen_whole_is_complete_and_has_no_strays(name: str) -> None:
    coverage = placed(name).coverage
    assert coverage.complete
    assert coverage.n_placed == coverage.n_segments
    assert (coverage.n_found, coverage.n_expected) == (2, 2)
    assert (coverage.n_stray, coverage.stray_nbytes) == (0, 0)
    assert coverage.n_files_seen == coverage.n_files_read == (1 if "netcdf" in name else 40)


def test_pipes_credited_to_samples_are_dropped_and_counted() -> None:
    coverage = placed("s2_npload_spawn").coverage
    assert (coverage.n_stray, coverage.stray_nbytes) == (16, 182)
    assert (coverage.n_segments, coverage.n_placed) == (56, 40)
    assert not worker("s2_npload_spawn", 0).segments["stray"].any()
    strays = worker("s2_npload_spawn", 1)
    reads = strays.segments[strays.segments["stray"]]
    names = {Path(strays.files[file]).name for file in reads["file"]}
    assert names == {"sample_013.npy", "sample_015.npy"}
    assert (reads["span"] == -1).all()
    assert (strays.segments["stray"] == (strays.segments["span"] < 0)).all()


def test_the_log_of_a_helper_of_multiprocessing_is_no_worker_s() -> None:
    coverage = placed("s2_npload_spawn").coverage
    assert coverage.n_found == 2
    assert coverage.others == OtherLogs(1, 0, 0, 0)


def test_a_log_that_ran_out_of_room_is_incomplete() -> None:
    coverage = placed("s4_default_partial_w0").coverage
    assert not coverage.complete
    assert coverage.partial == ("consumer (process 22356): POSIX, DXT_POSIX",)
    assert (coverage.n_files_seen, coverage.n_files_read) == (4, 40)
    assert coverage.n_placed == 0


@pytest.mark.parametrize("name", ALIGNED)
def test_exposed_time_is_a_share_of_each_read(name: str) -> None:
    profile = profile_of(name)
    share = np.full(len(profile.spans), 0.25)
    share[profile.spans["kind"] == Kind.READ] = np.nan
    for each in place_segments(profile, logs_of(name), share).processes[1:]:
        reads = each.segments
        kinds = profile.spans["kind"][reads["span"]]
        unknown = (reads["span"] < 0) | (kinds == Kind.READ)
        assert (reads["exposed_ns"][unknown] == -1).all()
        length = (reads["end_ns"] - reads["start_ns"])[~unknown]
        assert reads["exposed_ns"][~unknown] == pytest.approx(length / 4, abs=1)


def test_logs_of_another_job_give_totals() -> None:
    found = place_segments(profile_of("s7_cold_fork"), logs_of("s1_raw_fork"))
    assert found.processes == ()
    assert not found.coverage.complete
    assert found.coverage.missing == ("worker-0 (process 24177)", "worker-1 (process 24178)")
    assert found.coverage.others == OtherLogs(3, 40, 81_925_120, 0)


def test_logs_of_a_run_without_markers_give_totals() -> None:
    trace = read_traces([DATA / "s2_npload_spawn"])
    coverage = place_segments(profile_of("s2_npload_spawn"), trace).coverage
    assert (coverage.n_found, coverage.n_segments) == (0, 0)
    assert coverage.others == OtherLogs(4, 40, 164_022, 81_920_000)


def test_another_host_may_use_the_same_numbers() -> None:
    def moved(host: str) -> StorageTrace:
        logs = logs_of("s1_raw_fork").processes
        return StorageTrace(tuple(replace(log, host=host) for log in logs))

    found = place_segments(profile_of("s1_raw_fork"), moved("elsewhere.example"))
    assert found.coverage.n_found == 0
    assert place_segments(profile_of("s1_raw_fork"), moved("VM.cluster.example")).coverage.complete


def test_of_two_runs_of_logs_each_process_takes_its_own() -> None:
    both = StorageTrace((*logs_of("s7_cold_fork").processes, *logs_of("s1_raw_fork").processes))
    found = place_segments(profile_of("s1_raw_fork"), both)
    assert found.coverage.others is not None
    assert found.coverage.others.n_logs == 3
    for one, other in zip(found.processes, placed("s1_raw_fork").processes, strict=True):
        assert one.offset_ns == other.offset_ns
        assert (one.segments == other.segments).all()


def test_a_marker_tells_the_clock_of_every_process_even_of_one_that_reads_nothing() -> None:
    main, reader = placed(MARKED).processes
    for found in (main, reader):
        assert found.low_ns <= found.offset_ns <= found.high_ns <= found.low_ns + 4_000
    profile, reads = profile_of(MARKED), reader.segments
    assert len(main.segments) == 0
    assert [Path(reader.files[file]).name for file in reads["file"][:2]] == [
        "sample_000.npy", "sample_001.npy",
    ]  # fmt: skip
    spans = profile.spans[reads["span"]]
    assert (reads["span"] >= 0).all()
    assert spans["sample"].tolist() == list(range(20))
    assert placed(MARKED).coverage.complete
