"""Missing values, scales, signs and filters: samples are what xarray and h5py read of the files."""

import base64
import struct

import h5py
import netCDF4
import numpy as np
import pytest

import iobench
from iobench.errors import FileFormatError, OptionError

zarr = pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")

SHAPE, DIMS = (6, 4, 5), ("time", "y", "x")
CONTAINERS = ("zarr2", "zarr3", "netcdf", "classic", "hdf5")


def write_hdf5(path, variables, **storage):
    """Write variables, the first of them stored as told; each is numbers and attributes."""
    with h5py.File(path, "w") as file:
        for dim, length in zip(DIMS, SHAPE, strict=True):
            file[dim] = np.arange(length) * 1.0
            file[dim].make_scale(dim)
        for name, (values, attributes) in variables.items():
            own = file.create_dataset(name, data=values, **storage)
            storage = {}
            own.attrs.update(attributes)
            for axis, dim in enumerate(DIMS):
                own.dims[axis].attach_scale(file[dim])
    return path


def write(path, container, values, attributes):
    """Write a variable `r`, its numbers and attributes as they are, beside a good one `g`."""
    variables = {"r": (values, attributes), "g": (np.zeros_like(values), {})}
    if container == "hdf5":
        write_hdf5(path, variables)
    elif container.startswith("zarr"):
        group = zarr.open_group(path, mode="w", zarr_format=int(container[-1]))
        for name, (numbers, own) in variables.items():
            plain = {key: each.tolist() if isinstance(each, np.generic | np.ndarray) else each
                     for key, each in own.items()}  # fmt: skip
            dims = {"dimension_names": DIMS} if container == "zarr3" else {}
            plain |= {} if dims else {"_ARRAY_DIMENSIONS": list(DIMS)}
            never = {} if container == "zarr3" else {"fill_value": None}
            group.create_array(
                name, shape=SHAPE, chunks=(1, 4, 5), dtype=values.dtype, attributes=plain,
                **dims, **never,
            )[:] = numbers  # fmt: skip
    else:
        kind = "NETCDF4" if container == "netcdf" else "NETCDF3_64BIT_DATA"
        with netCDF4.Dataset(path, "w", format=kind) as file:
            for dim, length in zip(DIMS, SHAPE, strict=True):
                file.createDimension(dim, length)
            for name, (numbers, own) in variables.items():
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


@pytest.mark.parametrize(("dtype", "missing", "attributes", "containers"), EQUAL)
def test_missing_values_are_numbers_of_the_stored_dtype(
    tmp_path, dtype, missing, attributes, containers
):
    values = numbers(dtype, missing)
    is_missing = (values == values.dtype.type(missing)) | (values != values)
    for container in containers:
        write(tmp_path / container, container, values, attributes)
        found = samples(tmp_path / container)
        np.testing.assert_array_equal(found["r"], np.where(is_missing, np.nan, values))
        assert not np.isnan(found["g"]).any()


@pytest.mark.parametrize("container", CONTAINERS)
def test_scales_of_any_type_are_numbers(tmp_path, container):
    values = numbers("i2", -5)
    right = np.where(values == -5, np.nan, values.astype("f8") * 0.01 + 1.0)
    for scale, offset in (("0.01", "1.0"), (["0.01"], np.float64(1)), ([0.01], [1.0])):
        if container in ("netcdf", "classic") and isinstance(scale, list):
            scale = scale[0]
        attributes = {"scale_factor": scale, "add_offset": offset, "missing_value": np.int16(-5)}
        path = tmp_path / f"{len(str(scale))}-{type(offset).__name__}"
        write(path, container, values, attributes)
        np.testing.assert_array_equal(samples(path)["r"], right)


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


def test_a_filter_that_nothing_undoes_is_named(tmp_path):
    name = write_hdf5(tmp_path / "f.nc", {"v": (np.ones(SHAPE, "f4"), {})})
    with h5py.File(name, "r+") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(SHAPE)
        plist.set_filter(32013, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple(SHAPE)
        made = h5py.h5d.create(file.id, b"w", h5py.h5t.NATIVE_FLOAT, space, plist)
        made.write_direct_chunk((0, 0, 0), np.ones(SHAPE, "f4").tobytes())
        for axis, dim in enumerate(DIMS):
            file["w"].dims[axis].attach_scale(file[dim])
    with pytest.raises(FileFormatError, match=r"'w' .*HDF5 filter 32013.*variables=") as no:
        samples(name)
    assert "fetch" not in str(no.value)
    assert set(samples(name, variables=("v",))) == {"v"}  # what is said helps
