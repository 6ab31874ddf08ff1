"""What is one variable of GRIB files and what is two: parameters, periods, layers, products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import FileFormatError

eccodes = pytest.importorskip("eccodes", reason="writes the messages")

GRID = {
    "Ni": 5, "Nj": 4,
    "latitudeOfFirstGridPointInDegrees": 50, "latitudeOfLastGridPointInDegrees": 47,
    "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 4,
    "iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1, "bitsPerValue": 16,
}  # fmt: skip


def message(value: float, day: int = 0, edition: int = 2, **keys: Any) -> bytes:
    """Return a message all of whose values are one number."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_sfc_grib{edition}")
    for key, each in (GRID | {"dataDate": 20200101 + day, "dataTime": 0} | keys).items():
        eccodes.codes_set(handle, key, each)
    eccodes.codes_set_values(handle, np.full(20, float(value)))
    content = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return bytes(content)


def surface(kind: int, *ends: int) -> dict[str, int]:
    """Return the keys of a level, or of a layer by top and bottom, in units of the kind / 100."""
    keys = {}
    for which, end in zip(("First", "Second"), ends, strict=False):
        keys |= {
            f"typeOf{which}FixedSurface": kind,
            f"scaleFactorOf{which}FixedSurface": 2,
            f"scaledValueOf{which}FixedSurface": end,
        }
    return keys


def parameter(discipline: int, category: int, number: int) -> dict[str, int]:
    return {"discipline": discipline, "parameterCategory": category, "parameterNumber": number}


def accumulated(span: str, kind: str = "accum", name: str = "tp") -> dict[str, Any]:
    template = {"productDefinitionTemplateNumber": 8}
    return template | {"shortName": name, "stepType": kind, "stepRange": span}


HUMIDITY, SOIL = parameter(0, 1, 1), parameter(2, 0, 2)
INSTANT = {"shortName": "prate", "step": 6}
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, list[float]]]] = {
    "parameters without a name": (
        [parameter(0, 16, 195) | surface(103, 1000), parameter(0, 17, 192) | surface(103, 4000)],
        {"param_0_16_195": [0], "param_0_17_192": [1]},
    ),
    "parameters without a name on one level": (
        [parameter(0, 16, 195) | surface(103, 1000), parameter(0, 16, 196) | surface(103, 1000)],
        {"param_0_16_195": [0], "param_0_16_196": [1]},
    ),
    "parameters without a name, edition 1": (
        [
            {"edition": 1, "table2Version": 250, "indicatorOfParameter": 201},
            {"edition": 1, "table2Version": 250, "indicatorOfParameter": 202},
        ],
        {"param_250_201": [0], "param_250_202": [1]},
    ),
    "instantaneous and averaged": (
        [INSTANT, accumulated("0-6", "avg", "prate")],
        {"prate_instant": [0], "prate_avg": [1]},
    ),
    "average and total": (
        [accumulated("0-6", kind, "prate") for kind in ("avg", "accum")],
        {"prate_avg": [0], "prate_accum": [1]},
    ),
    "since the start and of an hour": (
        [accumulated("0-6"), accumulated("5-6")],
        {"tp_since_start": [0], "tp_1h": [1]},
    ),
    "each step since the start and of an hour": (
        [accumulated("0-1"), accumulated("0-2"), accumulated("1-2"), accumulated("0-3"),
         accumulated("2-3")],
        {"tp_since_start": [0, 1, 3], "tp_1h": [0, 2, 4]},
    ),
    "periods that begin anew": (
        [accumulated(span) for span in ("0-3", "0-6", "6-9", "6-12")], {"tp": [0, 1, 2, 3]}
    ),
    "layers with one top": (
        [HUMIDITY | surface(104, *each) for each in ((33, 100), (44, 72), (44, 100), (72, 94))],
        {"r": [0, 1, 2, 3]},
    ),
    "layers of soil": (
        [SOIL | surface(106, 0, bottom) for bottom in (10, 100)], {"st": [0, 1]}
    ),
    "layers of edition 1": (
        [
            {"edition": 1, "indicatorOfTypeOfLevel": 112, "topLevel": 0, "bottomLevel": bottom}
            for bottom in (7, 28)
        ],
        {"2t": [0, 1]},
    ),
    "mean and spread of an ensemble": (
        [{"productDefinitionTemplateNumber": 2, "derivedForecast": each} for each in (0, 2)],
        {"t_derivedForecast0": [0], "t_derivedForecast2": [1]},
    ),
    "percentiles": (
        [{"productDefinitionTemplateNumber": 6, "percentileValue": each} for each in (10, 90)],
        {"t_percentileValue10": [0], "t_percentileValue90": [1]},
    ),
    "a satellite's product beside a level's": (
        [{"productDefinitionTemplateNumber": 32}, {}], {"t_unknown": [0], "t_surface": [1]}
    ),
    "spectra of waves": ([{"productDefinitionTemplateNumber": 99}], {"t": [0]}),
    "radar": ([{"productDefinitionTemplateNumber": 20}], {"t": [0]}),
    "levels": (
        [{"shortName": "t"} | surface(100, level * 10000) for level in (850, 500)], {"t": [0, 1]}
    ),
}  # fmt: skip
"""What each of two days has, and the messages of each variable, by the order of its last axis."""


