"""Lines on a training that goes on: the figures of the report over the same batches."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.report.live import LiveRun
from iobench.testing import FakeClock
from tests.support.sketched_runs import CONSUMER, SketchedRun

STEP_NS = 100_000_000
N_BATCHES = 3000
LOOKS_S = (31, 100, 200, 301)
SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.zeros(10)

end = time.monotonic() + 5
for batch in DataLoader(Data(), batch_size=8):
    time.sleep(0.01)
    if time.monotonic() > end:
        break
"""


def training(rank: int) -> SketchedRun:
    """Return a rank that waits 20 to 60 ms of each step of 100 ms, the longer the later."""
    run = SketchedRun(job="job")
    run.process = {"rank": rank}
    batch = np.arange(N_BATCHES)
    asked_ns = batch * STEP_NS + 1
    waited_ns = 20_000_000 + batch * (4 + rank) * 2_000
    run.wait(batch, asked_ns, asked_ns + waited_ns, "consumer", epoch=batch // 1000)
    run.add(CONSUMER, Kind.READ, asked_ns, asked_ns + waited_ns // 4, batch=batch)
    run.add(CONSUMER, Kind.DECODE, asked_ns + waited_ns // 4, asked_ns + waited_ns, batch=batch)
    return run


def until(run: SketchedRun, end_ns: int, path: Path) -> None:
    """Write what processes had written at a time."""
    spans = []
    for span in run.spans:
        ended = span["end_ns"] <= end_ns
        spans.append(
            {name: v[ended] if isinstance(v, np.ndarray) else v for name, v in span.items()}
        )
    run.with_spans(spans).write(path)


def test_all_looks_together_are_the_report(tmp_path: Path) -> None:
    ranks, path, lines = [training(0), training(1)], tmp_path / "run", []
    live = LiveRun(path, lambda _: None, clock=FakeClock())
    for now_s in LOOKS_S:
        shutil.rmtree(path, ignore_errors=True)
        for each in ranks:
            until(each, now_s * 10**9, path)
        figures = live.figures()
        assert figures is not None
        lines.append(figures)
        runs = [Run(path).of_rank(rank).deliveries for rank in (0, 1)]
        done = [each.followed for each in runs]
        waited = sum(each.wait_ns[mark].sum() for each, mark in zip(runs, done, strict=True))
        wall = sum(each.wall_ns[mark].sum() for each, mark in zip(runs, done, strict=True))
        assert figures.run_exposed_fraction == pytest.approx(waited / wall)
        assert figures.batches == max(mark.sum() for mark in done)
        assert figures.epoch == max(e.epoch[m].max() for e, m in zip(runs, done, strict=True))
    assert [each.stage for each in lines] == ["decode"] * len(lines)
    assert [each.slowest_rank for each in lines] == [1] * len(lines)
    shares = [each.exposed_fraction for each in lines]
    assert shares == sorted(shares)
    assert lines[-1].slowest_exposed_fraction > shares[-1] > lines[-1].run_exposed_fraction


def test_a_process_that_takes_the_place_of_an_ended_one_has_the_lines(tmp_path: Path) -> None:
    run, live = SketchedRun(kind="script"), LiveRun(tmp_path, lambda _: None, clock=FakeClock())
    for number, n_batches in ((0, 9), (1, 3)):
        lane = ("consumer", number)
        batch = np.arange(n_batches)
        asked_ns = (100 * number + batch) * 10**8
        run.wait(batch, asked_ns, asked_ns + 10**7 * (1 + number), "consumer", lane=lane, epoch=0)
        run.shutdown(int(asked_ns[-1]) + 10**8, int(asked_ns[-1]) + 10**8 + 5, lane)
        shutil.rmtree(tmp_path)
        run.write(tmp_path)
        figures = live.figures()
        assert figures.batches == (9, 12)[number]
        assert figures.exposed_fraction == pytest.approx(0.1 * (1 + number))
        assert figures.waiting_s == 0


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_script_has_lines_while_it_runs(iobench, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script trains with it")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("run", "--out", "run", "--live", "1", "--live-file", "live", "--json", "report")
    done = iobench(*command, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "live").read_text().splitlines()]
    whole = json.loads((tmp_path / "report").read_text())["runs"][0]
    assert len(lines) >= 2
    assert done.stderr.count("iobench: epoch 0, batch") == len(lines)
    assert lines[-1]["batches"] <= whole["batches"]
    assert lines[-1]["run_exposed_fraction"] == pytest.approx(whole["wait_fraction"], abs=0.1)
