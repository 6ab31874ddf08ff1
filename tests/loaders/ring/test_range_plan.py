"""Parts of a grid whose dimension is not the first: values, and bytes that are read for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iobench
from iobench.errors import StoreError
from iobench.files.open_files import FileSet
from iobench.files.ranges import FileRange
from iobench.loaders.ring.grid_part import GridPartSource, PartRangesSource, part_of_grid
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.object_reads import RangeViews, joined
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.range_plan import CALL_NBYTES, GridCut, plan_of
from iobench.loaders.ring.store_source import StoreSource
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.fields import FieldLayout, FieldPart

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iobench.samples import Sample
    from iobench.stores.contract import Store

    MakeStore = Callable[..., Store]

SHAPE = (3, 40, 640)
"""Channels first: of half of the grid a channel is 50 KiB, more than a call is worth."""
SPEC = SampleSpec(
    (
        Variable("field", SHAPE, "<f4", ("channel", "y", "x"), "K", channels=("a", "b", "c")),
        Variable("other", (2, 3), "<f4", ("n", "z"), role="target"),
    )
)
FIELD_NBYTES = SPEC["field"].nbytes


def samples_of(count: int) -> list[Sample]:
    random = np.random.default_rng(3)
    return [
        {
            "field": random.normal(270, 10, SHAPE).astype("<f4"),
            "other": random.random((2, 3), "f4"),
        }
        for _ in range(count)
    ]


class CountedLog(BatchLog):
    """Adds up bytes by kind, as a recorder would be given them."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: dict[Kind, int] = {}

    @property
    def is_on(self) -> bool:
        return True

    def add(self, kind: Kind, start_ns: int, end_ns: int, *, nbytes: int = 0, **_: Any) -> None:
        self.nbytes[kind] = self.nbytes.get(kind, 0) + nbytes


def filled(source: Any, samples: list[int]) -> tuple[dict[str, Any], dict[Kind, int]]:
    """Return the rows of these samples, and the bytes of each kind of span."""
    rows = {v.name: np.empty((len(samples), *v.shape), v.dtype) for v in source.spec}
    log = CountedLog()
    filler = source.filler()
    filler.fill(np.array(samples), rows, log)
    filler.close()
    return rows, log.nbytes


