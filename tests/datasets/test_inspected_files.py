"""What is kept about NetCDF files is what inspecting them gives, and holds for no changed file."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.netcdf import inspected as inspecting
from iobench.datasets.netcdf.file import inspect_netcdf
from iobench.datasets.netcdf.inspected import inspect_files
from iobench.datasets.standins import ensure_stand_in
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.radiation.dataset import radiation
from iobench_maelstrom.radiation.schema import SUBSETS, files_of
from iobench_maelstrom.radiation.stand_in import PairPlan, planned_pairs


def plain(value: Any) -> Any:
    """Return everything an inspected file holds, with the types of numbers, to be compared."""
    if is_dataclass(value):
        return type(value), {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    return type(value), value


def write(
    path: Path, *, n: int = 3, kind: str = "NETCDF4", dtype: str = "f4", **storage: Any
) -> Path:
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("column", n)
        file.createDimension("level", 5)
        variable = file.createVariable("q", dtype, ("column", "level"), **storage)
        variable.units = "kg kg-1"
        variable[...] = np.arange(5 * n).reshape(n, 5)
        file.createVariable("never_written", "i2", ("column",), fill_value=-7)
        file.createVariable("scalar", "f8", ())[...] = 2.5
        packed = file.createVariable("packed", "i2", ("level",), fill_value=-32768)
        packed.scale_factor, packed.add_offset = np.float32(0.01), np.float64(273.15)
        packed[...] = 280.0
        if kind == "NETCDF4":
            file.createVariable("words", str, ("level",))
            file.createGroup("inside")
    return path


def inspected(*files: Path, cache: Path | None = None) -> list[Any]:
    return inspect_files(files, cache_dir=cache or files[0].parent / "cache", progress=print)


@pytest.fixture
def uninspected(monkeypatch):
    """From when it is called on no file can be inspected: a function."""

    def refuse(path):
        raise AssertionError(f"{path} was inspected again")

    return lambda: monkeypatch.setattr(inspecting, "inspect_netcdf", refuse)


@pytest.mark.parametrize(
    "storage",
    [
        {},
        {"contiguous": True},
        {"chunksizes": (2, 5)},
        {"chunksizes": (2, 2), "zlib": True, "shuffle": True, "fletcher32": True},
        {"compression": "zstd"},
        {"kind": "NETCDF3_CLASSIC"},
        {"dtype": ">f4", "endian": "big"},
    ],
    ids=["default", "contiguous", "chunked", "deflated", "zstd", "classic", "big-endian"],
)
def test_what_is_kept_is_what_was_found(tmp_path, uninspected, storage):
    file = write(tmp_path / "a.nc", **storage)
    expected = plain(inspect_netcdf(file))
    assert [plain(each) for each in inspected(file)] == [expected]
    uninspected()
    assert [plain(each) for each in inspected(file)] == [expected]


def test_one_sidecar_serves_a_folder_and_grows(tmp_path, uninspected):
    one, two = (write(tmp_path / name, n=n) for name, n in (("1.nc", 3), ("2.nc", 4)))
    (tmp_path / "elsewhere").mkdir()
    three = write(tmp_path / "elsewhere" / "1.nc", n=5)
    cache = tmp_path / "cache"
    inspected(one, cache=cache)
    inspected(three, two, cache=cache)
    uninspected()
    found = inspected(two, one, three, cache=cache)
    assert [(file.path, file.dims["column"]) for file in found] == [(two, 4), (one, 3), (three, 5)]
    sidecars = list(tmp_path.rglob("*.npz"))
    assert len(sidecars) == 2


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_changed_is_inspected_again(tmp_path, same_size):
    file = write(tmp_path / "a.nc", n=3)
    inspected(file)
    before = file.stat()
    write(file, n=4, contiguous=True)
    if same_size:
        with file.open("ab") as stream:
            stream.truncate(max(before.st_size, file.stat().st_size))
        os.utime(file, ns=(0, before.st_mtime_ns + 1))
    else:
        assert file.stat().st_size != before.st_size
        os.utime(file, ns=(0, before.st_mtime_ns))
    [found] = inspected(file)
    assert found.dims["column"] == 4
    assert plain(found) == plain(inspect_netcdf(file))


def test_the_samples_of_a_pair_that_grew_are_all_there(tmp_path):
    locator = FileLocator(data_dir=tmp_path, cache_dir=tmp_path / "cache")

    def put(n_columns):
        plan = PairPlan(0, files_of(("20200101",), (0,), (2,)), n_columns)
        for planned in planned_pairs(plan):
            planned.write(tmp_path / Path(planned.name).name, lambda _: None)

    dataset = radiation(patch="2")
    for n_columns in (5, 9):
        put(n_columns)
        index = dataset.samples(dataset.files(locator), locator)
        assert len(index) == n_columns
        sample = make_sample(dataset, index.where[n_columns - 1])
        assert np.isfinite(sample["col_inputs"]).all()


def test_a_file_that_is_gone_is_missed(tmp_path):
    file = write(tmp_path / "a.nc")
    inspected(file)
    file.unlink()
    with pytest.raises(MissingFileError, match=r"a\.nc: no such file"):
        inspected(file)


def test_a_folder_that_takes_no_sidecar_is_served_by_the_cache(tmp_path, uninspected):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / ".iobench").write_text("in the way")
    file = write(folder / "a.nc")
    expected = plain(inspected(file, cache=tmp_path / "cache")[0])
    uninspected()
    assert plain(inspected(file, cache=tmp_path / "cache")[0]) == expected
    assert list((tmp_path / "cache").rglob("*.npz"))


def test_a_damaged_sidecar_is_made_again(tmp_path, uninspected):
    file = write(tmp_path / "a.nc")
    inspected(file)
    [sidecar] = tmp_path.rglob("*.npz")
    sidecar.write_bytes(sidecar.read_bytes()[:-40])
    inspected(file)
    uninspected()
    inspected(file)


def test_what_cannot_be_kept_exactly_is_not(tmp_path, monkeypatch):
    """Numbers of a kind of their own: the file is inspected each time."""
    file = write(tmp_path / "a.nc")
    found = inspect_netcdf(file)
    packed = found.variables["packed"]
    odd = replace(packed, packing=replace(packed.packing, scale=np.array([1.0, 2.0])))
    calls = []

    def inspect(path):
        calls.append(path)
        return replace(found, variables={**found.variables, "packed": odd})

    monkeypatch.setattr(inspecting, "inspect_netcdf", inspect)
    inspected(file)
    inspected(file)
    assert calls == [file, file]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("radiation-inspecting")
    return ensure_stand_in(radiation(), folder / "stand-in", tiny=True)


def test_processes_find_what_one_finds(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(inspecting, "FEW_FILES", 0)
    monkeypatch.setattr(inspecting, "FILES_PER_JOB", 2)
    files = [Path(shutil.copy(file, tmp_path)) for file in sorted(stand_in.rglob("*.nc"))[:5]]
    told = []
    found = inspect_files(
        files, cache_dir=tmp_path / "cache", progress=lambda done, total: told.append((done, total))
    )
    assert [plain(each) for each in found] == [plain(inspect_netcdf(file)) for file in files]
    assert told == [(done, 5) for done in range(6)]


def test_a_bad_file_is_named_by_a_process_too(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(inspecting, "FEW_FILES", 0)
    monkeypatch.setattr(inspecting, "FILES_PER_JOB", 1)
    files = [Path(shutil.copy(file, tmp_path)) for file in sorted(stand_in.rglob("*.nc"))[:2]]
    files[1].write_bytes(files[1].read_bytes()[:5000])
    with pytest.raises(FileFormatError, match=files[1].name):
        inspected(*files)


def test_all_files_of_a_subset_are_kept_once(stand_in, tmp_path, uninspected):
    """The index of a second start is the first one's, from the sidecar alone."""
    locator = FileLocator(stand_in=stand_in, cache_dir=tmp_path)
    first, second = radiation(), radiation()
    index = first.samples(first.files(locator), locator)
    uninspected()
    again = second.samples(second.files(locator), locator)
    assert len(index) == len(again) == 128 * len(files_of(*SUBSETS["tier-1"]))
    for number in (0, 500, 1023):
        mine, other = (
            make_sample(first, index.where[number]),
            make_sample(second, again.where[number]),
        )
        assert all(np.array_equal(mine[name], other[name]) for name in index.spec.names)
