"""Loops of the shapes that published weather models have: each stage is named, each loader told."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="all of them train with torch")
pytest.importorskip("h5py", reason="three of them read HDF5")

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

SCRIPT = """
import random
import sys
import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

VARIABLES = ["t", "u"]


class Files(IterableDataset):
    # Each worker reads whole files of its own, several times each, one array a variable.
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        for path in self.paths[info.id :: info.num_workers]:
            arrays = np.load(path)
            yield {name: arrays[name] for name in VARIABLES}


class Pairs(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for arrays in self.files:
            fields = torch.from_numpy(np.stack([arrays[name] for name in VARIABLES], axis=1))
            yield from zip(fields[:-1], fields[1:])


class Shuffled(IterableDataset):
    def __init__(self, pairs, size):
        self.pairs, self.size = pairs, size

    def __iter__(self):
        kept = []
        for pair in self.pairs:
            kept.append(pair)
            if len(kept) > self.size:
                yield kept.pop(random.randrange(len(kept)))
        yield from kept


def stacked(pairs):
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def chained():
    for number in range(4):
        np.savez(f"{number}.npz", **{name: np.ones((5, 4, 4), "f4") for name in VARIABLES})
    pairs = Pairs(Files([f"{number}.npz" for number in range(4)]))
    return (
        DataLoader(Shuffled(pairs, 3), 2, num_workers=2, collate_fn=stacked),
        DataLoader(pairs, 2, num_workers=2, collate_fn=stacked),
    )


class FilePerSample(Dataset):
    # A file for each time; a sample takes an input and what comes later.
    def __len__(self):
        return 8

    def fields(self, number):
        with h5py.File(f"{number:04}.h5") as file:
            return np.stack([np.array(file["input"][name]) for name in VARIABLES])

    def __getitem__(self, number):
        x = self.fields(number)
        return torch.from_numpy(x), torch.from_numpy(self.fields(number + 2) - x)


def file_per_sample():
    for number in range(10):
        with h5py.File(f"{number:04}.h5", "w") as file:
            for name in VARIABLES:
                file[f"input/{name}"] = np.ones((4, 4), "f4")
    loaders = DataLoader(FilePerSample(), 2, shuffle=True, num_workers=2, collate_fn=stacked)
    return loaders, DataLoader(FilePerSample(), 2, num_workers=2, collate_fn=stacked)


class Years(Dataset):
    # A file a year, opened by the worker that needs it first.
    def __init__(self):
        self.files = {}

    def __len__(self):
        return 16

    def __getitem__(self, number):
        year, step = divmod(number, 8)
        if year not in self.files:
            self.files[year] = h5py.File(f"{year}.h5")["fields"]
        pair = [self.files[year][min(at, 7)] for at in (step, step + 1)]
        return tuple(torch.as_tensor(fields - np.load("means.npy")) for fields in pair)


def years():
    np.save("means.npy", np.ones((2, 1, 1), "f4"))
    for year in range(2):
        with h5py.File(f"{year}.h5", "w") as file:
            file["fields"] = np.ones((8, 2, 4, 4), "f4")
    seeded = {"worker_init_fn": lambda number: np.random.seed(number)}
    return (
        DataLoader(Years(), 4, num_workers=2, drop_last=True),
        DataLoader(Years(), 4, num_workers=2, drop_last=True, **seeded),
    )


def train(training, validation):
    model = torch.nn.Conv2d(2, 2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        for x, y in training:
            optimiser.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            for x, y in validation:
                model(x)


if __name__ == "__main__":
    for shape in (chained, file_per_sample, years):
        train(*shape())
"""

IN_WORKERS = (Kind.OPEN, Kind.READ, Kind.FUSED, Kind.COLLATE, Kind.SERIALISE)

# By shape: batches of a pass, files opened in one, and reads: by files or samples, and variables.
SHAPES = {
    "chained": (8, 4, 4 * 2),
    "file_per_sample": (4, 8 * 2, 8 * 2 * 2),
    "years": (4, 2 * 2, 16 * 2 + 16 * 2),
}


def test_published_shapes_have_their_loaders_told_and_their_stages_named(
    launch, script, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = launch(sys.executable, "-W", "ignore", script(SCRIPT), detail="sample")
    assert found.code == 0, found.err
    run = Run(found.run).of_rank()
    spans, given = run.data.spans, run.deliveries
    assert run.roles == dict(enumerate(("training", "evaluation") * len(SHAPES)))
    for place, (shape, (n_batches, n_opened, n_read)) in enumerate(SHAPES.items()):
        for loader in (2 * place, 2 * place + 1):
            batches = given.batch[(given.loader == loader) & (given.batch >= 0)]
            own = np.isin(spans["batch"], batches) & (spans["flags"] & (Flag.IO | Flag.DETAIL) == 0)
            kinds = {kind: int((own & (spans["kind"] == kind)).sum()) for kind in IN_WORKERS}
            assert kinds.pop(Kind.FUSED) > 0, shape  # of samples, what no library told
            assert kinds == {
                Kind.OPEN: 2 * n_opened,
                Kind.READ: 2 * n_read,
                Kind.COLLATE: 2 * n_batches,
                Kind.SERIALISE: 2 * n_batches,
            }, shape
    for part in (run.exposure.whole, run.exposure.validation):
        assert sum(part.exposed_ns.values()) == part.wait_ns > 0
        assert {"open", "read", "fused", "collate"} <= {row.stage for row in part.stages}
