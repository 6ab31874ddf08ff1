"""`--compute unet`: a small model that is trained on whatever a profile loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the U-Net is torch's")
import torch
from queue_device import QueueDevice
from quiet_screen import QuietScreen
from span_rows import rows_of

import iobench
from iobench.errors import OptionError
from iobench.loaders.contract import Batch, PlannedBatch
from iobench.profiling.config import RunConfig
from iobench.profiling.profile_run import profile
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.samples import SampleSpec, Variable
from iobench.testing import FakeClock
from iobench.torch.unet import FILTERS, TINY_FILTERS, UNetTraining

pytestmark = pytest.mark.timeout(120)

MODULE = """
import numpy as np

class Fields:
    def __init__(self):
        self.random = np.random.default_rng(0).normal(size=(12, 2, 8, 9)).astype("f4")
    def __len__(self):
        return 12
    def __getitem__(self, number):
        return {"field": self.random[number], "station": np.float32(number)}

class Stations(Fields):
    def __getitem__(self, number):
        return {"station": np.arange(9, dtype="f4"), "field": np.ones((8, 9), "i4")}

class Missing(Fields):
    def __getitem__(self, number):
        return {"field": np.full((8, 9), np.nan if number == 11 else 1, "f4")}
"""
GRID = ("y", "x")


@pytest.fixture(autouse=True)
def one_thread():
    """Several would wait for each other's cores where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def profiled(target: str, **more: Any) -> Path:
    given: dict[str, Any] = {"batch_size": 2, "batches": 8, "out": Path("run"), **more}
    config = RunConfig(targets=(target,), compute="unet", store_dir=Path("stores"), **given)
    return profile(config, QuietScreen())


def told_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize("framework", ["native", "workers", "torch"])
def test_every_batch_is_trained_on_and_told(module: str, framework: str) -> None:
    run = profiled(f"{module}:Fields", framework=framework, workers=1)
    training = told_of(run)["training"]
    assert (training["n_batches"], training["n_not_finite"]) == (8, 0)
    assert (training["inputs"], training["targets"]) == (["field"], ["field"])
    assert (training["device"], training["grid"]) == ("cpu", [8, 9])
    assert training["filters"] == list(TINY_FILTERS)
    assert 0 < training["loss"] < training["first_loss"]
    spans = iobench.open_profile(run).spans
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert sorted(spans["batch"][spans["kind"] == kind]) == list(range(8))
    assert not np.any(spans["flags"] & Flag.DEVICE)


def test_all_that_are_compared_train_the_same_model_alike(module: str) -> None:
    run = profiled(f"{module}:Fields", formats=("numpy", "tfrecord"))
    losses = [told_of(each)["training"] for each in sorted(run.iterdir())]
    assert len(losses) == 2
    for key in ("first_loss", "loss"):
        assert losses[0][key] == pytest.approx(losses[1][key], rel=1e-3)


