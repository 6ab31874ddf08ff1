import os
import pickle

import eccodes
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.datasets import decode_message, index_grib, read_messages, sidecars
from iobench.datasets.grib import index as grib
from iobench.datasets.grib.messages import grib_messages
from iobench.datasets.sidecars import sidecar_paths
from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.stores import list_items

MEMBERS = "era5/era5-levels-members.grib"


def message(sample="regular_ll_sfc_grib1", values=None, **keys):
    handle = eccodes.codes_grib_new_from_samples(sample)
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    if values is not None:
        eccodes.codes_set_values(handle, np.asarray(values, dtype=float))
    content = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return content


@pytest.fixture
def index(tmp_path):
    return lambda *files: index_grib(files, cache_dir=tmp_path / "cache")


@pytest.fixture
def written(tmp_path):
    def write(content, name="file.grib"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def eccodes_keys(path, *keys):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield tuple(eccodes.codes_get(handle, key) for key in keys)
            eccodes.codes_release(handle)


@pytest.mark.parametrize("name", [MEMBERS, "era5/test4.grib", "era5/regular_ll_msl.grib"])
def test_columns_are_what_eccodes_says(real, index, name):
    path = real(name)
    keys = ("edition", "paramId", "shortName", "name", "units", "dataDate", "dataTime", "level")
    keys += ("typeOfLevel", "perturbationNumber", "Ni", "Nj", "numberOfValues", "gridType")
    keys += ("bitsPerValue", "totalLength", "offset", "endStep")
    found = index(path)
    ours = {"totalLength": "length", "perturbationNumber": "number", "endStep": "step"}
    columns = [found[ours.get(key, key)] for key in keys]
    assert [tuple(row) for row in zip(*columns, strict=True)] == list(eccodes_keys(path, *keys))


def test_decodes_what_cfgrib_decodes(real, index):
    path = real(MEMBERS)
    found = index(path)
    (row,) = found.rows(shortName="t", level=500, number=3, dataDate=20170102, dataTime=1200)
    with xarray.open_dataset(path, engine="cfgrib", backend_kwargs={"indexpath": ""}) as ds:
        expected = ds.t.sel(number=3, isobaricInhPa=500, time="2017-01-02T12:00").values
    (buffer,) = read_messages(found.extents([row]))
    np.testing.assert_array_equal(decode_message(buffer).reshape(61, 120), expected)


def test_float32_is_float64_rounded(real, index):
    found = index(real(MEMBERS))
    for buffer in read_messages(found.extents(range(0, 160, 20))):
        exact = decode_message(buffer, np.float64)
        np.testing.assert_array_equal(decode_message(buffer), exact.astype(np.float32))


@pytest.mark.parametrize("edition", [1, 2])
def test_missing_points_are_nan(edition):
    values = [1.0, 9999.0, 3.0] * 162 + [9999.0] * 10
    content = message(f"regular_ll_sfc_grib{edition}", values, bitmapPresent=1)
    np.testing.assert_array_equal(np.isnan(decode_message(content)), np.equal(values, 9999))


def test_a_value_of_9999_without_a_bitmap_stays():
    values = np.linspace(9998, 10000, 496)
    assert not np.isnan(decode_message(message(values=values))).any()


@pytest.mark.parametrize("edition", [1, 2])
@given(few=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_packing_round_trip(edition, few):
    values = np.resize(few, 496)
    content = message(f"regular_ll_sfc_grib{edition}", values, bitsPerValue=24)
    # The step is a power of two; GRIB1's reference value is an IBM float, good to 2**-20.
    bound = 2 * np.ptp(values) / (2**24 - 1) + abs(values).max() * 2.0**-20 + 1e-9
    np.testing.assert_allclose(decode_message(content, np.float64), values, rtol=0, atol=bound)


@pytest.mark.parametrize("packing", ["grid_simple", "grid_second_order", "grid_ccsds"])
def test_headers_of_every_packing(written, index, packing):
    edition = 2 if packing == "grid_ccsds" else 1
    values = np.random.default_rng(0).normal(280, 10, 496)
    content = message(f"regular_ll_sfc_grib{edition}", values, packingType=packing)
    found = index(written(content))
    assert (found["gridType"][0], found["numberOfValues"][0]) == ("regular_ll", 496)
    assert found["bitsPerValue"][0] == next(eccodes_keys(found.files[0], "bitsPerValue"))[0]


def test_spherical_harmonics_are_indexed(written, index):
    assert index(written(message("sh_ml_grib1")))["gridType"][0] == "sh"


def test_headers_leave_the_data_out(real):
    path = real("era5/test4.grib")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert {len(each.headers) for each in grib_messages(fd, path)} == {108}
    finally:
        os.close(fd)


def test_grib1_over_8_mib(written, index):
    values = np.random.default_rng(0).normal(0, 1, 3000 * 3000)
    content = message(values=values, Ni=3000, Nj=3000, bitsPerValue=16)
    found = index(written(content + message()))
    assert found["length"].tolist() == [len(content), len(message())]


def test_zeros_between_and_after_messages_are_padding(written, index):
    found = index(written(message() + bytes(5000) + message() + bytes(3)))
    assert len(found) == 2


def test_the_corrupted_file_gives_one_clear_error(real, index):
    path = real("era5/era5-levels-corrupted.grib")
    with pytest.raises(FileFormatError) as caught:
        index(path)
    said = str(caught.value)
    assert "\n" not in said
    assert f"{path}: the GRIB message at offset 0 is damaged" in said
    assert "1588 bytes" in said


@pytest.mark.parametrize("kept", [1, 7, 12, 15, 40, 100, -1, -4])
def test_cut_short(written, index, kept):
    first, second = message(), message()
    path = written(first + second[:kept])
    with pytest.raises(FileFormatError, match=f"offset {len(first)}"):
        index(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"CDF\x01" + bytes(100), "is not GRIB"),
        (message() + b"rubbish", "belong to no message"),
        (b"GRIB" + bytes(3) + b"\7" + bytes(100), "edition is 7"),
        (b"GRIB\0\0\x0c\1" + bytes(100), "says 12 bytes"),
    ],
)
def test_what_is_not_grib(written, index, content, reason):
    path = written(content)
    with pytest.raises(FileFormatError, match=reason) as caught:
        index(path)
    assert str(path) in str(caught.value)


