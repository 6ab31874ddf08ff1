"""Darshan's logs beside what the jobs timed themselves: `tests/data/darshan/README.md`."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ground_truth_profiles import profile_of_ground_truth, span_file

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from iobench.analysis.placement.placing import place_segments
from iobench.profiles.reading import make_profile
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.storage.run_traces import read_traces
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.analysis.placement.placed_calls import Placement, ProcessPlacement
    from iobench.profiles.contents import Profile
    from iobench.storage.storage_trace import ProcessTrace

DATA = Path(__file__).parents[2] / "data" / "darshan"
ALIGNED = ("s1_raw_fork", "s7_cold_fork", "s2_npload_spawn", "s3_netcdf_fork")
TOLERANCE_NS = 2_000
"""Windows of expected.json are whole microseconds; reading two clocks in turn costs another."""
HOUR_NS = 3_600_000_000_000
Segments = "NDArray[Any]"


@functools.cache
def all_logs() -> StorageTrace:
    return read_traces(sorted(DATA.glob("s?_*")))


@functools.cache
def logs_of(name: str) -> StorageTrace:
    logs = tuple(log for log in all_logs().processes if log.path.parent.name == name)
    assert logs
    return StorageTrace(logs)


@functools.cache
def profile_of(name: str) -> Profile:
    return profile_of_ground_truth(DATA / name / "ground_truth.json")


@functools.cache
def placed(name: str) -> Placement:
    return place_segments(profile_of(name), logs_of(name))


def worker(name: str, number: int) -> ProcessPlacement:
    return placed(name).processes[number + 1]


def expected_windows(name: str) -> dict[int, dict[str, int]]:
    told = json.loads((DATA / name / "expected.json").read_text())
    return {each["pid"]: each for each in told["clock_offset_dxt_to_time_ns"]}


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("number", [0, 1])
def test_every_read_lies_in_a_stage_of_its_file(name: str, number: int) -> None:
    profile, found = profile_of(name), worker(name, number)
    reads = found.segments[~found.segments["write"] & ~found.segments["stray"]]
    told = expected_windows(name)[profile.processes[number + 1].pid]
    assert len(reads) == told["contained_max"]
    spans = profile.spans[reads["span"]]
    assert (reads["span"] >= 0).all()
    assert (spans["process"] == number + 1).all()
    assert (spans["start_ns"] <= reads["start_ns"]).all()
    assert (reads["end_ns"] <= spans["end_ns"]).all()
    files = [profile.strings[detail] for detail in spans["detail"]]
    assert files == [found.files[file] for file in reads["file"]]


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("number", [0, 1])
def test_the_offset_agrees_with_what_the_segments_allow(name: str, number: int) -> None:
    found = worker(name, number)
    pid = profile_of(name).processes[number + 1].pid
    low_us, high_us = expected_windows(name)[pid]["add_us_window"]
    assert found.matched
    assert found.reason == ""
    assert low_us * 1000 - TOLERANCE_NS <= found.low_ns
    assert found.high_ns <= high_us * 1000 + TOLERANCE_NS
    assert found.low_ns <= found.offset_ns <= found.high_ns


@pytest.mark.parametrize(
    ("name", "width_us"),
    [("s1_raw_fork", 2), ("s7_cold_fork", 4), ("s2_npload_spawn", 30), ("s3_netcdf_fork", 100)],
)
def test_openings_and_empty_stages_narrow_the_window(name: str, width_us: int) -> None:
    # np.load's segments alone leave 1 ms, the stages of the netCDF run 1.8 ms.
    widths = [worker(name, number).high_ns - worker(name, number).low_ns for number in (0, 1)]
    assert max(widths) <= width_us * 1000


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
    assert worker("s2_npload_spawn", 0).n_stray == 0
    strays = worker("s2_npload_spawn", 1)
    reads = strays.segments[strays.segments["stray"] & ~strays.segments["write"]]
    names = {Path(strays.files[file]).name for file in reads["file"]}
    assert names == {"sample_013.npy", "sample_015.npy"}
    assert (reads["span"] == -1).all()
    assert (strays.segments["stray"] == (strays.segments["span"] < 0)).all()


def test_a_helper_of_multiprocessing_is_an_extra_log() -> None:
    coverage = placed("s2_npload_spawn").coverage
    assert (coverage.n_found, coverage.n_extra_logs) == (2, 1)
    assert "process 24225" in coverage.extra[0]


def test_a_log_that_ran_out_of_room_is_incomplete() -> None:
    coverage = placed("s4_default_partial_w0").coverage
    assert not coverage.complete
    assert coverage.partial == ("consumer (process 22356): POSIX, DXT_POSIX",)
    assert (coverage.n_files_seen, coverage.n_files_read) == (4, 40)
    assert coverage.n_placed == 0


def test_without_segments_the_clock_is_set_by_openings_and_reads_of_files() -> None:
    coverage = placed("s6_dxtv2_fork").coverage
    assert not coverage.complete
    assert coverage.n_segments == 0
    assert len(coverage.problems) == 3
    for number in (0, 1):
        found = worker("s6_dxtv2_fork", number)
        assert "DXT_POSIX version 2" in found.reason
        assert found.matched
        assert found.high_ns - found.low_ns < 10_000


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


def test_logs_of_another_job_are_named_and_used_nowhere() -> None:
    found = place_segments(profile_of("s7_cold_fork"), logs_of("s1_raw_fork"))
    assert [each.trace for each in found.processes] == [-1, -1, -1]
    assert {each.reason for each in found.processes} == {"no Darshan log"}
    assert found.coverage.n_extra_logs == 3
    assert not found.coverage.complete
    assert "none of the logs is of this run" in found.coverage.problems[0]
    assert "at another time than the run" in found.coverage.problems[0]


def moved(trace: StorageTrace, **change: object) -> StorageTrace:
    return replace(trace, processes=tuple(replace(log, **change) for log in trace.processes))


def test_a_number_used_again_is_another_process() -> None:
    logs = logs_of("s1_raw_fork")
    earlier = replace(
        logs,
        processes=tuple(
            replace(log, start_ns=log.start_ns - HOUR_NS, end_ns=log.end_ns - HOUR_NS)
            for log in logs.processes
        ),
    )
    found = place_segments(profile_of("s1_raw_fork"), earlier)
    assert found.coverage.n_found == 0
    assert "ended before it began" in found.coverage.extra[0]
    assert "before the machine was restarted" in found.coverage.extra[0]


def test_another_host_may_use_the_same_numbers() -> None:
    found = place_segments(
        profile_of("s1_raw_fork"), moved(logs_of("s1_raw_fork"), host="elsewhere.example")
    )
    assert found.coverage.n_found == 0
    assert "on elsewhere.example" in found.coverage.extra[0]
    again = moved(logs_of("s1_raw_fork"), host="VM.cluster.example")
    assert place_segments(profile_of("s1_raw_fork"), again).coverage.complete


def test_of_two_runs_of_logs_each_process_takes_its_own() -> None:
    both = StorageTrace((*logs_of("s7_cold_fork").processes, *logs_of("s1_raw_fork").processes))
    found = place_segments(profile_of("s1_raw_fork"), both)
    assert found.coverage.n_extra_logs == 3
    for one, other in zip(found.processes, placed("s1_raw_fork").processes, strict=True):
        assert one.offset_ns == other.offset_ns
        assert (one.segments == other.segments).all()


MARKED = "s8_marked_fork"


def with_marks(name: str, marks: Callable[[Segments], Segments]) -> Placement:
    logs = [replace(log, marks=marks(log.marks.copy())) for log in logs_of(name).processes]
    return place_segments(profile_of(name), StorageTrace(tuple(logs)))


def test_a_marker_tells_the_clock_of_every_process_even_of_one_that_reads_nothing() -> None:
    main, reader = placed(MARKED).processes
    for found in (main, reader):
        assert (found.marked, found.matched, found.reason) == (True, True, "")
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


def test_the_marker_and_the_search_agree() -> None:
    searched = with_marks(MARKED, lambda marks: marks[:0]).processes[1]
    told = placed(MARKED).processes[1]
    assert (searched.marked, searched.matched) == (False, True)
    assert searched.low_ns <= told.offset_ns <= searched.high_ns
    assert (searched.segments["span"] == told.segments["span"]).all()


def _moved(marks: Segments, by_ns: int) -> Segments:
    marks["offset"] += by_ns
    return marks


@pytest.mark.parametrize(
    "change",
    [
        lambda marks: marks[:1],
        lambda marks: _moved(marks, HOUR_NS),
        lambda marks: _moved(marks, -HOUR_NS),
        lambda marks: marks[::-1],
    ],
    ids=["cut", "of another process", "of another boot", "out of order"],
)
def test_marks_that_cannot_be_right_leave_the_clock_to_the_search(change: Any) -> None:
    found = with_marks(MARKED, change).processes[1]
    assert (found.marked, found.matched) == (False, True)
    assert found.offset_ns == with_marks(MARKED, lambda marks: marks[:0]).processes[1].offset_ns


KILLED = 22392
"""The number of the killed worker, which no log tells."""
TOLD_LATE_NS = -1_500_000
BOOT_NS = 1_795_169_626_481_437_000


def killed_run() -> Profile:
    """Return what iobench would have recorded of s5, with stages around what its logs tell."""
    main, worker, leftover = sorted(logs_of("s5_sigkill").processes, key=_by_role)
    files = [span_file(main.pid, [_wait(worker)], anchors=[_anchor(main)], closed=False)]
    for number, (pid, log) in enumerate(((KILLED, leftover), (worker.pid, worker))):
        files.append(
            span_file(
                pid,
                list(_stages(log)),
                worker=number,
                ppid=main.pid,
                anchors=[_anchor(log)],
                closed=number == 1,
            )
        )
    return make_profile(DATA / "s5_sigkill", {}, files)


def _by_role(log: ProcessTrace) -> tuple[bool, bool]:
    return log.leftover, log.parent_pid >= 0


def _anchor(log: ProcessTrace) -> Anchor:
    return Anchor(log.start_ns - BOOT_NS, log.start_ns)


def _wait(log: ProcessTrace) -> dict[str, object]:
    start = log.start_ns - BOOT_NS
    return {"kind": Kind.WAIT, "start_ns": start, "end_ns": start + 300_000_000, "batch": 0}


def _stages(log: ProcessTrace) -> list[dict[str, object]]:
    samples = [row for row in log.counters if log.files[row["file"]].endswith(".npy")]
    samples.sort(key=lambda row: int(row["posix_first_open_ns"]))
    return [
        {
            "kind": Kind.READ,
            "start_ns": row["posix_first_open_ns"] + TOLD_LATE_NS - BOOT_NS - 3_000,
            "end_ns": row["posix_last_close_ns"] + TOLD_LATE_NS - BOOT_NS + 3_000,
            "detail": log.files[row["file"]],
            "sample": number,
        }
        for number, row in enumerate(samples)
        if row["posix_last_close_ns"] > 0
    ]


def test_what_a_killed_worker_left_is_given_to_it() -> None:
    found = place_segments(killed_run(), logs_of("s5_sigkill"))
    _, killed, other = found.processes
    log = logs_of("s5_sigkill").processes[killed.trace]
    assert (log.leftover, log.pid) == (True, -1)
    assert logs_of("s5_sigkill").processes[other.trace].pid == 22393
    assert "never closed its log" in killed.reason
    assert (len(killed.segments), len(other.segments) > 0) == (0, True)
    for each in (killed, other):
        assert each.low_ns <= TOLD_LATE_NS <= each.high_ns
    assert not found.coverage.complete
    assert f"worker-0 (process {KILLED})" in found.coverage.problems[0]
    assert found.coverage.n_found == found.coverage.n_expected == 2


def test_a_worker_without_a_log_keeps_its_lane() -> None:
    logs = logs_of("s5_sigkill")
    logs = replace(logs, processes=tuple(log for log in logs.processes if not log.leftover))
    found = place_segments(killed_run(), logs)
    _, killed, other = found.processes
    assert (killed.trace, killed.reason) == (-1, "no Darshan log")
    assert logs.processes[other.trace].pid == 22393
    assert found.coverage.missing == (f"worker-0 (process {KILLED})",)
    assert not found.coverage.complete


def test_two_leftovers_of_a_job_are_given_to_nobody() -> None:
    logs = logs_of("s5_sigkill")
    leftover = next(log for log in logs.processes if log.leftover)
    twice = replace(logs, processes=(*logs.processes, leftover))
    found = place_segments(killed_run(), twice)
    assert found.processes[1].trace == -1
    assert found.coverage.n_extra_logs == 2
    assert "has no process number" in found.coverage.extra[0]
    other_job = replace(logs, processes=(*_without(logs), replace(leftover, job_id=1)))
    found = place_segments(killed_run(), other_job)
    assert found.processes[1].trace == -1
    assert "job 1" in found.coverage.extra[0]


def _without(logs: StorageTrace) -> tuple[ProcessTrace, ...]:
    return tuple(log for log in logs.processes if not log.leftover)
