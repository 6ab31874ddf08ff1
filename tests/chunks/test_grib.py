"""GRIB: the index of messages is what ecCodes says, and so are values, to the last bit."""

import math

import eccodes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.chunks.grib.messages import SimplePacking, decode_message, simple_packing
from iobench.datasets.source_files import index_grib
from iobench.errors import FileFormatError

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
def indexed(tmp_path):
    """Return a function that gives a file of these messages, and its index."""

    def index(*contents):
        path = tmp_path / "file.grib"
        path.write_bytes(b"".join(contents))
        return path, index_grib([path], cache_dir=tmp_path / "cache")

    return index


def eccodes_keys(path, *keys):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield tuple(eccodes.codes_get(handle, key) for key in keys)
            eccodes.codes_release(handle)


@pytest.mark.parametrize("edition", [1, 2])
def test_messages_that_differ_in_date_and_values_are_what_eccodes_says(indexed, edition):
    rng = np.random.default_rng(0)
    path, found = indexed(*(
        message(
            f"regular_ll_pl_grib{edition}",
            rng.normal(280 + 10 * n, 5, 496),
            dataDate=20191230 + n if n < 2 else 20200100 + n,
            dataTime=(0, 630, 1800)[n % 3],
            bitsPerValue=(16, 12)[n == 6],
            level=(500, 850)[n % 5 == 4],
        )
        for n in range(12)
    ))  # fmt: skip
    columns = ("dataDate", "dataTime", "level", "step", "bitsPerValue")
    told = list(eccodes_keys(path, *columns))
    assert list(zip(*(found[name].tolist() for name in columns), strict=True)) == told


def test_climatologies_whose_dates_have_no_year_are_what_eccodes_says(indexed):
    days = [message("regular_ll_pl_grib1", dataDate=20000100 + day) for day in range(1, 5)]
    # 255 as the year of the century: ecCodes tells month and day alone.
    path, found = indexed(*(each[:20] + b"\xff" + each[21:] for each in days))
    told = [date for (date,) in eccodes_keys(path, "dataDate")]
    assert 20000101 not in told
    assert found["dataDate"].tolist() == told


@pytest.mark.parametrize("name", [MEMBERS, "era5/test4.grib", "era5/regular_ll_msl.grib"])
def test_columns_are_what_eccodes_says(real, tmp_path, name):
    path = real(name)
    keys = ("edition", "paramId", "shortName", "units", "dataDate", "dataTime", "level")
    keys += ("typeOfLevel", "perturbationNumber", "Ni", "Nj", "numberOfValues", "gridType")
    keys += ("bitsPerValue", "totalLength", "offset", "endStep")
    found = index_grib([path], cache_dir=tmp_path / "cache")
    ours = {"totalLength": "length", "perturbationNumber": "number", "endStep": "step"}
    columns = [found[ours.get(key, key)] for key in keys]
    assert [tuple(row) for row in zip(*columns, strict=True)] == list(eccodes_keys(path, *keys))


@pytest.mark.parametrize("edition", [1, 2])
def test_missing_points_are_nan_and_counted(indexed, edition):
    contents = []
    for day, n_missing in enumerate((7, 30, 0), 1):
        values = [1.0, *[9999.0] * n_missing, *[3.0] * (495 - n_missing)]
        keys = {"bitmapPresent": 1} if n_missing else {}
        name = f"regular_ll_sfc_grib{edition}"
        contents.append(message(name, values, dataDate=20200100 + day, **keys))
        found = np.isnan(decode_message(contents[-1]))
        np.testing.assert_array_equal(found, np.equal(values, 9999))
    assert indexed(*contents)[1]["numberOfValues"].tolist() == [496] * 3
    assert not np.isnan(decode_message(message(values=np.linspace(9998, 10000, 496)))).any()


