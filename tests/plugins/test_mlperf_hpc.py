"""DeepCAM and CosmoFlow: samples are what h5py and TensorFlow make of the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.loaders.compute import parse_compute
from iobench_maelstrom.mlperf_hpc.cosmoflow import LAYOUTS, CosmoFlow
from iobench_maelstrom.mlperf_hpc.deepcam import DeepCam

KINDS = {"deepcam": DeepCam, **dict.fromkeys(LAYOUTS, CosmoFlow)}


def made(kind):
    return DeepCam() if kind == "deepcam" else CosmoFlow(layout=kind)


def test_a_published_evaluation_takes_its_own_time():
    compute = parse_compute(
        "published", DeepCam.published, batch_size=4, sample_nbytes=768 * 1152 * (16 * 4 + 8)
    )
    assert (compute.forward_ns, compute.evaluation_ns) == (2 * 89_360_000, 2 * 31_140_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--evaluate", "validation"), "say how many with --epochs"),
        (("--epochs", "1", "--evaluate", "validaton"), "--evaluate validaton: no such split; did"),
        (("--epochs", "1", "--evaluate", "train"), "is what the epochs are over"),
        (("--epochs", "1", "--evaluate", "test", "--batch-size", "7"), "choose from 1 to 6"),
        (
            ("--epochs", "1", "--evaluate", "test", "--framework", "dali", "--format", "numpy"),
            "--framework dali has an order of its own",
        ),
        (("--epochs", "1", "--evaluate", "test", "--window=0:1"), "--window has an order"),
    ],
)
def test_an_evaluation_that_cannot_be_is_one_line(iobench_here, store_dir, arguments, said):
    asked = ("deepcam", "--tiny", "--store-dir", store_dir, "--out", "run", *arguments)
    done = iobench_here("profile", *asked)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert not Path("run").exists()  # so that it can be asked for again


def test_published_epochs_are_five_figures_in_order():
    for dataset in (DeepCam, CosmoFlow):
        assert dataset.published is not None
        for table in dataset.published.tables.values():
            low, mean, median, high, stdev = table["epoch"]
            assert 0 < low <= min(mean, median) <= max(mean, median) <= high
            assert 0 < stdev <= high - low