@pytest.mark.parametrize("fmt", ["numpy", "zarr", "tfrecord"])
@pytest.mark.parametrize("direct", [False, "auto"])
def test_of_each_channel_no_more_than_the_part_is_read(
    make_store: MakeStore, fmt: str, direct: Any
) -> None:
    samples = samples_of(5)
    store = make_store(SPEC, samples, fmt, shards=(3, 2))
    for k in range(2):
        source = part_of_grid(StoreSource(store, direct=direct), (k, 2))
        assert isinstance(source, PartRangesSource)
        assert source.spec["field"].shape == (3, 20, 640)
        rows, nbytes = filled(source, [4, 0, 3, 0])
        for row, number in enumerate([4, 0, 3, 0]):
            half = slice(20 * k, 20 * k + 20)
            assert np.array_equal(rows["field"][row], samples[number]["field"][:, half])
            assert np.array_equal(rows["other"][row], samples[number]["other"])
        wanted = 4 * (FIELD_NBYTES // 2 + SPEC["other"].nbytes)
        assert wanted <= nbytes[Kind.READ] < wanted + 4 * 128  # and the tags of a record
        assert f"{FIELD_NBYTES // 2 + 24} that are wanted (1.00 times)" in source.choice


def test_what_lies_near_is_read_as_one(make_store: MakeStore) -> None:
    """Of 39 of 40 parts little is left out between channels: one range, less than all."""
    store = make_store(SPEC, samples_of(1), "zarr")
    fields = StoreSource(store).fields
    assert fields is not None
    plan = plan_of(fields, SPEC, {"field": GridCut(SPEC["field"], 1, 0, 39)}, CALL_NBYTES)
    assert plan is not None
    (range, other) = plan.ranges
    assert [piece.name for piece in range.pieces] == ["field", None, "field", None, "field"]
    assert range.nbytes == FIELD_NBYTES - 2560
    assert other.nbytes == SPEC["other"].nbytes


def test_tiny_ranges_are_read_whole_and_that_is_said(make_store: MakeStore) -> None:
    samples = samples_of(3)
    store = make_store(SPEC, samples, "numpy")
    source = part_of_grid(StoreSource(store), (1, 2), dim="x")
    assert isinstance(source, GridPartSource)
    rows, nbytes = filled(source, [2, 1])
    assert np.array_equal(rows["field"][0], samples[2]["field"][:, :, 320:])
    assert nbytes[Kind.READ] >= 2 * SPEC.nbytes
    assert "the part is 120 ranges, and reading all is cheaper" in source.choice
    assert "(2.00 times)" in source.choice


def test_verified_samples_are_read_whole_and_that_is_said(
    make_store: MakeStore, tmp_path: Path
) -> None:
    samples = samples_of(3)
    store = make_store(SPEC, samples, "tfrecord")
    source = part_of_grid(StoreSource(store, verify=True), (0, 2))
    rows, nbytes = filled(source, [2, 1])
    assert np.array_equal(rows["field"][1], samples[1]["field"][:, :20])
    assert nbytes[Kind.VERIFY] == nbytes[Kind.READ] >= 2 * SPEC.nbytes
    assert "a checksum is of a whole extent" in source.choice
    extent = store.extents(1)[0]
    with extent.file.open("r+b") as file:
        file.seek(extent.offset + extent.nbytes - 5)  # in the part that nobody wants
        file.write(b"?")
    with pytest.raises(StoreError, match="sample 1"):
        filled(source, [1])


def test_compressed_samples_are_read_whole(make_store: MakeStore) -> None:
    samples = samples_of(2)
    store = make_store(SPEC, samples, "zarr", options={"codec": "blosc-lz4"})
    source = part_of_grid(StoreSource(store), (1, 4))
    rows, _ = filled(source, [0, 1])
    assert np.array_equal(rows["field"][1], samples[1]["field"][:, 10:20])
    assert "they are encoded" in source.choice


def test_packed_numbers_are_unpacked_of_the_part_alone(make_store: MakeStore) -> None:
    spec = SampleSpec((Variable("field", (3, 80, 640), "<f4", ("channel", "y", "x"), "K"),))
    random = np.random.default_rng(3)
    samples = [{"field": random.normal(270, 10, (3, 80, 640)).astype("<f4")} for _ in range(2)]
    store = make_store(spec, samples, "numpy", encoding=Encoding(dtypes={"": "bfloat16"}))
    source = part_of_grid(StoreSource(store), (1, 2))
    assert isinstance(source, PartRangesSource)
    rows, nbytes = filled(source, [1, 0])
    assert np.array_equal(rows["field"][0], store[1]["field"][:, 40:])
    assert nbytes[Kind.READ] == spec.nbytes // 2  # two samples, half of the bits, half of the grid


def test_records_with_other_tags_are_decoded(tmp_path: Path, make_store: MakeStore) -> None:
    """One that a further writer appended: the same arrays in another order."""
    spec = SampleSpec(
        (Variable("b", (2, 99), "<f4", ("c", "y")), Variable("a", (2,), "<f4", ("z",)))
    )
    random = np.random.default_rng(1)
    samples = [{"b": random.random((2, 99), "f4"), "a": random.random(2, "f4")} for _ in range(4)]
    store = make_store(spec, samples, "tfrecord")
    source = StoreSource(store)
    assert source.fields is not None
    around = bytearray(source.fields.around[0])  # type: ignore[index]
    around[3] ^= 1  # all records differ from it then
    other = FieldLayout(source.fields.extents, (bytes(around),))
    cut = {"b": GridCut(spec["b"], 1, 50, 99)}
    plan = plan_of(other, spec, cut, 0)
    assert plan is not None
    made = PartRangesSource(source, store, other, plan, cut)  # type: ignore[arg-type]
    rows, nbytes = filled(made, [3, 0])
    assert np.array_equal(rows["b"][0], samples[3]["b"][:, 50:])
    assert np.array_equal(rows["a"][1], samples[0]["a"])
    assert Kind.DECODE in nbytes


def test_a_shortened_file_is_named(make_store: MakeStore) -> None:
    store = make_store(SPEC, samples_of(2), "tfrecord")
    source = part_of_grid(StoreSource(store), (1, 2))
    path = store.extents(0)[0].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=path.name):
        filled(source, [1])


