"""``--device`` where TensorFlow copies batches itself, over a second CPU of TensorFlow's own.

In a process of its own: how many devices there are is said before TensorFlow begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its placement is what is tested")
pytest.importorskip("torch", reason="the device is one of torch's as well")
from own_zarr import SIZE, write_own_zarr

import iobench
from iobench.recording.digests import read_digests
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    import numpy as np

pytestmark = pytest.mark.timeout(300)
SUPPORT = Path(__file__).parents[1] / "support"
CPU, GPU = "/device:CPU:1", "/device:GPU:0"
CASES = {
    "plain": ("", "none", "tfrecord"),
    "records": (CPU, "cuda", "tfrecord"),
    "chunks": (CPU, "cuda", "zarr"),
    "unseen": ("", "cuda", "tfrecord"),
    "soft-records": (GPU, "cuda", "tfrecord"),
    "soft-chunks": (GPU, "cuda", "zarr"),
}

SCRIPT = """
import contextlib, io, json, sys
import tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
one = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [one, one])
sys.path.append(sys.argv[1])
from fake_accelerator import FakeAccelerator
import iobench.torch.device
from iobench.cli import main
from iobench.tensorflow import measured_pipelines as gpu_copies
find_gpu = gpu_copies.find_gpu
told = {}
for name, (place, device, stored) in json.loads(sys.argv[2]).items():
    gpu_copies.find_gpu = (lambda name, place=place: place) if place else find_gpu
    said = io.StringIO()
    out, err = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with FakeAccelerator() as fake, out, err:
        iobench.torch.device.find_accelerator = lambda asked, **_: fake if asked == "cuda" else None
        code = main(["profile", "own.zarr", "--sample-dim", "time", "--framework", "tensorflow",
                     "--workers", "1", "--batches", "12", "--batch-size", "2", "--store-dir",
                     "stores", "--compute", "1ms", "--digests",
                     "--device", device, "--format", stored, "--out", name])
        code = code or main(["report", name, "--full"])
    told[name] = [code, " ".join(said.getvalue().split()), len(fake.pieces)]
sys.__stdout__.write(json.dumps([find_gpu("cuda:0"), find_gpu("xpu:0"), told]))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder of the runs, and of each the exit code, what was said and copies made."""
    pytest.importorskip("xxhash", reason="digests are its")
    folder = tmp_path_factory.mktemp("placed")
    write_own_zarr(folder / "own.zarr")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(SUPPORT), json.dumps(CASES)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def copies_of(run: Path) -> np.ndarray:
    spans = iobench.open_profile(run).spans
    return spans[spans["kind"] == Kind.H2D]


def test_tf_data_prefetches_to_the_device_and_the_report_says_what_is_unseen(
    ran: tuple[Path, Any],
) -> None:
    folder, (_, _, told) = ran
    code, said, n_copies = told["records"]
    assert (code, n_copies) == (0, 0)
    assert "tf.data (prefetch_to_device) makes them ahead of time" in said
    assert not len(copies_of(folder / "records"))
    spans = iobench.open_profile(folder / "records").spans
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    assert waits["nbytes"].tolist() == [2 * 4 * SIZE] * 12


def test_the_rings_batches_are_copied_by_eager_tensorflow_and_timed(ran: tuple[Path, Any]) -> None:
    folder, (_, _, told) = ran
    code, said, n_copies = told["chunks"]
    assert (code, n_copies) == (0, 0)
    assert "Host-to-device copies: not measured" not in said
    copies = copies_of(folder / "chunks")
    assert copies["batch"].tolist() == list(range(12))
    assert copies["nbytes"].tolist() == [2 * 4 * SIZE] * 12


def test_where_tensorflow_sees_no_gpu_the_loop_copies(ran: tuple[Path, Any]) -> None:
    folder, (gpu, other, told) = ran
    assert gpu is None
    assert other is None
    code, said, n_copies = told["unseen"]
    assert (code, n_copies) == (0, 12)
    assert "not measured" not in said.partition("Host-to-device")[2][:30]
    assert set(copies_of(folder / "unseen")["batch"].tolist()) == set(range(12))


def test_a_device_that_tensorflow_quietly_does_without_is_one_line(ran: tuple[Path, Any]) -> None:
    _, (_, _, told) = ran
    for name in ("soft-records", "soft-chunks"):
        code, said, _ = told[name]
        assert code == 1
        assert f"TensorFlow, {GPU}: v stayed on device:CPU:0" in said
        assert "Traceback" not in said


def test_samples_on_a_device_are_those_of_the_host(ran: tuple[Path, Any]) -> None:
    folder, _ = ran
    plain = read_digests(folder / "plain")
    assert plain is not None
    for name in ("records", "unseen"):
        found = read_digests(folder / name)
        assert found is not None
        assert found.rows == plain.rows
