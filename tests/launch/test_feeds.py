"""What xbatcher feeds to torch, under ``iobench run``: batches as without, stages named."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from iobench.analysis.run import Run

for package in ("torch", "xbatcher", "netCDF4", "dask"):
    pytest.importorskip(package, reason="what the script loads with")
xarray = pytest.importorskip("xarray", reason="what the script loads with")

SCRIPT = """
import sys
import torch
import xarray
from xbatcher import BatchGenerator
from xbatcher.loaders.torch import MapDataset
workers, chunks = int(sys.argv[1]), {"time": 4} if sys.argv[2] == "dask" else None
file = xarray.open_dataset("fields.nc", engine="netcdf4", chunks=chunks)
dataset = MapDataset(*(BatchGenerator(file[name], {"time": 8}) for name in ("t2m", "u10")))
loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
for epoch in range(2):
    print(sum(float(batch[0].double().sum()) for batch in loader))
"""


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("workers", "how"), [(0, "plain"), (1, "dask")])
def test_batches_cut_out_of_a_file_are_read_and_decoded(
    same, script, tmp_path, monkeypatch, workers, how
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names, noise = ("t2m", "u10"), np.random.default_rng(0).normal(size=(2, 32, 8, 64))
    fields = zip(names, noise.astype("f4"), strict=True)
    file = xarray.Dataset({name: (("time", "y", "x"), values) for name, values in fields})
    packed = {"zlib": True, "chunksizes": (4, 8, 64)}
    file.to_netcdf("fields.nc", engine="netcdf4", encoding=dict.fromkeys(names, packed))
    found = same(sys.executable, script(SCRIPT), workers, how, detail="sample")
    assert found.code == 0
    (loader,) = (each for facts in found.facts for each in facts.loaders)
    assert (loader.workers, loader.name, loader.unseen) == (workers, "MapDataset", [])
    stages = {row.stage: row for row in Run(found.run).of_rank().exposure.whole.stages}
    # Both fields, in each of two epochs, whoever's threads read them.
    assert stages["fused:read+decode"].nbytes == 2 * 2 * 32 * 8 * 64 * 4
    assert stages["preprocess:xbatcher"].n_spans == 2 * 2 * 4
