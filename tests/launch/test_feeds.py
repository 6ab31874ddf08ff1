"""What people feed to torch, under ``iobench run``: batches as without, reads and decodes named."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

pytest.importorskip("torch", reason="its loaders are what is fed")

pytestmark = pytest.mark.timeout(240)  # each imports torch twice, and some transformers
Stage = dict[str, tuple[int, int]]

TRAIN = """
model = torch.nn.Linear(64, 1)
total = 0.0
for epoch in range(2):
    for batch in loader:
        values = torch.as_tensor(batch[0])
        total += float(values.double().sum())
        model(values.reshape(-1, 64).float()).square().mean().backward()
print(repr(total))
"""
"""What each script ends with; its batches begin with arrays whose last size divides by 64.

No optimiser: the first one imports all of torch's compiler, two seconds in each process.
"""


@pytest.fixture
def seen(same, script, tmp_path, monkeypatch):
    """Run a script without and with iobench; its output and exit must be the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def run(text, *arguments):
        found = same(sys.executable, script(text + TRAIN), *arguments, detail="sample")
        assert found.code == 0
        return found

    return run


def stages(profile, *, with_batch=True):
    """Return the number of spans and the bytes of each stage of loading; -1 where unknown."""
    spans = profile.spans
    spans = spans[(spans["flags"] & (Flag.IO | Flag.DETAIL)) == 0]
    # Warnings show the line of the source that they are about.
    code = [number for number, text in enumerate(profile.strings) if text.endswith(".py")]
    found: Stage = {}
    for kind, label in sorted({(int(s["kind"]), int(s["label"])) for s in spans}):
        of = spans[(spans["kind"] == kind) & (spans["label"] == label)]
        of = of[((of["batch"] >= 0) | ~np.bool_(with_batch)) & ~np.isin(of["detail"], code)]
        name = Kind(kind).spelled + (f":{profile.strings[label]}" if label else "")
        nbytes = of["nbytes"]
        found[name] = len(of), -1 if (nbytes < 0).any() else int(nbytes.sum())
    return found


def loaders(found):
    for facts in found.facts:
        yield from facts.loaders


# -- a loader with an end -----------------------------------------------------------------

WITH_END = """
import sys
import torch

class Loader(torch.utils.data.DataLoader):
    def __del__(self):
        print("the end of", self.own)

loader = Loader([(torch.full((32, 64), float(n)),) for n in range(20)], batch_size=4, num_workers=1)
loader.own = "mine"
"""


@pytest.mark.long
def test_a_loader_that_does_something_as_it_ends_does_it_once(seen):
    (loader,) = loaders(seen(WITH_END))
    assert (loader.workers, loader.unseen) == (1, [])


# -- xbatcher -----------------------------------------------------------------------------

BATCHES = """
import sys
import torch
import xarray
from xbatcher import BatchGenerator
from xbatcher.loaders.torch import MapDataset
workers, chunks = int(sys.argv[1]), {"time": 4} if sys.argv[2] == "dask" else None
file = xarray.open_dataset("fields.nc", engine="netcdf4", chunks=chunks)
dataset = MapDataset(*(BatchGenerator(file[name], {"time": 8}) for name in ("t2m", "u10")))
loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
"""


@pytest.mark.long
@pytest.mark.parametrize(("workers", "how"), [(0, "plain"), (1, "dask")])
def test_batches_cut_out_of_a_file_are_read_and_decoded(seen, tmp_path, workers, how):
    pytest.importorskip("xbatcher", reason="cuts batches out of arrays")
    pytest.importorskip("netCDF4", reason="reads the file")
    pytest.importorskip("dask", reason="reads it in chunks")
    xarray = pytest.importorskip("xarray", reason="writes and reads the file")
    noise = np.random.default_rng(0)
    names = ("t2m", "u10")
    fields = {
        name: (("time", "y", "x"), noise.normal(size=(32, 8, 64)).astype("f4")) for name in names
    }
    packed = {"zlib": True, "chunksizes": (4, 8, 64)}
    file = xarray.Dataset(fields)
    file.to_netcdf(tmp_path / "fields.nc", engine="netcdf4", encoding=dict.fromkeys(names, packed))
    found = seen(BATCHES, workers, how)
    (loader,) = loaders(found)
    assert (loader.workers, loader.name, loader.unseen) == (workers, "MapDataset", [])
    told = stages(found.profile)
    # Both fields, in each of two epochs, whoever's threads read them.
    assert told["fused:read+decode"][1] == 2 * 2 * 32 * 8 * 64 * 4
    assert told["preprocess:xbatcher"][0] == 2 * 2 * 4
