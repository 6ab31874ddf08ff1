"""A recipe's samples are what xarray gives of the same files, however those store them."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

from iobench.datasets import (
    Axis,
    ChannelGroup,
    Hyperslab,
    Key,
    Option,
    Recipe,
    RecipeVariable,
    Split,
    ensure_stand_in,
    make_sample,
)
from iobench.datasets.locate import FileLocator
from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import FileFormatError, IobenchError, MissingFileError, OptionError
from iobench.samples import SampleSpec, Variable

xarray = pytest.importorskip("xarray", reason="files are written and compared with xarray")
height = functools.partial(RecipeVariable, "height")
STORED = {
    "contiguous": {"contiguous": True},
    "chunked": {"chunksizes": (2, 4, 3), "zlib": True, "shuffle": True},
    "packed": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32767},
}


class Sea(Recipe):
    """Days of two variables; files of 5 days."""

    name = "sea"
    title = "a sea"
    url = "https://sea.example.org/{area}/{start}.nc"
    keys = (Key("area", ("north", "south")), Key("start", ("2020-01-01", "2020-01-06")))
    axes = (Axis("time"), Axis("y", 6), Axis("x", 9))
    fields = (height(units="m"), RecipeVariable("depth", "m", is_static=True, role="target"))
    splits = (Split("train", ("2020-01-01", "2020-01-02")), Split("test", ("2020-01",)))
    options = (Option("corner", "Upper left corner.", "0", ("0", "2")),)
    step_hours = 24
    n_steps = 5
    tiny = ("north",)


class Corner(Sea):
    """A part of each field, and the depth of the first file."""

    def hyperslabs(self, where: Any) -> list[Hyperslab]:
        """Return a corner."""
        first = int(self.chosen["corner"])
        part: dict[str, int | slice] = {"y": slice(first, first + 3), "x": 4}
        return [
            Hyperslab("height", {"time": where[1], **part}),
            Hyperslab("depth", part, file=0, of_all=True),
        ]

    def spec(self) -> SampleSpec:
        """Return a row of three."""
        return SampleSpec(
            tuple(Variable(each.name, (3,), "<f4", ("y",), "m") for each in self.fields)
        )


def write(path, start, stored, **change):
    random = np.random.default_rng(len(path.name))
    data = xarray.Dataset(
        {
            "height": (("time", "y", "x"), random.random((5, 6, 9)).astype("f4")),
            "depth": (("y", "x"), random.random((6, 9)).astype("f4")),
        },
        {"time": np.datetime64(start, "ns") + np.arange(5) * np.timedelta64(1, "D")},
    ).assign(**change)
    data.to_netcdf(path, encoding={"height": stored})
    return xarray.open_dataset(path).load()


def opened(dataset, folder):
    locator = FileLocator(data_dir=folder, cache_dir=folder)
    return dataset.samples(dataset.files(locator), locator)


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
@pytest.mark.parametrize("kind", [Sea, Corner])
def test_samples_are_xarrays(tmp_path, kind, stored):
    expected = [write(tmp_path / f"{day}.nc", day, stored) for day in ("2020-01-01", "2020-01-06")]
    dataset = kind(area="north", **({"corner": "2"} if kind is Corner else {}))
    index = opened(dataset, tmp_path)
    assert (len(index), index.coordinate[7]) == (10, "2020-01-08T00")
    assert index.position_units == "seconds"
    assert index.splits == {"train": [0, 1], "test": list(range(10))}
    copy = pickle.loads(pickle.dumps(dataset))
    for number, (file, day) in enumerate(index.where):
        height, depth = expected[file].height[day], expected[file].depth
        if kind is Corner:
            height, depth = height[2:5, 4], expected[0].depth[2:5, 4]
        sample = make_sample(copy, index.where[number])
        np.testing.assert_array_equal(sample["height"], height.values.astype("f4"))
        np.testing.assert_array_equal(sample["depth"], depth.values)
    assert bool(dataset.chunks_of(index.where[0])) == (kind is Sea)
    assert bool(dataset.shared_chunks) == ("chunksizes" in stored)
    produced = samples_in_order(dataset, index, range(len(index)))
    for at, sample in zip(index.where, produced, strict=True):
        for name, values in make_sample(dataset, at).items():
            np.testing.assert_array_equal(sample[name], values)


def test_its_own_stand_in_is_of_its_schema(tmp_path):
    dataset = Sea()
    files = sorted(ensure_stand_in(dataset, tmp_path / "one", tiny=True, seed=1).rglob("*.nc"))
    assert [file.parent.name for file in files] == ["north", "north"]
    index = dataset.samples(files, FileLocator(data_dir=tmp_path, cache_dir=tmp_path))
    sample = make_sample(dataset, index.where[9])
    index.spec.check(sample, where="the last")
    assert 0 <= sample["height"].min() < sample["height"].max() <= 1
    again = sorted(ensure_stand_in(Sea(), tmp_path / "again", tiny=True, seed=1).rglob("*.nc"))
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_forecasts_of_the_same_lead_times_are_rows_of_their_own(tmp_path):
    for day in ("2020-01-01", "2020-01-06"):
        write(tmp_path / f"{day}.nc", "2020-01-01", {})
    with pytest.raises(FileFormatError, match=r"06\.nc: holds 2020-01-01T00, which is in .*01"):
        opened(Sea(area="north"), tmp_path)

    class Forecasts(Sea):
        """Every file begins on the same day."""

        is_distinct = False

    index = opened(Forecasts(area="north"), tmp_path)
    assert list(index.rows) == [0] * 5 + [1] * 5
    assert index.positions[5] == index.positions[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": (("y", "x"), np.zeros((6, 9), "f4"))}, r"'height' is float32 \(y, x\), expec"),
        ({"depth": (("y", "x"), np.zeros((6, 9), "i4"))}, r"'depth' is int32 \(y, x\), expected f"),
    ],
)
def test_another_schema_is_named(tmp_path, change, message):
    write(tmp_path / "2020-01-01.nc", "2020-01-01", {}, **change)
    with pytest.raises(FileFormatError, match=message):
        opened(Sea(area="north", start="2020-01-01"), tmp_path)


@pytest.mark.parametrize("kind", [Sea, Corner])
@pytest.mark.parametrize(
    ("places", "message"),
    [
        (range(5, -1, -1), r"2020-01-06.nc: coordinate 'y' has other values: 5 ... 0"),
        ([0, 1, 2, 3, 4, 6], r"2020-01-06.nc: coordinate 'y' has other values: 0 ... 6"),
    ],
)
def test_other_coordinates_are_refused(tmp_path, kind, places, message):
    for day, own in (("2020-01-01", range(6)), ("2020-01-06", places)):
        made = write(tmp_path / f"{day}.nc", day, {}, y=("y", np.array(own, dtype="f8")))
    with pytest.raises(FileFormatError, match=message):
        opened(kind(area="north"), tmp_path)
    made.close()
    made.isel(y=slice(None, None, -1)).to_netcdf(tmp_path / "2020-01-06.nc")
    if places[0]:
        assert len(opened(kind(area="north"), tmp_path)) == 10


def test_what_was_chosen_is_required_and_else_what_is_there_taken(tmp_path):
    write(tmp_path / "2020-01-06.nc", "2020-01-06", {})
    assert (
        len(Sea().files(FileLocator(data_dir=tmp_path, cache_dir=tmp_path))) == 2
    )  # of both areas, which are one here
    with pytest.raises(MissingFileError, match=r"sea: https://sea\.example\.org/south/2020-01-01"):
        Sea(area="south").files(FileLocator(data_dir=tmp_path, cache_dir=tmp_path))
    with pytest.raises(OptionError, match="area 'west': expected one of north, south, several"):
        Sea(area="west")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"channel_groups": (ChannelGroup("inputs", ("hight",)),)},
            "group 'inputs' has 'hight', which is no field",
        ),
        ({"fields": (height(dims=("time", "z")),)}, "'height' has dimension 'z', which"),
        ({"url": "https://sea.example.org/{month}.nc"}, "the URL has {month}, which is none of th"),
        ({"fields": (height(dtype="float33"),)}, "field 'height' has dtype 'float33', e"),
        ({"fields": (height(dtype="M8[h]"),)}, "has dtype 'M8.h.', expected a number's"),
        ({"fields": (height(), height())}, "field 'height' is there 2 times"),
    ],
)
def test_a_wrong_recipe_is_refused_where_its_class_is_made(data, message):
    with pytest.raises(IobenchError, match=f"^sea: .*{message}.*; correct class Other$"):
        type("Other", (Sea,), data)
