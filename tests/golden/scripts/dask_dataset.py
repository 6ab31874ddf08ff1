"""xarray opened with chunks: the reads and the inflating happen in dask's threads of the worker."""

from pathlib import Path

import numpy as np
import torch
import xarray as xr


class Pairs(torch.utils.data.Dataset):
    def __init__(self, path):
        self.path, self.data = path, None

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if self.data is None:
            self.data = xr.open_dataset(self.path, chunks={"time": 10})
        pair = self.data.t2m.isel(time=slice(i, i + 2))
        return torch.from_numpy(((pair - pair.mean()) / pair.std()).values)


if __name__ == "__main__":
    path = Path("t2m.nc")
    field = np.random.default_rng(0).random((40, 64, 64), dtype="f4")
    encoding = {"t2m": {"zlib": True, "chunksizes": (10, 64, 64)}}
    xr.Dataset({"t2m": (("time", "y", "x"), field)}).to_netcdf(
        path, encoding=encoding, engine="netcdf4"
    )
    total = 0.0
    for batch in torch.utils.data.DataLoader(Pairs(path), batch_size=4, num_workers=1):
        total += float(batch.abs().sum(dtype=torch.float64))
    print(f"{total:.4f}")
