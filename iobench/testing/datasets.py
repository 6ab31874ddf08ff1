"""The contract of a dataset as tests: subclass `DatasetTests`, give dataset and files."""

from __future__ import annotations

import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iobench.datasets.contract import Dataset, SampleIndex, make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.setup_processes import run_jobs
from iobench.errors import IobenchError
from iobench.testing.stores import answer_of_fork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.samples import Sample


class DatasetTests:
    """What every dataset keeps. A subclass overrides the fixtures ``dataset`` and ``files``."""

    reads_files = True
    """Whether samples come from the files that are given: not so of an object in memory."""

    @pytest.fixture
    def dataset(self) -> Dataset:
        """Return the dataset under test; the subclass gives it."""
        raise NotImplementedError("override the fixture 'dataset'")

    @pytest.fixture
    def files(self) -> list[Path]:
        """Return existing files it reads; the subclass gives them."""
        raise NotImplementedError("override the fixture 'files'")

    @pytest.fixture
    def locator(self, tmp_path: Path) -> Any:
        """Return what it may ask for a place for its indexes."""
        return FileLocator(data_dir=tmp_path, cache_dir=tmp_path)

    @pytest.fixture
    def index(self, dataset: Dataset, files: list[Path], locator: Any) -> SampleIndex:
        """Return the samples of the files."""
        return dataset.samples(files, locator)

    def test_it_keeps_the_contract(
        self, dataset: Dataset, files: list[Path], locator: Any, index: SampleIndex
    ) -> None:
        """Look at index, samples, and a copy of both: one test, for indexing may take long."""
        assert len(index) > 0, "the files hold no samples"
        assert len(index.coordinate) in (0, len(index)), "coordinate: expected a name for each"
        for name, numbers in index.splits.items():
            beyond = [number for number in numbers if not 0 <= number < len(index)]
            assert beyond == [], f"split {name} has numbers of no sample"
        check_positions(index)
        if dataset.fused[:1] != ("read",):
            n_bytes = sum(memoryview(data).nbytes for data in dataset.read(index.where[0]))
            assert n_bytes, "read returns no bytes; if decode reads, name both in 'fused'"
        # Large arrays travel to a worker as paths: a pickle must not cost a sample's memory.
        pickled = pickle.dumps((dataset, index))
        assert len(pickled) < max(1 << 20, index.spec.nbytes), "a pickle larger than a sample"
        copy, copied = pickle.loads(pickled)
        first = make_sample(dataset, index.where[0])
        before = {name: array.copy() for name, array in first.items()}
        for number in range(len(index)):
            sample = make_sample(dataset, index.where[number])
            index.spec.check(sample, where=f"sample {number}")
            other = make_sample(copy, copied.where[number])
            assert other_arrays(other, sample) == [], f"sample {number} of a copy differs"
        assert other_arrays(first, before) == [], "sample 0 is written over by a later one"
        again = dataset.samples(files, locator)  # read back from a cache
        for name in ("spec", "provenance", "position_units"):
            assert getattr(again, name) == getattr(index, name), name
        for name in ("where", "positions", "rows", "axes"):
            assert len(getattr(again, name)) == len(getattr(index, name)), name
        for name in ("positions", "rows", "axes"):
            assert list(getattr(again, name)) == list(getattr(index, name)), name

    @pytest.mark.timeout(120)
    def test_another_process_makes_the_same(self, dataset: Dataset, index: SampleIndex) -> None:
        """A forked child and one that has the pickle alone make the samples of their parent."""
        expected = make_sample(dataset, index.where[0])

        def differ() -> list[str]:
            return other_arrays(make_sample(dataset, index.where[0]), expected)

        assert answer_of_fork(differ) == [], "sample 0 of a forked child differs"
        assert differ() == [], "sample 0 differs after a fork"
        [(_, fresh)] = run_jobs(partial(make_sample, dataset), [index.where[0]], processes=0)
        assert other_arrays(fresh, expected) == [], "sample 0 of a new process differs"

    @pytest.mark.parametrize("left", [0.5, 0.0, -1], ids=["cut short", "empty", "missing"])
    def test_damage_is_named_and_nothing_else_is_read(
        self,
        dataset: Dataset,
        files: list[Path],
        locator: Any,
        tmp_path_factory: pytest.TempPathFactory,
        left: float,
    ) -> None:
        """Of files one of which is damaged, samples are what they were, or an error names it."""
        copies = copy_files(files, tmp_path_factory.mktemp("copies"))
        damaged = max((each for each in copies if each.is_file()), key=_size, default=None)
        if damaged is None or not self.reads_files:
            pytest.skip("the dataset reads no single files")
        copied = pickle.loads(pickle.dumps(dataset))
        index = copied.samples(copies, locator)
        expected = [make_sample(copied, where) for where in index.where]
        if left < 0:
            damaged.unlink()
        else:
            os.truncate(damaged, int(_size(damaged) * left))
        errors = []
        for where, before in zip(index.where, expected, strict=True):
            try:
                sample = make_sample(copied, where)
            except IobenchError as error:
                errors.append(str(error))
            else:
                assert other_arrays(sample, before) == [], f"{where}: other numbers, and no error"
        # A file that is open is there although it has no name.
        assert errors or left < 0, f"no error although {damaged.name} is damaged"
        unnamed = [error for error in errors if damaged.name not in error]
        assert unnamed == [], f"errors do not name {damaged.name}"


def copy_files(files: Sequence[Path], folder: Path) -> list[Path]:
    """Copy files and folders into a folder, as they lie below the one they share."""
    shared = Path(os.path.commonpath([file.parent for file in files] or [folder]))
    copies = []
    for file in files:
        target = folder / file.relative_to(shared)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if file.is_dir() else shutil.copyfile)(file, target)
        copies.append(target)
    return copies


def _size(file: Path) -> int:
    return file.stat().st_size


def check_positions(index: SampleIndex) -> None:
    """Check that each sample has a position or none has, strictly in order within each row."""
    assert not (index.axes and (len(index.positions) or len(index.rows)))
    assert len({axis.name for axis in index.axes}) == len(index.axes)
    n_samples = len(index)
    for axis in index.axes or (index.along(),):
        assert len(axis.positions) in ((n_samples,) if index.axes else (0, n_samples))
        assert len(axis.rows) in (0, n_samples if len(axis.positions) else 0)
        assert np.isfinite(np.asarray(axis.positions, dtype=np.float64)).all()
        by_row: dict[int, list[float]] = {}
        for number, position in enumerate(axis.positions):
            by_row.setdefault(axis.rows[number] if len(axis.rows) else 0, []).append(position)
        steps = [np.diff(positions) for positions in by_row.values()]
        is_in_order = [all((sign * step > 0).all() for step in steps) for sign in (1, -1)]
        assert any(is_in_order), "positions are not in order within each row"


def other_arrays(sample: Sample, expected: Sample) -> list[str]:
    """Return the names of arrays that differ in a bit."""
    return [name for name, array in expected.items() if sample[name].tobytes() != array.tobytes()]
