"""Logs joined to processes, calls put into stages, strays dropped: on runs made by hand."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_runs import MODULES, MS, TracedRun

from iobench.analysis.placement.file_names import file_of, match_names
from iobench.analysis.placement.placing import place_segments
from iobench.analysis.run import Run
from iobench.recording.facts import LoaderFacts, ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import StorageTrace
from iobench.subjects.storage.figures import storage_of

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile
    from iobench.storage.storage_trace import ProcessTrace
    from iobench.subjects.storage.figures import LogClock, StorageFigures

LATE = 3
"""By how many milliseconds the clocks of logs are behind."""
FILES = tuple(f"/data/{number}.npy" for number in range(20))
STARTS = (np.cumsum(np.arange(20) % 7 + 3)).tolist()
"""Of 20 stages of 2 ms, at uneven distances."""
WORKER = "worker-0 (process 101)"


def visits(
    named: bool = True,
    margin: float = 0.01,
    kind: Kind = Kind.READ,
    run: TracedRun | None = None,
) -> TracedRun:
    """Return a run whose worker reads 20 files in stages of their own; the log's clock is late."""
    run = run or TracedRun()
    worker = run.worker()
    for number, at in enumerate(STARTS):
        worker.span(
            kind, at, at + 2, batch=number, nbytes=10, detail=FILES[number] if named else ""
        )
        call(run, number, at + margin, at + 2 - margin)
        run.wait(number, at, at + 2)
    return run


def call(run: TracedRun, file: int, start: float, end: float, offset: int = 0, n: int = 10) -> None:
    """Let the tracer see a call at these times, as its clock tells them."""
    run.workers[-1].read(FILES[file], start + LATE, end + LATE, offset, n)


def found_in(run: TracedRun | Profile, *logs: ProcessTrace, refused: Any = ()) -> StorageFigures:
    """Return the figures of a run by these logs, else by those of its workers."""
    profile = run.profile() if isinstance(run, TracedRun) else run
    if isinstance(run, TracedRun) and not logs and not refused:
        logs = run.trace().processes
    found = storage_of(Run(profile, StorageTrace(logs, refused=refused)).of_rank())
    assert found is not None
    return found


def coverage_of(run: TracedRun | Profile, *logs: ProcessTrace, **more: Any) -> Any:
    traced = found_in(run, *logs, **more).traced
    assert traced is not None
    return traced.coverage


def clock_of(run: TracedRun | Profile, *logs: ProcessTrace) -> LogClock:
    traced = found_in(run, *logs).traced
    assert traced is not None
    (clock,) = traced.clocks
    return clock


def holders(run: TracedRun | Profile, *logs: ProcessTrace) -> dict[str, str]:
    """Return the names of the logs that processes have."""
    traced = found_in(run, *logs).traced
    assert traced is not None
    return {clock.process: clock.log for clock in traced.clocks}


def storage_ms(run: TracedRun) -> dict[str, float | None]:
    """Return the time of calls in each stage."""
    return {
        each.stage: None if each.storage_ns is None else each.storage_ns / MS
        for each in found_in(run).stages
    }


@pytest.mark.parametrize("named", [True, False])
def test_calls_are_put_into_stages(named: bool) -> None:
    run = visits(named)
    clock, coverage = clock_of(run), coverage_of(run)
    assert (clock.matched, clock.reason) == (True, "")
    assert (clock.low_ns, clock.offset_ns, clock.high_ns) == tuple(
        -LATE * MS + more for more in (-10_000, 0, 10_000)
    )
    assert (coverage.n_placed, coverage.n_segments) == (20, 20)
    assert (coverage.n_files_seen, coverage.n_files_read) == (20, 20 if named else None)
    assert coverage.complete
    assert storage_ms(run) == {"read": pytest.approx(20 * 1.98)}


