"""Zarr: gets and codecs of other threads, laid on the time line of the call that waits."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.adapters.zarr_arrays import _length, laid_out
from iobench.recording.kinds import Kind

VALUES = np.random.default_rng(3).random((40, 50))
pieces = st.lists(
    st.tuples(
        st.sampled_from([int(Kind.READ), int(Kind.DECODE)]),
        st.integers(0, 60),
        st.integers(0, 20),
        st.integers(0, 9),
    ).map(lambda piece: (piece[0], piece[1], piece[1] + piece[2], piece[3])),
    max_size=12,
)


@given(pieces)
def test_pieces_are_laid_out_as_instant_by_instant(pieces: list[Any]) -> None:
    def instants(laid: list[Any], kind: int) -> set[int]:
        return {at for k, start, end, _ in laid if k == kind for at in range(start, end)}

    laid = laid_out(pieces)
    decoding = instants(pieces, Kind.DECODE)
    assert instants(laid, Kind.DECODE) == decoding
    assert instants(laid, Kind.READ) == instants(pieces, Kind.READ) - decoding
    assert all(one[2] <= other[1] for one, other in pairwise(laid))
    told = sum(nbytes for kind, _, _, nbytes in pieces if kind == Kind.READ)
    if any(kind == Kind.READ for kind, *_ in laid):
        assert sum(nbytes for kind, _, _, nbytes in laid if kind == Kind.READ) == told


@pytest.fixture
def zarr(installed: None) -> Any:
    return pytest.importorskip("zarr", reason="reads Zarr")


@pytest.fixture
def path(zarr: Any, tmp_path: Path) -> Path:
    target = tmp_path / "a.zarr"
    if zarr.__version__.startswith("2."):
        zarr.open(str(target), "w", shape=VALUES.shape, chunks=(10, 50), dtype="f8")[:] = VALUES
    else:
        array = zarr.create_array(target, shape=VALUES.shape, chunks=(10, 50), dtype="f8")
        array[:] = VALUES
    return target


def split(watch: Any) -> tuple[list[Any], Any]:
    *inner, outer = watch.spans
    assert outer.stage == "fused:read+decode"
    assert {span.kind for span in inner} == {"read", "decode"}
    for span in inner:
        assert outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(inner))
    assert {span.thread for span in watch.spans} == {"MainThread"}
    return inner, outer


def test_a_selection_is_split_into_gets_and_codecs(watch: Any, zarr: Any, path: Path) -> None:
    array = zarr.open(str(path), mode="r")
    stored = sum(
        file.stat().st_size
        for file in path.rglob("*")
        if file.is_file() and file.name not in {"zarr.json", ".zarray", ".zattrs"}
    )
    assert np.array_equal(watch(lambda: array[:]), VALUES)
    inner, outer = split(watch)
    assert outer.nbytes == VALUES.nbytes
    assert outer.cpu_ns > 0
    assert sum(span.nbytes for span in inner if span.kind == "read") == stored


@pytest.mark.parametrize(
    "select",
    [
        lambda array: array[3],
        lambda array: array.oindex[[1, 30], :],
        lambda array: array.vindex[[1, 30], [2, 3]],
        lambda array: array.get_mask_selection(VALUES > 0.5),
    ],
)
def test_every_selection_is_one(watch: Any, zarr: Any, path: Path, select: Any) -> None:
    array = zarr.open(str(path), mode="r")
    plain = select(array)
    assert np.array_equal(watch(lambda: select(array)), plain)
    split(watch)


def test_opening_is_one_span(watch: Any, zarr: Any, path: Path) -> None:
    watch(lambda: zarr.open(str(path), mode="r"))
    assert watch.stages == ["open"]
    assert watch.spans[0].detail == str(path)


def test_shards_are_taken_apart(watch: Any, zarr: Any, tmp_path: Path) -> None:
    if zarr.__version__.startswith("2."):
        pytest.skip("version 2 of the library has no shards")
    array = zarr.create_array(
        tmp_path / "s.zarr", shape=VALUES.shape, chunks=(10, 10), shards=(20, 50), dtype="f8"
    )
    array[:] = VALUES
    assert np.array_equal(watch(lambda: array[5:25, :7]), VALUES[5:25, :7])
    split(watch)


def test_errors_are_the_library_s(watch: Any, zarr: Any, path: Path) -> None:
    array = zarr.open(str(path), mode="r")
    with pytest.raises(IndexError) as plain:
        array[100]

    def work() -> None:
        with pytest.raises(type(plain.value)) as watched:
            array[100]
        assert str(watched.value) == str(plain.value)

    watch(work)
    assert watch.stages == ["fused:read+decode"]


def test_xarray_s_load_holds_the_split(watch: Any, zarr: Any, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="loads lazy arrays")
    target = tmp_path / "x.zarr"
    xarray.Dataset({"v": (("y", "x"), VALUES)}).to_zarr(target, consolidated=False)

    def work() -> Any:
        opened = xarray.open_zarr(target, chunks=None, consolidated=False)
        return opened["v"][2:5].values

    assert np.array_equal(watch(work), VALUES[2:5])
    assert watch.stages[0] == "open"
    assert "preprocess:xarray" in watch.stages[-2:]
    assert "fused:read+decode" in watch.stages
    assert "decode" in watch.stages


def test_bytes_that_a_store_does_not_tell_are_unknown() -> None:
    read, decode = int(Kind.READ), int(Kind.DECODE)
    pieces = [(read, 0, 10, 5), (read, 5, 12, -1), (decode, 20, 30, -1), (read, 40, 50, 7)]
    assert laid_out(pieces) == [(read, 0, 12, -1), (decode, 20, 30, -1), (read, 40, 50, 7)]
    assert [_length(each) for each in (b"abc", None, {"a": b"x", "b": None}, object())] == [
        3, 0, 1, -1,
    ]  # fmt: skip
    assert _length({"a": b"x", "b": object()}) == -1
