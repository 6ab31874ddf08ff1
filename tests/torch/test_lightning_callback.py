"""The callback in a real trainer of Lightning, on a model of a few weights."""

from __future__ import annotations

import itertools
import pickle
import sys

import pytest

pytest.importorskip("torch", reason="Lightning trains with torch")
pytest.importorskip("lightning", reason="the callback is one of its own")
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import iobench
import iobench.torch
from iobench.errors import MissingExtraError
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.recording.span_file import Flag
from iobench.torch import lightning_callback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, of every release others


class TinyModel(lightning.LightningModule):
    def __init__(self, *, fails_at=-1, manual=False):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.fails_at = fails_at
        self.automatic_optimization = not manual

    def training_step(self, batch, batch_idx):
        if batch_idx == self.fails_at:
            raise KeyError("mine")
        loss = self.layer(batch[0]).pow(2).mean()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(self.layer(batch[0]).pow(2).mean())
            optimizer.step()
        return None

    def validation_step(self, batch, batch_idx):
        self.layer(batch[0])

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(n_batches):
    data = torch.utils.data.TensorDataset(torch.ones(2 * n_batches, 3))
    return torch.utils.data.DataLoader(data, batch_size=2)


def make_trainer(tmp_path, *callbacks, **more):
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        **more,
    )


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_STEPS", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def rows(path):
    profile = iobench.open_profile(path)
    return [
        (Kind(row["kind"]).spelled, profile.strings[row["label"]], row) for row in profile.spans
    ]


def count(found, kind, label=""):
    return sum((row[0], row[1]) == (kind, label) for row in found)


def test_a_training_from_its_steps_to_its_checkpoints(tmp_path):
    callback = iobench.torch.LightningCallback(tmp_path / "run")
    assert isinstance(callback, lightning.Callback)
    original = torch.utils.data.DataLoader.__iter__
    checkpoints = ModelCheckpoint(dirpath=tmp_path / "kept", every_n_epochs=1, save_top_k=-1)
    trainer = make_trainer(tmp_path, callback, checkpoints, num_sanity_val_steps=0)
    save = trainer.save_checkpoint
    trainer.fit(TinyModel(), loader(4), loader(2))
    assert trainer.save_checkpoint == save
    assert torch.utils.data.DataLoader.__iter__ is original
    assert current_recording() is None
    found = rows(tmp_path / "run")
    assert [count(found, kind) for kind in ("forward", "backward", "step")] == [8, 8, 8]
    assert count(found, "evaluate") == 2
    saved = [row for kind, _, row in found if kind == "checkpoint"]
    sizes = [path.stat().st_size for path in (tmp_path / "kept").iterdir()]
    assert sorted(int(row["nbytes"]) for row in saved) == sorted(sizes)
    assert len(sizes) == 2
    epochs = [row for kind, label, row in found if (kind, label) == ("other", "epoch")]
    assert [int(row["epoch"]) for row in epochs] == [0, 1]
    assert all(row["flags"] == Flag.DETAIL for row in epochs)
    # What the loop waited for, told by the loaders; a step's parts carry its batch.
    waits = [row for kind, label, row in found if kind == "wait" and not label]
    assert len(waits) == 2 * (4 + 2)
    batches = {
        kind: [int(row["batch"]) for k, _, row in found if k == kind]
        for kind in ("forward", "backward", "step")
    }
    assert batches["forward"] == batches["backward"] == batches["step"]
    assert set(batches["forward"]) <= {int(row["batch"]) for row in waits}
    exposure = iobench.exposure(iobench.open_profile(tmp_path / "run"))
    assert {stage.stage for stage in exposure.whole.compute_stages} >= {"forward", "step"}


def test_parts_of_a_step_come_one_after_another(tmp_path):
    callback = lightning_callback.LightningCallback(tmp_path / "run")
    trainer = make_trainer(tmp_path, callback, enable_checkpointing=False)
    trainer.fit(TinyModel(manual=True), loader(2))
    parts = [
        (int(row["start_ns"]), int(row["end_ns"]), kind)
        for kind, _, row in rows(tmp_path / "run")
        if kind in {"forward", "backward", "step"}
    ]
    assert parts == sorted(parts)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(parts))
    step = ["forward", "backward", "step", "backward", "step"]
    assert [part[2] for part in parts] == 4 * step


def test_a_recording_that_goes_on_stays_open_and_tests_are_evaluations(tmp_path):
    with iobench.record(tmp_path / "run") as session:
        trainer = make_trainer(
            tmp_path, lightning_callback.LightningCallback(), enable_checkpointing=False
        )
        trainer.test(TinyModel(), loader(3), verbose=False)
        assert current_recording() is session
    assert count(rows(tmp_path / "run"), "evaluate") == 1


def test_an_exception_stays_the_users_own(tmp_path):
    original = torch.utils.data.DataLoader.__iter__
    callback = lightning_callback.LightningCallback(tmp_path / "run")
    trainer = make_trainer(tmp_path, callback, enable_checkpointing=False)
    with pytest.raises(KeyError, match="mine"):
        trainer.fit(TinyModel(fails_at=1), loader(4))
    assert torch.utils.data.DataLoader.__iter__ is original
    assert current_recording() is None
    found = rows(tmp_path / "run")
    assert [count(found, kind) for kind in ("forward", "backward", "step")] == [2, 1, 1]
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    assert facts.ended == "KeyError"


def test_it_travels_to_processes_that_are_spawned(tmp_path):
    callback = lightning_callback.LightningCallback(tmp_path / "run")
    callback.note = 5
    copy = pickle.loads(pickle.dumps(callback))
    assert isinstance(copy, lightning.Callback)
    assert (copy.note, copy._path) == (5, tmp_path / "run")


def test_either_lightning_will_do(monkeypatch):
    pytest.importorskip("pytorch_lightning", reason="the same under its other name")
    import pytorch_lightning

    callback = lightning_callback.LightningCallback()
    assert isinstance(callback, lightning.Callback)
    assert isinstance(callback, pytorch_lightning.Callback)


def test_without_lightning_one_line_says_so(monkeypatch):
    for name in [*lightning_callback.LIGHTNINGS]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(lightning_callback.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install lightning"):
        _ = lightning_callback.LightningCallback
    with pytest.raises(AttributeError, match="no attribute 'Callbacks'"):
        _ = lightning_callback.Callbacks
    with pytest.raises(AttributeError, match="no attribute 'LightningCallbacks'"):
        _ = iobench.torch.LightningCallbacks
