"""What a loop does between its waits: parts of steps, generators, roles of passes, epochs.

In plain loops and in real trainers. Truth is what sleeps: a sleep is never shorter than asked for;
how much longer a busy machine makes it is not asked. What each part is charged with is exact: parts
and the rest are the compute, to the nanosecond.
"""

from __future__ import annotations

import copy
import pickle
import time
import types

import numpy as np
import pytest

pytest.importorskip("torch", reason="it is torch's loops that are hooked into")
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
import iobench.torch
from iobench.adapters.installed import install, uninstall
from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.exposure_figures import BEFORE_FORWARD
from iobench.analysis.run import Run
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind
from iobench.torch import hooks
from iobench.torch.device_time import DeviceTimer

pytestmark = [
    pytest.mark.usefixtures("hooked"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, of every release others
]
FORWARD_S, BACKWARD_S, STEP_S, REGRID_S = 0.006, 0.010, 0.004, 0.004


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient


class Net(torch.nn.Module):
    """A model in a model of layers, slow in its forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))

    def forward(self, x):
        time.sleep(FORWARD_S)
        return SlowBackward.apply(self.layers(x))


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(STEP_S)
        return super().step(closure)


def batches(n):
    return DataLoader(TensorDataset(torch.ones(2 * n, 3)), batch_size=2)


def weight_and_optimizer():
    weight = torch.nn.Parameter(torch.ones(3))
    return weight, torch.optim.SGD([weight], lr=0.1)


def trains(loader, weight, optimizer):
    for (x,) in loader:
        (x * weight).sum().backward()
        optimizer.step()


def opened(path):
    """Return a run and what its compute was spent on, of which nothing is lost."""
    run = Run(path).of_rank()
    whole = run.exposure.whole
    spent = {row.stage: row.busy_ns for row in whole.compute_stages}
    assert sum(spent.values()) + whole.compute_rest_ns == whole.compute_ns
    between_ns = sum(each or 0 for each in whole.between_ns.values())
    assert whole.wait_ns + between_ns + whole.own_ns + whole.compute_ns == whole.wall_ns
    return run, spent


def at_least(spent, n_batches, n_steps=0):
    assert spent["forward"] >= n_batches * FORWARD_S * 1e9
    assert spent["backward"] >= n_batches * BACKWARD_S * 1e9
    assert spent["step"] >= n_steps * STEP_S * 1e9


# ---- parts of steps


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("collected", [1, 3])
def test_a_plain_loop(tmp_path, collected):
    net = Net()
    optimizer = SlowSGD(net.parameters(), lr=0.1)
    with iobench.record(tmp_path / "run"):
        for _ in range(2):
            net.train()
            for number, (x,) in enumerate(batches(6), 1):
                net(x).sum().backward()
                if number % collected == 0:
                    optimizer.step()
                time.sleep(0.002)
            net.eval()
            with torch.no_grad():
                for (x,) in batches(4):
                    net(x)
    run, spent = opened(tmp_path / "run")
    at_least(spent, 12, 12 // collected)
    whole = run.exposure.whole
    # 12 times the end of a step of the script, and 8 batches of a validation, whose forward is none
    assert whole.compute_rest_ns >= (12 * 0.002 + 8 * FORWARD_S) * 1e9
    counts = {row.stage: row.n_spans for row in whole.compute_stages}
    assert counts == {"forward": 12, "backward": 12, "step": 12 // collected}
    steps = run.exposure.steps
    assert (steps.n_steps, steps.batches_per_step) == (12 // collected, collected)
    deliveries = run.deliveries
    backward = run.spans[run.spans["kind"] == Kind.BACKWARD]
    of = deliveries.at(backward["start_ns"].astype(np.int64))
    training = (deliveries.role == "training") & (deliveries.batch >= 0)
    assert of.tolist() == np.flatnonzero(training).tolist()
    assert whole.step.median_ns >= collected * (FORWARD_S + BACKWARD_S) * 1e9 + STEP_S * 1e9
    sums = deliveries.by_step(deliveries.batch >= 0, deliveries.wait_ns)
    assert sums.sum() == deliveries.wait_ns[deliveries.step >= 0].sum()
    per_step_ns = whole.step_compute_ns["forward"]
    assert per_step_ns * steps.n_steps == pytest.approx(spent["forward"], abs=1)


def test_without_a_recording_nothing_is_done_and_a_model_stays_as_it_is(tmp_path):
    net = Net()
    optimizer = SlowSGD(net.parameters(), lr=0.1)
    with iobench.record(tmp_path / "run"):
        net.train()
        for (x,) in batches(2):
            net(x).sum().backward()
            optimizer.step()
        state = vars(net).copy()
        assert b"iobench" not in pickle.dumps(net)
        assert type(copy.deepcopy(net)) is Net
        assert not net._forward_hooks
        assert not net._forward_pre_hooks
    net(torch.ones(1, 3)).sum().backward()
    assert vars(net).keys() == state.keys()
    hooks.uninstall()
    assert "__call__" not in vars(Net)
    at_least(opened(tmp_path / "run")[1], 2, 2)


@pytest.mark.parametrize("how", ["blocks", "stage"])
def test_what_a_script_times_itself_is_not_counted_twice(tmp_path, how):
    net = Net()
    optimizer = SlowSGD(net.parameters(), lr=0.1)
    with iobench.record(tmp_path / "run"):
        timed = DeviceTimer("cpu") if how == "blocks" else iobench.stage
        for (x,) in batches(4):
            with timed("forward"):
                made = net(x)
            with timed("backward"):
                made.sum().backward()
            with timed("step"):
                optimizer.step()
    run, spent = opened(tmp_path / "run")
    at_least(spent, 4, 4)
    assert sum(spent.values()) <= run.exposure.whole.compute_ns
    assert run.exposure.steps.n_steps == 4


@pytest.mark.long
def test_a_compiled_model_stays_one_graph(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = torch.compile(net, backend="eager", fullgraph=True)

    @torch.compile(backend="eager", fullgraph=True)
    def whole(x):
        return net(x).sum()

    with iobench.record(tmp_path / "run"):
        compiled.train()
        for function in (lambda x: compiled(x).sum(), whole):
            for (x,) in batches(3):
                function(x).backward()
                optimizer.step()
    run, spent = opened(tmp_path / "run")
    assert {"backward", "step"} <= spent.keys()
    assert run.exposure.steps.batches_per_step == 1


# ---- generators between a loader and the loop


def regrid(batch):
    time.sleep(REGRID_S)
    return batch[0]


def regridded(batches):
    for batch in batches:
        yield regrid(batch)


def as_they_are(batches):
    yield from batches


class Regridded:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for batch in self.loader:
            yield regrid(batch)


@pytest.mark.parametrize(
    ("between", "name"),
    [
        (regridded, "regridded"),
        (Regridded, "Regridded.__iter__"),
        (lambda loader: as_they_are(regridded(iter(loader))), "regridded"),
        (lambda loader: (regrid(batch) for batch in loader), "<genexpr>"),
        (lambda loader: map(regrid, loader), BEFORE_FORWARD),
    ],
)
def test_what_a_generator_does_is_named_after_it(tmp_path, between, name):
    trainer = types.SimpleNamespace(model=torch.nn.Linear(3, 1))  # nobody sets it to train
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    loader = batches(6)
    with iobench.record(tmp_path / "run"):
        for _ in range(2):
            for batch in between(loader):
                trainer.model(batch).sum().backward()
                optimizer.step()
    whole = opened(tmp_path / "run")[0].exposure.whole
    assert [*whole.between_ns] == [name]
    assert whole.between_ns[name] >= 12 * REGRID_S * 1e9


# ---- what passes are for, in real trainers


def passes(run):
    """Return what the passes that brought batches are for, in their order, and how many these."""
    found = run.deliveries
    rows = found.batch >= 0
    numbers = dict.fromkeys(found.round[rows].tolist())
    return [
        (str(found.role[rows & (found.round == n)][0]), int((rows & (found.round == n)).sum()))
        for n in numbers
    ]


def complete(run):
    return [(each.batches, each.complete) for each in epoch_times(epoch_figures(run))]


def holds(path, expected, epochs, n_steps, batches=1):
    """Hold the passes, the epochs and the optimiser's steps of a run."""
    run, spent = opened(path)
    assert passes(run) == expected
    assert complete(run) == epochs
    steps = run.exposure.steps
    assert (steps.n_steps, steps.batches_per_step) == (n_steps, batches)
    assert {"backward", "step"} <= spent.keys()


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

        def on_train_end(self):
            self.trained_ns = now_ns()

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
    fit = [("training", 5), ("validation", 4)] * 2
    others = [("validation", 3), ("test", 2), ("prediction", 1)]
    checked = ("validation", 2)  # the sanity check
    holds(tmp_path / "run", [checked, *fit, *others], [(5, True)] * 2, 10)
    # The iterator of the last validation is there until the trainer is torn down.
    deliveries = Run(tmp_path / "run").of_rank().deliveries
    of_fit = deliveries.requested_ns < model.trained_ns
    assert deliveries.until_ns[of_fit & (deliveries.role == "validation")].max() < model.trained_ns


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
    fit = [("training", 5), ("validation", 4)] * 2
    holds(tmp_path / "run", [*fit, ("prediction", 2)], [(5, True)] * 2, 10)


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
    expected = [("training", 6), ("evaluation", 4)] * 2
    holds(tmp_path / "run", expected, [(6, True)] * 2, 6, batches=2)


@pytest.fixture
def everywhere():
    """See loaders that are not torch's own as in a script under ``iobench run``."""
    install(where="everywhere")
    yield
    uninstall()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_loader_goes_on_where_it_was_and_its_pass_is_no_whole_epoch(
    tmp_path, everywhere, workers
):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="its state is saved")

    def loader():
        data = TensorDataset(torch.ones(12, 3))
        return stateful.StatefulDataLoader(data, batch_size=2, num_workers=workers)

    first = loader()
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    del iterator
    with iobench.record(tmp_path / "run") as recording:
        for _ in range(3):
            trains(resumed, *weight_and_optimizer())
    assert complete(Run(tmp_path / "run").of_rank()) == [(2, False), (6, True), (6, True)]
    (told,) = recording.facts.loaders[0].unseen
    assert told == "workers: StatefulDataLoader makes iterators of its own"


