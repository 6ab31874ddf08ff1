"""A dataset in a script: samples by number, and batches of them from the ring."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.errors import (
    FileFormatError,
    MissingFileError,
    OptionError,
    StoreError,
    UnknownNameError,
)
from iobench.files.ranges import forget_source_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.sources.opened_dataset import OpenDataset


@pytest.fixture
def ens10(tmp_path: Path) -> OpenDataset:
    pytest.importorskip("eccodes", reason="reads GRIB")
    return iobench.open_dataset("maelstrom-ens10", tiny=True, store_dir=tmp_path)


@pytest.mark.long
def test_it_is_map_style_and_travels(ens10: OpenDataset) -> None:
    assert "a stand-in" in repr(ens10)
    other = pickle.loads(pickle.dumps(ens10))
    assert np.array_equal(other[-1]["t2m"], ens10[3]["t2m"], equal_nan=True)
    with pytest.raises(IndexError, match="no sample 4, there are 4"):
        ens10[4]


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean maelstrom-ens10"):
        iobench.open_dataset("maelstrom-ens1")
    with pytest.raises(OptionError, match="name a dataset"):
        iobench.open_dataset()
    with pytest.raises(OptionError, match="no argument 'tinny'"):
        iobench.open_dataset("maelstrom-ens10", tinny=True)
    for wrong in ({"variables": "t"}, {"sample_dim": ["time"]}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))}=.*: expected a "):
            iobench.open_dataset(tmp_path / "a.nc", **wrong)
    with pytest.raises(MissingFileError):
        iobench.open_dataset(tmp_path / "none.nc")


def test_windows_of_a_dataset_and_of_its_store(
    tmp_path: Path, iobench_here: Callable[..., Any]
) -> None:
    netcdf4 = pytest.importorskip("netCDF4", reason="writes the file")
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", 9)
        file.createDimension("x", 2)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "hours since 2020-01-01"
        time[:] = [0, 1, 2, 3, 4, 7, 8, 9, 10]  # two hours are missing
        file.createVariable("t", "f4", ("time", "x"))[:] = np.arange(18).reshape(9, 2)
    dataset = iobench.open_dataset(tmp_path / "a.nc", sample_dim="time", store_dir=tmp_path / "s")
    (batch,) = dataset.loader(9, window="-1,0:1", processes=False)
    assert batch["t"].shape == (5, 2, 2)
    assert batch["t_target"][:, 0, 0].tolist() == [4, 6, 8, 14, 16]
    done = iobench_here(
        "convert", "a.nc", "store", "--to", "numpy", "--sample-dim", "time", "--store-dir", "s"
    )
    assert done.returncode == 0
    (alone,) = iobench.loader(tmp_path / "store", 9, window="-1,0:1")
    assert all(np.array_equal(alone[name], batch[name]) for name in batch)
    apart = ["a:time=2020-01-01T01/2020-01-01T02", "b:time=2020-01-01T09"]
    some = iobench.open_dataset(
        tmp_path / "a.nc", sample_dim="time", store_dir=tmp_path / "s", split_by=apart
    )
    loader = some.loader(9)
    assert [each["t"][:, 0].tolist() for each in loader] == [[2, 4, 14]]
    assert [str(each)[11:13] for each in loader.coordinates(0)["time"]] == ["01", "02", "09"]


@pytest.mark.long
def test_splits_patches_and_given_means_of_a_dataset(ens10: OpenDataset) -> None:
    means = {"t2m": (270.0, 10.0)}
    patch = {"latitude": 30, "longitude": 50}
    options: dict[str, Any] = {"split": "test", "patch": patch, "normalise": means}
    loader = ens10.loader(2, processes=False, **options)
    (batch,) = loader
    where = loader.coordinates()
    assert where["sample"].tolist() == list(ens10.index.splits["test"])
    for row, number in enumerate(where["sample"].tolist()):
        y, x = (int(where[f"{dim}_start"][row]) for dim in patch)
        part = np.s_[..., y : y + 30, x : x + 50]
        assert np.array_equal(batch["inputs"][row], ens10[number]["inputs"][part])
        expected = (ens10[number]["t2m"][part] - np.float32(270)) / np.float32(10)
        assert np.array_equal(batch["t2m"][row], expected, equal_nan=True)
    loader.close()
    with pytest.raises(OptionError, match="normalise: only a store keeps statistics"):
        ens10.loader(2, processes=False, normalise=True)
    with pytest.raises(UnknownNameError, match="no such split; splits"):
        ens10.loader(2, processes=False, split="tests")


SPINNING = """
class Spinning:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"x": __import__("numpy").full(2, i + sum(range(20_000)))}
"""


def run_script(folder: Path, options: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has no main guard, as people write them."""
    (folder / "spinning.py").write_text(SPINNING)
    (folder / "train.py").write_text(
        "import iobench\nprint('begun')\n"
        "dataset = iobench.open_dataset('spinning:Spinning', store_dir='stores')\n"
        f"print(sum(1 for batch in dataset.loader(2{options})), 'batches')\n"
    )
    command = [sys.executable, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_script_without_a_main_guard_loads_in_threads(tmp_path: Path) -> None:
    done = run_script(tmp_path, "")
    assert (done.returncode, done.stdout) == (0, "begun\n2 batches\n")
    assert "processes=True asks for them" in done.stderr


@pytest.mark.long
def test_processes_that_are_asked_for_need_a_main_guard(tmp_path: Path) -> None:
    done = run_script(tmp_path, ", processes=True, threads=1")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "own work has to be under if __name__ == '__main__':" in done.stderr


@pytest.mark.parametrize("change", ["grown", "rewritten", "replaced"])
def test_a_file_that_changes_is_never_read_by_its_old_index(tmp_path: Path, change: str) -> None:
    xr = pytest.importorskip("xarray")

    def write(path: Path, value: float, count: int) -> None:
        times = np.arange(count) + np.datetime64("2000-01-01", "ns")
        data = {"v": (("time", "x"), np.full((count, 30), value, "f4"))}
        xr.Dataset(data, {"time": times}).to_netcdf(path, format="NETCDF3_CLASSIC")

    path = tmp_path / "a.nc"
    write(path, 1, 4)
    found = iobench.open_dataset(path, sample_dim="time", store_dir=tmp_path / "kept")
    assert found[0]["v"][0] == 1
    sent = pickle.dumps(found)
    before = path.stat()
    if change == "replaced":
        write(tmp_path / "new.nc", 2, 4)
        (tmp_path / "new.nc").replace(path)
    else:
        write(path, 2, 5 if change == "grown" else 4)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(FileFormatError, match=rf"^{path}.*open .*again$"):
        _ = found[1]
    forget_source_files()  # as a process that is started anew
    with pytest.raises(FileFormatError, match=rf"^{path}.*open .*again$"):
        pickle.loads(sent)[1]
    again = iobench.open_dataset(path, sample_dim="time", store_dir=tmp_path / "kept")
    assert again[len(again) - 1]["v"][0] == 2


def test_a_zarr_store_of_somebody_else_is_opened_as_a_dataset(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="writes the store of somebody else")
    path = tmp_path / "others.zarr"
    zarr.open_group(path, mode="w").create_array("T", data=np.zeros((10, 4)))
    for name in (path, str(path)):
        with pytest.raises(StoreError, match="not a finished store") as caught:
            iobench.open_store(name)
        assert "iobench.open_dataset" in str(caught.value)
