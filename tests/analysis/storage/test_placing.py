"""Logs joined to processes, calls put into stages, strays dropped: on runs made by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ground_truth_profiles import span_file
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.analysis.placement.file_names import file_of, match_names
from iobench.analysis.placement.placed_calls import monotonic_of_wall
from iobench.analysis.placement.placing import place_segments
from iobench.profiles.reading import make_profile
from iobench.recording.facts import LoaderFacts, ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.storage.traces.storage_trace import (
    COUNTER_DTYPE,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
    StorageTrace,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.profiles.contents import Profile

MS = 1_000_000
WALL = 1_795_000_000_000_000_000
"""Wall-clock time at 0 of the monotonic clock."""
LATE = -3 * MS
PID = 77
FILES = tuple(f"/data/{number}.npy" for number in range(20))
GAPS = np.cumsum(np.arange(20) % 7 + 3) * MS


def stage(start: int, end: int, detail: str = "", kind: Kind = Kind.READ, **more: Any) -> dict:
    return {"kind": kind, "start_ns": start, "end_ns": end, "detail": detail, **more}


def stages(named: bool = True) -> list[dict]:
    """Return 20 stages of 2 ms, each of a file of its own, at uneven distances."""
    return [
        stage(int(gap), int(gap) + 2 * MS, FILES[number] if named else "")
        for number, gap in enumerate(GAPS)
    ]


def call(
    start: int, end: int, file: int = 0, offset: int = 0, nbytes: int = 10, write: bool = False
) -> tuple:
    """Return a segment as the tracer tells it of a call at these monotonic times."""
    shift = WALL - LATE
    return (start + shift, end + shift, offset, nbytes, -1, file, write)


def calls_inside(margin: int = 10_000) -> list[tuple]:
    return [
        call(int(gap) + margin, int(gap) + 2 * MS - margin, number)
        for number, gap in enumerate(GAPS)
    ]


def log(segments: Sequence[tuple] = (), **more: Any) -> ProcessTrace:
    told: dict[str, Any] = {
        "tracer": "Darshan",
        "path": Path("a.darshan"),
        "pid": PID,
        "job_id": 1,
        "host": "vm",
        "start_ns": WALL - 1000 * MS,
        "end_ns": WALL + 1000 * MS,
        "files": FILES,
        "segments": np.array(list(segments), SEGMENT_DTYPE),
        **more,
    }
    return ProcessTrace(**told)


def counters(rows: Sequence[dict[str, int]]) -> Any:
    table = np.full(len(rows), -1, COUNTER_DTYPE)
    for index, row in enumerate(rows):
        for name, value in row.items():
            table[name][index] = value
    return table


def process(rows: Sequence[dict], pid: int = PID, begin: int = 0, **more: Any) -> Any:
    """Return the span file of a process that ended a second after it began."""
    anchors = [Anchor(begin, WALL + begin), Anchor(begin + 1000 * MS, WALL + begin + 1000 * MS)]
    return span_file(pid, rows, anchors=more.pop("anchors", anchors), worker=0, **more)


def run_of(*files: Any, **more: Any) -> Profile:
    return make_profile(Path("run"), {}, files, **more)


def trace_of(*logs: ProcessTrace, **more: Any) -> StorageTrace:
    return StorageTrace(logs, **more)


def only(profile: Profile, *logs: ProcessTrace, **more: Any) -> Any:
    (found,) = place_segments(profile, trace_of(*logs), **more).processes
    return found


@pytest.mark.parametrize("named", [True, False])
def test_calls_are_put_into_stages(named: bool) -> None:
    profile = run_of(process(stages(named)))
    found = only(profile, log(calls_inside()))
    assert found.matched
    assert (found.low_ns, found.offset_ns, found.high_ns) == (LATE - 10_000, LATE, LATE + 10_000)
    assert found.segments["span"].tolist() == list(range(20))
    assert found.segments["start_ns"].tolist() == (GAPS + 10_000).tolist()
    assert (found.segments["exposed_ns"] == -1).all()


@given(st.integers(0, 2**32 - 1), st.integers(-45 * MS, -MS), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_each_visit_of_a_file_has_its_own_calls(seed: int, late: int, epochs: int) -> None:
    rng = np.random.default_rng(seed)
    rows, segments, begin = [], [], 10 * MS
    for _ in range(epochs):
        for number in rng.permutation(20).tolist():
            length = int(rng.integers(100_000, 3 * MS))
            rows.append(stage(begin, begin + length, FILES[number]))
            first, last = np.sort(rng.integers(0, length + 1, 2)).tolist()
            shift = LATE - late
            segments.append(call(begin + first + shift, begin + last + shift, number))
            begin += length + int(rng.integers(1, 5 * MS))
    found = only(run_of(process(rows)), log(segments))
    assert found.matched
    assert found.low_ns <= late <= found.high_ns
    assert found.n_placed == len(segments)
    assert found.segments["span"].tolist() == list(range(len(rows)))


def test_a_call_on_a_file_is_not_put_into_the_stage_of_another() -> None:
    moved = [(*each[:5], (each[5] + 1) % 20, each[6]) for each in calls_inside()]
    found = only(run_of(process(stages())), log([*moved, *calls_inside()[:19]]))
    of_stage = found.segments[found.segments["span"] >= 0]
    assert of_stage["file"].tolist() == of_stage["span"].tolist()
    assert found.n_placed == 19


def test_the_innermost_stage_has_the_call_and_may_be_one_that_decodes() -> None:
    rows = stages()
    inner = [stage(each["start_ns"] + 5_000, each["end_ns"] - 5_000, each["detail"], Kind.DECODE)
             for each in rows]  # fmt: skip
    found = only(run_of(process(rows + inner)), log(calls_inside()))
    assert found.segments["span"].tolist() == list(range(20, 40))


def test_reads_put_off_to_stages_that_do_not_read_are_found_there() -> None:
    rows = [{**each, "kind": Kind.PREPROCESS} for each in stages(named=False)]
    opened = [stage(each["start_ns"] - 50_000, each["start_ns"] - 20_000) for each in rows]
    found = only(run_of(process(opened + rows)), log(calls_inside()))
    assert found.matched
    assert found.segments["span"].tolist() == list(range(20, 40))


def test_a_file_opened_by_name_may_be_read_in_stages_without() -> None:
    rows = stages(named=False)
    opened = [
        stage(each["start_ns"] - 9_000, each["start_ns"] - 2_000, FILES[number], Kind.OPEN)
        for number, each in enumerate(rows)
    ]
    found = only(run_of(process(opened + rows)), log(calls_inside()))
    assert found.segments["span"].tolist() == list(range(20, 40))


def test_sums_over_a_batch_hold_its_reads_at_any_time_of_the_batch() -> None:
    rows = []
    for number, gap in enumerate(GAPS.tolist()):
        place = {"batch": number, "epoch": 0, "flags": Flag.SUMMED, "pieces": 8}
        rows += [
            stage(gap, gap + MS // 2, **place),
            stage(gap + MS // 2, gap + 2 * MS, kind=Kind.COLLATE, **place),
            stage(gap + MS, gap + MS + 10, flags=Flag.DETAIL),
        ]
    found = only(run_of(process(rows)), log(calls_inside()))
    assert found.matched
    assert found.segments["span"].tolist() == list(range(0, 60, 3))


def test_counters_and_time_of_devices_are_no_stages() -> None:
    rows = [{**each, "flags": flag} for each in stages() for flag in (Flag.IO, Flag.DEVICE)]
    found = only(run_of(process(rows)), log(calls_inside()))
    assert not found.matched
    assert found.n_placed == 0


def test_where_no_offset_fits_nothing_is_shifted_and_little_is_placed() -> None:
    rows = [*stages()[:1], stage(0, 400 * MS, FILES[5])]
    found = only(run_of(process(rows)), log([*calls_inside()[:1], *calls_inside()[5:6]]))
    assert not found.matched
    assert (found.offset_ns, found.low_ns, found.high_ns) == (0, -50 * MS, 50 * MS)
    assert found.reason.startswith("its clock is not known: ")
    assert found.segments["span"].tolist() == [-1, -1]  # 5 is at 37 ms: may have been before 0
    later = only(run_of(process(rows)), log([call(200 * MS, 201 * MS, 5)]))
    assert later.segments["span"].tolist() == [1]  # wherever its clock stands


def test_a_log_in_whole_seconds_may_be_early() -> None:
    early = [(each[0] - 700 * MS, each[1] - 700 * MS, *each[2:]) for each in calls_inside()]
    whole = log(early, zero_error_ns=1000 * MS)
    found = only(run_of(process(stages())), whole)
    assert found.matched
    assert found.low_ns <= LATE + 700 * MS <= found.high_ns


def test_files_without_single_reads_are_matched_by_their_openings_and_closings() -> None:
    shift = WALL - LATE
    rows = [
        {"file": number, "stdio_last_close_ns": int(gap) + 2 * MS - 40_000 + shift,
         "posix_first_open_ns": int(gap) + 20_000 + shift, "stdio_opens": 1}
        for number, gap in enumerate(GAPS)
    ]  # fmt: skip
    found = only(run_of(process(stages())), log(counters=counters(rows)))
    assert found.matched
    assert (found.low_ns, found.high_ns) == (LATE - 20_000, LATE + 40_000)
    assert len(found.segments) == 0


def npload(strays: Sequence[tuple], opens: int = 2, streams: int = 1) -> ProcessTrace:
    """Return the log of files read as np.load does: a header, a stream, and what came later."""
    rows = [
        {"file": number, "posix_opens": opens, "stdio_opens": streams, "stdio_read_nbytes": 90}
        for number in range(20)
    ]
    return log([*calls_inside(), *strays], counters=counters(rows))


AFTER = int(GAPS[0]) + 2 * MS + 30_000


@pytest.mark.parametrize(
    ("what", "stray", "log_of", "is_stray"),
    [
        ("a pipe with the number of the closed file", {"offset": 100}, {}, True),
        ("what was written to it", {"offset": 100, "write": True}, {}, True),
        ("the header again", {"offset": 0}, {}, False),
        ("nothing at the end", {"offset": 100, "nbytes": 0}, {}, False),
        ("a file that was opened as a stream at once", {"offset": 100}, {"opens": 1}, False),
        ("a file without a stream", {"offset": 100}, {"streams": 0}, False),
    ],
)
def test_strays_are_calls_after_the_end_of_a_duplicated_file(
    what: str, stray: dict, log_of: dict, is_stray: bool
) -> None:
    seen = npload([call(AFTER, AFTER + 5_000, 0, **stray)], **log_of)
    placement = place_segments(run_of(process(stages())), trace_of(seen))
    (found,) = placement.processes
    assert found.segments["stray"].tolist() == [False] * 20 + [is_stray], what
    assert found.segments["span"][20] == -1
    reads = is_stray and not stray.get("write", False)
    assert (placement.coverage.n_stray, placement.coverage.stray_nbytes) == (reads, 10 * reads)
    assert placement.coverage.n_placed == 20


def test_what_was_read_before_the_first_stage_of_a_file_is_no_stray() -> None:
    found = only(run_of(process(stages())), npload([call(MS, 2 * MS, 0, 100)]))
    assert found.n_stray == 0


def test_beyond_a_known_size_every_call_is_a_stray() -> None:
    segments = [*calls_inside(), call(AFTER, AFTER + 5_000, 0, 100), call(AFTER, AFTER, 1, 100)]
    found = only(run_of(process(stages())), log(segments), sizes={FILES[0]: 100, FILES[1]: 101})
    assert found.segments["stray"].tolist() == [False] * 20 + [True, False]


def test_exposed_time_is_a_share_of_the_call() -> None:
    share = np.full(20, 0.5)
    share[3] = np.nan
    found = only(run_of(process(stages())), log([*calls_inside(), call(AFTER, AFTER + 9, 0)]),
                 exposed=share)  # fmt: skip
    half = (2 * MS - 20_000) // 2
    assert found.segments["exposed_ns"].tolist() == [half] * 3 + [-1] + [half] * 16 + [-1]
    with pytest.raises(ValueError, match="3 shares, expected one for each of 20 spans"):
        place_segments(run_of(process(stages())), trace_of(log()), np.zeros(3))


def test_of_two_processes_with_one_number_the_one_alive_has_the_log() -> None:
    later = [{**each, **{n: each[n] + 5000 * MS for n in ("start_ns", "end_ns")}}
             for each in stages()]  # fmt: skip
    profile = run_of(process(stages()), process(later, begin=5000 * MS))
    first, second = place_segments(profile, trace_of(log(calls_inside()))).processes
    assert (first.trace, second.trace) == (0, -1)
    after = log(start_ns=WALL + 4500 * MS, end_ns=WALL + 6000 * MS)
    both = place_segments(profile, trace_of(after, log(calls_inside())))
    assert [each.trace for each in both.processes] == [1, 0]
    assert both.coverage.n_extra_logs == 0


def test_a_second_log_of_a_process_is_extra() -> None:
    short = log(start_ns=WALL, end_ns=WALL + MS, path=Path("short.darshan"))
    other = log(tracer="DFTracer", path=Path("other.pfw"))
    placement = place_segments(
        run_of(process(stages())), trace_of(short, other, log(calls_inside()))
    )
    assert placement.processes[0].trace == 2
    assert placement.coverage.n_extra_logs == 2
    assert "which is used" in placement.coverage.extra[1]


def test_a_log_without_a_host_may_be_of_any_process_unless_two_have_its_number() -> None:
    nameless = log(calls_inside(), host="")
    assert only(run_of(process(stages())), nameless).trace == 0
    profile = run_of(process(stages()), process(stages(), host="other", boot="other"))
    found = place_segments(profile, trace_of(nameless))
    assert [each.trace for each in found.processes] == [-1, -1]
    assert "several hosts" in found.coverage.extra[0]
    found = place_segments(profile, trace_of(log(calls_inside(), host="other.example")))
    assert sorted(each.trace for each in found.processes) == [-1, 0]


def test_logs_of_ranks_are_joined_by_rank() -> None:
    anchors = [Anchor(0, WALL)]
    ranks = [span_file(PID + rank, stages(), rank=rank, anchors=anchors) for rank in range(3)]
    logs = [log(calls_inside(), pid=PID if rank == 0 else -1, rank=rank) for rank in (2, 1, 0)]
    shared = log(pid=-1, rank=-1, path=Path("shared.darshan"))
    beyond = log(pid=-1, rank=9)
    found = place_segments(run_of(*ranks), trace_of(*logs, shared, beyond))
    assert [each.trace for each in found.processes] == [2, 1, 0]
    assert all(each.matched for each in found.processes)
    assert "sums over all processes" in found.coverage.extra[0]
    assert "rank 9" in found.coverage.extra[1]


def test_what_other_logs_are_is_said() -> None:
    facts = ProcessFacts(
        pid=5, ppid=1, host="vm", role="consumer", rank=1, world_size=2,
        loaders=[LoaderFacts(0, "torch", "a", "b", 1, 2, worker_pids=[6])],
    )  # fmt: skip
    tracker = log(pid=8, parent_pid=PID, executable="python -c resource_tracker " + "x" * 99)
    found = place_segments(
        run_of(process(stages()), facts=[facts]),
        trace_of(
            log(calls_inside()), tracker, log(pid=6), log(pid=9, job_id=3),
            log(pid=9, job_id=4, start_ns=1, end_ns=2),
        ),
    )  # fmt: skip
    tracker_line, worker, job, earlier = found.coverage.extra
    assert "a child of the run without spans: python -c resource_tracker" in tracker_line
    assert len(tracker_line) < 140
    assert "of another training process" in worker
    assert "job 3, which the run did not have" in job
    assert "job 4, at another time than the run" in earlier
    assert found.coverage.problems == ()
    assert found.coverage.complete


def test_a_loop_that_only_waits_is_not_expected_to_have_a_log() -> None:
    wait = {"kind": Kind.WAIT, "start_ns": 0, "end_ns": MS, "batch": 0}
    loop = span_file(1, [wait], anchors=[Anchor(0, WALL)])
    found = place_segments(run_of(loop, process(stages())), trace_of(log(calls_inside())))
    assert found.coverage.missing == ()
    assert (found.coverage.n_found, found.coverage.n_expected) == (1, 1)
    assert found.processes[0].reason == "no Darshan log"
    assert found.coverage.complete


def test_without_logs_every_process_keeps_its_place() -> None:
    found = place_segments(run_of(process(stages())), trace_of(refused=("x: is no log",)))
    assert (found.processes[0].trace, found.processes[0].reason) == (-1, "no log")
    assert found.coverage.problems == ("x: is no log",)
    assert found.coverage.missing == (f"worker-0 (process {PID})",)
    assert (found.coverage.n_files_seen, found.coverage.n_files_read) == (0, 20)


def test_a_log_with_less_than_all_is_not_complete() -> None:
    whole = log(calls_inside())
    profile = run_of(process(stages()))
    assert place_segments(profile, trace_of(whole)).coverage.complete
    cut = replace(whole, modules=(ModuleState("POSIX", 4, partial=True),))
    coverage = place_segments(profile, trace_of(cut)).coverage
    assert coverage.partial == (f"worker-0 (process {PID}): POSIX",)
    assert not coverage.complete
    few = replace(whole, files=FILES[:19], segments=whole.segments[:19])
    coverage = place_segments(profile, trace_of(few)).coverage
    assert (coverage.n_files_seen, coverage.n_files_read) == (19, 20)
    assert not coverage.complete


def test_files_are_counted_by_the_log_where_stages_name_none() -> None:
    profile = run_of(process(stages(named=False)))
    coverage = place_segments(profile, trace_of(log(calls_inside()[:7]))).coverage
    assert (coverage.n_files_seen, coverage.n_files_read) == (7, None)


def test_a_file_that_was_only_written_is_not_read() -> None:
    whole = log(calls_inside()[:7])
    written = whole.segments.copy()
    written["write"][0] = True
    profile = run_of(process(stages(named=False)))
    coverage = place_segments(profile, trace_of(replace(whole, segments=written))).coverage
    assert coverage.n_files_seen == 6


def test_a_clock_that_was_set_is_told_of_and_one_that_was_read_late_is_not_followed() -> None:
    def ended(step: int) -> Profile:
        last = Anchor(1000 * MS, WALL + 1000 * MS + step)
        return run_of(process(stages(), anchors=[Anchor(0, WALL), last]))

    found = only(ended(30 * MS), log(calls_inside()))
    assert "the wall clock was set during the run" in found.reason
    assert found.matched
    # A microsecond within a stage counts; an anchor is several off, and no drift.
    late = ended(100_000)
    assert only(late, log(calls_inside(margin=5))).n_placed == 20
    assert only(late, log(calls_inside())).reason == ""
    moments = np.array([WALL, WALL + 500 * MS])
    assert monotonic_of_wall(late.processes[0], moments).tolist() == [0, 500 * MS]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/d/x.nc", "/d/x.nc"),
        ("/d/x.nc:t2m", "/d/x.nc"),
        ("x.nc:group/t2m", "x.nc"),
        ("file:///d/x.nc", "/d/x.nc"),
        ("s3://bucket/x.nc", "s3://bucket/x.nc"),
        ("t2m", ""),
        ("worker-0", ""),
        ("", ""),
    ],
)
def test_what_of_a_text_names_a_file(text: str, path: str) -> None:
    assert file_of(text) == path


def test_names_of_files_are_found_in_texts() -> None:
    files = ("/d/x.nc", "/d/a/b.npy", "/e/b.npy", "/d/s.zarr/t/0.0", "/d/s.zarr/.zattrs", "/q")
    texts = (
        "/d/x.nc:t2m", "a/b.npy", "../a/b.npy", "b.npy", "/d/./x.nc", "/d/s.zarr", "s.zarr/t",
        "t2m", "/d/gone.nc",
    )  # fmt: skip
    found = match_names(texts, files)
    assert found.file == {"/d/x.nc:t2m": 0, "a/b.npy": 1, "../a/b.npy": 1, "/d/./x.nc": 0}
    assert set(found.folder) == {"/d/s.zarr", "s.zarr/t"}
    assert found.folder_of.tolist() == [
        -1, -1, -1, found.folder["s.zarr/t"], found.folder["/d/s.zarr"], -1
    ]  # fmt: skip
    assert found.knows("s.zarr/t")
    assert not found.knows("b.npy")  # two files could be meant


def test_calls_on_the_pieces_of_a_folder_lie_in_stages_that_name_the_folder() -> None:
    pieces = tuple(f"/data/s.zarr/t/{number}" for number in range(20))
    rows = [{**each, "detail": "/data/s.zarr:t"} for each in stages()]
    coverage = place_segments(run_of(process(rows)), trace_of(log(calls_inside(), files=pieces)))
    assert coverage.processes[0].n_placed == 20
    assert (coverage.coverage.n_files_seen, coverage.coverage.n_files_read) == (1, 1)


def test_one_process_may_have_two_entries_and_one_log() -> None:
    # A spawned worker records what its main module reads before the loader names it.
    begun = span_file(PID, [stage(0, MS, "/data/0.npy")], anchors=[Anchor(0, WALL)])
    found = place_segments(run_of(begun, process(stages())), trace_of(log(calls_inside())))
    child, worker = found.processes
    assert (child.trace, worker.trace) == (-1, 0)
    assert child.reason == "the same process as worker-0, with its log"
    assert (found.coverage.n_found, found.coverage.n_expected) == (1, 1)
    assert found.coverage.missing == ()


def test_code_and_the_system_s_files_are_not_asked_of_a_tracer() -> None:
    others = ("/env/lib/python3.11/json/__init__.py", "/env/lib/python311.zip", "/etc/mime.types")
    rows = [stage(number, number + 1, name) for number, name in enumerate(others)]
    opened = stage(9, 10, "/data", Kind.OPEN)
    coverage = place_segments(
        run_of(process([*rows, opened, *stages()])), trace_of(log(calls_inside()))
    ).coverage
    assert (coverage.n_files_seen, coverage.n_files_read) == (20, 20)
    assert coverage.complete


def test_questions_for_a_page_before_each_stage_do_not_set_the_clock() -> None:
    asked = [
        call(int(gap) - 90_000 + more, int(gap) - 85_000 + more, number, nbytes=1)
        for number, gap in enumerate(GAPS)
        for more in (0, 10_000)
    ]
    segments = sorted([*asked, *calls_inside()])
    found = only(run_of(process(stages(named=False))), log(segments))
    assert (found.low_ns, found.high_ns) == (LATE - 10_000, LATE + 10_000)
    assert found.n_placed == 20
    coverage = place_segments(
        run_of(process(stages(named=False))), trace_of(log(segments))
    ).coverage
    assert (coverage.n_placed, coverage.n_segments) == (20, 20)


def test_what_is_fused_around_reads_is_no_reading() -> None:
    """Reads lie in stages that read, not anywhere in what the sample's method took around them."""
    whole = [
        stage(int(low) - MS // 2, int(high) - MS, kind=Kind.FUSED)
        for low, high in itertools.pairwise([*GAPS, GAPS[-1] + 9 * MS])
    ]
    decoding = [
        stage(each["start_ns"] + 5 * MS // 2, each["end_ns"], kind=Kind.DECODE) for each in whole
    ]
    found = only(run_of(process([*stages(named=False), *decoding, *whole])), log(calls_inside()))
    assert found.matched
    assert found.offset_ns == LATE
    assert found.n_placed == 20
