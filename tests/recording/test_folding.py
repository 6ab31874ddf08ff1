"""Recordings too long to be kept whole: bounded, nothing counted twice or lost, and said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iobench import open_profile
from iobench.analysis.run import Run, exposure
from iobench.cli import main
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import counts_of
from iobench.recording import span_file as layout
from iobench.recording.kept_spans import KEPT_NBYTES, EndedWorkers, keep_nbytes
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_head, read_span_file
from iobench.report.lines import measurement_lines
from iobench.report.run_report import make_reports
from iobench.testing import FakeClock
from iobench.tracking.run_metrics import run_contents

BOUND = 1_000_000
SMALL = 200_000


def work(recorder: Recorder, clock: FakeClock, n_batches: int, first: int = 0) -> None:
    """Write a batch of four samples each: decode inside the sample, 3 of 5 us, then collate."""
    for batch in range(first, first + n_batches):
        recorder.position(batch, 0)
        for _ in range(4):
            with recorder.span(Kind.FUSED):
                clock.advance(2000)
                with recorder.span(Kind.DECODE, nbytes=10):
                    clock.advance(3000)
        with recorder.span(Kind.COLLATE):
            clock.advance(1000)


@pytest.mark.parametrize("closed", [True, False])
def test_a_file_stays_within_its_bound_and_its_sums_are_exact(tmp_path: Path, closed: bool) -> None:
    clock = FakeClock(1000)
    recorder = Recorder(tmp_path, role="worker", worker=0, clock=clock, keep_nbytes=BOUND)
    work(recorder, clock, 10_000)
    assert recorder.path is not None
    if closed:
        recorder.close()
    file = read_span_file(recorder.path)
    recorder.close()
    assert recorder.path.stat().st_size < 2 * BOUND + 2**20
    assert file.fold is not None
    assert len(file.spans) + file.fold.n_spans == 90_000
    assert (file.lost, file.damaged) == (0, 0)
    assert file.fold.until_ns <= file.spans["end_ns"].min()
    kept = {kind: int((file.spans["kind"] == kind).sum()) for kind in (Kind.FUSED, Kind.DECODE)}
    assert file.fold.sums[Kind.DECODE, 0] == [
        40_000 - kept[Kind.DECODE], (40_000 - kept[Kind.DECODE]) * 3000,
        (40_000 - kept[Kind.DECODE]) * 10,
    ]  # fmt: skip
    assert file.fold.sums[Kind.FUSED, 0][1] == (40_000 - kept[Kind.FUSED]) * 2000, "its own time"


def test_a_kill_at_any_moment_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    for wait in range(4):
        ready, tell = os.pipe()
        folder = tmp_path / str(wait)
        child = os.fork()
        if not child:
            clock = FakeClock(1000)
            recorder = Recorder(folder, role="worker", clock=clock, keep_nbytes=BOUND)
            for batch in range(10**6):
                work(recorder, clock, 1, batch)
                if batch in (2000, 4000 + 900 * wait):
                    os.write(tell, b".")
            os._exit(0)
        os.read(ready, 1)
        os.read(ready, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (path,) = folder.glob("*.spans")
        file = read_span_file(path)
        assert file.fold is not None
        assert file.damaged <= 1, "the record that was being written"
        n_spans = len(file.spans) + file.fold.n_spans
        last = int(file.spans["batch"].max())
        assert 9 * last <= n_spans <= 9 * (last + 1)


def test_the_oldest_files_of_ended_workers_are_folded(tmp_path: Path) -> None:
    clock = FakeClock(1000)
    consumer = Recorder(tmp_path, role="consumer", clock=clock)
    ended = EndedWorkers(tmp_path, consumer, BOUND)
    for pass_ in range(6):
        worker = Recorder(tmp_path, role="worker", worker=0, clock=clock)
        work(worker, clock, 500, 500 * pass_)
        worker.close()
        assert worker.path is not None
        _as_of_child(worker.path)
        ended.fold()
    consumer.close()
    assert consumer.path is not None
    file = read_span_file(consumer.path)
    left = [read_span_file(path) for path in tmp_path.glob("*.spans") if path != consumer.path]
    assert sum(each.path.stat().st_size for each in left) <= BOUND
    assert file.fold is not None
    assert file.fold.n_spans + sum(len(each.spans) for each in left) == 6 * 4500
    assert all(each.spans["start_ns"].min() >= file.fold.until_ns for each in left)


def _as_of_child(path: Path) -> None:
    """Let a file say that this process started its writer, as a worker's does."""
    data = bytearray(path.read_bytes())
    fields = list(layout.IDENTITY.unpack_from(data))
    fields[3] = os.getpid()
    packed = layout.IDENTITY.pack(*fields)
    data[: len(packed)] = packed
    layout.IDENTITY_CRC.pack_into(data, layout.IDENTITY_CRC_OFFSET, zlib.crc32(packed))
    path.write_bytes(data)


