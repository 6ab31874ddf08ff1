"""Forward, backward and the optimiser's step by the hook, in real trainers; truth is what sleeps.

A sleep is never shorter than asked for; how much longer a busy machine makes it is not asked. What
each part is charged with is exact: parts and the rest are the compute, to the nanosecond.
"""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest

pytest.importorskip("torch", reason="it is torch's loops that are hooked into")
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
import iobench.torch
from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.torch import hooks
from iobench.torch.device_time import DeviceTimer

pytestmark = [
    pytest.mark.usefixtures("hooked"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, of every release others
]

FORWARD_S, BACKWARD_S, STEP_S = 0.006, 0.010, 0.004


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


def opened(path):
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
    step = whole.step
    assert step.median_ns >= collected * (FORWARD_S + BACKWARD_S) * 1e9 + STEP_S * 1e9
    sums = deliveries.by_step(deliveries.batch >= 0, deliveries.wait_ns)
    assert sums.sum() == deliveries.wait_ns[deliveries.step >= 0].sum()
    assert whole.step_compute_ns["forward"] * steps.n_steps == pytest.approx(
        spent["forward"], abs=1
    )


def test_without_a_recording_nothing_is_done_and_a_model_stays_as_it_is(tmp_path):
    net = Net()
    optimizer = SlowSGD(net.parameters(), lr=0.1)
    with iobench.record(tmp_path / "run"):
        net.train()
        for (x,) in batches(2):
            net(x).sum().backward()
            optimizer.step()
        state = vars(net).copy()
        pickled = pickle.dumps(net)
        assert b"iobench" not in pickled
        twin = copy.deepcopy(net)
        assert type(twin) is Net
        assert not net._forward_hooks
        assert not net._forward_pre_hooks
    net(torch.ones(1, 3)).sum().backward()
    assert vars(net).keys() == state.keys()
    hooks.uninstall()
    assert "__call__" not in vars(Net)
    _, spent = opened(tmp_path / "run")
    at_least(spent, 2, 2)


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


def test_a_compiled_model_stays_one_graph(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with iobench.record(tmp_path / "run"):
        compiled.train()
        for (x,) in batches(3):
            compiled(x).sum().backward()
            optimizer.step()
        net.train()

        @torch.compile(backend="eager", fullgraph=True)
        def whole(x):
            return net(x).sum()

        for (x,) in batches(3):
            whole(x).backward()
            optimizer.step()
    run, spent = opened(tmp_path / "run")
    assert {"backward", "step"} <= spent.keys()
    assert run.exposure.steps.batches_per_step == 1
