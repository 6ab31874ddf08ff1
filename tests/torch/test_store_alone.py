"""A training needs nothing but the store: its source is deleted before the first step."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))

from number_stores import nothing_left

pytest.importorskip("torch", reason="a model is trained with it")
import torch

from iobench.torch import StoreLoader

N, Y, X = 24, 20, 30
GAP, N_TRAIN = 13, 18
"""Two hours are missing before this sample; so many are to train on, the others to validate."""
N_WINDOWS = (GAP - 2) + (N_TRAIN - GAP - 2)
"""Of three items, in each row of training samples."""
SPLITS = (
    "--split-by", "train:time=2020-01-01T00/2020-01-01T19", "--allow-gaps",
    "--split-by", "valid:time=2020-01-01T20/2020-01-02T01",
)  # fmt: skip
PATCH = {"latitude": 8, "longitude": 12}
OPTIONS: dict[str, Any] = {
    "split": "train", "window": "-1,0:1", "patch": PATCH, "normalise": True, "shuffle": True,
    "seed": 3,
}  # fmt: skip


def write_source(path):
    """Write hourly fields, two hours missing; return what a training should be given of them."""
    netcdf4 = pytest.importorskip("netCDF4", reason="writes the source")
    random = np.random.default_rng(0)
    hours = np.array([n + 2 * (n >= GAP) for n in range(N)])
    base = random.random((2, Y, X))  # what lasts: a model learns it soon
    noise = random.random((2, N, Y, X)) / 10
    fields = {
        "t": ((base[0] + noise[0]) * 30 + 270).astype("f4"),
        "z": ((base[1] + noise[1]) * 1e4).astype("f4"),
    }
    fields["t"][5, 3, 4] = np.nan
    latitude, longitude = np.linspace(60, 41, Y), np.linspace(0, 29, X)
    with netcdf4.Dataset(path, "w") as file:
        for name, values in (("latitude", latitude), ("longitude", longitude)):
            file.createDimension(name, len(values))
            file.createVariable(name, "f8", (name,))[:] = values
        file.createDimension("time", N)
        time = file.createVariable("time", "i4", ("time",))
        time.units = "hours since 2020-01-01"
        time[:] = hours
        for name, values in fields.items():
            file.createVariable(
                name, "f4", ("time", "latitude", "longitude"), zlib=True, fill_value=np.nan,
                chunksizes=(5, 7, X),
            )[:] = values  # fmt: skip
    return {
        **fields,
        "time": np.datetime64("2020-01-01") + hours * np.timedelta64(1, "h"),
        "latitude": latitude,
        "longitude": longitude,
    }


def moments(values):
    exact = values.astype("f8")
    return np.float32(np.nanmean(exact)), np.float32(np.nanstd(exact))


def expected_patch(known, where, row):
    """Return what NumPy makes of the fields that were read before the source was deleted."""
    items = where["sample"][row]
    y, x = (int(where[f"{dim}_start"][row]) for dim in PATCH)
    found = {}
    for name in ("t", "z"):
        mean, std = moments(known[name][:N_TRAIN])
        part = known[name][items, y : y + PATCH["latitude"], x : x + PATCH["longitude"]]
        normal = (part - mean) / std
        found[name], found[f"{name}_target"] = normal[:2], normal[2:]
    return found


def check(batch, where, known):
    """Compare a batch, its coordinates and its windows with what is known."""
    assert np.array_equal(where["time"], known["time"][where["sample"]])
    assert (np.diff(where["time"], axis=1) == np.timedelta64(1, "h")).all()  # across no gap
    for row in range(len(where["sample"])):
        for name, values in expected_patch(known, where, row).items():
            assert np.array_equal(np.asarray(batch[name][row]), values, equal_nan=True)
        for dim, size in PATCH.items():
            start = int(where[f"{dim}_start"][row])
            assert np.array_equal(where[dim][row], known[dim][start : start + size])


@pytest.fixture(params=["zarr", "numpy", "tfrecord", "zarr:chunks", "zarr:lz4"])
def alone(request, tmp_path, iobench_here):
    """A store whose source, and all that was learnt of it, is gone; and what was in it."""
    known = write_source(tmp_path / "source.nc")
    fmt, _, how = request.param.partition(":")
    more = ["--format-option", "inner-chunk=latitude=8,longitude=10"] if how else []
    more += ["--codec", "blosc-lz4"] if how == "lz4" else []
    done = iobench_here(
        "convert", "source.nc", "store", "--to", fmt, "--sample-dim", "time", "--store-dir",
        "learnt", *SPLITS, *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (tmp_path / "source.nc").unlink()
    shutil.rmtree(tmp_path / "learnt", ignore_errors=True)
    return tmp_path / "store", known


@pytest.mark.quick_cases(4)
def test_a_model_is_trained(alone):
    store, known = alone
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 3, padding=1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with nothing_left():
        loader = StoreLoader(store, 4, **OPTIONS)
        assert len(loader.dataset) == N_WINDOWS
        losses, seen = [], []
        for _ in range(4):
            for batch in loader:
                where = loader.coordinates()
                check(batch, where, known)
                seen += list(map(tuple, where["sample"].tolist()))
                inputs = torch.cat([batch["t"], batch["z"]], dim=1).nan_to_num()
                target = torch.cat([batch["t_target"], batch["z_target"]], dim=1).nan_to_num()
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert len(set(seen)) == N_WINDOWS
        assert len(seen) == 4 * N_WINDOWS
        assert max(max(items) for items in seen) < N_TRAIN
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
        assert {*loader.normalisation} == {*batch}
        assert loader.normalisation["t_target"].of == "train"
        assert "normalised by the statistics of train: t, z" in repr(loader)
        back = (
            batch["t"][0].numpy() * loader.normalisation["t"].std + loader.normalisation["t"].mean
        )
        assert np.nanmin(back) > 269
        loader.close()
        del loader, batch, inputs, target, loss, model, optimizer, back