def long_run(
    folder: Path, n_batches: int, keep: int, *, ends: bool = True, inner: bool = False
) -> RunDirectory:
    """Write a run of one worker, whose passes over a loader are of 700 batches.

    Each takes the worker 10 us, of which the loop waits for 4; in every third one it asks an
    ``inner`` loader for two batches, which take 2 us each. Between passes it does something else.
    """
    run = RunDirectory.create(folder, {"kind": "script", "workers": 1, "prefetch": 1})
    clock = FakeClock(1000)
    consumer = run.recorder(role="consumer", clock=clock, keep_nbytes=keep)
    worker = run.recorder(role="worker", worker=0, clock=clock, keep_nbytes=keep)
    round_, begun_ns = consumer.string("round"), 0
    for batch in range(n_batches):
        number, place = divmod(batch, 700)
        start_ns = clock.now_ns()
        begun_ns = begun_ns if place else start_ns + 6000
        clock.advance(10_000)
        at: dict[str, Any] = {"batch": batch, "epoch": number}
        worker.emit(Kind.SUBMIT_QUEUE, start_ns, start_ns, **at)
        worker.emit(Kind.READ, start_ns, start_ns + 7000, flags=Flag.SUMMED, pieces=4, **at)
        worker.emit(Kind.COLLATE, start_ns + 7000, start_ns + 10_000, **at)
        consumer.emit(Kind.WAIT, start_ns + 6000, start_ns + 10_000, nbytes=8, sample=number, **at)
        if inner and batch % 3 == 2:
            within = {"sample": 100_000 + batch, "epoch": 0}
            clock.advance(1000)
            first_ns = clock.now_ns()
            for more in range(2):
                clock.advance(2000)
                consumer.emit(
                    Kind.WAIT, clock.now_ns() - 2000, clock.now_ns(),
                    batch=10**6 + 2 * batch + more, **within,
                )  # fmt: skip
            consumer.emit(Kind.OTHER, first_ns, clock.now_ns(), 0, label=round_, **within)
        if place == 699 or (ends and batch == n_batches - 1):
            clock.advance(500)
            at = {"sample": number, "epoch": number, "label": round_}
            consumer.emit(Kind.OTHER, begun_ns, clock.now_ns(), 0, **at)
            clock.advance(50_000)
    consumer.close()
    worker.close()
    return run


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("n_batches", "ends"), [(4500, True), (4200, True), (4500, False)])
def test_waits_and_wall_time_of_a_folded_run_are_exact(
    tmp_path: Path, n_batches: int, ends: bool
) -> None:
    whole = open_profile(long_run(tmp_path / "whole", n_batches, 0, ends=ends, inner=True).path)
    assert whole.folded is None
    profile = open_profile(
        long_run(tmp_path / "folded", n_batches, SMALL, ends=ends, inner=True).path
    )
    assert profile.folded is not None
    assert profile.missing_workers == ()
    expected, found, folded = exposure(whole).whole, exposure(profile).whole, profile.folded
    assert min(found.n_batches, folded.n_batches) > 300
    assert found.n_batches + folded.n_batches == expected.n_batches
    assert found.wait_ns + folded.wait_ns == expected.wait_ns
    assert found.wall_ns + folded.wall_ns == expected.wall_ns
    busy = {row.stage: row.busy_ns for row in found.stages}
    assert busy["read"] + folded.busy_ns["read"] == 7000 * n_batches
    shares = {row.stage: row.exposed_ns / found.wait_ns for row in found.stages}
    for row in expected.stages:
        if row.exposed_ns > 0.01 * expected.wait_ns:
            assert shares[row.stage] == pytest.approx(row.exposed_ns / expected.wait_ns, abs=0.01)