@given(st.integers(0, 2**32 - 1), st.integers(1, 45), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_each_visit_of_a_file_has_its_own_calls(seed: int, late: int, epochs: int) -> None:
    rng = np.random.default_rng(seed)
    run, begin = TracedRun(), 10.0
    worker = run.worker()
    for number in itertools.chain(*(rng.permutation(20).tolist() for _ in range(epochs))):
        length = rng.uniform(0.1, 3)
        worker.span(Kind.READ, begin, begin + length, batch=0, nbytes=10, detail=FILES[number])
        first, last = np.sort(rng.uniform(0, length, 2)).tolist()
        worker.read(FILES[number], begin + first + late, begin + last + late, 0, 10)
        begin += length + rng.uniform(0.001, 5)
    measured = Run(run.profile(), run.trace()).of_rank()
    placed = measured.placement.processes[1]
    assert placed.matched
    assert placed.low_ns - 1 <= -late * MS <= placed.high_ns + 1
    first_span = int(np.flatnonzero(measured.profile.spans["process"] == 1)[0])
    assert (placed.segments["span"] - first_span).tolist() == list(range(20 * epochs))


def test_a_call_on_a_file_is_not_put_into_the_stage_of_another() -> None:
    run = visits()
    for number, at in enumerate(STARTS):
        call(run, (number + 1) % 20, at + 0.01, at + 1.99)
    coverage = coverage_of(run)
    assert (coverage.n_placed, coverage.n_segments) == (20, 40)
    assert clock_of(run).offset_ns == -LATE * MS


def test_the_innermost_stage_has_the_call_and_may_be_one_that_decodes() -> None:
    run = visits()
    for number, at in enumerate(STARTS):
        run.workers[0].span(Kind.DECODE, at + 0.005, at + 1.995, batch=number, detail=FILES[number])
    assert storage_ms(run) == {"read": 0, "decode": pytest.approx(20 * 1.98)}


@pytest.mark.parametrize("named", [True, False])
def test_reads_put_off_to_stages_that_do_not_read_are_found_there(named: bool) -> None:
    run = visits(named=False, kind=Kind.PREPROCESS)
    for number, at in enumerate(STARTS):
        name = FILES[number] if named else ""
        run.workers[0].span(Kind.OPEN, at - 0.05, at - 0.02, batch=number, detail=name)
    assert clock_of(run).matched
    assert storage_ms(run) == {"open": 0, "preprocess": pytest.approx(20 * 1.98)}


def test_sums_over_a_batch_hold_its_reads_at_any_time_of_the_batch() -> None:
    run = visits()
    worker = run.workers[0]
    worker.spans.clear()
    for number, at in enumerate(STARTS):
        sums = {"batch": number, "flags": Flag.SUMMED, "pieces": 8}
        worker.span(Kind.READ, at, at + 0.5, nbytes=10, **sums)
        worker.span(Kind.COLLATE, at + 0.5, at + 2, **sums)
        worker.span(Kind.READ, at + 1, at + 1.00001, flags=Flag.DETAIL)
    assert clock_of(run).matched
    assert coverage_of(run).n_placed == 20


def test_counters_and_time_of_devices_are_no_stages() -> None:
    run = visits()
    spans = run.workers[0].spans
    spans[:] = [{**each, "flags": flag} for each in spans for flag in (Flag.IO, Flag.DEVICE)]
    assert not clock_of(run).matched
    assert coverage_of(run).n_placed == 0


def test_where_no_offset_fits_nothing_is_shifted_and_little_is_placed() -> None:
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.READ, 3, 5, batch=0, detail=FILES[0])
    worker.span(Kind.READ, 0, 400, batch=0, detail=FILES[5])
    call(run, 0, 3.01, 4.99)
    call(run, 5, 37, 39)  # may have been before 0
    clock = clock_of(run)
    assert not clock.matched
    assert (clock.offset_ns, clock.low_ns, clock.high_ns) == (0, -50 * MS, 50 * MS)
    assert clock.reason.startswith("its clock is not known: ")
    assert coverage_of(run).n_placed == 0
    call(run, 5, 200, 201)
    assert coverage_of(run).n_placed == 1  # wherever its clock stands


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([(0, 10**6)], "its clock is not known: .*chance"),
        (
            [(10_000 + number, 10_000.00001 + number) for number in range(200)],
            "its clock is not known: .*fits into",
        ),
        ([(0, 1000)], ""),
    ],
)
def test_stages_too_long_too_short_and_elsewhere_tell_nothing(
    stages: list[tuple[float, float]], reason: str
) -> None:
    run = TracedRun()
    worker = run.worker()
    for start, end in stages:
        worker.span(Kind.READ, start, end, batch=0)
    for number in range(200):
        call(run, 0, 10_000 + number - LATE, 10_000.001 + number - LATE)
    clock = clock_of(run)
    assert not clock.matched
    assert re.match(reason, clock.reason)
    assert clock.offset_ns == 0