def test_the_loader_tells_what_it_reads(make_store: MakeStore) -> None:
    store = make_store(SPEC, samples_of(3), "tfrecord")
    loader = iobench.loader(store, 2, grid_part=(0, 2))
    (first, _) = [batch["field"].copy() for batch in loader]
    assert np.array_equal(first[1], store[1]["field"][:, :20])
    assert "(1.00 times)" in loader.choice
    loader.close()
    plain = iobench.loader(store, 2)
    next(iter(plain))
    assert "extents of a sample: 1 by " in plain.choice
    plain.close()


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(2, 9), st.integers(1, 5)),
    axis=st.integers(0, 2),
    bounds=st.tuples(st.integers(0, 8), st.integers(1, 9)),
    call_nbytes=st.sampled_from([0, 8, 64, 4096]),
    lead=st.integers(0, 9),
)
def test_pieces_are_the_part_wherever_it_is_cut(
    shape: tuple[int, ...], axis: int, bounds: tuple[int, int], call_nbytes: int, lead: int
) -> None:
    low = min(bounds[0], shape[axis] - 1)
    high = min(shape[axis], low + bounds[1])
    variable = Variable("v", shape, "<i4", ("a", "b", "c"))
    whole = np.arange(np.prod(shape), dtype="<i4").reshape(shape)
    extent = b"t" * lead + whole.tobytes()
    parts = (FieldPart("", 0, lead),) if lead else ()
    layout = FieldLayout(((*parts, FieldPart("v", lead, whole.nbytes)),), (b"t" * lead,))
    cut = GridCut(variable, axis, low, high)
    plan = plan_of(layout, SampleSpec((variable,)), {"v": cut}, call_nbytes)
    assert plan is not None
    row = bytearray(cut.part.nbytes)
    n_read = 0
    for range in plan.ranges:
        data = extent[range.start : range.start + range.nbytes]
        at = 0
        for piece in range.pieces:
            if piece.name == "v":
                row[piece.at : piece.at + piece.nbytes] = data[at : at + piece.nbytes]
            at += piece.nbytes
        assert at == range.nbytes == len(data)
        n_read += at
    index = (slice(None),) * axis + (slice(low, high),)
    assert bytes(row) == whole[index].tobytes()
    assert plan.nbytes == n_read >= plan.wanted_nbytes == cut.part.nbytes


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(1, 9)), max_size=8))
def test_joined_ranges_fill_the_same_memory(places: list[tuple[int, int, int]]) -> None:
    files = [bytes(range(60)), bytes(range(60, 120))]
    memory = [bytearray(nbytes) for _, _, nbytes in places]
    ranges = [
        RangeViews(FileRange(file, offset, nbytes), [memoryview(one)])
        for (file, offset, nbytes), one in zip(places, memory, strict=True)
    ]
    dropped = memoryview(bytearray(3))
    for one, views in joined(ranges, dropped):
        at = one.offset
        for view in views:
            view[:] = files[one.file][at : at + len(view)]
            at += len(view)
        assert at == one.end
    for (file, offset, nbytes), one in zip(places, memory, strict=True):
        assert bytes(one) == files[file][offset : offset + nbytes]


def test_thousands_of_views_are_filled_by_several_calls(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = np.random.default_rng(0).bytes(5000)
    path.write_bytes(data)
    files = FileSet([path], {})
    memory = bytearray(4990)
    views = [memoryview(memory)[at : at + 2] for at in range(0, 4990, 2)]
    files.opened(0).fill_views(views, 7, 4997)
    assert bytes(memory) == data[7:4997]
    with pytest.raises(StoreError, match="the file ends at byte 5000, 3 bytes more"):
        files.opened(0).fill(memoryview(bytearray(10)), 4993)
    files.close()


def test_a_ring_over_parts_is_picklable_and_ordered(make_store: MakeStore) -> None:
    import pickle

    samples = samples_of(5)
    store = make_store(SPEC, samples, "tfrecord")
    source = pickle.loads(pickle.dumps(part_of_grid(StoreSource(store), (1, 2))))
    loader = RingLoader(source, BatchOrder(5, 2, shuffle=True, seed=1), threads=2)
    for number, batch in enumerate(loader):
        for row, sample in enumerate(loader.order.samples(0, number).tolist()):
            assert np.array_equal(batch["field"][row], samples[sample]["field"][:, 20:])
    loader.close()