def shown(run: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "iobench", "report", str(run), "--full"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return " ".join(done.stdout.split())


@pytest.mark.thorough
def test_a_report_says_what_was_trained_and_where(module: str) -> None:
    text = shown(profiled(f"{module}:Fields", batches=3))
    assert "Compute: a U-Net of" in text
    assert "parameters trained on fields of 8 x 9, on the CPU in" in text
    assert "compete with those that load" in text
    assert "emulated" not in text
    assert "finite number" not in text


@pytest.mark.thorough
def test_a_loss_that_is_no_number_is_told(module: str) -> None:
    run = profiled(f"{module}:Missing", batches=12, batch_size=1)
    training = told_of(run)["training"]
    assert training["loss"] is None  # the weights are no numbers either from then on
    assert 1 <= training["n_not_finite"] <= 12
    assert f"not a finite number in {training['n_not_finite']} of 12 batches" in shown(run)


def test_samples_without_a_field_are_refused_before_anything_is_measured(module: str) -> None:
    with pytest.raises(OptionError, match=r"station 9, field 8 x 9\).*--compute published"):
        profiled(f"{module}:Stations")
    assert not Path("run").exists()


@pytest.mark.thorough
def test_without_torch_it_is_told_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from iobench.cli import main; sys.exit(main(['profile', 'x.nc', '--compute', 'unet']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 69
    assert "pip install 'iobench[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


# -- the training itself ----------------------------------------------------------------------


def batch_of(number: int, **arrays: Any) -> Batch:
    return Batch(PlannedBatch(number, 0, ()), arrays, -1)


def training_on(*variables: Variable, batch_size: int = 2, **more: Any) -> UNetTraining:
    return UNetTraining(SampleSpec(variables), batch_size, **more)


@pytest.fixture
def recorder(run):
    clock = FakeClock(start_ns=1000)
    with Recorder(run.spans_path, role="consumer", clock=clock) as recorder:
        yield recorder


def field(name: str, *shape: int, role: str = "input", dims=None, dtype: str = "<f4") -> Variable:
    letters = tuple("abcdefg"[: len(shape) - 2])
    return Variable(name, shape, dtype, dims or (*letters, *GRID), role=role)


def test_a_model_learns_what_there_is_to_learn(recorder: Recorder) -> None:
    training = training_on(field("z", 3, 8, 8), field("t", 8, 8, role="target"), batch_size=4)
    values = np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype("f4")
    for number in range(30):
        training.run(recorder, batch_of(number, z=values, t=values.sum(axis=1)))
    told = training.finish()
    assert told["loss"] < 0.9 * told["first_loss"]


@pytest.mark.parametrize(
    ("variables", "inputs", "targets", "grid"),
    [
        # Channels may lie last, and what is above them joins them.
        ([field("x", 2, 9, 8, 5, dims=("step", "y", "x", "channel")),
          field("t", 9, 8, role="target")], ["x"], ["t"], [9, 8]),
        # Inputs come to the target's grid, numbers and words stay out.
        ([field("x", 8, 9), field("s", 12, 16, dtype="<i2"),
          Variable("n", (), "<f4", ()), field("t", 2, 12, 16, role="target", dtype="<f8")],
         ["x"], ["t"], [12, 16]),
        # A column of levels is no field, nor is one with its channels.
        ([field("x", 9, 9), field("c", 9, 5, dims=("level", "channel")),
          Variable("u", (9,), "<f4", ("level",), role="target")], ["x"], ["x"], [9, 9]),
    ],
)  # fmt: skip
def test_fields_are_found_by_role_and_dimensions(
    recorder: Recorder, variables: list[Variable], inputs: Any, targets: Any, grid: Any
) -> None:
    training = training_on(*variables)
    for n_samples in (2, 1):  # the last batch of an epoch may be smaller
        arrays = {each.name: np.ones((n_samples, *each.shape), each.dtype) for each in variables}
        training.run(recorder, batch_of(0, **arrays))
    told = training.finish()
    assert (told["inputs"], told["targets"], told["grid"]) == (inputs, targets, grid)
    assert (told["n_batches"], told["n_not_finite"]) == (2, 0)


@pytest.mark.parametrize(
    "variable",
    [field("x", 7, 9), field("x", 9, 9, dtype="<i4"), Variable("x", (9,), "<f4", ("level",)),
     field("x", 9, 9, dims=("channel", "level")), field("x", 9, 9, role="target")],
)  # fmt: skip
def test_what_is_no_field_is_refused_in_one_line(variable: Variable) -> None:
    with pytest.raises(OptionError, match="two dimensions besides channels, 8") as raised:
        training_on(variable)
    assert "\n" not in str(raised.value)


def test_filters_go_by_the_size_of_the_grid() -> None:
    small, large = training_on(field("x", 32, 32)), training_on(field("x", 32, 33))
    assert small.finish()["filters"] == list(TINY_FILTERS)
    assert large.finish()["filters"] == list(FILTERS)


def test_random_numbers_of_the_process_stay_as_they_are() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        sum(
            each.sum().item()
            for each in training_on(field("x", 8, 8), seed=seed)._model.parameters()
        )
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == again != other


def test_a_step_takes_the_gradients_of_as_many_batches_as_asked(recorder: Recorder) -> None:
    training = training_on(field("x", 8, 8), batches_per_step=3)
    weights = next(iter(training._model.parameters()))
    changed = []
    for number in range(6):
        before = weights.detach().clone()
        values = np.random.default_rng(number).normal(size=(2, 8, 8)).astype("f4")
        training.run(recorder, batch_of(number, x=values))
        changed.append(not torch.equal(before, weights))
    assert changed == [False, False, True, False, False, True]


def test_a_batch_that_does_not_fit_the_model_is_told_in_one_line(recorder: Recorder) -> None:
    training = training_on(field("x", 2, 8, 8))
    with pytest.raises(OptionError, match="--compute unet on cpu: ") as raised:
        training.run(recorder, batch_of(0, x=np.ones((2, 5, 8, 8), "f4")))
    assert "\n" not in str(raised.value)


def test_a_device_has_spans_of_its_own(run) -> None:
    clock = FakeClock(start_ns=1000)
    with Recorder(run.spans_path, role="consumer", clock=clock) as recorder:
        device = QueueDevice(clock)
        training = training_on(field("x", 8, 8), clock=device)
        for number in range(40):  # more than are kept before they are written
            training.run(recorder, batch_of(number, x=np.ones((2, 8, 8), "f4")))
            device.work(10)
        told = training.finish()
    assert (told["device"], told["threads"]) == ("stand-in:0", None)
    rows = rows_of(run)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        for of_device in (False, True):
            found = [
                row.batch for row in rows
                if row.kind == kind and bool(row.flags & Flag.DEVICE) == of_device
            ]  # fmt: skip
            assert found == list(range(40))
    marks = 4 * 40
    assert len(device.released) >= marks