def test_a_schedule_as_regular_as_a_clock_does_not_tell_the_time() -> None:
    run = TracedRun()
    worker = run.worker()
    for number in range(200):
        worker.span(Kind.READ, 5 * number, 5 * number + 2, batch=number)
        if 50 <= number < 150:
            call(run, 0, 5 * number + 1, 5 * number + 1.5)
    clock = clock_of(run)
    assert not clock.matched
    assert clock.reason == "its clock is not known: several offsets fit equally well"


def test_a_log_without_calls_has_nothing_to_match() -> None:
    run = TracedRun()
    run.worker().span(Kind.READ, 3, 5, batch=0, detail=FILES[0])
    clock = clock_of(run)
    assert (clock.matched, clock.reason, clock.has_segments) == (False, "", False)


def test_of_offsets_that_hold_all_calls_the_one_that_leaves_no_stage_empty_is_right() -> None:
    # A short read and a long decode in turn, one call in each: all fit into the decodes as well.
    run = TracedRun()
    worker = run.worker()
    for number in range(40):
        at = 20 * number + 0.01 * number**2
        worker.span(Kind.READ, at, at + 1, batch=number)
        worker.span(Kind.FUSED, at + 1.01, at + 15, batch=number, label="read+decode")
        for inside in (0.2, 1.2):
            worker.read(FILES[0], at + inside + 12, at + inside + 12.05, 0, 10)
    clock = clock_of(run)
    assert clock.matched
    assert clock.low_ns <= -12 * MS <= clock.high_ns < clock.low_ns + MS


def test_a_log_in_whole_seconds_may_be_early() -> None:
    run = visits()
    (log,) = run.trace().processes
    early = log.segments.copy()
    for name in ("start_ns", "end_ns"):
        early[name] -= 700 * MS
    clock = clock_of(run, replace(log, segments=early, zero_error_ns=1000 * MS))
    assert clock.matched
    assert clock.low_ns <= (700 - LATE) * MS <= clock.high_ns


def test_files_without_single_reads_are_matched_by_their_openings_and_closings() -> None:
    run = visits()
    (log,) = run.trace().processes
    counters, nothing = log.counters.copy(), log.segments[:0]
    counters["posix_first_open_ns"] = log.segments["start_ns"] + 10_000
    counters["stdio_last_close_ns"] = log.segments["end_ns"] - 30_000
    clock = clock_of(run, replace(log, counters=counters, segments=nothing))
    assert (clock.matched, clock.has_segments) == (True, False)
    assert (clock.low_ns, clock.high_ns) == (-LATE * MS - 20_000, -LATE * MS + 40_000)


@pytest.mark.parametrize(
    ("what", "offset", "nbytes", "opens", "streams", "n_stray"),
    [
        ("a pipe with the number of the closed file", 100, 10, 2, 1, 1),
        ("the header again", 0, 10, 2, 1, 0),
        ("nothing at the end", 100, 0, 2, 1, 0),
        ("a file that was opened as a stream at once", 100, 10, 1, 1, 0),
        ("a file without a stream", 100, 10, 2, 0, 0),
    ],
)
def test_strays_are_calls_after_the_end_of_a_duplicated_file(
    what: str, offset: int, nbytes: int, opens: int, streams: int, n_stray: int
) -> None:
    run = visits()
    for file in FILES:
        # As np.load reads: a header, and a stream.
        run.workers[0].count(file, posix_opens=opens - 1, stdio_opens=streams, stdio_read_nbytes=90)
    # Before the first stage of a file a call is no stray.
    call(run, 0, 1, 2, 100)
    run.workers[0].counters[FILES[0]]["posix_opens"] = opens
    assert coverage_of(run).n_stray == 0
    call(run, 0, STARTS[0] + 2.03, STARTS[0] + 2.035, offset, nbytes)
    run.workers[0].counters[FILES[0]]["posix_opens"] = opens
    coverage = coverage_of(run)
    assert (coverage.n_stray, coverage.stray_nbytes) == (n_stray, 10 * n_stray), what
    assert coverage.n_placed == 20


def test_there_is_one_exposed_share_for_each_span() -> None:
    run = visits()
    with pytest.raises(ValueError, match="3 shares, expected one for each of 41 spans"):
        place_segments(run.profile(), run.trace(), np.zeros(3))


def two_of_one_number(host: str) -> tuple[TracedRun, Profile]:
    """Return a run of two workers with one number: the other has nothing but its place."""
    run = visits()
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    profile = run.profile()
    main, first, second = profile.processes
    return run, replace(profile, processes=(main, first, replace(second, pid=first.pid, host=host)))


