"""What passes are for in real trainers of Lightning and Hugging Face, whose loops tell."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="both train with torch")
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.run import Run
from iobench.torch import hooks

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, of every release others
]


@pytest.fixture(autouse=True)
def hooked(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_STEPS", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hooks.install()
    yield
    hooks.uninstall()


def passes(run):
    """Return what the passes that brought batches are for, in their order, and how many these."""
    found = run.deliveries
    rows = found.batch >= 0
    numbers = dict.fromkeys(found.round[rows].tolist())
    return [
        (str(found.role[rows & (found.round == n)][0]), int((rows & (found.round == n)).sum()))
        for n in numbers
    ]


def batches(n):
    return DataLoader(TensorDataset(torch.ones(2 * n, 3)), batch_size=2)


def test_a_trainer_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning", reason="its Trainer is what tells")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, number):
            return self.layer(batch[0]).pow(2).mean()

        def validation_step(self, batch, number):
            self.layer(batch[0])

        test_step = predict_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with iobench.record(tmp_path / "run"):
        trainer.fit(model, batches(5), batches(4))
        trainer.validate(model, batches(3), verbose=False)
        trainer.test(model, batches(2), verbose=False)
        trainer.predict(model, batches(1))
    run = Run.open(tmp_path / "run").of_rank()
    checked, fit = ("validation", 2), [("training", 5), ("validation", 4)]  # 2: the sanity check
    assert passes(run) == [
        checked, *fit, *fit, ("validation", 3), ("test", 2), ("prediction", 1),
    ]  # fmt: skip
    times = epoch_times(epoch_figures(run))
    assert [(each.epoch, each.n_batches, each.complete) for each in times] == [
        (0, 5, True), (1, 5, True),
    ]  # fmt: skip


def test_a_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers", reason="its Trainer is what tells")
    pytest.importorskip("accelerate", reason="its Trainer needs it")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x):
            made = self.layer(x)
            return {"loss": made.pow(2).mean(), "made": made}

    def collate(samples):
        return {"x": torch.stack([sample[0] for sample in samples])}

    options = transformers.TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=2, per_device_eval_batch_size=2,
        num_train_epochs=2, eval_strategy="epoch", save_strategy="no", logging_strategy="no",
        disable_tqdm=True, use_cpu=True, report_to=[],
    )  # fmt: skip
    trainer = transformers.Trainer(
        Model(), options, data_collator=collate,
        train_dataset=TensorDataset(torch.ones(10, 3)),
        eval_dataset=TensorDataset(torch.ones(8, 3)),
    )  # fmt: skip
    with iobench.record(tmp_path / "run"):
        trainer.train()
        trainer.predict(TensorDataset(torch.ones(4, 3)))
    run = Run.open(tmp_path / "run").of_rank()
    fit = [("training", 5), ("validation", 4)]
    assert passes(run) == [*fit, *fit, ("prediction", 2)]
    times = epoch_times(epoch_figures(run))
    assert [(each.n_batches, each.complete) for each in times] == [(5, True), (5, True)]


def test_a_resumed_pass_is_no_whole_epoch(tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="its state is saved")

    def loader():
        return stateful.StatefulDataLoader(TensorDataset(torch.ones(12, 3)), batch_size=2)

    first = loader()
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with iobench.record(tmp_path / "run"):
        for _ in range(3):
            for (x,) in resumed:
                (x * weight).sum().backward()
                optimizer.step()
    times = epoch_times(epoch_figures(Run.open(tmp_path / "run").of_rank()))
    assert [(each.n_batches, each.complete) for each in times] == [
        (2, False), (6, True), (6, True),
    ]  # fmt: skip


def test_two_loaders_that_train_together_and_one_that_validates_among_them(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def train(one, other, check):
        for _ in range(2):
            for (x,), (y,) in zip(one, other, strict=False):
                (x * weight + y).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for (x,) in check:
                    x * weight

    with iobench.record(tmp_path / "run"):
        train(batches(4), batches(6), batches(9))
    run = Run.open(tmp_path / "run").of_rank()
    # The step follows a batch of the second: nobody tells of the first, which counts as training.
    assert run.roles == {1: "training", 2: "evaluation"}
    assert run.exposure.validation.n_batches == 2 * 9
    times = epoch_times(epoch_figures(run))
    assert [each.n_batches for each in times] == [8, 8]
