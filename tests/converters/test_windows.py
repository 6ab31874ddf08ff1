"""Windows: each chunk is read and decoded once, whatever the memory; samples are as made alone."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path

import h5netcdf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.chunks import sampled_variable
from iobench.datasets.contract import make_sample, no_progress
from iobench.datasets.sample_windows import SampleProducer, cut_stacks, plan_windows
from iobench.datasets.user_files import UserFiles
from iobench.errors import OptionError

DIMS = ("t", "n", "y", "x")


class Places:
    stand_in = False
    progress = staticmethod(no_progress)

    def __init__(self, folder):
        self.cache_dir = folder


def opened(paths, sample_dim):
    dataset = UserFiles(paths, sample_dim=sample_dim)
    places = Places(paths[0].parent / "cache")
    return dataset, dataset.samples(dataset.files(places), places)


def netcdf(path, shape, variables, *, first=0):
    """Write variables: name to dimensions, chunks (None: contiguous), attributes."""
    rng = np.random.default_rng(first)
    with h5netcdf.File(path, "w") as file:
        file.dimensions = dict(zip(DIMS, shape, strict=True))
        file.create_variable("t", ("t",), data=first + np.arange(float(shape[0])))
        for name, (dims, chunks, packed) in variables.items():
            lengths = [shape[DIMS.index(dim)] for dim in dims]
            values = rng.integers(-900, 900, lengths).astype("i2" if packed else "f4")
            codec = {} if chunks is None else {"compression": "gzip", "shuffle": True}
            made = file.create_variable(
                name, dims, data=values, chunks=chunks, fillvalue=-1 if packed else None, **codec
            )
            if packed:
                made.attrs.update(scale_factor=0.01, add_offset=3.0)
    return path


def produced(dataset, index, parts, **more):
    """Return all samples that are produced, by stacks."""
    found = []
    options = {"workers": 2, "memory_nbytes": 64 << 20} | more
    with SampleProducer(dataset, index, **options) as producer:
        for stack in producer.stacks(parts):
            rows = {name: values.copy() for name, values in stack.rows.items()}
            found += [{n: each[i] for n, each in rows.items()} for i in range(len(stack))]
    return found


ORDERS = [DIMS, DIMS[::-1], ("t", "y"), ("y", "t"), ("y", "t", "x"), ("t",)]
lengths = st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 7), st.integers(1, 6))


@st.composite
def sources(draw):
    shape = draw(lengths)
    variables = {}
    for name in ("a", "b"):
        dims = draw(st.sampled_from(ORDERS))
        own = [shape[DIMS.index(dim)] for dim in dims]
        chunks = draw(st.none() | st.tuples(*(st.integers(1, n) for n in own)))
        variables[name] = dims, chunks, draw(st.booleans())
    return shape, variables


@pytest.mark.long
@settings(max_examples=12)
@given(
    sources(),
    st.sampled_from(["t", "t,n"]),
    st.integers(1, 3),
    st.integers(0, 99),
    st.sampled_from([1 << 15, 1 << 26]),
)
def test_samples_are_as_made_alone(source, sample_dim, n_files, seed, memory) -> None:
    shape, variables = source
    if sample_dim == "t,n" and any("n" not in dims for dims, _, _ in variables.values()):
        sample_dim = "t"
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            netcdf(Path(folder, f"{n}.nc"), shape, variables, first=100 * n) for n in range(n_files)
        ]
        dataset, index = opened(paths, sample_dim)
        numbers = np.random.default_rng(seed).permutation(len(index))[: 1 + seed]
        parts = np.array_split(numbers if seed % 2 else np.sort(numbers), 1 + seed % 3)
        parts = [part for part in parts if len(part)]
        found = produced(dataset, index, parts, memory_nbytes=memory, passes=1 << 20)
        assert len(found) == sum(map(len, parts))
        for number, sample in zip(np.concatenate(parts), found, strict=True):
            expected = make_sample(dataset, index.where[int(number)])
            assert sample.keys() == expected.keys()
            for name, values in expected.items():
                assert sample[name].dtype == values.dtype
                np.testing.assert_array_equal(sample[name], values)


@pytest.fixture
def decoded(monkeypatch):
    """Count how often each chunk is read to be decoded."""
    counts, read = Counter(), sampled_variable.read_chunks

    def counted(wanted, **more):
        counts.update((file, variable.name, place) for file, variable, place in wanted)
        return read(wanted, **more)

    monkeypatch.setattr(sampled_variable, "read_chunks", counted)
    return counts


LONG = {"a": (("t", "y", "x"), (64, 10, 10), False), "b": (("t", "x"), (16, 40), True)}


@pytest.fixture
def long_chunks(tmp_path):
    """Chunks of 64 samples, of 41 KB decoded; 10 MB in all, 7 KB a sample."""
    path = netcdf(tmp_path / "a.nc", (1500, 1, 40, 40), LONG)
    return opened([path], "t")


@pytest.mark.long
@pytest.mark.parametrize(
    ("memory", "in_scratch"), [(64 << 20, False), (3 << 20, True), (300_000, True)]
)
def test_each_chunk_is_decoded_once(long_chunks, decoded, memory, in_scratch, tmp_path) -> None:
    dataset, index = long_chunks
    parts = [range(start, min(1500, start + 333)) for start in range(0, 1500, 333)]
    with SampleProducer(dataset, index, workers=2, memory_nbytes=memory) as producer:
        plan = producer.plan(parts)
    assert (plan.scratch_nbytes > 0) == in_scratch
    found = produced(dataset, index, parts, memory_nbytes=memory, scratch=tmp_path)
    assert set(decoded.values()) == {1}
    assert len(decoded) == 16 * -(-1500 // 64) + -(-1500 // 16)
    for number in (0, 332, 333, 1499):
        for name, values in make_sample(dataset, index.where[number]).items():
            np.testing.assert_array_equal(found[number][name], values)
    assert not [path for path in tmp_path.iterdir() if "scratch" in path.name]


@pytest.mark.long
def test_what_neither_memory_nor_scratch_holds_needs_passes(tmp_path, monkeypatch) -> None:
    shape = (1500, 1, 40, 40)
    path = netcdf(tmp_path / "a.nc", shape, {"a": (("t", "y", "x"), (1500, 10, 10), False)})
    dataset, index = opened([path], "t")
    monkeypatch.setattr("iobench.datasets.sample_windows.is_in_memory", lambda folder: True)
    arguments = {"workers": 2, "memory_nbytes": 3 << 20}
    with pytest.raises(OptionError, match=r"decoded \d+\.\d times.*or --passes \d"):
        produced(dataset, index, [range(1500)], **arguments)
    found = produced(dataset, index, [range(1500)], passes=100, **arguments)
    expected = make_sample(dataset, index.where[1499])
    np.testing.assert_array_equal(found[1499]["a"], expected["a"])


def test_a_memory_that_holds_no_chunk_is_refused_with_what_works(long_chunks) -> None:
    dataset, index = long_chunks
    with pytest.raises(OptionError, match=r"the smallest that works is --memory (\d+)KiB") as told:
        produced(dataset, index, [range(1500)], memory_nbytes=1000)
    least = int(str(told.value).rsplit("--memory ", 1)[1].removesuffix("KiB")) << 10
    produced(dataset, index, [range(3)], memory_nbytes=least, passes=1 << 20)


@pytest.mark.long
def test_blocks_do_not_depend_on_memory_or_threads(long_chunks) -> None:
    dataset, index = long_chunks
    found = []
    for workers, memory in ((1, 1 << 20), (4, 1 << 28)):
        with SampleProducer(dataset, index, workers=workers, memory_nbytes=memory) as producer:
            stacks = producer.stacks([range(700), range(700, 1500)])
            found.append([list(stack.numbers) for stack in stacks])
    assert found[0] == found[1]
    assert list(itertools.chain.from_iterable(found[0])) == list(range(1500))


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=181, max_size=181),
    st.integers(1, 50),
    st.integers(1, 9),
    st.integers(1, 7),
)
@example([10, 10], [0] * 181, 5, 1, 4)
def test_windows_tile_the_parts(lengths, shared, most, least, stack_length) -> None:
    ends = np.cumsum(lengths).tolist()
    across = np.array(shared)
    cuts = cut_stacks(lengths, stack_length, np.flatnonzero(across == 0))
    assert cuts[-1] == ends[-1]
    assert set(ends) <= set(cuts)
    assert np.diff([0, *cuts]).min() > 0
    assert np.diff([0, *cuts]).max() <= stack_length
    windows = plan_windows(across, ends, cuts, most=most, least=least)
    assert [windows[0][0], *(stop for _, stop in windows)] == [
        *(start for start, _ in windows), ends[-1]
    ]  # fmt: skip
    for start, stop in windows:
        assert start < stop
        assert stop in cuts
        assert stop - start <= max(most, stack_length)
        covers_parts = start in [0, *ends] and stop in ends
        assert covers_parts or stop <= min(each for each in ends if each > start)


def test_blocks_end_with_rows_of_chunks_and_do_not_know_other_parts() -> None:
    edges = np.array([0, 3, 6, 9, 12, 15])
    assert cut_stacks([15], 7, edges) == [6, 12, 15]
    assert cut_stacks([15], 2, edges) == [2, 3, 5, 6, 8, 9, 11, 12, 14, 15]
    assert cut_stacks([5, 10], 7, edges) == [5, 12, 15]
    assert cut_stacks([4, 4], 3) == [3, 4, 7, 8]
