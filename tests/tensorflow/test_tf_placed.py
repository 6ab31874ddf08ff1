"""Batches that tf.data hands out on a device: the report says so, and gives their copies no times.

The device is a second one of the CPU: TensorFlow copies tensors to it, and needs no accelerator.
Devices are made before TensorFlow is at work: all scripts run in one process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its batches are what is handed out")

from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)

BEGIN = """
import numpy as np
import tensorflow as tf
import iobench
from iobench.tensorflow import hooks

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
batches = tf.data.Dataset.from_tensor_slices(np.ones((8, 5), np.float32)).batch(2)
hooks.install()
"""
DATA = {
    "host": "batches",
    "prefetched": "batches.apply(tf.data.experimental.prefetch_to_device('/CPU:1', 1))",
    "copied": "batches.apply(tf.data.experimental.copy_to_device('/CPU:1'))",
    "distributed": "tf.distribute.OneDeviceStrategy('/CPU:1')"
    ".experimental_distribute_dataset(batches)",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of each."""
    folder = tmp_path_factory.mktemp("placed")
    parts = [
        f"with iobench.record({name!r}):\n    for _ in {data}:\n        pass\n"
        for name, data in DATA.items()
    ]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + "".join(parts)], cwd=folder, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return folder


@pytest.mark.parametrize("name", DATA)
def test_what_is_handed_out_on_a_device_is_said_to_be_copied_unseen(runs: Path, name: str) -> None:
    facts = read_process_facts(runs / name / "processes")
    unseen = [text for each in facts for loader in each.loaders for text in loader.unseen]
    placed = {each for each in unseen if "delivered on CPU:1" in each}
    assert len(placed) == (name != "host")
    assert not (open_profile(runs / name).spans["kind"] == Kind.H2D).any()