@pytest.mark.parametrize("sample", ["regular_gg_pl_grib1", "reduced_gg_pl_32_grib1"])
@pytest.mark.parametrize("is_constant", [False, True])
def test_values_of_gaussian_grids_are_counted(indexed, sample, is_constant):
    handle = eccodes.codes_grib_new_from_samples(sample)
    size = eccodes.codes_get_size(handle, "values")
    eccodes.codes_release(handle)
    values = np.full(size, 281.5) if is_constant else np.linspace(0, 1, size)
    path, found = indexed(*(message(sample, values, dataDate=20200101 + n) for n in range(3)))
    assert found["numberOfValues"].tolist() == [size] * 3
    assert list(eccodes_keys(path, "numberOfValues")) == [(size,)] * 3


@pytest.mark.long
def test_messages_over_8_mib_and_zeros_that_are_padding(indexed):
    values = np.random.default_rng(0).normal(0, 1, 3000 * 3000)
    content = message(values=values, Ni=3000, Nj=3000, bitsPerValue=16)
    _, found = indexed(content, message(), bytes(5000), message(), bytes(3))
    assert found["length"].tolist() == [len(content), len(message()), len(message())]


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
def test_what_is_not_grib(indexed, content, reason):
    with pytest.raises(FileFormatError, match=rf"file\.grib.*{reason}"):
        indexed(content)


def test_several_fields_in_one_message_are_refused(indexed):
    content = message("regular_ll_sfc_grib2")
    sections, end = content[16:-4], content[-4:]
    # Sections 4 to 7 once more: a second field on the same grid.
    place = 0
    while sections[place + 4] != 4:
        place += int.from_bytes(sections[place : place + 4], "big")
    body = sections + sections[place:]
    with pytest.raises(FileFormatError, match=r"several fields.*grib_copy"):
        indexed(content[:8] + (20 + len(body)).to_bytes(8, "big") + body + end)


def values_of(content):
    """What ecCodes itself says they are."""
    handle = eccodes.codes_new_from_message(content)
    found = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    return found


