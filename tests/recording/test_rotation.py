"""Recordings too long to be kept whole: bounded, nothing counted twice or lost, and said."""

from __future__ import annotations

import json
import os
import random
import signal
import zlib
from collections import Counter
from pathlib import Path

import pytest

from iobench import open_profile
from iobench.analysis.run import Run, exposure
from iobench.cli import main
from iobench.errors import OptionError, ProfileError
from iobench.findings.counts import counts_of
from iobench.recording import rotation
from iobench.recording import span_file as layout
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.rotation import KEPT_NBYTES, LoopRotation, Rotation, keep_nbytes
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import Recording
from iobench.recording.span_reader import read_span_file
from iobench.testing import FakeClock

BOUND = 3_000_000


class Sketch:
    """A training of one loop and its workers, written by recorders with a bound.

    Whether there are workers, for how long they live, how long epochs are, and whether a second
    loader is asked within a pass follows from ``seed``.
    """

    def __init__(self, folder: Path, keep: int, seed: int, rank: int = 0) -> None:
        self.keep, self.rank, self.random = keep, rank, random.Random(seed)
        self.clock = FakeClock(1000)
        self.latest, self.n_batches, self.number = -1, 0, 0
        self.most_nbytes = 0
        self.spans = folder / "spans"
        if rank == 0:
            RunDirectory.create(folder, {"kind": "script", "workers": 2, "prefetch": 2})
        self.rotation = LoopRotation(keep, lambda: (self.latest, self.n_batches), (self.spans,))
        self.loop = Recorder(
            self.spans, role="consumer", rank=rank, clock=self.clock, rotation=self.rotation
        )
        for text in ("round", "startup"):
            self.loop.string(text)

    def worker(self, number: int) -> Recorder:
        rotation = Rotation(self.keep, self.loop.path)
        return Recorder(
            self.spans, role="worker", worker=number, rank=self.rank, clock=self.clock,
            rotation=rotation,
        )  # fmt: skip

    def end(self, worker: Recorder) -> None:
        """Close the file of a worker, and let it say that this process started it."""
        worker.close()
        assert worker.path is not None
        data = bytearray(worker.path.read_bytes())
        fields = list(layout.IDENTITY.unpack_from(data))
        fields[3] = os.getpid()
        packed = layout.IDENTITY.pack(*fields)
        data[: len(packed)] = packed
        layout.IDENTITY_CRC.pack_into(data, layout.IDENTITY_CRC_OFFSET, zlib.crc32(packed))
        worker.path.write_bytes(data)

    def make(self, maker: Recorder, batch: int, n_samples: int) -> None:
        """Make a batch: reading within each sample's stage, then joining."""
        maker.position(batch, 0)
        for _ in range(n_samples):
            with maker.span(Kind.FUSED):
                self.clock.advance(self.random.randrange(1, 3000))
                with maker.span(Kind.READ, nbytes=10):
                    self.clock.advance(self.random.randrange(1, 3000))
        with maker.span(Kind.COLLATE):
            self.clock.advance(1000)

    def wait(self, of_pass: int, batch: int, start_ns: int, label: str = "") -> None:
        self.loop.emit(
            Kind.WAIT, start_ns, self.clock.now_ns(), nbytes=8, sample=of_pass, batch=batch,
            epoch=of_pass, label=self.loop.string(label),
        )  # fmt: skip
        if batch >= 0:
            self.latest, self.n_batches = batch, self.n_batches + 1
            self.rotation.look(self.loop)

    def validate(self) -> None:
        """Ask another loader for three batches, which the loop makes itself."""
        of_pass, begun_ns = 10**6 + self.number, self.clock.now_ns()
        for _ in range(3):
            start_ns = self.clock.now_ns()
            self.make(self.loop, self.number, 1)
            self.wait(of_pass, self.number, start_ns)
            self.number += 1
        self.end_pass(of_pass, begun_ns)

    def end_pass(self, of_pass: int, begun_ns: int) -> None:
        self.loop.emit(
            Kind.OTHER, begun_ns, self.clock.now_ns(), 0, sample=of_pass,
            label=self.loop.string("round"),
        )  # fmt: skip
        self.clock.advance(50_000)

    def run(self, n_spans: int) -> None:
        """Train until so many spans were written."""
        draw = self.random
        n_workers, n_samples = draw.choice((0, 1, 3)), draw.choice((1, 4, 20))
        length, anew, validates = draw.choice((40, 700, 10**6)), draw.random() < 0.5, draw.random()
        workers: list[Recorder] = []
        written = of_pass = 0
        while written < n_spans:
            if anew or not workers:
                for each in workers:
                    self.end(each)
                workers = [self.worker(number) for number in range(n_workers)]
            begun_ns = self.clock.now_ns()
            ahead: dict[int, int] = {}
            place, last = 0, length
            while place < last or ahead:
                start_ns = self.clock.now_ns()
                if not place:
                    self.clock.advance(100)
                    self.wait(of_pass, -1, start_ns, "startup")
                    start_ns = self.clock.now_ns()
                while workers and len(ahead) < 2 * n_workers and place + len(ahead) < last:
                    ahead[self.number] = self.number % n_workers
                    self.make(workers[self.number % n_workers], self.number, n_samples)
                    self.number += 1
                batch = min(ahead) if workers else self.number
                ahead.pop(batch, None)
                if not workers:
                    self.make(self.loop, batch, n_samples)
                    self.number += 1
                self.clock.advance(10)
                self.wait(of_pass, batch, start_ns)
                with self.loop.span(Kind.STEP):
                    self.clock.advance(draw.randrange(1, 5000))
                written += 2 * n_samples + 3
                if place % 50 == 0 and validates < 0.3:
                    self.validate()
                if place % 20 == 0:
                    self.measure()
                place += 1
                if written >= n_spans:
                    last = min(last, place)
            self.end_pass(of_pass, begun_ns)
            of_pass += 1
        for each in workers:
            self.end(each)
        self.loop.close()

    def measure(self) -> None:
        nbytes = sum(each.stat().st_size for each in self.spans.iterdir())
        self.most_nbytes = max(self.most_nbytes, nbytes)


