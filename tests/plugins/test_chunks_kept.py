"""Where files of a plugin are in chunks that samples share, each is decoded once for all of them.

The stand-ins, as published files, are contiguous: they are written anew in chunks here.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iobench.chunks import boxes
from iobench.chunks.decoded_chunks import forget_decoded, take_decode_counts
from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator, ensure_stand_in
from iobench.loaders.pipeline import dataset_pipeline
from iobench_maelstrom.downscaling.dataset import DownscalingTier1
from iobench_maelstrom.power.weather import weather_pressure_level
from iobench_maelstrom.radiation.dataset import Radiation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

netCDF4 = pytest.importorskip("netCDF4", reason="writes the files")

CASES: dict[str, Callable[[], Any]] = {
    "downscaling": DownscalingTier1,
    "radiation": lambda: Radiation(date="20200101", timestep="0", patch="0"),
    "surface": functools.partial(weather_pressure_level, levels="surface"),
}
"""One of each reader."""
LONG = ("time", "leadtime", "column")
"""Along these three samples share a chunk."""
N_SAMPLES = 12


@pytest.fixture(autouse=True)
def _counts_of_this_test() -> Iterator[None]:
    take_decode_counts()
    yield
    take_decode_counts()


def in_chunks(path: Path) -> None:
    """Write a NetCDF file anew, its numbers in chunks."""
    content = path.read_bytes()
    with netCDF4.Dataset("old", memory=content) as old, netCDF4.Dataset(path, "w") as new:
        old.set_auto_maskandscale(False)
        for name, dimension in old.dimensions.items():
            new.createDimension(name, len(dimension))
        new.setncatts({name: old.getncattr(name) for name in old.ncattrs()})
        for name, each in old.variables.items():
            attributes = {key: each.getncattr(key) for key in each.ncattrs()}
            fill = attributes.pop("_FillValue", None)
            pairs = zip(each.dimensions, each.shape, strict=True)
            chunk = [min(3, n) if dim in LONG else math.ceil(n / 2) for dim, n in pairs]
            coding = {"chunksizes": chunk} if chunk and each.dtype is not str else {}
            made = new.createVariable(name, each.dtype, each.dimensions, fill_value=fill, **coding)
            made.setncatts(attributes)
            made.set_auto_maskandscale(False)
            made[...] = each[...]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", CASES)
def test_each_chunk_of_a_plugins_file_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dataset = CASES[name]()
    root = ensure_stand_in(dataset, tmp_path / "stand-in", tiny=True)
    locator = FileLocator(stand_in=root, cache_dir=tmp_path / "cache")
    files = dataset.files(locator)
    index = dataset.samples(files, locator)
    assert dataset_pipeline(dataset, index).chunk_cache is None  # nobody need say the order
    numbers = range(min(N_SAMPLES, len(index)))
    expected = [make_sample(dataset, index.where[number]) for number in numbers]
    assert take_decode_counts() is None
    for file in files:
        in_chunks(file)
    decodes: list[tuple[Any, ...]] = []
    decode = boxes.decode_chunk

    def counting(file: Any, variable: Any, place: Any, *more: Any) -> Any:
        decodes.append((file, variable.name, place))
        return decode(file, variable, place, *more)

    monkeypatch.setattr(boxes, "decode_chunk", counting)
    dataset = CASES[name]()
    index = dataset.samples(files, FileLocator(stand_in=root, cache_dir=tmp_path / "other"))
    forget_decoded()  # what statistics were made of
    pipeline = dataset_pipeline(dataset, index)
    assert dataset.shared_chunks["sample_dim"] in LONG
    pipeline.expect(numbers, follows=False)
    take_decode_counts()
    decodes.clear()
    for _ in range(2):
        for number, sample in zip(numbers, expected, strict=True):
            found = make_sample(dataset, index.where[number])
            for variable, values in sample.items():
                np.testing.assert_array_equal(found[variable], values)
    counts = take_decode_counts()
    assert counts is not None
    assert len(decodes) == len(set(decodes)) == counts.n_decoded > 0
