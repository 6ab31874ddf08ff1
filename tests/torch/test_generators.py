"""Generators between a loader and the loop, by the hook: named, timed until the forward pass."""

from __future__ import annotations

import time
import types

import pytest

pytest.importorskip("torch", reason="it is torch's loader that is asked")
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
import iobench.torch
from iobench.analysis.exposure_figures import BEFORE_FORWARD
from iobench.analysis.run import Run

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hooked")]
REGRID_S = 0.004


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
        (lambda loader: regridded(iter(loader)), "regridded"),
        (lambda loader: as_they_are(regridded(loader)), "regridded"),
        (lambda loader: (regrid(batch) for batch in loader), "<genexpr>"),
        (lambda loader: map(regrid, loader), BEFORE_FORWARD),
    ],
)
def test_what_a_generator_does_is_named_after_it(tmp_path, between, name):
    loader = DataLoader(TensorDataset(torch.ones(12, 3)), batch_size=2)
    trainer = types.SimpleNamespace(model=torch.nn.Linear(3, 1))  # nobody sets it to train
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    with iobench.record(tmp_path / "run"):
        for _ in range(2):
            for batch in between(loader):
                trainer.model(batch).sum().backward()
                optimizer.step()
    whole = Run(tmp_path / "run").of_rank().exposure.whole
    assert [*whole.between_ns] == [name]
    assert whole.between_ns[name] >= 12 * REGRID_S * 1e9
    assert whole.wait_ns + whole.between_ns[name] + whole.own_ns + whole.compute_ns == whole.wall_ns