def busy_ns(run: Path) -> Counter[str]:
    """Return own time by stage, with details and without."""
    profile = open_profile(run)
    found = Counter({row.stage: row.busy_ns for row in exposure(profile).whole.stages})
    found.update({} if profile.summed is None else profile.summed.busy_ns)
    return found


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("seed", [6, 11, 20, 0, 1, 4, 9])
def test_sums_and_details_add_up_to_the_whole_run(tmp_path: Path, seed: int) -> None:
    Sketch(tmp_path / "whole", 0, seed).run(100_000)
    sketch = Sketch(tmp_path / "bounded", BOUND, seed)
    sketch.run(100_000)
    whole, bounded = (open_profile(tmp_path / name) for name in ("whole", "bounded"))
    expected, found, summed = exposure(whole).whole, exposure(bounded).whole, bounded.summed
    assert whole.summed is None
    assert summed is not None
    assert sketch.most_nbytes <= BOUND + 4 * 5 * 65536, "five segments of each of four processes"
    assert min(summed.n_before, summed.n_batches, found.n_batches - summed.n_before) > 50
    assert found.n_batches + summed.n_batches == expected.n_batches
    assert found.wait_ns + summed.wait_ns == expected.wait_ns
    assert found.wall_ns + summed.wall_ns == expected.wall_ns
    busy = busy_ns(tmp_path / "whole")
    stages = [stage for stage in busy if stage in ("fused", "read", "collate")]
    assert {stage: busy_ns(tmp_path / "bounded")[stage] for stage in stages} == {
        stage: busy[stage] for stage in stages
    }