def test_passes_over_torchdatas_own_loader_are_opaque_loading(tmp_path, everywhere):
    nodes = pytest.importorskip("torchdata.nodes", reason="torchdata")
    samples = TensorDataset(torch.ones(12, 3))
    source = nodes.MapStyleWrapper(samples, torch.utils.data.SequentialSampler(samples))
    source = nodes.ParallelMapper(source, lambda each: each[0], num_workers=1, method="thread")
    loader = nodes.Loader(nodes.Prefetcher(nodes.Batcher(source, 2), prefetch_factor=2))
    weight, optimizer = weight_and_optimizer()
    with iobench.record(tmp_path / "run"):
        for _ in range(2):
            iterator = iter(loader)
            for batch in iterator:
                (torch.stack(batch) * weight).sum().backward()
                optimizer.step()
            assert iterator.state_dict()["num_yielded"] == 6
    rank = Run(tmp_path / "run").of_rank()
    (found,) = rank.exposure.loaders
    assert (found.kind, found.n_batches) == ("torchdata.nodes.loader.Loader", 12)
    assert {*rank.exposure.whole.exposed_ns} - {"cpu_wait"} == {"opaque", "startup", "shutdown"}
    assert {*rank.deliveries.maker} == {""}


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
        list(batches(2))  # steps of an optimiser that nobody sees
        model.eval()
        list(batches(3))
        wrapped.train()
        wrapped.module.eval()  # all of it
        list(batches(4))
        model.train()
        other.eval()  # no part of it: nobody knows which of them a pass is for
        list(batches(5))
    run = Run(tmp_path / "run").of_rank()
    assert passes(run) == [("", 2), ("evaluation", 3), ("evaluation", 4), ("evaluation", 5)]


@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_of_loaders_made_anew_and_of_kept_workers(tmp_path, workers):
    data = TensorDataset(torch.ones(10, 3))
    kept = DataLoader(data, 2, num_workers=workers, persistent_workers=bool(workers))
    weight, optimizer = weight_and_optimizer()
    with iobench.record(tmp_path / "run"):
        for _ in range(3):
            trains(kept, weight, optimizer)
            with torch.no_grad():
                list(DataLoader(data, 5))  # made anew each time
    run = Run(tmp_path / "run").of_rank()
    assert passes(run) == [("training", 5), ("evaluation", 2)] * 3
    times = epoch_times(epoch_figures(run))
    assert [each.epoch for each in times] == [0, 1, 2]
    assert complete(run) == [(5, True)] * 3
    assert all(each.validation_ns > 0 for each in times)
