"""Tensors that a script moves to a device, with the batch that they belong to.

The device is torch's ``meta``: moving there takes no memory, and needs no accelerator.
"""

from __future__ import annotations

import copy
import re

import pytest

pytest.importorskip("torch", reason="tensors are torch's")
import torch
from torch.utils.data import TensorDataset

from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.torch import DataLoader, device_moves

NAMES = ("to", "cuda", "copy_")
META = torch.device("meta")


@pytest.fixture(autouse=True)
def moves(monkeypatch):
    device_moves.uninstall()  # a recording of the tests before, whose hooks stay
    before = {name: getattr(torch.Tensor, name) for name in NAMES}
    monkeypatch.setattr(device_moves, "counts_meta", True)
    device_moves.install()
    yield
    device_moves.uninstall()
    assert {name: getattr(torch.Tensor, name) for name in NAMES} == before
    assert not set(NAMES) & set(vars(torch.Tensor))


def loader_of(n_batches, **more):
    values = torch.arange(n_batches * 2 * 3.0).reshape(-1, 3)
    return DataLoader(TensorDataset(values, torch.arange(n_batches * 2)), batch_size=2, **more)


def moved(run):
    """Return label, call, bytes and batch of each move that was recorded."""
    profile = open_profile(run)
    text = profile.strings
    return [
        (text[each["label"]], text[each["detail"]], int(each["nbytes"]), int(each["batch"]))
        for each in profile.spans[profile.spans["kind"] == Kind.H2D]
    ]


def test_moves_are_of_the_batch_that_was_delivered(tmp_path, monkeypatch):
    assert torch.ones(3).to(META).device == META  # without a recording
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    with record(tmp_path / "run"):
        torch.ones(9).to(META)  # before the first batch
        for values, labels in loader_of(2):
            values.to("meta", non_blocking=True)
            labels.to(device=META)
            values.double().to(META)
            values.to(torch.float64)
            values.to(META).to("meta")
            torch.empty_like(values, device=META).copy_(values)
            torch.empty_like(values).copy_(values)
            values.to(device=META, dtype=torch.float16)
            torch.empty_like(values, dtype=torch.float64, device=META).copy_(values)
            copy.deepcopy(model).to(META)  # parameters are no batch
    own = [("", "to", 24, 0), ("", "to", 16, 0), ("", "to", 48, 0), ("", "to", 24, 0)]
    cast = [("", "to", 12, 0), ("", "copy_", 48, 0)]
    rows = [*own, ("", "copy_", 24, 0), *cast]
    second = [(label, call, nbytes, 1) for label, call, nbytes, _ in rows]
    assert moved(tmp_path / "run") == [("other", "to", 36, -1), *rows, *second]
    monkeypatch.setattr(device_moves, "counts_meta", False)
    with record(tmp_path / "other"):
        for values, _ in loader_of(1):
            values.to(META)
    assert moved(tmp_path / "other") == []


@pytest.mark.usefixtures("hooked")
def test_what_a_model_moves_in_its_forward_pass_is_no_batch(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, values):
            return torch.arange(5).to(META)  # positions

    with record(tmp_path / "run"):
        model = Model().train()
        for values, _ in loader_of(1):
            model(values.to(META))
    assert moved(tmp_path / "run") == [("", "to", 24, 0), ("other", "to", 40, 0)]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_compiled_traced_and_transformed_is_the_same(tmp_path):
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(values):
        return values.to(torch.float64).to("cpu").copy_(values.double()) * 2

    class Module(torch.nn.Module):
        def forward(self, values):
            return function(values)

    def graphs():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        values = torch.ones(3)
        compiled = torch.compile(
            lambda values: (function(values), values.to("meta")),
            fullgraph=True, backend="aot_eager",
        )  # fmt: skip
        traced = torch.jit.trace(function, (values,))
        return [
            [compiled(values)[0].tolist() for _ in range(3)],
            torch._dynamo.utils.counters["stats"]["unique_graphs"],
            re.sub(r" # .*", "", str(traced.graph)),  # which line of code called it
            str(torch.export.export(Module(), (values,)).graph),
            torch.fx.symbolic_trace(function).code,
            make_fx(function)(values).code,
            str(torch.func.jvp(lambda each: each.to(torch.float64), (values,), (values,))),
            str(torch.func.grad(lambda each: each.to(torch.float64).sum())(values)),
        ]

    with record(tmp_path / "run"):
        recorded = graphs()
    device_moves.uninstall()
    assert graphs() == recorded
    assert recorded[:2] == [[[2.0] * 3] * 3, 1]
    torch._dynamo.reset()
    assert moved(tmp_path / "run") == []