def worked_anew(folder: Path, n_passes: int) -> tuple[RunDirectory, Recorder]:
    """Write a run whose two workers are made anew for each pass of 20 batches; it goes on."""
    run = RunDirectory.create(folder, {"kind": "script", "workers": 2, "prefetch": 1})
    clock = FakeClock(1000)
    consumer = run.recorder(role="consumer", clock=clock)
    round_ = consumer.string("round")
    for number in range(n_passes):
        workers = [run.recorder(role="worker", worker=each, clock=clock) for each in (0, 1)]
        begun_ns = clock.now_ns()
        for batch in range(20 * number, 20 * number + 20):
            start_ns = clock.now_ns()
            clock.advance(10_000)
            at: dict[str, Any] = {"batch": batch, "epoch": number}
            worker = workers[batch % 2]
            label = worker.string(f"pass-{number}")
            worker.emit(Kind.READ, start_ns, start_ns + 7000, label=label, **at)
            worker.emit(Kind.COLLATE, start_ns + 7000, start_ns + 10_000, **at)
            consumer.emit(Kind.WAIT, start_ns, start_ns + 10_000, nbytes=8, sample=number, **at)
        consumer.emit(Kind.OTHER, begun_ns, clock.now_ns(), 0, sample=number, label=round_)
        clock.advance(1000)
        for worker in workers:
            worker.own_ns = 10 * number + 1
            worker.close()
            assert worker.path is not None
            _as_of_child(worker.path)
    return run, consumer


def test_joined_files_of_ended_workers_give_the_same_figures(tmp_path: Path) -> None:
    run, consumer = worked_anew(tmp_path / "run", 5)
    copy = tmp_path / "one by one"
    shutil.copytree(run.path, copy)
    ended = EndedWorkers(run.spans_path, consumer, 100 * BOUND)
    assert ended.fold() == 0
    assert len(run.span_files()) == 2, "the training process's, and that of ten workers"
    before, after = open_profile(copy), open_profile(run.path)
    assert (after.spans == before.spans).all()
    assert (after.processes, after.strings) == (before.processes, before.strings)
    assert exposure(after) == exposure(before)
    ended.close()
    consumer.close()
    assert all(read_head(path).end is not None for path in run.span_files())


def test_a_kill_while_joining_loses_no_file_and_counts_none_twice(tmp_path: Path) -> None:
    run, consumer = worked_anew(tmp_path / "run", 3)
    expected = open_profile(run.path).spans
    last = max((path for path in run.span_files() if path != consumer.path), key=_age)
    kept = last.read_bytes()
    EndedWorkers(run.spans_path, consumer, 100 * BOUND).fold()
    (joined,) = run.spans_path.glob("*-j0.spans")
    whole = joined.read_bytes()
    last.write_bytes(kept)  # not removed any more
    assert (open_profile(run.path).spans == expected).all()
    for left in (len(kept) - 70_000, 5000, 100, 0):  # not added whole
        joined.write_bytes(whole[: len(whole) - len(kept) + left])
        assert (open_profile(run.path).spans == expected).all()
    consumer.close()


def test_a_joined_file_is_folded_whole(tmp_path: Path) -> None:
    run, consumer = worked_anew(tmp_path / "run", 12)
    ended = EndedWorkers(run.spans_path, consumer, 100 * BOUND)
    assert ended.fold() == 0
    ended._keep_nbytes = BOUND  # as of a longer run
    assert ended.fold() == 1
    consumer.close()
    assert consumer.path is not None
    assert run.span_files() == [consumer.path]
    fold = read_span_file(consumer.path).fold
    assert fold is not None
    assert fold.n_spans == 12 * 20 * 2
    assert sum(spent for (kind, _), (_, spent, _) in fold.sums.items() if kind == Kind.READ) == (
        12 * 20 * 7000
    )
    assert fold.own_ns == sum(2 * (10 * number + 1) for number in range(12))