def test_a_kill_at_any_moment_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    for moment in range(0, 4, 2):
        ready, tell = os.pipe()
        folder = tmp_path / str(moment)
        child = os.fork()
        if not child:
            sketch = Sketch(folder, 700_000, 1)
            start_ns = sketch.clock.now_ns()
            for batch in range(10**6):
                sketch.make(sketch.loop, batch, 4)
                sketch.wait(0, batch, start_ns)
                start_ns = sketch.clock.now_ns()
                if batch == 2500 + 170 * moment:
                    os.write(tell, b".")
            os._exit(0)
        os.read(ready, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        profile = open_profile(folder)
        assert profile.summed is not None
        n_batches = exposure(profile).whole.n_batches + profile.summed.n_batches
        assert n_batches == 1 + profile.spans["batch"][profile.spans["kind"] == Kind.WAIT].max()
        collate_ns = busy_ns(folder)["collate"]
        assert 1000 * n_batches <= collate_ns <= 1000 * (n_batches + 1), "one is being made"


def test_each_of_many_ranks_has_a_bound_of_its_own(tmp_path: Path) -> None:
    for rank, n_spans in enumerate((60_000, 60_000, 2_000)):
        Sketch(tmp_path, 2_000_000, 2, rank).run(n_spans)
    nbytes = Counter[int]()
    for path in (tmp_path / "spans").glob("*.spans"):
        rank = read_span_file(path).rank
        nbytes[rank] += sum(each.stat().st_size for each in path.parent.glob(f"{path.stem}.*"))
    assert max(nbytes.values()) < 2_000_000 + 4 * 5 * 65536
    profiles = [open_profile(tmp_path, rank=rank) for rank in range(3)]
    assert [profile.summed is not None for profile in profiles] == [True, True, False]


def test_what_a_training_process_starts_keeps_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "1MB")
    clock = FakeClock(1000)
    with Recording(tmp_path / "run", steps=None, detail="auto", clock=clock) as recording:
        child = recording.run.recorder(role="child", clock=clock)
        log = DeliveryLog(recording, recording.add_loader("torch", "a", "b"))
        for batch in range(10_000):
            log.ask()
            for _ in range(3):
                with child.span(Kind.READ):
                    clock.advance(5)
            log.deliver(batch)
        log.end()
        child.close()
        assert sum(each.stat().st_size for each in recording.run.spans_path.iterdir()) < 1.4e6
    profile = open_profile(tmp_path / "run")
    assert profile.summed is not None
    n_reads = int((profile.spans["kind"] == Kind.READ).sum())
    assert 5 * n_reads + profile.summed.busy_ns["read"] == 150_000


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "bounded"
    Sketch(folder, BOUND, 5).run(80_000)
    return folder


def test_reports_say_which_batches_have_details_and_counts_are_held_against_nothing(
    bounded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = open_profile(bounded)
    found = exposure(profile)
    assert profile.summed is not None
    assert main(["report", str(bounded), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["batches"] + profile.summed.n_batches == found.whole.n_batches + found.n_summed
    main(["report", str(bounded)])
    assert f"{profile.summed.n_batches:,} between" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ProfileError, match="only sums are kept"):
        counts_of(Run(profile))


def test_a_run_folded_by_an_earlier_iobench_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Sketch(tmp_path / "run", 0, 1).run(2000)
    path = next((tmp_path / "run" / "spans").glob("*.spans"))
    data = bytearray(path.read_bytes())
    data[772] = 1  # where the first of two sums was, how often it was written
    path.write_bytes(data)
    assert main(["report", str(tmp_path / "run")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "reduced to sums by an earlier iobench" in line


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", KEPT_NBYTES), ("8MB", 8 * 10**6), ("2.5 gb", 2_500_000_000), ("30000000", 3 * 10**7)]
    + [(text, None) for text in ("1MB", "much", "-2GB", "0")],
)
def test_how_much_is_kept_is_set_by_the_environment(text: str, nbytes: int | None) -> None:
    if nbytes is not None:
        assert keep_nbytes({"IOBENCH_KEEP": text}) == nbytes
        return
    with pytest.raises(OptionError, match="IOBENCH_KEEP"):
        keep_nbytes({"IOBENCH_KEEP": text})
