"""A box of a variable is what slicing the whole variable gives, and reads no more than it must."""

from __future__ import annotations

import netCDF4
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.boxes import box_ranges, tile_starts
from iobench.chunks.chunk_reading import read_box
from iobench.chunks.netcdf.file import box_through_library, inspect_netcdf, make_box
from iobench.errors import FileFormatError

SHAPE = (3, 5, 70, 8)
LAYOUTS = {
    "contiguous": {"contiguous": True},
    "chunked": {"chunksizes": (1, 2, 32, 8)},
    "compressed": {"chunksizes": (2, 2, 32, 3), "zlib": True},
    "packed": {"contiguous": True},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("boxes") / "file.nc"
    values = np.random.default_rng(0).normal(5, 3, SHAPE).astype("f4")
    with netCDF4.Dataset(path, "w") as new:
        for name, length in zip("tyxp", SHAPE, strict=True):
            new.createDimension(name, length)
        for name, layout in LAYOUTS.items():
            dtype = "i2" if name == "packed" else "f4"
            variable = new.createVariable(name, dtype, tuple("tyxp"), **layout)
            if name == "packed":
                variable.scale_factor = np.float32(0.01)
            variable[:] = values
        new.createVariable("scalar", "f8", ())[...] = 3.5
        new.set_fill_on()
        new.createVariable("other", "f4", tuple("tyxp"), compression="szip")[:] = values
    return inspect_netcdf(path)


@pytest.fixture(scope="module")
def whole(file):
    """All variables as the NetCDF library decodes them."""
    with netCDF4.Dataset(file.path) as opened:
        opened.set_auto_mask(False)
        return {name: opened[name][...] for name in file.variables}


def test_a_whole_index_is_one_stretch(file):
    (extent,) = box_ranges(make_box(file, "contiguous", (1, 0, 0, 0), (2, *SHAPE[1:])))
    assert extent[2] == 5 * 70 * 8 * 4


def test_short_rows_are_read_with_what_lies_between(file):
    box = make_box(file, "contiguous", (0, 1, 10, 0), (3, 4, 20, 8))
    extents = box_ranges(box)
    assert [length for _, _, length in extents] == [2 * 70 * 32 + 10 * 32] * 3


def test_long_rows_are_read_alone(tmp_path):
    path = tmp_path / "wide.nc"
    with netCDF4.Dataset(path, "w") as new:
        for name, length in (("y", 4), ("x", 3000)):
            new.createDimension(name, length)
        new.createVariable("v", "f4", ("y", "x"), contiguous=True)[:] = np.arange(12000).reshape(
            4, 3000
        )
    box = make_box(inspect_netcdf(path), "v", (1, 500), (3, 1600))
    assert [length for _, _, length in box_ranges(box)] == [4400, 4400]
    np.testing.assert_array_equal(read_box(box)[:, 0], [3500, 6500])


def test_only_touched_chunks_are_read(file):
    box = make_box(file, "chunked", (1, 2, 32, 0), (2, 4, 64, 8))
    assert [length for _, _, length in box_ranges(box)] == [2 * 32 * 8 * 4]


def test_other_storage_is_read_through_the_library(file, whole):
    with pytest.raises(FileFormatError, match="'other' has no known chunks"):
        make_box(file, "other", (0, 0, 0, 0), (1, 1, 1, 1))
    found = box_through_library(file, "other", (1, 2, 3, 0), (3, 4, 9, 8))
    np.testing.assert_array_equal(found, whole["other"][1:3, 2:4, 3:9])


@given(st.integers(1, 200), st.integers(1, 200))
def test_tiles_cover_a_dimension(length: int, size: int) -> None:
    if size > length:
        return
    starts = tile_starts(length, size)
    covered = np.concatenate([np.arange(start, start + size) for start in starts])
    assert set(covered) == set(range(length))
    assert starts == sorted(set(starts))
    assert len(starts) == -(-length // size)