def test_a_log_without_a_host_may_be_of_any_process_unless_two_have_its_number() -> None:
    run, profile = two_of_one_number("other")
    log = run.workers[0].log()
    assert coverage_of(visits(), log).n_found == 1
    coverage = coverage_of(profile, log)
    assert coverage.n_found == 0
    assert "several hosts" in coverage.extra[0]
    there = replace(log, host="other.example")
    assert holders(profile, there) == {"worker-1": str(log.path)}


def test_one_process_may_have_two_entries_and_one_log() -> None:
    # A spawned worker records what its main module reads before the loader names it.
    run = TracedRun()
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    profile = visits(run=run).profile()
    main, child, worker = profile.processes
    child = replace(child, pid=worker.pid, anchors=child.anchors[:1])
    profile = replace(profile, processes=(main, child, worker))
    log = run.workers[1].log()
    assert holders(profile, log) == {"worker-1": str(log.path)}
    coverage = coverage_of(profile, log)
    assert (coverage.n_found, coverage.n_expected, coverage.missing) == (1, 1, ())
    placed = Run(profile, StorageTrace((log,))).of_rank().placement.processes
    assert placed[1].reason == "the same process as worker-1, with its log"


def test_of_two_processes_with_one_number_the_one_alive_has_the_log() -> None:
    run, profile = two_of_one_number("vm")
    *others, last = profile.processes
    hours = tuple(replace(each, wall_ns=each.wall_ns + 10**13) for each in last.anchors)
    profile = replace(profile, processes=(*others, replace(last, anchors=hours)))
    log = run.workers[0].log()
    after = replace(log, start_ns=log.start_ns + 10**13, end_ns=log.end_ns + 10**13,
                    path=Path("after.darshan"))  # fmt: skip
    assert holders(profile, log) == {"worker-0": str(log.path)}
    assert coverage_of(profile, log).missing == ("worker-1 (process 101)",)
    assert holders(profile, after, log) == {
        "worker-0": str(log.path), "worker-1": "after.darshan",
    }  # fmt: skip
    assert coverage_of(profile, after, log).n_extra_logs == 0


def test_a_second_log_of_a_process_is_extra() -> None:
    run = visits()
    log = run.workers[0].log()
    short = replace(log, end_ns=log.start_ns + MS, path=Path("short.darshan"))
    assert holders(run, short, log) == {"worker-0": str(log.path)}
    coverage = coverage_of(run, short, log)
    assert coverage.n_extra_logs == 1
    assert "which has Darshan's twice" in coverage.extra[0]


def test_logs_of_ranks_are_joined_by_rank() -> None:
    run = visits()
    log = run.workers[0].log()
    mine = replace(log, pid=-1, rank=0, path=Path("rank-0.darshan"))
    renumbered = replace(mine, pid=4000)
    shared = replace(mine, rank=-1, path=Path("shared.darshan"))
    beyond = replace(mine, rank=9, path=Path("rank-9.darshan"))
    for of_rank in (mine, renumbered):
        assert holders(run, log, of_rank, shared, beyond) == {
            "consumer": "rank-0.darshan", "worker-0": str(log.path),
        }  # fmt: skip
    by_number, by_rank = coverage_of(run, log, mine, shared, beyond).extra
    assert "sums over all processes" in by_number
    assert "rank 9" in by_rank


def test_what_other_logs_are_is_said() -> None:
    facts = ProcessFacts(
        pid=5, ppid=1, host="vm", role="consumer", rank=1, world_size=2,
        loaders=[LoaderFacts(0, "torch", "a", "b", 1, 2, worker_pids=[6])],
    )  # fmt: skip
    run = visits()
    log = run.workers[0].log()
    command = "python -c resource_tracker " + "x" * 99
    tracker_line, worker, job, earlier = coverage_of(
        replace(run.profile(), facts=(facts,)),
        log,
        replace(log, pid=8, parent_pid=101, executable=command),
        replace(log, pid=6),
        replace(log, pid=9, job_id=3),
        replace(log, pid=9, job_id=4, start_ns=1, end_ns=2),
    ).extra
    assert "a child of the run without spans: python -c resource_tracker" in tracker_line
    assert len(tracker_line) < 140
    assert "of another training process" in worker
    assert "job 3, which the run did not have" in job
    assert "job 4, at another time than the run" in earlier