def test_several_fields_in_one_message_are_refused(written, index):
    content = message("regular_ll_sfc_grib2")
    sections, end = content[16:-4], content[-4:]
    # Sections 4 to 7 once more: a second field on the same grid.
    place = 0
    while sections[place + 4] != 4:
        place += int.from_bytes(sections[place : place + 4], "big")
    body = sections + sections[place:]
    path = written(content[:8] + (20 + len(body)).to_bytes(8, "big") + body + end)
    with pytest.raises(FileFormatError, match=r"several fields.*grib_copy"):
        index(path)


def test_missing_file_and_folder(tmp_path, index):
    with pytest.raises(MissingFileError, match=r"nothing\.grib"):
        index(tmp_path / "nothing.grib")
    with pytest.raises(StorageError, match="is a folder"):
        index(tmp_path)


def test_shortened_after_indexing(written, index):
    path = written(message() * 2)
    extents = index(path).extents([0, 1])
    os.truncate(path, 100)
    with pytest.raises(FileFormatError, match="has changed since it was indexed"):
        read_messages(extents)


def test_undecodable_message_is_named():
    with pytest.raises(FileFormatError, match="m1 cannot be decoded"):
        decode_message(b"GRIB", where="m1")


def scans(monkeypatch):
    seen = []
    real_scan = grib.grib_messages
    monkeypatch.setattr(
        grib, "grib_messages", lambda fd, path: seen.append(path) or real_scan(fd, path)
    )
    return seen


def test_index_is_built_once(real, index, monkeypatch):
    path, seen = real(MEMBERS), scans(monkeypatch)
    first, second = index(path), index(path)
    assert seen == [path]
    for name in first.columns:
        np.testing.assert_array_equal(first[name], second[name])


def test_index_of_a_changed_file_is_built_again(written, index):
    path = written(message())
    assert len(index(path)) == 1
    assert len(index(written(message() * 3))) == 3


@pytest.mark.parametrize("damage", [b"", b"rubbish", "half"])
def test_damaged_index_is_built_again(real, index, damage):
    path = real(MEMBERS)
    index(path)
    sidecar = path.with_name(".iobench") / "indexes" / f"{path.name}.npz"
    content = sidecar.read_bytes()
    sidecar.write_bytes(content[: len(content) // 2] if damage == "half" else damage)
    assert len(index(path)) == 160
    assert sidecar.stat().st_size == len(content)


def test_an_index_is_marked_as_iobenchs(real, index):
    path = real(MEMBERS)
    index(path)
    [item] = list_items([path.parent])
    assert (item.kind, item.path) == ("index", path.parent / ".iobench" / "indexes")


def test_folder_that_cannot_be_written(real, tmp_path, monkeypatch):
    path = real(MEMBERS)
    path.with_name(".iobench").touch()  # in the way, as a read-only file system is
    beside, cached = sidecar_paths(path, tmp_path / "cache")
    index_grib([path], cache_dir=tmp_path / "cache")
    assert (beside.exists(), cached.exists()) == (False, True)
    seen = scans(monkeypatch)
    assert len(index_grib([path], cache_dir=tmp_path / "cache")) == 160
    assert seen == []


def test_full_disk_leaves_nothing_half_written(real, tmp_path, monkeypatch):
    def refuse(path, content):
        raise StorageError(f"{path}: the disk is full")

    path = real(MEMBERS)
    monkeypatch.setattr(sidecars, "write_atomically", refuse)
    assert len(index_grib([path], cache_dir=tmp_path / "cache")) == 160
    assert not list(tmp_path.rglob("*.npz"))


def test_progress_counts_bytes_to_the_end(real, tmp_path):
    files, calls = [real(MEMBERS), real("era5/test4.grib")], []
    index_grib(files, cache_dir=tmp_path, progress=lambda done, total: calls.append((done, total)))
    total = sum(file.stat().st_size for file in files)
    assert calls == sorted(calls)
    assert calls[-1] == (total, total)


def test_index_travels_in_a_pickle(real, index):
    found = pickle.loads(pickle.dumps(index(real(MEMBERS))))
    assert found.extents([159]) == [(str(found.files[0]), 2346840, 14752)]