def packed(edition, values, **keys):
    """A message of these values on a grid that fits them."""
    grid = {"Ni": len(values) // 3, "Nj": 3}
    return message(f"regular_ll_sfc_grib{edition}", values, **grid, **keys)


def with_decimal_scale(content, scale):
    """The message with another D in its headers; ecCodes would choose bits anew."""
    packing = simple_packing(content)
    start = 8 + 26 if content[7] == 1 else packing.start - 5 - 6 - 21 + 17
    stated = abs(scale) | (0x8000 if scale < 0 else 0)
    return content[:start] + stated.to_bytes(2, "big") + content[start + 2 :]


@example(seed=1, edition=1, bits=16, decimal=-2, middle=273.15, size=999)
@given(
    seed=st.integers(0, 2**32 - 1),
    edition=st.sampled_from([1, 2]),
    bits=st.sampled_from([8, 16, 32]),
    decimal=st.integers(-4, 7),
    middle=st.sampled_from([0.0, -1e-4, 273.15, 1e5]),
    size=st.sampled_from([3, 999, 17000 * 3]),
)
def test_simply_packed_values_have_the_bits_eccodes_gives(
    seed, edition, bits, decimal, middle, size
):
    random = np.random.default_rng(seed)
    values = random.normal(middle, abs(middle) / 30 + 1e-5, size)
    content = with_decimal_scale(packed(edition, values, bitsPerValue=bits), decimal)
    packing = simple_packing(content)
    assert (packing.bits, packing.decimal_scale, packing.count) == (bits, decimal, size)
    handle = eccodes.codes_new_from_message(content)
    assert eccodes.codes_get(handle, "decimalScaleFactor") == decimal
    eccodes.codes_release(handle)
    exact = values_of(content)
    for dtype in (np.float64, np.float32):
        found = np.empty(size, dtype)
        packing.unpack(content, found)
        np.testing.assert_array_equal(found, exact.astype(dtype))
    np.testing.assert_array_equal(decode_message(content), exact.astype(np.float32))


@given(
    bits=st.sampled_from([8, 16]),
    binary_scale=st.integers(-140, 110),
    fraction=st.integers(-(2**24) + 1, 2**24 - 1),
    exponent=st.integers(-150, 100),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=5 * settings().max_examples, deadline=None)
def test_where_float32_rounds_once_it_gives_what_float64_does(
    bits, binary_scale, fraction, exponent, seed
):
    content = np.random.default_rng(seed).bytes(500 * bits // 8)
    reference = math.ldexp(fraction, exponent)
    packing = SimplePacking(bits, 500, 0, reference, binary_scale, 0)
    exact, found = np.empty(500), np.empty(500, np.float32)
    packing.unpack(content, exact)
    with np.errstate(over="ignore", under="ignore"):
        packing.unpack(content, found)
        np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.parametrize(
    ("edition", "keys"),
    [
        (1, {"bitsPerValue": 12}),
        (2, {"bitsPerValue": 24}),
        (1, {"bitmapPresent": 1}),
        (2, {"bitmapPresent": 1}),
        (2, {"packingType": "grid_ccsds"}),
        (2, {"packingType": "grid_complex"}),
        (1, {"packingType": "grid_second_order"}),
    ],
)
def test_other_packings_are_left_to_eccodes(edition, keys):
    content = packed(edition, np.linspace(0, 1, 300), **{"bitsPerValue": 16, **keys})
    assert simple_packing(content) is None
    np.testing.assert_allclose(decode_message(content), np.linspace(0, 1, 300), atol=1e-3)


@pytest.mark.parametrize("edition", [1, 2])
def test_a_damaged_message_is_left_to_eccodes(edition):
    content = packed(edition, np.linspace(0, 1, 300), bitsPerValue=16)
    for damaged in (content[:-8], content[:40], b""):
        assert simple_packing(damaged) is None
        with pytest.raises(FileFormatError, match="m1 cannot be decoded"):
            decode_message(damaged, where="m1")
    for odd in (content + bytes(4), content[:-1] + b"8", b"B" + content[1:]):
        assert simple_packing(odd) is None


@pytest.mark.parametrize("packing", ["grid_simple", "grid_ccsds"])
@pytest.mark.parametrize(
    ("sample", "keys"),
    [
        ("reduced_gg_pl_32_grib2", {}),
        ("regular_gg_pl_grib2", {}),
        ("polar_stereographic_sfc_grib2", {}),
        ("regular_ll_sfc_grib2", {"iScansNegatively": 1, "jScansPositively": 1}),
        ("regular_ll_sfc_grib2", {"jPointsAreConsecutive": 1}),
        ("regular_ll_sfc_grib2", {"alternativeRowScanning": 1}),
    ],
)
def test_grids_of_every_kind_are_in_the_order_of_the_message(sample, keys, packing):
    handle = eccodes.codes_grib_new_from_samples(sample)
    size = eccodes.codes_get(handle, "numberOfDataPoints")
    eccodes.codes_release(handle)
    values = np.random.default_rng(0).normal(280, 10, size)
    content = message(sample, values, packingType=packing, bitsPerValue=16, **keys)
    assert (simple_packing(content) is None) == (packing == "grid_ccsds")
    np.testing.assert_array_equal(decode_message(content), values_of(content).astype(np.float32))


@pytest.mark.parametrize("bits", [16, 12])
def test_decodes_into_an_array(bits):
    content = packed(1, np.linspace(1, 2, 300), bitsPerValue=bits)
    rows = np.zeros((2, 300), np.float32)
    assert decode_message(content, out=rows[1]).base is rows
    np.testing.assert_array_equal(rows[1], decode_message(content))
    assert not rows[0].any()
    with pytest.raises(FileFormatError, match="m1 has 300 values, expected 299: the file has"):
        decode_message(content, where="m1", out=rows[0, 1:])
