"""Trainers of weather centres, not edited: what they wait by iobench, and by their own clocks."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from iobench.analysis.run import Run

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "datasets" / "support"), str(TESTS / "docs")]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
CLOCKED = Path(__file__).with_name("clocked_trainer.py")
NEXT = "[_TrainingEpochLoop].train_dataloader_next"
EPOCHS = 3
CLOSE = 0.01  # of an epoch: what Lightning does around a loader's own ``next``


@pytest.fixture
def trained(launch, plainly, tmp_path, monkeypatch):
    """Run what a page shows; return the rank, the share of its waits, and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WANDB_MODE", "disabled")

    def run(page, package, made=lambda folder: None):
        from pages import DOCS, steps
        from pages import run as do

        if find_spec(package.partition(".")[0]) is None or find_spec(package) is None:
            pytest.skip(f"{page} is not installed: .ci/run --all has it")
        made(tmp_path)
        found = steps(DOCS / "centres" / f"{page}.md")
        for step in found:
            if step.title:
                do(step, tmp_path)
        (shown,) = [step.code for step in found if step.language == "bash"]
        *before, last = shown.replace("\\\n", " ").splitlines()
        for line in before:
            done = plainly(sys.executable, *shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
        words = shlex.split(last.partition(" -- ")[2])
        trainer = [word for word in words if word not in ("python", "-m")]
        launched = launch(sys.executable, CLOCKED, *trainer)
        assert launched.code == 0, launched.err
        rank = Run(launched.profile).of_rank()
        assert set(rank.deliveries.complete_epochs) == {*range(EPOCHS)}
        part = rank.exposure.recurring
        # A clock around a loader has what recording takes there; the first sentence has not.
        return rank, (part.wait_ns + part.own_ns) / part.wall_ns, launched.out

    return run


def share_by_lightning():
    """Return the share of Lightning's ``next`` in its epochs after the first, less validation."""
    clock = json.loads(Path("clock.json").read_text())
    epochs, validations = clock["run_training_epoch"], clock["validation"]
    assert (len(epochs), len(validations)) == (EPOCHS, EPOCHS + 1)  # one is the sanity check
    first = len(clock[NEXT]) // EPOCHS
    return sum(clock[NEXT][first:]) / (sum(epochs[1:]) - sum(validations[2:]))


def write_store(folder):
    """Write a store for anemoi's graphs, which have each point once: no pole many times."""
    from anemoi_stand_in import write_anemoi_store, write_array

    names, shape = ("10u", "10v", "2t", "msl", "sp", "tcw", "skt", "lsm"), (24, 48)
    store = write_anemoi_store(folder / "an.zarr", n_dates=96, variables=names, field_shape=shape)
    shutil.rmtree(store / "latitudes")
    points = np.repeat(np.linspace(88, -88, shape[0]), shape[1])
    write_array(store / "latitudes", points.shape, points.shape, "<f8", 0.0, "cell", {0: points})


def test_anemoi_training(trained):
    rank, share, _ = trained("anemoi-training", "anemoi.training", write_store)
    assert share == pytest.approx(share_by_lightning(), abs=CLOSE)
    loaders = {(each.role, each.name, each.workers) for each in rank.exposure.loaders}
    assert loaders == {("training", "MultiDataset", 2), ("validation", "MultiDataset", 1)}
    assert {"read", "decode"} <= {each.stage for each in rank.exposure.whole.stages}


def test_neural_lam(trained):
    rank, share, _ = trained("neural-lam", "neural_lam")
    assert {each.role for each in rank.exposure.loaders} == {"training", "validation"}
    assert share == pytest.approx(share_by_lightning(), abs=CLOSE)


def test_physicsnemo(trained):
    rank, share, printed = trained("physicsnemo", "physicsnemo.datapipes")
    told = re.findall(r"waited ([0-9.]+) of ([0-9.]+) s", printed)
    waited, took = np.array(told, float)[1:].sum(axis=0)
    assert share == pytest.approx(waited / took, abs=CLOSE)
    (loader,) = rank.exposure.loaders
    assert loader.kind == "physicsnemo.datapipes.dataloader.DataLoader"
