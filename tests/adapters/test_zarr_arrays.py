"""Zarr: gets and codecs of other threads, laid on the time line of the call that waits."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.adapters.zarr_arrays import laid_out
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
def test_pieces_are_laid_out_as_instant_by_instant(pieces):
    def instants(laid, kind):
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
def zarr(installed):
    return pytest.importorskip("zarr", reason="reads Zarr")


@pytest.fixture
def path(zarr, tmp_path):
    target = tmp_path / "a.zarr"
    if zarr.__version__.startswith("2."):
        zarr.open(str(target), "w", shape=VALUES.shape, chunks=(10, 50), dtype="f8")[:] = VALUES
    else:
        array = zarr.create_array(target, shape=VALUES.shape, chunks=(10, 50), dtype="f8")
        array[:] = VALUES
    return target


def split(watch):
    *inner, outer = watch.spans
    assert outer.stage == "fused:read+decode"
    assert {span.kind for span in inner} == {"read", "decode"}
    for span in inner:
        assert outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(inner))
    assert {span.thread for span in watch.spans} == {"MainThread"}
    return inner, outer


def test_a_selection_is_split_into_gets_and_codecs(watch, zarr, path, tmp_path):
    watch(lambda: zarr.open(str(path), mode="r"))
    assert [(span.stage, span.detail) for span in watch.spans] == [("open", str(path))]
    array = zarr.open(str(path), mode="r")
    files = [file for file in path.rglob("*") if file.is_file()]
    names = {"zarr.json", ".zarray", ".zattrs"}
    stored = sum(file.stat().st_size for file in files if file.name not in names)
    assert np.array_equal(watch(lambda: array[:]), VALUES)
    inner, outer = split(watch)
    assert (outer.nbytes, outer.cpu_ns > 0) == (VALUES.nbytes, True)
    assert sum(span.nbytes for span in inner if span.kind == "read") == stored
    with pytest.raises(IndexError) as plain:
        array[100]
    with pytest.raises(type(plain.value), match=re.escape(str(plain.value))):
        watch(lambda: array[100])


SELECTIONS = {
    "row": lambda array: array[3],
    "orthogonal": lambda array: array.oindex[[1, 30], :],
    "points": lambda array: array.vindex[[1, 30], [2, 3]],
    "mask": lambda array: array.get_mask_selection(VALUES > 0.5),
    "part": lambda array: array[5:25, :7],
}


@pytest.mark.parametrize("sharded", [False, True])
def test_every_selection_is_one(watch, zarr, path, sharded):
    if sharded and zarr.__version__.startswith("2."):
        pytest.skip("version 2 of the library has no shards")
    if sharded:
        options = {"shape": VALUES.shape, "chunks": (10, 10), "shards": (20, 50), "dtype": "f8"}
        zarr.create_array(path, overwrite=True, **options)[:] = VALUES
    array = zarr.open(str(path), mode="r")
    for name, select in SELECTIONS.items():
        plain = select(array)
        assert np.array_equal(watch(lambda select=select: select(array)), plain), name
        split(watch)


def test_each_selection_decodes_the_chunks_that_it_needs(watch, zarr, path):
    array = zarr.open(str(path), mode="r")
    chunk = VALUES.itemsize * int(np.prod(array.chunks))
    watch(lambda: (array[0], array[0], array[:]))
    first, again, whole = watch.counters
    n_across = -(-VALUES.shape[1] // array.chunks[1])
    assert first.nbytes == again.nbytes == n_across * chunk
    assert first.cpu_ns == VALUES[0].nbytes
    assert (whole.cpu_ns, whole.label) == (VALUES.nbytes, "")
    assert first.detail == f"{path}:"