def test_without_logs_every_process_keeps_its_place() -> None:
    coverage = coverage_of(visits(), refused=("x: is no log",))
    assert coverage.problems == ("x: is no log",)
    assert coverage.missing == (WORKER,)
    assert (coverage.n_found, coverage.n_expected) == (0, 1)  # a loop that waits needs no log
    assert (coverage.n_files_seen, coverage.n_files_read) == (0, 20)


def test_a_log_with_less_than_all_is_not_complete() -> None:
    run = visits()
    log = run.workers[0].log()
    cut = coverage_of(run, replace(log, modules=(replace(MODULES[0], partial=True),)))
    assert (cut.partial, cut.complete) == ((f"{WORKER}: POSIX",), False)
    few = coverage_of(run, replace(log, files=FILES[:19], counters=log.counters[:19],
                                   segments=log.segments[:19]))  # fmt: skip
    assert (few.n_files_seen, few.n_files_read, few.complete) == (19, 20, False)


def test_files_are_counted_by_the_log_where_stages_name_none() -> None:
    run = visits(named=False)
    log = replace(run.workers[0].log(), counters=run.workers[0].log().counters[:0])
    part = log.segments[:7].copy()
    coverage = coverage_of(run, replace(log, segments=part))
    assert (coverage.n_files_seen, coverage.n_files_read) == (7, None)
    part["write"][0] = True  # what was only written is not read
    assert coverage_of(run, replace(log, segments=part)).n_files_seen == 6


def test_a_clock_that_was_set_is_told_of_and_one_that_was_read_late_is_not_followed() -> None:
    def ended(run: TracedRun, step_ns: int) -> Profile:
        """Let the wall clock be on by so much a second after the start."""
        profile = run.profile()
        changed = []
        for who in profile.processes:
            first = who.anchors[0]
            last = replace(first, monotonic_ns=10**9, wall_ns=first.wall_ns + 10**9 + step_ns)
            changed.append(replace(who, anchors=(first, last)))
        return replace(profile, processes=tuple(changed))

    run = visits()
    clock = clock_of(ended(run, 30 * MS), run.workers[0].log())
    assert "the wall clock was set during the run" in clock.reason
    assert clock.matched
    # A microsecond within a stage counts; an anchor is several off, and no drift.
    tight = visits(margin=5e-6)
    late = ended(tight, 100_000)
    assert coverage_of(late, tight.workers[0].log()).n_placed == 20
    assert clock_of(late, tight.workers[0].log()).reason == ""


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
    run = visits()
    for each in run.workers[0].spans:
        each["detail"] = "/data/s.zarr:t"
    pieces = tuple(f"/data/s.zarr/t/{number}" for number in range(20))
    coverage = coverage_of(run, replace(run.workers[0].log(), files=pieces))
    assert coverage.n_placed == 20
    assert (coverage.n_files_seen, coverage.n_files_read) == (1, 1)


def test_code_and_the_system_s_files_are_not_asked_of_a_tracer() -> None:
    run = visits()
    others = ("/env/lib/python3.11/json/__init__.py", "/env/lib/python311.zip", "/etc/mime.types")
    for number, name in enumerate(others):
        run.workers[0].span(Kind.READ, number / 10, number / 10 + 0.1, detail=name)
    run.workers[0].span(Kind.OPEN, 0.4, 0.5, detail="/data")
    coverage = coverage_of(run)
    assert (coverage.n_files_seen, coverage.n_files_read) == (20, 20)
    assert coverage.complete


def test_questions_for_a_page_before_each_stage_do_not_set_the_clock() -> None:
    run = visits(named=False)
    for number, at in enumerate(STARTS):
        for before in (0.09, 0.08):
            call(run, number, at - before, at - before + 0.005, n=1)
    clock, coverage = clock_of(run), coverage_of(run)
    assert (clock.low_ns, clock.high_ns) == (-LATE * MS - 10_000, -LATE * MS + 10_000)
    assert (coverage.n_placed, coverage.n_segments) == (20, 20)


def test_what_is_fused_around_reads_is_no_reading() -> None:
    """Reads lie in stages that read, not anywhere in what the sample's method took around them."""
    run = visits(named=False)
    worker = run.workers[0]
    for low, high in itertools.pairwise([*STARTS, STARTS[-1] + 9]):
        worker.span(Kind.DECODE, low + 2, high - 1, batch=0)
        worker.span(Kind.FUSED, low - 0.5, high - 1, batch=0)
    clock = clock_of(run)
    assert (clock.matched, clock.offset_ns) == (True, -LATE * MS)
    assert coverage_of(run).n_placed == 20
