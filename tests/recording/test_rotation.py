"""Recordings too long to be kept whole: bounded, nothing counted twice or lost, and said."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from iobench import open_profile
from iobench.analysis.run import Run, exposure
from iobench.cli import main
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import counts_of
from iobench.recording import rotation
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.rotation import KEPT_NBYTES, keep_nbytes
from iobench.recording.session import Recording
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock
from tests.golden.bounded import bound, unpacked

STAGES = ("read", "collate", "fused", "serialise", "unpickle", "sampler")


def busy_ns(run: Path) -> Counter[str]:
    """Return own time by stage, with details and without."""
    profile = open_profile(run)
    busy = Counter({row.stage: row.busy_ns for row in exposure(profile).whole.stages})
    busy.update({} if profile.summed is None else profile.summed.busy_ns)
    return Counter({stage: busy[stage] for stage in STAGES})


@pytest.mark.long
@pytest.mark.timeout(120)
def test_each_of_many_ranks_has_a_bound_of_its_own(tmp_path: Path) -> None:
    run, bounded = unpacked("serial-whole", tmp_path), tmp_path / "bounded"
    for rank, times in enumerate((2, 3, 1)):
        bound(run, bounded, 3_000_000, times=times, rank=rank)
    nbytes = Counter[int]()
    for path in (bounded / "spans").glob("*.spans"):
        rank = read_span_file(path).rank
        nbytes[rank] += sum(each.stat().st_size for each in path.parent.glob(f"{path.stem}.*"))
    assert max(nbytes.values()) < 3_000_000 + 4 * 5 * 65536
    runs = [open_profile(bounded, rank=rank) for rank in range(3)]
    assert [run.summed is not None for run in runs] == [True, True, False]


@pytest.fixture
def bounded_to_1_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "1MB")


def train(recording: Recording, n_batches: int, tell: int = -1) -> None:
    """Let a loop make batches of a read and a joining, and another process read as well."""
    clock = recording.clock
    assert isinstance(clock, FakeClock)
    child = recording.run.recorder(role="child", clock=clock)
    log = DeliveryLog(recording, recording.add_loader("torch", "a", "b"))
    for batch in range(n_batches):
        log.ask(batch)
        for recorder, kind in ((child, Kind.READ), (recording.recorder, Kind.COLLATE)):
            with recorder.span(kind):
                clock.advance(1000)
        log.deliver(batch)
        clock.advance(500)
        log.spent(500)
        if tell >= 0 and batch % 100 == 0:
            os.write(tell, b".")
    log.end()
    child.close()


@pytest.mark.long
@pytest.mark.usefixtures("bounded_to_1_mb")
def test_what_a_training_process_starts_keeps_within_its_bound(tmp_path: Path) -> None:
    with Recording(tmp_path / "run", detail="auto", clock=FakeClock(1000)) as recording:
        train(recording, 20_000)
        assert sum(each.stat().st_size for each in recording.run.spans_path.iterdir()) < 1.4e6
    run = open_profile(tmp_path / "run")
    assert run.summed is not None
    n_reads = int((run.spans["kind"] == Kind.READ).sum())
    assert 1000 * n_reads + run.summed.busy_ns["read"] == 20_000_000
    whole = exposure(run).whole
    assert whole.own_ns + run.summed.own_ns == 500 * 19_998, "not where details end"
    assert whole.compute_ns == 500 * 2, "of the last batches before the sums and of all"


@pytest.mark.quick_cases(1)
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("bounded_to_1_mb")
@pytest.mark.parametrize("n_ticks", [60, 75, 90])
def test_a_kill_at_any_moment_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, n_ticks: int
) -> None:
    ready, tell = os.pipe()
    process = os.fork()
    if not process:
        recording = Recording(tmp_path / "run", detail="auto", clock=FakeClock(1000)).start()
        train(recording, 10**9, tell)
    while n_ticks > 0:
        n_ticks -= len(os.read(ready, n_ticks))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(ready)
    os.close(tell)
    run = open_profile(tmp_path / "run")
    assert run.summed is not None
    n_batches = exposure(run).whole.n_batches + run.summed.n_batches
    assert n_batches == 1 + run.spans["batch"][run.spans["kind"] == Kind.WAIT].max()
    collate_ns = busy_ns(tmp_path / "run")["collate"]
    assert 1000 * n_batches <= collate_ns <= 1000 * (n_batches + 1), "one is being made"


def test_reports_say_which_batches_have_details_and_counts_are_held_against_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpacked("serial-bounded", tmp_path)
    run = open_profile(path)
    found = exposure(run)
    assert run.summed is not None
    assert main(["report", str(path), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["runs"]
    assert document["batches"] + run.summed.n_batches == found.whole.n_batches + found.n_summed
    main(["report", str(path), "--full"])
    assert f"{run.summed.n_batches:,} between" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ProfileError, match="only sums are kept"):
        counts_of(Run(run))


def test_a_run_folded_by_an_earlier_iobench_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unpacked("serial-whole", tmp_path)
    path = next((run / "spans").glob("*.spans"))
    data = bytearray(path.read_bytes())
    data[772] = 1  # where the first of two sums was, how often it was written
    path.write_bytes(data)
    assert main(["report", str(run)]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "reduced to sums by an earlier iobench" in line


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", KEPT_NBYTES), ("8MB", 8 * 10**6), ("2gb", 2 * 10**9), ("30000000", 3 * 10**7)]
    + [(text, None) for text in ("1MB", "much", "-2GB", "0")],
)
def test_how_much_is_kept_is_set_by_the_environment(text: str, nbytes: int | None) -> None:
    if nbytes is not None:
        assert keep_nbytes({"IOBENCH_KEEP": text}) == nbytes
        return
    with pytest.raises(OptionError, match="IOBENCH_KEEP"):
        keep_nbytes({"IOBENCH_KEEP": text})