def _age(path: Path) -> tuple[int, str]:
    return read_head(path).identity.monotonic_ns, path.name


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_run(tmp_path_factory.mktemp("runs") / "folded", 4000, SMALL).path


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["report"], "Exposed I/O"),
        (["report"], "I/O-bound"),
        (["report", "--markdown"], "Exposed I/O"),
        (["advise"], "a script"),
        (["simulate", "--ranks", "1", "--bytes-per-sample", "1KB"], "1 rank measured"),
        (["check", "--max-exposed", "5%"], "exposed share"),
    ],
)
def test_verdicts_say_that_the_first_batches_are_sums_only(
    folded: Path, capsys: pytest.CaptureFixture[str], command: list[str], line: str
) -> None:
    first = exposure(open_profile(folded)).n_folded
    main([command[0], str(folded), *command[1:]])
    said = " ".join(capsys.readouterr().out.split())
    after = said[said.index(line) :]
    assert f"of 4,000 batches (only sums are kept of the first {first:,})" in after[:400]


def test_a_comparison_says_which_of_its_runs_is_not_whole(
    tmp_path: Path, folded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = long_run(tmp_path / "whole", 1000, 0).path
    assert main(["compare", str(whole), str(folded)]) == 0
    a, b = " ".join(capsys.readouterr().out.split()).split(" B: ")[:2]
    assert "sums only" not in a
    assert "only sums are kept" in b[: b.index("B against A")]
    assert "batches 1,000 4,000" in b
    assert main(["compare", str(whole), str(folded), "--json"]) == 0
    (caution,) = json.loads(capsys.readouterr().out)["cautions"]
    assert caution.startswith(f"{folded}: ")


def test_counts_of_a_part_are_held_against_nothing(folded: Path) -> None:
    with pytest.raises(ProfileError, match="only sums are kept"):
        counts_of(Run(open_profile(folded)))


def test_json_page_and_trackers_have_what_was_folded(
    tmp_path: Path, folded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = open_profile(folded)
    found = exposure(profile)
    assert main(["report", str(folded), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["batches"] + run["folded"]["batches"] == 4000
    assert run["folded"]["all_wait_fraction"] == found.all_wait_ns / found.all_wall_ns
    page = tmp_path / "page.html"
    assert main(["report", str(folded), "--html", str(page)]) == 0
    assert f"(only sums are kept of the first {found.n_folded:,})" in page.read_text()
    told = run_contents(Run(profile).of_rank())
    assert told.totals["iobench/folded/batches"] == found.n_folded
    assert "only sums are kept" in told.tags["iobench.verdict"]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", KEPT_NBYTES), ("1MB", 10**6), ("2.5 gb", 2_500_000_000), ("3000000", 3_000_000)],
)
def test_how_much_is_kept_is_asked_for_by_the_environment(text: str, nbytes: int) -> None:
    assert keep_nbytes({"IOBENCH_KEEP": text}) == nbytes


@pytest.mark.parametrize("text", ["1kB", "much", "-2GB", "0"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="IOBENCH_KEEP"):
        keep_nbytes({"IOBENCH_KEEP": text})


def test_a_large_run_of_profile_says_what_its_spans_take(tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", 1000, 0)
    run.update(kind="profile")
    (report,) = make_reports([Run(open_profile(run.path))])
    assert report.exposure.spans_nbytes == 64 * len(open_profile(run.path).spans)
    assert not any("keeps all of them" in line for line in measurement_lines(report))
    large = replace(report, exposure=replace(report.exposure, spans_nbytes=3 * 10**8))
    assert any("take 300 MB: iobench profile" in line for line in measurement_lines(large))
