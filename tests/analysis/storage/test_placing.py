"""Logs joined to processes by their markers, reads put into stages, strays dropped."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from traced_runs import MODULES, MS, TracedRun

from iobench.analysis.placement import place_segments
from iobench.analysis.read_spans import FileNames
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import StorageTrace

if TYPE_CHECKING:
    from iobench.analysis.placement import Placement, TraceCoverage
    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import ProcessTrace

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
    worker.late_ms = LATE
    for number, at in enumerate(STARTS):
        worker.span(
            kind, at, at + 2, batch=number, nbytes=10, detail=FILES[number] if named else ""
        )
        call(run, number, at + margin, at + 2 - margin)
        run.wait(number, at, at + 2)
    return run


def call(run: TracedRun, file: int, start: float, end: float, offset: int = 0, n: int = 10) -> None:
    """Let Darshan see a read at these times."""
    run.workers[-1].read(FILES[file], start, end, offset, n)


def placed(run: TracedRun | RunData, *logs: ProcessTrace) -> Placement:
    """Return the reads of a run in its stages by these logs, else by those of its workers."""
    if isinstance(run, TracedRun):
        logs, run = logs or run.trace().processes, run.data()
    return place_segments(run, StorageTrace(logs))


def coverage_of(run: TracedRun | RunData, *logs: ProcessTrace) -> TraceCoverage:
    return placed(run, *logs).coverage


def holders(profile: RunData, *logs: ProcessTrace) -> dict[str, str]:
    """Return the names of the logs that processes have."""
    found = placed(profile, *logs).processes
    return {profile.processes[each.process].name: str(logs[each.trace].path) for each in found}


def storage_ms(run: TracedRun) -> dict[str, float | None]:
    """Return the time of reads in each stage."""
    return {
        stage: None if each.storage_ns is None else each.storage_ns / MS
        for stage, each in run.figures().in_stages.items()
    }


@pytest.mark.parametrize("named", [True, False])
def test_reads_are_put_into_stages(named: bool) -> None:
    run = visits(named)
    found = placed(run)
    (clock,), coverage = found.processes, found.coverage
    assert (clock.low_ns, clock.high_ns) == (-LATE * MS - 700, -LATE * MS + 700)
    assert (coverage.n_placed, coverage.n_segments) == (20, 20)
    assert coverage.complete
    assert storage_ms(run) == {"read": pytest.approx(20 * 1.98)}


def test_what_the_marker_leaves_open_puts_no_read_beyond_its_stage() -> None:
    assert coverage_of(visits(margin=-0.001)).n_placed == 20
    assert coverage_of(visits(margin=-0.01)).n_placed == 0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_innermost_stage_that_names_the_file_has_the_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = TracedRun()
    worker = run.worker()
    run.wait(0, 0, 200)
    stages = []
    for number in range(12):  # of three threads, nested in each
        start, file = int(rng.integers(0, 80)), int(rng.integers(0, 3))
        length = int(rng.integers(10, 90))
        for depth in range(3):
            low, high = start + depth, start + length - depth
            worker.span(Kind.READ, low, high, batch=0, thread=number, detail=(*FILES[:2], "")[file])
            stages.append((low, high, (*FILES[:2], "")[file]))
    for file in range(2):
        call(run, file, *sorted(rng.integers(0, 180, 2).tolist()))
    profile = run.data()
    (placed,) = place_segments(profile, run.trace()).processes
    for read in placed.segments:
        name = placed.files[read["file"]]
        around = [
            (high - low, text)
            for low, high, text in stages
            if low * MS <= read["start_ns"] and read["end_ns"] <= high * MS and text == name
        ] or [
            (high - low, text)
            for low, high, text in stages
            if low * MS <= read["start_ns"] and read["end_ns"] <= high * MS and not text
            if name not in {each for *_, each in stages}
        ]
        if not around:
            assert read["span"] < 0
        else:
            span = profile.spans[read["span"]]
            length, text = min(around)
            assert (span["end_ns"] - span["start_ns"]) == length * MS
            assert profile.strings[span["detail"]] == text


def test_counters_and_time_of_devices_are_no_stages() -> None:
    run = visits()
    for number, at in enumerate(STARTS):
        for flag in (Flag.IO, Flag.DEVICE, Flag.DETAIL):
            run.workers[0].span(
                Kind.READ, at + 0.01, at + 1.99, batch=number, detail=FILES[number], flags=flag
            )
    assert storage_ms(run) == {"read": pytest.approx(20 * 1.98)}


@pytest.mark.parametrize(
    ("offset", "nbytes", "opens", "n_stray", "what"),
    [
        (10, 4, 2, 1, "follows the end of the file"),
        (9, 4, 2, 0, "begins within the file"),
        (10, 0, 2, 0, "carries nothing"),
        (10, 4, 1, 0, "the descriptor was never duplicated"),
    ],
)
def test_strays_are_reads_after_the_end_of_a_duplicated_file(
    offset: int, nbytes: int, opens: int, n_stray: int, what: str
) -> None:
    run = visits()
    run.workers[0].count(FILES[0], stdio_opens=1, stdio_reads=1, stdio_read_nbytes=10)
    call(run, 0, STARTS[0] + 2.03, STARTS[0] + 2.035, offset, nbytes)
    run.workers[0].counters[FILES[0]]["posix_opens"] = opens
    found = placed(run)
    assert sum(each.segments["stray"].sum() for each in found.processes) == n_stray, what
    assert found.coverage.n_placed == 20


def two_of_one_number(host: str) -> tuple[TracedRun, RunData]:
    """Return a run of two workers with one number: the other has nothing but its place."""
    run = visits()
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    profile = run.data()
    main, first, second = profile.processes
    return run, replace(profile, processes=(main, first, replace(second, pid=first.pid, host=host)))


def test_a_log_is_of_the_process_of_its_host() -> None:
    run, profile = two_of_one_number("other")
    there = replace(run.workers[0].log(), host="other.example")
    assert holders(profile, there) == {"worker-1": str(there.path)}
    alone = visits().data()
    assert holders(alone, replace(there, host="")) == {"worker-0": str(there.path)}
    elsewhere = coverage_of(visits(), replace(there, host="elsewhere"))
    assert (elsewhere.n_logs, elsewhere.others.n_logs) == (0, 1)


def test_one_process_may_have_two_entries_and_one_log() -> None:
    # A spawned worker records what its main module reads before the loader names it.
    run = TracedRun()
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    profile = visits(run=run).data()
    main, child, worker = profile.processes
    before = tuple(
        replace(each, monotonic_ns=each.monotonic_ns - MS, wall_ns=each.wall_ns - MS)
        for each in child.anchors
    )
    child = replace(child, pid=worker.pid, anchors=before)
    profile = replace(profile, processes=(main, child, worker))
    log = run.workers[1].log()
    assert holders(profile, log) == {"worker-1": str(log.path)}
    coverage = coverage_of(profile, log)
    assert (coverage.n_logs, coverage.n_expected, coverage.missing) == (1, 1, ())


@pytest.mark.parametrize(
    "change",
    [
        lambda log: replace(log, pid=8),
        lambda log: replace(log, marks=log.marks[:1]),
        lambda log: replace(log, marks=log.marks[::-1]),
        lambda log: replace(log, segments=log.segments[:0], marks=log.marks[:0]),
    ],
    ids=["another process", "marker cut", "marker out of order", "no single reads"],
)
def test_logs_without_the_marker_of_a_process_give_totals(change: Any) -> None:
    run = visits()
    log = change(run.workers[0].log())
    coverage = coverage_of(run, log)
    assert (coverage.n_logs, coverage.missing, coverage.n_segments) == (0, (WORKER,), 0)
    assert not coverage.complete
    totals = coverage.others
    assert totals is not None
    assert (totals.n_logs, totals.n_files, totals.posix_nbytes, totals.stdio_nbytes) == (
        1, 20, 200, 0,
    )  # fmt: skip
    found = run.figures(StorageTrace((log,)))
    assert found.bytes[0].darshan_nbytes is None
    assert found.in_stages == {}


def test_a_log_with_less_than_all_is_not_complete() -> None:
    run = visits()
    log = run.workers[0].log()
    cut = coverage_of(run, replace(log, modules=(replace(MODULES[0], partial=True),)))
    (problem,) = cut.problems
    assert problem.startswith(f"{WORKER}: Darshan ran out of memory in POSIX")
    assert not cut.complete


def test_a_clock_that_was_read_late_is_not_followed() -> None:
    def ended(run: TracedRun, step_ns: int) -> RunData:
        """Let the wall clock be on by so much a second after the start."""
        profile = run.data()
        changed = []
        for who in profile.processes:
            first = who.anchors[0]
            last = replace(first, monotonic_ns=10**9, wall_ns=first.wall_ns + 10**9 + step_ns)
            changed.append(replace(who, anchors=(first, last)))
        return replace(profile, processes=tuple(changed))

    # A microsecond within a stage counts; an anchor is several off, and no drift.
    tight = visits(margin=5e-6)
    late = coverage_of(ended(tight, 100_000), tight.workers[0].log())
    assert (late.n_placed, late.problems) == (20, ())


def test_names_of_files_are_found_in_texts() -> None:
    files = ("/d/x.nc", "/d/a/b.npy", "/e/b.npy", "/d/s.zarr/t/0.0", "/d/s.zarr/.zattrs", "/q")
    texts = (
        "/d/x.nc:t2m", "a/b.npy", "../a/b.npy", "b.npy", "/d/./x.nc", "/d/s.zarr", "s.zarr/t",
        "t2m", "/d/gone.nc",
    )  # fmt: skip
    names = FileNames(texts, files)
    assert {text: names.of_text(text) for text in texts} == {
        "/d/x.nc:t2m": "/d/x.nc", "a/b.npy": "/d/a/b.npy", "../a/b.npy": "/d/a/b.npy",
        "b.npy": "b.npy",  # two files could be meant
        "/d/./x.nc": "/d/x.nc", "/d/s.zarr": "/d/s.zarr", "s.zarr/t": "s.zarr/t", "t2m": "",
        "/d/gone.nc": "/d/gone.nc",
    }  # fmt: skip
    assert [names.of_file(path) for path in files] == [
        "/d/x.nc", "/d/a/b.npy", None, "s.zarr/t", "/d/s.zarr", None,
    ]  # fmt: skip


def test_reads_lie_in_stages_that_read_not_in_what_is_around_them() -> None:
    run = visits(named=False)
    worker = run.workers[0]
    for low, high in itertools.pairwise([*STARTS, STARTS[-1] + 9]):
        worker.span(Kind.DECODE, low + 2, high - 1, batch=0)
        worker.span(Kind.FUSED, low - 0.5, high - 1, batch=0)
    assert storage_ms(run)["read"] == pytest.approx(20 * 1.98)
