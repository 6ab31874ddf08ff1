"""Digests through real loaders: the same for workers, threads and torch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("xxhash", reason="digests need the extra 'digest'")
import torch

import iobench
from iobench.analysis.run import Run
from iobench.findings.batch_digests import SamplesVerdict, compare_samples, delivered_samples
from iobench.torch import DataLoader

pytestmark = pytest.mark.timeout(60)
SAME = SamplesVerdict.SAME_ORDER


def compared(a, b):
    return compare_samples(delivered_samples(Run(a)), delivered_samples(Run(b)))


class Numbers(torch.utils.data.Dataset):
    """Samples of two arrays, one of them not contiguous, and their number."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        field = np.arange(number, number + 8, dtype="<f4")[::2]
        return {"field": field, "number": number}


class Batches(Numbers):
    """Makes whole batches of lists of numbers."""

    def __getitem__(self, number):
        if isinstance(number, list):
            made = [super(Batches, self).__getitem__(each) for each in number]
            return {name: np.stack([sample[name] for sample in made]) for name in made[0]}
        return super().__getitem__(number)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (Numbers()[number] for number in range(12))


def recorded(path, dataset, *, seed=0, epochs=1, **options):
    loader = DataLoader(
        dataset, shuffle=True, generator=torch.Generator().manual_seed(seed), **options
    )
    with iobench.record(path, digests=True):
        for _ in range(epochs):
            for _ in loader:
                pass
    return iobench.open_profile(path)


def test_workers_make_no_difference(tmp_path):
    alone = recorded(tmp_path / "0", Numbers(), batch_size=3, epochs=2)
    seen = delivered_samples(Run(alone))
    assert [(each.epoch, each.n_samples) for each in seen.epochs.values()] == [(0, 12), (1, 12)]
    worked = recorded(tmp_path / "2", Numbers(), batch_size=3, num_workers=2, epochs=2)
    assert compared(alone, worked).verdict is SAME
    other = recorded(tmp_path / "1", Numbers(), batch_size=5, epochs=2)
    assert compared(alone, other).why_unknown == "batches of other sizes"
    labels = {alone.strings[label] for label in alone.spans["label"].tolist()}
    assert "digest" in labels  # what it cost is a stage of its own


def drained(path, loader):
    with iobench.record(path, digests=True):
        for _ in loader:
            pass
    return iobench.open_profile(path)


@pytest.mark.parametrize("workers", [0, 1])
def test_however_a_loader_makes_its_batches(tmp_path, workers):
    first = drained(tmp_path / "plain", DataLoader(Numbers(), batch_size=5, num_workers=workers))
    lists = torch.utils.data.BatchSampler(range(12), 5, drop_last=False)
    others = {
        "lists": DataLoader(Batches(), sampler=lists, batch_size=None, num_workers=workers),
        "stream": DataLoader(Stream(), batch_size=5, num_workers=workers),
    }
    for name, loader in others.items():
        assert compared(first, drained(tmp_path / name, loader)).verdict is SAME, name
    alone = drained(tmp_path / "1", DataLoader(Numbers(), batch_size=None, num_workers=workers))
    (epoch,) = delivered_samples(Run(alone)).epochs.values()
    assert (len(epoch.batches), epoch.n_samples) == (12, 12)
