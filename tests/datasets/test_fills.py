"""Missing values, scales and signs in the samples of files, whatever type their attributes have."""

import base64
import struct

import h5py
import netCDF4
import numpy as np
import pytest
import zarr

import iobench
from iobench.errors import OptionError

SHAPE, DIMS = (6, 4, 5), ("time", "y", "x")
CONTAINERS = ("zarr2", "zarr3", "netcdf", "classic", "hdf5")


def write(path, container, values, attributes):
    """Write a variable `r`, its numbers and attributes as they are, beside a good one `g`."""
    if container.startswith("zarr"):
        group = zarr.open_group(path, mode="w", zarr_format=int(container[-1]))
        for name, numbers, own in (("r", values, attributes), ("g", np.zeros_like(values), {})):
            plain = {key: each.tolist() if isinstance(each, np.generic | np.ndarray) else each
                     for key, each in own.items()}  # fmt: skip
            dims = {"dimension_names": DIMS} if container == "zarr3" else {}
            plain |= {} if dims else {"_ARRAY_DIMENSIONS": list(DIMS)}
            never = {} if container == "zarr3" else {"fill_value": None}
            group.create_array(
                name, shape=SHAPE, chunks=(1, 4, 5), dtype=values.dtype, attributes=plain,
                **dims, **never,
            )[:] = numbers  # fmt: skip
    elif container == "hdf5":
        with h5py.File(path, "w") as file:
            for dim, length in zip(DIMS, SHAPE, strict=True):
                file[dim] = np.arange(length)
                file[dim].make_scale(dim)
            for name, numbers, own in (("r", values, attributes), ("g", np.zeros_like(values), {})):
                file[name] = numbers
                file[name].attrs.update(own)
                for axis, dim in enumerate(DIMS):
                    file[name].dims[axis].attach_scale(file[dim])
    else:
        kind = "NETCDF4" if container == "netcdf" else "NETCDF3_64BIT_DATA"
        with netCDF4.Dataset(path, "w", format=kind) as file:
            for dim, length in zip(DIMS, SHAPE, strict=True):
                file.createDimension(dim, length)
            for name, numbers, own in (("r", values, attributes), ("g", np.zeros_like(values), {})):
                fill = own.get("_FillValue") if not isinstance(own.get("_FillValue"), str) else None
                variable = file.createVariable(name, values.dtype, DIMS, fill_value=fill)
                variable.set_auto_maskandscale(False)
                variable.setncatts({key: own[key] for key in own if key != "_FillValue"})
                variable[:] = numbers


def numbers(dtype, missing):
    values = np.arange(120).reshape(SHAPE).astype(dtype)
    values[0, 0, 0] = values[3] = missing
    return values


def samples(path, **options):
    found = iobench.open_dataset(str(path), sample_dim="time", **options)
    batches = [{name: np.array(each) for name, each in batch.items()}
               for batch in found.loader(batch_size=2)]  # fmt: skip
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


