"""What passes are for in real trainers of Lightning and Hugging Face, whose loops tell."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="both train with torch")
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
from iobench.adapters.installed import install, uninstall
from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.run import Run

pytestmark = [
    pytest.mark.usefixtures("hooked"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, of every release others
]


def passes(run):
    """Return what the passes that brought batches are for, in their order, and how many these."""
    found = run.deliveries
    rows = found.batch >= 0
    numbers = dict.fromkeys(found.round[rows].tolist())
    return [
        (str(found.role[rows & (found.round == n)][0]), int((rows & (found.round == n)).sum()))
        for n in numbers
    ]


def steps_of(run, n_steps, *, batches=1):
    """Hold the optimiser's steps, and what the computing between waits is made of."""
    steps = run.exposure.steps
    assert (steps.n_steps, steps.batches_per_step) == (n_steps, batches)
    whole = run.exposure.whole
    spent = {row.stage: row.busy_ns for row in whole.compute_stages}
    assert {"backward", "step"} <= spent.keys()
    assert sum(spent.values()) + whole.compute_rest_ns == whole.compute_ns


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
    run = Run(tmp_path / "run").of_rank()
    checked, fit = ("validation", 2), [("training", 5), ("validation", 4)]  # 2: the sanity check
    assert passes(run) == [
        checked, *fit, *fit, ("validation", 3), ("test", 2), ("prediction", 1),
    ]  # fmt: skip
    times = epoch_times(epoch_figures(run))
    assert [(each.epoch, each.batches, each.complete) for each in times] == [
        (0, 5, True), (1, 5, True),
    ]  # fmt: skip
    steps_of(run, 10)


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
    run = Run(tmp_path / "run").of_rank()
    fit = [("training", 5), ("validation", 4)]
    assert passes(run) == [*fit, *fit, ("prediction", 2)]
    steps_of(run, 10)
    times = epoch_times(epoch_figures(run))
    assert [(each.batches, each.complete) for each in times] == [(5, True), (5, True)]


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
    times = epoch_times(epoch_figures(Run(tmp_path / "run").of_rank()))
    assert [(each.batches, each.complete) for each in times] == [
        (2, False), (6, True), (6, True),
    ]  # fmt: skip


def test_passes_over_torchdatas_own_loader_are_opaque_loading(tmp_path):
    nodes = pytest.importorskip("torchdata.nodes", reason="torchdata")
    samples = TensorDataset(torch.ones(12, 3))
    source = nodes.MapStyleWrapper(samples, torch.utils.data.SequentialSampler(samples))
    source = nodes.ParallelMapper(source, lambda each: each[0], num_workers=1, method="thread")
    loader = nodes.Loader(nodes.Prefetcher(nodes.Batcher(source, 2), prefetch_factor=2))
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    install(where="everywhere")
    try:
        with iobench.record(tmp_path / "run"):
            for _ in range(2):
                iterator = iter(loader)
                for batch in iterator:
                    (torch.stack(batch) * weight).sum().backward()
                    optimizer.step()
                assert iterator.state_dict()["num_yielded"] == 6
    finally:
        uninstall()
    rank = Run(tmp_path / "run").of_rank()
    (found,) = rank.exposure.loaders
    assert (found.kind, found.n_batches) == ("torchdata.nodes.loader.Loader", 12)
    exposed = {*rank.exposure.whole.exposed_ns} - {"cpu_wait"}
    assert exposed == {"opaque", "startup", "shutdown"}
    assert {*rank.deliveries.maker} == {""}


def trains(loader, weight, optimizer=None):
    for (x,) in loader:
        (x * weight).sum().backward()
        if optimizer is not None:
            optimizer.step()


class Frozen(torch.nn.Module):
    """A model whose own ``train`` keeps a part of it from learning."""

    def __init__(self):
        super().__init__()
        self.part, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def train(self, mode=True):
        super().train(mode)
        self.part.eval()
        return self


def test_a_part_that_is_kept_from_learning_does_not_make_a_pass_evaluate(tmp_path):
    model, wrapped = Frozen(), torch.nn.DataParallel(torch.nn.Linear(3, 1))
    other = torch.nn.Linear(3, 1)
    with iobench.record(tmp_path / "run"):
        model.train()
        assert (model.training, model.part.training) == (True, False)
        for _ in batches(2):  # steps of an optimiser that nobody sees
            pass
        model.eval()
        for _ in batches(3):
            pass
        wrapped.train()
        wrapped.module.eval()  # all of it
        for _ in batches(4):
            pass
        model.train()
        other.eval()  # no part of it: nobody knows which of them a pass is for
        for _ in batches(5):
            pass
    run = Run(tmp_path / "run").of_rank()
    assert passes(run) == [("", 2), ("evaluation", 3), ("evaluation", 4), ("evaluation", 5)]


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="its loaders and optimisers are meant")
    weight = torch.nn.Parameter(torch.ones(3))
    made = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    train, check, optimizer = made.prepare(
        batches(6), batches(4), torch.optim.SGD([weight], lr=0.1)
    )
    with iobench.record(tmp_path / "run"):
        for _ in range(2):
            for (x,) in train:
                with made.accumulate():
                    made.backward((x * weight).sum())
                    optimizer.step()
                    optimizer.zero_grad()
            with torch.no_grad():
                for (x,) in check:
                    x * weight
    run = Run(tmp_path / "run").of_rank()
    assert passes(run) == [("training", 6), ("evaluation", 4)] * 2
    steps_of(run, 6, batches=2)
    times = epoch_times(epoch_figures(run))
    assert [(each.batches, each.complete) for each in times] == [(6, True), (6, True)]


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_of_loaders_made_anew_and_of_kept_workers(tmp_path, workers):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    data = TensorDataset(torch.ones(10, 3))
    kept = DataLoader(data, 2, num_workers=workers, persistent_workers=bool(workers))
    with iobench.record(tmp_path / "run"):
        for _ in range(3):
            trains(kept, weight, optimizer)
            with torch.no_grad():
                for _x in DataLoader(data, 5):  # made anew each time
                    pass
    run = Run(tmp_path / "run").of_rank()
    assert passes(run) == [("training", 5), ("evaluation", 2)] * 3
    times = epoch_times(epoch_figures(run))
    assert [(each.epoch, each.batches, each.complete) for each in times] == [
        (number, 5, True) for number in range(3)
    ]
    assert all(each.validation_ns > 0 for each in times)
