"""The contract of a store format as tests: subclass `StoreTests`, set ``format``, run pytest."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from iobench.datasets.contract import SampleIndex
from iobench.errors import IobenchError, StoreError
from iobench.files.crc32c import crc32c
from iobench.samples import Packed, Sample, SampleSpec, Variable
from iobench.stores.finished_store import CHECKSUMS_NAME, finish_store, read_checksums
from iobench.stores.manifest import MANIFEST_NAME, Manifest, read_manifest
from iobench.stores.plan import chunk_samples
from iobench.stores.shard_writer import ShardPlan
from iobench.stores.verification import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.stores.contract import Format, Store

DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8")
EVERY_DTYPE = SampleSpec(
    (
        *(Variable(f"v_{np.dtype(dtype).name}", (3, 5), dtype, ("y", "x")) for dtype in DTYPES),
        Variable("scalar", (), "f4", ()),
        Variable("large", (3, 80, 80), "f4", ("c", "y", "x")),
    )
)
"""One variable of each dtype, a scalar, and one that is too large for any small path."""

ONE_LARGE = SampleSpec(
    tuple(Variable(name, (160, 161), "f4", ("y", "x"), role="input") for name in ("x", "y/2"))
)
"""Variables of more than 64 KiB each; one name is no file name."""

PACKED = SampleSpec(
    (
        Variable("scaled", (3, 5), "i2", ("y", "x"), packed=Packed("<f4", 0.5, -3.0)),
        Variable("plain", (3, 5), "i2", ("y", "x")),
    )
)
"""Numbers that are stored instead of values, beside some that are values."""


def random_sample(spec: SampleSpec, seed: int) -> dict[str, NDArray[Any]]:
    """Return a sample of random bits: NaNs with payloads, -0.0, subnormals and all."""
    random = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {}
    for variable in spec:
        high = 2 if variable.dtype == "|b1" else 256
        raw = random.integers(0, high, variable.nbytes, dtype=np.uint8)
        arrays[variable.name] = raw.view(variable.dtype).reshape(variable.shape)
    return arrays


def write_store(
    path: Path,
    fmt: Format,
    spec: SampleSpec,
    samples: Sequence[Sample],
    *,
    shard_n_samples: int = 2,
    options: Mapping[str, str] | None = None,
) -> Store:
    """Write a finished store of these samples and open it; shards are of whole chunks."""
    path.mkdir(parents=True, exist_ok=True)
    unit = chunk_samples(fmt, options or {})
    shard_n_samples = -(-shard_n_samples // unit) * unit
    encode, finished = fmt.encoder(spec, options or {}), []
    for shard, at in enumerate(range(0, len(samples), shard_n_samples)):
        own = samples[at : at + shard_n_samples]
        plan = ShardPlan(shard, len(own), shard_n_samples)
        writer = fmt.writer(path, spec, plan, options or {})
        parts = [own[start : start + 2 * unit] for start in range(0, len(own), 2 * unit)]
        with ThreadPoolExecutor(1) as pool:  # as conversions encode, in a thread
            for each in pool.map(lambda part: encode(side_by_side(spec, part)), parts):
                writer.append(each)
        finished.append(writer.close())
    manifest = Manifest(
        format=fmt.name,
        format_version=fmt.version,
        spec=spec,
        shards=tuple(info.shard for info in finished),
        samples=range(len(samples)),
        options=options or {},
    )
    finish_store(
        path,
        fmt,
        manifest,
        checksums=[crc for info in finished for crc in info.checksums],
        n_samples=shard_n_samples,
        index=SampleIndex(spec, range(len(samples)), positions=range(len(samples))),
    )
    return fmt.open(path, read_manifest(path))


def side_by_side(spec: SampleSpec, samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
    """Return samples as a format is given them: for each variable an array with a row for each."""
    return {name: np.stack([sample[name] for sample in samples]) for name in spec.names}


class StoreTests:
    """What every format keeps. A subclass sets ``format`` and may set ``options``.

    Examples
    --------
    >>> class TestMine(StoreTests):  # doctest: +SKIP
    ...     format = FORMAT
    """

    format: ClassVar[Format]
    options: ClassVar[Mapping[str, str]] = {}
    n_samples: ClassVar[int] = 5

    @pytest.fixture(params=[EVERY_DTYPE, ONE_LARGE], ids=["every-dtype", "one-large"])
    def spec(self, request: pytest.FixtureRequest) -> SampleSpec:
        """Return what the samples are."""
        spec: SampleSpec = request.param
        return spec

    @pytest.fixture
    def samples(self, spec: SampleSpec) -> list[dict[str, NDArray[Any]]]:
        """Return samples of random bits."""
        return [random_sample(spec, seed) for seed in range(self.n_samples)]

    @pytest.fixture
    def store(
        self, tmp_path: Path, spec: SampleSpec, samples: list[dict[str, NDArray[Any]]]
    ) -> Store:
        """Return a finished store of these samples in three shards."""
        return self.write(tmp_path / "store", spec, samples)

    def write(self, path: Path, spec: SampleSpec, samples: Sequence[Sample]) -> Store:
        """Write and open a store of the format."""
        return write_store(path, self.format, spec, samples, options=dict(self.options))

    def test_round_trip_is_bit_for_bit(
        self, store: Store, samples: list[dict[str, NDArray[Any]]]
    ) -> None:
        assert len(store) == len(samples)
        for index, sample in enumerate(samples):
            assert_same_bits(store[index], sample)
            store.spec.check(store[index], where=f"sample {index}")

    def test_packed_numbers_are_read_as_values(self, tmp_path: Path) -> None:
        samples = [random_sample(PACKED, seed) for seed in range(3)]
        store = self.write(tmp_path / "packed", PACKED, samples)
        assert store.spec == PACKED.unpacked
        for index, sample in enumerate(samples):
            scaled = (sample["scaled"].astype("<f8") * 0.5 - 3.0).astype("<f4")
            assert_same_bits(store[index], {"scaled": scaled, "plain": sample["plain"]})

    def test_many_at_once_are_the_same(self, store: Store) -> None:
        for result, index in zip(store.__getitems__([4, 0, 4]), [4, 0, -1], strict=True):
            assert_same_bits(result, store[index])
        with pytest.raises(IndexError):
            store[len(store)]

    def test_extents_lie_in_listed_files(self, store: Store) -> None:
        listed = {file.name: file.nbytes for shard in store.manifest.shards for file in shard.files}
        ends: dict[str, int] = {}
        for index in range(len(store)):
            before = store.extents(index - 1) if index else []
            for extent in (each for each in store.extents(index) if each not in before):
                name = extent.file.relative_to(store.path).as_posix()
                assert ends.get(name, 0) <= extent.offset
                ends[name] = extent.offset + extent.nbytes
        assert all(end <= listed[name] for name, end in ends.items())

    def test_checksums_are_those_of_the_extents(self, store: Store) -> None:
        raw = [data for i in range(len(store)) for data in store.read(store.extents(i))]
        checksums = read_checksums(store.path, len(raw))
        assert checksums.tolist() == [crc32c(data) for data in raw]

    def test_it_is_as_the_manifest_says_and_the_same_if_written_again(
        self, store: Store, tmp_path: Path, samples: list[dict[str, NDArray[Any]]]
    ) -> None:
        assert verify_store(store) > 0
        names = files_below(store.path)
        assert {file.name for file in store.manifest.files} | {MANIFEST_NAME} == names
        again = self.write(tmp_path / "again", store.spec, samples)
        for name in names:
            assert (again.path / name).read_bytes() == (store.path / name).read_bytes(), name

    def test_pickled_and_closed_stores_read_the_same(self, store: Store) -> None:
        before = store[3]
        for _ in range(2):
            assert_same_bits(pickle.loads(pickle.dumps(store))[3], before)
            store.close()
            assert_same_bits(store[3], before)

    def test_threads_read_the_same(self, store: Store) -> None:
        expected = [store[index] for index in range(len(store))]
        with ThreadPoolExecutor(4) as pool:
            result = list(pool.map(lambda step: store[step % len(store)], range(40)))
        for step, sample in enumerate(result):
            assert_same_bits(sample, expected[step % len(store)])

    @pytest.mark.timeout(60)
    def test_forked_child_reads_the_same(self, store: Store) -> None:
        expected = crc32c(store.read(store.extents(2))[0])
        assert answer_of_fork(lambda: crc32c(store.read(store.extents(2))[0])) == expected
        assert crc32c(store.read(store.extents(2))[0]) == expected

    @pytest.mark.parametrize("is_cut", [True, False], ids=["truncated", "missing"])
    def test_every_damaged_file_is_named(self, store: Store, is_cut: bool) -> None:
        for file in (each for each in store.manifest.files if each.name != CHECKSUMS_NAME):
            path = store.path / file.name
            whole = path.read_bytes()
            path.unlink()
            if is_cut:
                path.write_bytes(whole[:-1])
            with pytest.raises(StoreError, match=file.name):
                self.format.open(store.path, read_manifest(store.path)).index()
            path.write_bytes(whole)

    def test_file_cut_while_open_is_named(self, store: Store) -> None:
        extent = store.extents(0)[-1]
        os.truncate(extent.file, extent.offset + extent.nbytes - 1)
        with pytest.raises(StoreError, match=extent.file.name):
            store.read([extent])

    def test_one_flipped_bit_is_found(self, store: Store) -> None:
        extent = store.extents(4)[0]
        offset = extent.offset + extent.nbytes // 2
        flip_bit(extent.file, offset)
        with pytest.raises(StoreError, match=rf"{extent.file.name}.*samples? (\d to )?4"):
            verify_store(store)
        flip_bit(extent.file, offset)
        name = store.manifest.shards[1].files[0].name
        flip_bit(store.path / name, 0)  # outside of samples
        with pytest.raises(StoreError, match=name):
            verify_store(store)

    def test_nothing_appears_before_close(self, tmp_path: Path, spec: SampleSpec) -> None:
        rows = side_by_side(spec, [random_sample(spec, 0)])
        writer = self.format.writer(tmp_path, spec, ShardPlan(), self.options)
        writer.append(self.format.encoder(spec, self.options)(rows))
        assert all(file.name.startswith(".") for file in tmp_path.iterdir())
        writer.abort()
        with pytest.raises(IobenchError, match="no-such-option"):
            self.format.encoder(spec, {"no-such-option": "1"})
        assert not list(tmp_path.iterdir())


def assert_same_bits(found: Sample, expected: Sample) -> None:
    """Check that two samples are equal in names, order, dtypes, shapes and bits."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), f"{name} differs"


def files_below(folder: Path) -> set[str]:
    """Return the names of all files below a folder, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def flip_bit(file: Path, offset: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def answer_of_fork(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked child; of an error of iobench's, its text."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        answer: Any = None  # of another error, which is printed and ends with 1
        try:
            answer = function()
        except IobenchError as error:
            answer = str(error)
        finally:
            answers.put(answer)
        os._exit(0)

    process = context.Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        process.start()
    answer = answers.get()
    process.join(60)
    assert process.exitcode == 0, "the forked child ended with an error; stderr has its traceback"
    return answer