FILL64 = base64.b64encode(struct.pack("<d", -999.9)).decode()
EQUAL = [
    ("f4", -999.9, {"_FillValue": -999.9}, ("zarr2", "zarr3")),
    ("f4", -999.9, {"missing_value": -999.9}, CONTAINERS),
    ("f4", 1e20, {"missing_value": [1e20]}, CONTAINERS),
    (">f4", -999.9, {"missing_value": -999.9}, ("zarr2", "hdf5")),
    ("f4", -999.9, {"_FillValue": "-999.9"}, ("zarr2", "zarr3", "hdf5")),
    ("f4", -999.9, {"_FillValue": FILL64}, ("zarr3",)),
    ("f4", np.nan, {"_FillValue": "NaN"}, ("zarr2", "zarr3", "hdf5")),
    ("f8", -9999, {"_FillValue": -9999, "missing_value": "none"}, ("zarr2", "zarr3", "hdf5")),
    ("f2", -999.9, {"missing_value": -999.9}, ("zarr2", "zarr3", "hdf5")),
    ("i2", -32768, {"_FillValue": np.int16(-32768)}, CONTAINERS),
    ("i2", -9999, {"missing_value": -9999.0}, CONTAINERS),
    ("i2", -9999, {"missing_value": "-9999"}, CONTAINERS),
    ("u1", 255, {"missing_value": 255, "_Unsigned": "True"}, CONTAINERS),
    ("u1", 200, {"missing_value": 200, "_Unsigned": "true"}, CONTAINERS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("container", "dtype", "missing", "attributes"),
    [(container, *row[:3]) for row in EQUAL for container in row[3]],
)
def test_missing_values_are_numbers_of_the_stored_dtype(
    tmp_path, container, dtype, missing, attributes
):
    values = numbers(dtype, missing)
    write(tmp_path / "f.nc", container, values, attributes)
    found = samples(tmp_path / "f.nc")
    is_missing = (values == values.dtype.type(missing)) | (values != values)
    np.testing.assert_array_equal(found["r"], np.where(is_missing, np.nan, values))
    assert not np.isnan(found["g"]).any()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    ("scale", "offset"), [("0.01", "1.0"), (["0.01"], np.float64(1)), ([0.01], [1.0])]
)
def test_scales_of_any_type_are_numbers(tmp_path, container, scale, offset):
    if container in ("netcdf", "classic") and isinstance(scale[0], str):
        scale = scale if isinstance(scale, str) else scale[0]
    values = numbers("i2", -5)
    attributes = {"scale_factor": scale, "add_offset": offset, "missing_value": np.int16(-5)}
    write(tmp_path / "f.nc", container, values, attributes)
    right = np.where(values == -5, np.nan, values.astype("f8") * 0.01 + 1.0)
    np.testing.assert_array_equal(samples(tmp_path / "f.nc")["r"], right)


@pytest.mark.parametrize(
    ("stored", "sign", "read"), [("i1", "true", "u1"), ("u1", "false", "i1"), ("i1", "1", "i1")]
)
@pytest.mark.parametrize("container", CONTAINERS)
def test_unsigned_changes_a_sign_as_in_xarray(tmp_path, container, stored, sign, read):
    values = (np.arange(120) + 130).astype("u1").view(stored).reshape(SHAPE)
    fill = values[2, 2, 2]
    write(tmp_path / "f.nc", container, values, {"_Unsigned": sign, "missing_value": fill})
    right = np.where(values == fill, np.nan, values.view(read))
    np.testing.assert_array_equal(samples(tmp_path / "f.nc")["r"], right)


def test_a_fill_value_of_zarr_2_in_its_attributes_alone_unpacks_to_none(tmp_path):
    values = numbers("i2", -32768)
    write(tmp_path / "s.zarr", "zarr2", values,
          {"_FillValue": -32768, "scale_factor": 0.01, "add_offset": 273.15})  # fmt: skip
    right = np.where(values == -32768, np.nan, values * 0.01 + 273.15)
    np.testing.assert_array_equal(samples(tmp_path / "s.zarr")["r"], right)


@pytest.mark.parametrize(
    ("container", "attribute"),
    [(each, name) for each in CONTAINERS for name in ("scale_factor", "add_offset")]
    + [("zarr2", "_FillValue"), ("zarr3", "_FillValue"), ("hdf5", "_FillValue")],
)
def test_an_attribute_that_is_no_number_leaves_out_its_variable_alone(
    tmp_path, container, attribute
):
    write(tmp_path / "f.nc", container, numbers("i2", 0), {attribute: "x"})
    assert list(samples(tmp_path / "f.nc")) == ["g"]
    with pytest.raises(OptionError, match=rf"no variable r \({attribute} 'x', expected a number"):
        samples(tmp_path / "f.nc", variables=("r",))
    assert set(samples(tmp_path / "f.nc", variables=("g",))) == {"g"}  # what is said helps