@pytest.fixture
def written(tmp_path):
    """Write messages to a file; return its name."""

    def write(*messages):
        (tmp_path / "a.grib").write_bytes(b"".join(messages))
        return str(tmp_path / "a.grib")

    return write


def loaded(path, **options):
    """Return all samples along time, each field as its first value."""
    samples = iobench.open_dataset(path, sample_dim="time", **options)
    (batch,) = samples.loader(batch_size=len(samples))
    return {name: np.array(each)[..., 0, 0] for name, each in batch.items()}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_in_more_than_place_and_time_is_another_variable(written, name):
    of_a_day, expected = CASES[name]
    found = loaded(
        written(
            *(message(100 * d + n, d, **keys) for d in (0, 1) for n, keys in enumerate(of_a_day))
        )
    )
    assert found.keys() == expected.keys()
    for variable, numbers in expected.items():
        each = [np.squeeze(np.array(numbers, dtype="f4")) + 100 * day for day in (0, 1)]
        np.testing.assert_array_equal(np.squeeze(found[variable]), np.stack(each))


def coordinates_of(store):
    coordinates = iobench.open_store(store).index().meteorology.coordinates
    return {each.name: each.values for each in coordinates}


def test_layers_keep_their_tops_and_bottoms(written, tmp_path):
    layers = [surface(104, *each) for each in ((33, 100), (44, 72), (44, 100))]
    path = written(*(message(day, day, **HUMIDITY, **each) for day in (0, 1) for each in layers))
    out = str(tmp_path / "out")
    assert main(["convert", path, out, "--to", "zarr", "--sample-dim", "time"]) == 0
    data = coordinates_of(out)
    np.testing.assert_allclose(data["sigmaLayer_top"], [0.33, 0.44, 0.44])
    np.testing.assert_allclose(data["sigmaLayer_bottom"], [1, 0.72, 1])


def test_messages_that_cannot_be_told_apart_or_became_text_are_refused(written):
    path = written(message(1, dataType="an"), message(2, shortName="2d"), message(3))
    with pytest.raises(FileFormatError, match="dataType"):
        iobench.open_dataset(path, sample_dim="time")
    assert loaded(path, variables=["2d"])["2d"].tolist() == [2]
    path = written(message(0), b"x\n" * (len(message(1)) // 2 + 100), message(2, 2))
    with pytest.raises(FileFormatError, match="belong to no message"):
        iobench.open_dataset(path, sample_dim="time")


def test_a_message_that_eccodes_cannot_describe_is_left_out_with_a_reason(
    written, tmp_path, capsys
):
    strange = bytearray(message(9, shortName="2d"))
    at = strange.index(b"\0\0\0\x22\4")  # section 4 of 34 bytes
    strange[at + 7 : at + 9] = (65000).to_bytes(2, "big")
    path, out = written(message(0), bytes(strange), message(1, 1)), str(tmp_path / "out")
    assert loaded(path)["t"].ravel().tolist() == [0, 1]
    assert main(["convert", path, out, "--to", "zarr", "--sample-dim", "time"]) == 0
    assert "1 GRIB messages are left out" in " ".join(capsys.readouterr().err.split())


def test_fields_of_two_grids_are_not_given_the_places_of_one(written, tmp_path, capsys):
    south = {"latitudeOfFirstGridPointInDegrees": 40, "latitudeOfLastGridPointInDegrees": 37}
    messages = [message(day, day, **more) for day in (0, 1) for more in ({}, HUMIDITY | south)]
    path, out = written(*messages), str(tmp_path / "out")
    assert main(["convert", path, out, "--to", "zarr", "--sample-dim", "time"]) == 0
    assert "is on another grid than" in " ".join(capsys.readouterr().err.split())
    assert iobench.open_store(out).spec["t"].shape[0] == 4
    assert {"latitude", "longitude"}.isdisjoint(coordinates_of(out))


def test_variables_on_other_levels_have_a_dimension_of_their_own(written, tmp_path):
    levels = {"t": (850, 500), "z": (850, 300), "q": (850, 500), "r": (850,)}
    of_a_day = [
        surface(100, level * 10000) | {"shortName": name}
        for name, some in levels.items()
        for level in some
    ]
    path = written(*(message(n, day, **keys) for day in (0, 1) for n, keys in enumerate(of_a_day)))
    dims = [each.dims[:-2] for each in iobench.open_dataset(path, sample_dim="time").spec]
    assert dims == [("isobaricInhPa",), ("isobaricInhPa_2",), ("isobaricInhPa",), ()]
    out = str(tmp_path / "out")
    assert main(["convert", path, out, "--to", "zarr", "--sample-dim", "time"]) == 0
    stored = iobench.open_store(out).to_xarray()
    found = {name: stored[name].isel(time=0, latitude=0, longitude=0) for name in levels}
    assert float(found["t"].sel(isobaricInhPa=500)) == 1
    assert float(found["z"].sel(isobaricInhPa_2=300)) == 3
    assert stored["isobaricInhPa_2"].attrs["units"] == "hPa"
