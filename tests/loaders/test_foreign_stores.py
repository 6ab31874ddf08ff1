"""Zarr and NumPy that others wrote: read as they are where that is fast, else refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.errors import StoreError
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import StoreSource

if TYPE_CHECKING:
    from pathlib import Path

VALUES = np.random.default_rng(0).normal(size=(10, 4, 6)).astype("f4")


def batch_of(store: Any, chosen: list[int]) -> dict[str, Any]:
    filler = StoreSource(store).filler()
    rows = {v.name: np.empty((len(chosen), *v.shape), v.dtype) for v in store.spec}
    filler.fill(np.array(chosen), rows, BatchLog())
    return rows


def zarr_library() -> Any:
    return pytest.importorskip("zarr", reason="writes the stores of others")


def write_zarr(path: Path, zarr_format: int, **options: Any) -> Any:
    zarr = zarr_library()
    names = {"dimension_names": ("time", "y", "x")} if zarr_format == 3 else {}
    given = {"compressors": None, "chunks": (1, 4, 6), **names, **options}
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, factor in (("T", 1), ("q", 2)):
        array = group.create_array(name, shape=VALUES.shape, dtype="f4", **given)
        if zarr_format == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = ["time", "y", "x"]
        array[...] = VALUES * factor
    return group


LAYOUTS = [
    (2, {}),
    (2, {"chunks": (4, 4, 6)}),
    (3, {}),
    (3, {"chunks": (3, 4, 6)}),
    (3, {"chunks": (1, 4, 6), "shards": (4, 4, 6)}),
    (3, {"chunks": (2, 4, 6), "shards": (6, 4, 6)}),
]


@pytest.mark.parametrize(("zarr_format", "options"), LAYOUTS)
def test_plain_zarr_is_read_as_it_is(
    tmp_path: Path, zarr_format: int, options: dict[str, Any]
) -> None:
    write_zarr(tmp_path / "a.zarr", zarr_format, **options)
    store = iobench.open_store(tmp_path / "a.zarr")
    assert len(store) == 10
    assert {v.name: (v.shape, v.dims) for v in store.spec} == {
        "T": ((4, 6), ("y", "x")), "q": ((4, 6), ("y", "x"))
    }  # fmt: skip
    assert np.array_equal(store[7]["q"], VALUES[7] * 2)
    rows = batch_of(store, [9, 0, 4, 4, 3])
    assert np.array_equal(rows["T"], VALUES[[9, 0, 4, 4, 3]])
    assert np.array_equal(rows["q"], VALUES[[9, 0, 4, 4, 3]] * 2)
    with pytest.raises(StoreError, match="nothing to verify"):
        StoreSource(store, verify=True)


def test_a_single_array_is_a_store_too(tmp_path: Path) -> None:
    zarr = zarr_library()
    array = zarr.create_array(
        tmp_path / "b.zarr", shape=(6, 5), chunks=(6, 5), dtype="i2", compressors=None
    )
    array[...] = np.arange(30).reshape(6, 5)
    rows = batch_of(iobench.open_store(str(tmp_path / "b.zarr")), [5, 2])
    assert np.array_equal(next(iter(rows.values())), np.arange(30).reshape(6, 5)[[5, 2]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compressors": "auto"}, "is compressed"),
        ({"chunks": (1, 2, 6)}, "several for a sample"),
        ({"serializer": "big"}, "big-endian"),
    ],
)
def test_other_layouts_are_refused_with_the_line_that_converts(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    zarr_library()
    from zarr.codecs import BytesCodec

    if options.get("serializer"):
        options = {"serializer": BytesCodec(endian="big")}
    write_zarr(tmp_path / "a.zarr", 3, **options)
    with pytest.raises(StoreError, match=reason) as caught:
        iobench.open_store(tmp_path / "a.zarr")
    assert f"iobench convert {tmp_path / 'a.zarr'}" in str(caught.value)


def test_chunks_that_were_never_written_are_no_zeros(tmp_path: Path) -> None:
    zarr = zarr_library()
    for name, shards in (("a", None), ("b", (2, 3))):
        array = zarr.create_array(
            tmp_path / name, shape=(6, 3), chunks=(1, 3), shards=shards, dtype="f4",
            compressors=None,
        )  # fmt: skip
        array[0:3] = 1.0
        with pytest.raises(StoreError, match="never written"):
            iobench.open_store(tmp_path / name)


def test_npy_files_of_others(tmp_path: Path) -> None:
    np.save(tmp_path / "T.npy", VALUES)
    np.save(tmp_path / "label.npy", np.arange(10))
    store = iobench.open_store(tmp_path)
    rows = batch_of(store, [3, 9, 0])
    assert np.array_equal(rows["T"], VALUES[[3, 9, 0]])
    assert rows["label"].tolist() == [3, 9, 0]
    alone = iobench.open_store(tmp_path / "T.npy")
    assert alone.spec.names == ("T",)
    assert np.array_equal(alone[2]["T"], VALUES[2])


def test_npy_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for name, values, reason in (
        ("fortran", np.asfortranarray(VALUES), "Fortran"),
        ("big", VALUES.astype(">f4"), "little-endian"),
        ("texts", np.array(["a", "b"]), "not a number"),
        ("objects", np.array([None, 1]), "little-endian"),
        ("empty", VALUES[:0], "no samples"),
        ("scalar", np.float32(1), "single number"),
        ("nothing", VALUES[:, :0], "no values"),
    ):
        np.save(tmp_path / f"{name}.npy", values)
        with pytest.raises(StoreError, match=reason):
            iobench.open_store(tmp_path / f"{name}.npy")
    (tmp_path / "none.npy").write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"no \.npy file"):
        iobench.open_store(tmp_path / "none.npy")
    folder = tmp_path / "two"
    folder.mkdir()
    np.save(folder / "a.npy", VALUES)
    np.save(folder / "b.npy", VALUES[:3])
    with pytest.raises(StoreError, match="as many samples"):
        iobench.open_store(folder)
    np.save(folder / "b.npy", VALUES)
    (folder / "b.npy").write_bytes((folder / "b.npy").read_bytes()[:-40])
    with pytest.raises(StoreError, match=r"b\.npy.*or more"):
        iobench.open_store(folder)


def test_other_folders_are_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="iobench convert"):
        iobench.open_store(tmp_path)
    with pytest.raises(StoreError, match="not a finished store"):
        iobench.open_store(tmp_path / "absent")
